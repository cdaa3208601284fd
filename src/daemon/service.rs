//! The service's life: ready, alive, stopping.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api::Connections;
use crate::engine::{Engine, ModelState};

use super::config::Settled;
use super::socket::Socket;

/// An engine that has something to do and has done nothing for this long hangs: the watchdog is fed no more. A pass
/// over the weights of a large model on a slow disk takes minutes.
const HANGS: Duration = Duration::from_secs(600);

/// What connections get beyond the answers' grace, to send what is left.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long saving may take at the end. Below the unit's TimeoutStopSec=.
const SAVING: Duration = Duration::from_secs(60);

/// Serves until a signal ends it.
pub(super) async fn serve(settled: &Settled, mut socket: Socket, engine: Engine) -> Result<(), String> {
    let said = |e: std::io::Error| format!("can't serve: {e}");
    let mut signals = Signals::new().map_err(said)?;
    let listener = socket.take().ok_or("the socket is in use")?;
    let connections = Connections::new(listener, engine.clone(), settled.api.clone()).map_err(said)?;
    tell(&[NotifyState::Ready, NotifyState::Status("ready, no model is open")]);
    log::info!("ready, default model {}", settled.engine.models[0].name);
    let died = tokio::select! {
        name = signals.end() => { log::info!("stopping: {name}"); false }
        () = connections.accept() => false,
        () = follow(&engine) => true,
        () = feed(&engine) => false,
    };
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    if died {
        return Err("the engine has died: see above".into());
    }
    engine.stop(settled.grace);
    tokio::select! {
        () = connections.stop() => {}
        () = tokio::time::sleep(settled.grace + LAST_WORDS) => log::warn!("some clients didn't read to the end"),
        name = signals.end() => log::warn!("stopping at once: {name}"),
    }
    drop(socket);
    // What breaks off is saved, also if nobody waits for it.
    if tokio::time::timeout(SAVING, follow(&engine)).await.is_err() {
        log::error!("sessions are still being saved: what isn't on the disk yet is lost");
    }
    log::info!("stopped");
    Ok(())
}

/// Tells systemd, where it listens.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        log::warn!("can't notify systemd: {e}");
    }
}

/// Keeps the status line of the service right; returns when the engine is no more.
async fn follow(engine: &Engine) {
    let mut model = engine.model();
    while model.changed().await.is_ok() {
        let status = match &*model.borrow_and_update() {
            ModelState::Closed => "ready, no model is open".to_owned(),
            ModelState::Opening(name) => format!("opening model {name}"),
            ModelState::Open(name) => format!("model {name} is open"),
        };
        tell(&[NotifyState::Status(&status)]);
    }
}

/// Feeds the watchdog for as long as the engine is alive.
async fn feed(engine: &Engine) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(limit / 2);
    loop {
        ticks.tick().await;
        if engine.alive(HANGS) {
            tell(&[NotifyState::Watchdog]);
        } else {
            log::error!("the engine hangs");
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that ends the service, and names it.
    async fn end(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => log::warn!("SIGHUP: the configuration is read at the start only: restart"),
            }
        }
    }
}
