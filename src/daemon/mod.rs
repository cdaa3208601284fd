//! Being a good service: configuration, the socket, readiness, watchdog, signals, logging.

mod config;
mod flags;
mod layers;
mod logging;
mod presence;
mod pressure;
mod service;
mod sleep;
mod socket;
mod tcp;

use std::process::ExitCode;

use clap::Parser;
use listenfd::ListenFd;

use crate::engine::Engine;

pub use config::{Config, OwnPlaces, SYSTEM_SOCKET, Settled};
pub use flags::Flags;

/// For a configuration that can't be used; systemd has a name for it (EX_CONFIG).
const BAD_CONFIGURATION: u8 = 78;

/// Runs `kadenced` with the arguments and the environment of the process.
pub fn main() -> ExitCode {
    run(&Flags::parse())
}

/// Is the daemon. To be called before the process has a second thread.
pub fn run(flags: &Flags) -> ExitCode {
    // It takes what systemd says out of the environment.
    let sockets = ListenFd::from_env();
    let settled = match flags.settle() {
        Ok(settled) => settled,
        Err(why) => {
            eprintln!("kadenced: {why}");
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    if flags.check_config {
        return check(&settled);
    }
    match serve(flags, &settled, sockets) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log::error!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Says what the configuration comes to, and whether the models' files can be read.
fn check(settled: &Settled) -> ExitCode {
    println!("{settled}");
    let unreadable =
        settled.engine.models.iter().find_map(|m| Some((m, std::fs::File::open(&m.path).err()?)));
    if let Some((model, why)) = unreadable {
        let path = model.path.display();
        eprintln!("kadenced: model {}: {path}: {why}: correct its path, or let kadenced read it", model.name);
        return ExitCode::from(BAD_CONFIGURATION);
    }
    ExitCode::SUCCESS
}

fn serve(flags: &Flags, settled: &Settled, sockets: ListenFd) -> Result<(), String> {
    logging::start(settled.log)?;
    let socket = socket::Socket::open(sockets, &settled.socket, settled.user)?;
    let engine = Engine::start(settled.engine.clone()).map_err(|e| format!("can't start a thread: {e}"))?;
    // One thread for all connections: they wait for the engine's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("can't start: {e}"))?;
    runtime.block_on(service::serve(flags, settled, socket, engine))
}
