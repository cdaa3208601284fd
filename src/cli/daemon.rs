//! Finding the daemon, or starting one for the user.

use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::daemon::{Flags, OwnPlaces, SYSTEM_SOCKET};

use super::Failure;
use super::client::Client;
use super::terminal::Progress;

/// How long a daemon may take until it answers; on a busy machine with a slow disk, too.
const START: Duration = Duration::from_secs(60);
/// A log that is longer than this begins anew.
const LOG: u64 = 1 << 20;

/// Which daemon is asked.
#[derive(clap::Args)]
pub struct Place {
    /// Ask the daemon that listens here [default: the user's, the system's, or one that is started]
    #[arg(long, value_name = "PATH", env = "KADENCE_SOCKET", global = true)]
    socket: Option<PathBuf>,
}

impl Place {
    /// Whether a certain daemon is meant. Another is then never started.
    pub fn named(&self) -> bool {
        self.socket.is_some()
    }

    /// The daemon: that of the named socket, or the user's, or the system's, whichever answers; else one is started.
    /// With `own` it is not the system's, which can't open the user's files.
    ///
    /// # Errors
    /// If none can be had, with the reason.
    pub fn client(&self, own: bool) -> Result<Client, Failure> {
        if let Some(socket) = &self.socket {
            return Client::new(socket.clone());
        }
        let places = OwnPlaces::find().map_err(Failure::new)?;
        let answers = |socket: &Path| UnixStream::connect(socket).is_ok();
        if answers(&places.socket) {
            return Client::new(places.socket);
        }
        if !own && answers(Path::new(SYSTEM_SOCKET)) {
            return Client::new(SYSTEM_SOCKET.into());
        }
        start(&places)?;
        Client::new(places.socket)
    }
}

/// Starts a daemon that outlives this program, and waits until it answers.
fn start(places: &OwnPlaces) -> Result<(), Failure> {
    let folder = &places.state_dir;
    let fail = |what: &Path, e: std::io::Error| Failure::in_file(what, &format!("can't start kadenced: {e}"));
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| fail(folder, e))?;
    let path = folder.join("kadenced.log");
    let open = || File::options().create(true).append(true).read(true).mode(0o600).open(&path);
    let mut log = open().map_err(|e| fail(&path, e))?;
    // One at a time: who comes second finds the daemon of the first.
    flock(&log, FlockOperation::LockExclusive).map_err(|e| fail(&path, e.into()))?;
    if UnixStream::connect(&places.socket).is_ok() {
        return Ok(());
    }
    if log.metadata().is_ok_and(|m| m.len() > LOG) {
        log.set_len(0).map_err(|e| fail(&path, e))?;
    }
    let before = log.seek(SeekFrom::End(0)).map_err(|e| fail(&path, e))?;
    let program = std::env::current_exe()?;
    let mut child = Command::new(&program)
        .args(["daemon", "--user"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(open().map_err(|e| fail(&path, e))?)
        .spawn()
        .map_err(|e| fail(&program, e))?;
    let (begun, mut progress) = (Instant::now(), Progress::default());
    while UnixStream::connect(&places.socket).is_err() {
        let ended = child.try_wait()?.is_some();
        if ended || begun.elapsed() > START {
            let mut said = String::new();
            let _ = log.seek(SeekFrom::Start(before)).and_then(|_| log.read_to_string(&mut said));
            let why = said.lines().last().unwrap_or("it doesn't say why").trim_start_matches("kadenced: ");
            let why = why.trim_start_matches("error: ");
            return Err(Failure::new(format!("kadenced doesn't start: {why} (see {})", path.display())));
        }
        std::thread::sleep(Duration::from_millis(10));
        if begun.elapsed() > Duration::from_secs(1) {
            progress.show("starting kadenced", begun.elapsed());
        }
    }
    Ok(())
}

/// Is the daemon, in a session of its own that no terminal ends.
pub fn run(flags: &Flags) -> ExitCode {
    let _ = rustix::process::setsid(); // who leads a process group already was started by a shell, and stays there
    crate::daemon::run(flags)
}
