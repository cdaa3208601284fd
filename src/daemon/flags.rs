//! The command line of `kadenced`.

use std::path::PathBuf;

use super::config::Settled;
use super::layers;

/// Answers over a Unix socket, with the models of this machine.
#[derive(clap::Parser, Debug, Default)]
#[command(name = "kadenced", version, about)]
pub struct Flags {
    /// Serve one user: configuration in ~/.config/kadence, socket in $XDG_RUNTIME_DIR/kadence
    #[arg(long)]
    pub user: bool,
    /// Read this file (and the drop-ins in FILE.d) instead of the usual ones
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen here
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Keep sessions here
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// The default model: a name of the configuration, or a file
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Threads that compute [default: as many as the process may use]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// What to log: error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Say whether the configuration is fine and what it comes to, and end
    #[arg(long)]
    pub check_config: bool,
}

impl Flags {
    /// The configuration: files, then drop-ins, then the environment, then these flags; what comes later counts.
    ///
    /// # Errors
    /// One line: the file, the place in it, what is wrong and what would be right.
    pub fn settle(&self) -> Result<Settled, String> {
        let mut config = layers::read(self.config.as_deref(), self.user)?;
        let Flags { socket, state_dir, model, threads, log, .. } = self;
        config.socket = socket.clone().or(config.socket);
        config.state_dir = state_dir.clone().or(config.state_dir);
        config.model = model.clone().or(config.model);
        config.threads = threads.or(config.threads);
        config.log = log.clone().or(config.log);
        config.settle(self.user)
    }
}
