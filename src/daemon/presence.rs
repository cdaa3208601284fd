//! On the bus, for as long as there is one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::api::{Bus, Limits, Which};
use crate::engine::Engine;

use super::sleep;

/// How long to wait for a bus that was there and has gone.
const AGAIN: Duration = Duration::from_secs(5);

/// Is on the bus, counts calls, and minds the machine's sleep. Returns when the machine is shut down, with what delays that.
pub(super) async fn on_bus(
    user: bool,
    engine: &Engine,
    limits: &Limits,
    calls: &Arc<AtomicU64>,
) -> Option<zbus::OwnedFd> {
    let which = if user { Which::Session } else { Which::System };
    let mut bus = match Bus::connect(which, engine.clone(), limits.clone(), calls.clone()).await {
        Ok(bus) => bus,
        Err(why) => {
            log::info!("no bus: {why}");
            std::future::pending().await
        }
    };
    loop {
        tokio::select! {
            () = bus.serve() => {}
            shutdown = machine(user, &bus, engine) => return shutdown,
        }
        bus = loop {
            tokio::time::sleep(AGAIN).await;
            if let Ok(bus) = Bus::connect(which, engine.clone(), limits.clone(), calls.clone()).await {
                break bus;
            }
        };
    }
}

/// logind is on the system's bus.
async fn machine(user: bool, bus: &Bus, engine: &Engine) -> Option<zbus::OwnedFd> {
    if !user {
        return sleep::watch(bus.connection().clone(), engine.clone()).await;
    }
    match zbus::Connection::system().await {
        Ok(system) => sleep::watch(system, engine.clone()).await,
        Err(_) => std::future::pending().await,
    }
}
