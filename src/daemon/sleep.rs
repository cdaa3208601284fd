//! The machine's sleep and shutdown (logind): both wait until sessions are saved.

use futures_util::StreamExt;
use zbus::{Connection, OwnedFd};

use crate::engine::Engine;

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Login {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;
    #[zbus(signal)]
    fn prepare_for_sleep(&self, start: bool) -> zbus::Result<()>;
    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

/// A lock that delays sleep or shutdown until it is dropped. systemd 252 refuses one for both to services.
async fn delay(login: &LoginProxy<'_>, what: &str) -> Option<OwnedFd> {
    let lock = login.inhibit(what, "Kadence", "Conversations are being saved", "delay").await;
    lock.inspect_err(|e| log::info!("{what} won't wait until sessions are saved: {e}")).ok()
}

/// Saves sessions whenever the machine goes to sleep, and returns with what delays the shutdown when it is shut down.
/// Without logind, it waits for ever.
pub(super) async fn watch(connection: Connection, engine: Engine) -> Option<OwnedFd> {
    match follow(&connection, &engine).await {
        Ok(shutdown) => shutdown,
        Err(why) => {
            log::info!("logind isn't there, sleep and shutdown won't be noticed: {why}");
            std::future::pending().await
        }
    }
}

async fn follow(connection: &Connection, engine: &Engine) -> zbus::Result<Option<OwnedFd>> {
    let login = LoginProxy::new(connection).await?;
    let mut sleeps = login.receive_prepare_for_sleep().await?;
    let mut shutdowns = login.receive_prepare_for_shutdown().await?;
    let mut before_sleep = delay(&login, "sleep").await;
    let before_shutdown = delay(&login, "shutdown").await;
    loop {
        tokio::select! {
            Some(signal) = sleeps.next() => {
                if signal.args()?.start {
                    engine.save().await;
                    log::info!("the machine goes to sleep: sessions are saved");
                    before_sleep = None;
                } else {
                    log::info!("the machine is awake");
                    before_sleep = delay(&login, "sleep").await;
                }
            }
            Some(signal) = shutdowns.next() => {
                if signal.args()?.start {
                    drop(before_sleep);
                    return Ok(before_shutdown);
                }
            }
            else => return Err(zbus::Error::Failure("the bus has gone".into())),
        }
    }
}
