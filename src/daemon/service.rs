//! The service's life: ready, alive, stopping.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api::Connections;
use crate::engine::{Engine, ModelState};

use super::config::Settled;
use super::flags::Flags;
use super::presence;
use super::pressure;
use super::socket::Socket;
use super::tcp::Tcp;

/// An engine that has something to do and has done nothing for this long hangs: the watchdog is fed no more. A pass
/// over the weights of a large model on a slow disk takes minutes.
const HANGS: Duration = Duration::from_secs(600);

/// What connections get beyond the answers' grace, to send what is left.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long saving may take at the end. Below the unit's TimeoutStopSec=.
const SAVING: Duration = Duration::from_secs(60);

/// Serves until something ends it.
pub(super) async fn serve(
    flags: &Flags,
    settled: &Settled,
    mut socket: Socket,
    engine: Engine,
) -> Result<(), String> {
    let said = |e: std::io::Error| format!("can't serve: {e}");
    let mut signals = Signals::new().map_err(said)?;
    let listener = socket.take().ok_or("the socket is in use")?;
    let tcp = settled.tcp.as_ref().map(Tcp::open).transpose()?;
    let connections = Connections::new(listener, tcp, engine.clone(), settled.api.clone()).map_err(said)?;
    tell(&[NotifyState::Ready, NotifyState::Status("ready, no model is open")]);
    log::info!("ready, default model {}", settled.engine.models[0].name);
    let calls = Arc::new(AtomicU64::new(0));
    let end = tokio::select! {
        name = signals.end(|| reload(flags, &engine, &connections)) => End::Told(name),
        () = connections.accept() => End::Told("no more connections"),
        () = follow(&engine) => End::Died,
        () = feed(&engine) => End::Died,
        () = relieve(&engine) => End::Died,
        lock = on_bus(settled, &engine, &calls) => End::Shutdown(lock),
        () = unused(settled.exit_idle, &engine, &connections, &calls) => End::Told("nobody asks"),
    };
    let _until_saved = match end {
        End::Died => return Err("the engine has died: see above".into()),
        End::Told(why) => {
            log::info!("stopping: {why}");
            None
        }
        End::Shutdown(lock) => {
            log::info!("stopping: the machine is shut down");
            lock
        }
    };
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    engine.stop(settled.grace);
    tokio::select! {
        () = connections.stop() => {}
        () = tokio::time::sleep(settled.grace + LAST_WORDS) => log::warn!("some clients didn't read to the end"),
        name = signals.end(|| {}) => log::warn!("stopping at once: {name}"),
    }
    drop(socket);
    // What breaks off is saved, also if nobody waits for it.
    if tokio::time::timeout(SAVING, follow(&engine)).await.is_err() {
        log::error!("sessions are still being saved: what isn't on the disk yet is lost");
    }
    log::info!("stopped");
    Ok(())
}

/// Why the service ends.
enum End {
    Told(&'static str),
    /// The machine waits with its shutdown while this is held.
    Shutdown(Option<zbus::OwnedFd>),
    Died,
}

/// Reads the configuration again, and goes by what can be changed while it runs.
fn reload(flags: &Flags, engine: &Engine, connections: &Connections) {
    match flags.settle() {
        Ok(new) => {
            log::set_max_level(new.log);
            engine.change(new.engine);
            connections.change(new.api);
            log::info!(
                "the configuration was read again; socket, state_dir, sessions, threads, bus, tcp and exit_idle_s \
                 count from the next start"
            );
        }
        Err(why) => log::error!("the configuration stays as it was: {why}"),
    }
}

/// Is on the bus, if it is to be, until the machine is shut down.
async fn on_bus(settled: &Settled, engine: &Engine, calls: &Arc<AtomicU64>) -> Option<zbus::OwnedFd> {
    if !settled.bus {
        return std::future::pending().await;
    }
    presence::on_bus(settled.user, engine, &settled.api, calls).await
}

/// Returns when nobody has asked for so long: no connection is open, nothing runs, and nobody has called or asked since
/// the last look.
async fn unused(limit: Option<Duration>, engine: &Engine, connections: &Connections, calls: &AtomicU64) {
    let Some(limit) = limit else { return std::future::pending().await };
    let asked = || {
        let requests = engine.counters().requests.load(Ordering::Relaxed);
        (requests, calls.load(Ordering::Relaxed))
    };
    let mut before = asked();
    loop {
        tokio::time::sleep(limit).await;
        let now = asked();
        if now == before && connections.count() == 0 && !engine.busy() {
            return;
        }
        before = now;
    }
}

/// When memory is short, an unused model is closed.
async fn relieve(engine: &Engine) {
    if let Some(mut pressure) = pressure::watch() {
        while pressure.recv().await.is_some() {
            log::info!("memory is short: the model is closed as soon as nobody uses it");
            engine.unload(None);
        }
    }
    std::future::pending().await
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
    async fn end(&mut self, reload: impl Fn()) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => reload(),
            }
        }
    }
}
