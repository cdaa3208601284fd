//! D-Bus: `org.kadence.Kadence1`, on the system's bus or on a user's.
//!
//! A manager, an object for each of the service's models, and one for each session that its owner has asked for. The bus
//! says who calls: sessions are their owner's alone, have no properties, and signal only to whoever asked. Their
//! objects' paths tell nothing of their names. Answers come through a pipe that the caller is given, so that nobody else
//! sees them, who doesn't read is noticed, and closing it cancels.
//!
//! `packaging/dbus` has the interfaces as XML, the policy and what activates the service.

mod caller;
mod error;
mod manager;
mod model;
mod options;
mod session;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zbus::fdo::{Error, RequestNameFlags, RequestNameReply};
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, OwnedObjectPath, connection};

use crate::engine::{Engine, ModelState};

use super::Limits;
use super::sampling::random;
use caller::Caller;
use error::BusError;
use manager::Manager;
use model::Model;
use session::Session;

/// The name on the bus.
pub const NAME: &str = "org.kadence.Kadence1";
/// The manager's object; all others are below.
const ROOT: &str = "/org/kadence/Kadence1";
/// Of the interfaces.
const VERSION: u32 = 1;
/// What there is beyond that.
const FEATURES: &[&str] = &["fork", "rewind", "export", "import", "tools", "model-by-fd"];

/// At the first installation the bus learns of its policy a moment after the service was started: so many times the name
/// is asked for, once a second.
const ATTEMPTS: usize = 10;

/// Which bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of all users.
    System,
    /// That of one user.
    Session,
}

/// What every object has.
struct Context {
    engine: Engine,
    limits: Arc<Limits>,
    /// Makes the paths of sessions: a name can't be guessed from one.
    secret: u64,
    /// Calls so far.
    calls: Arc<AtomicU64>,
}

impl Context {
    fn path(&self, uid: u32, name: &str) -> OwnedObjectPath {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.secret.to_le_bytes()).update(&uid.to_le_bytes()).update(name.as_bytes());
        let id = hash.finalize().to_hex();
        let path = format!("{ROOT}/session/u{uid}/{}", &id[..16]);
        ObjectPath::from_string_unchecked(path).into()
    }

    /// Who calls; every call asks.
    async fn caller(&self, connection: &Connection, header: &Header<'_>) -> Result<Caller, BusError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Caller::of(connection, header).await
    }

    /// Puts a session on the bus, if it isn't there, to go on with this model.
    async fn export(
        self: &Arc<Self>,
        connection: &Connection,
        uid: u32,
        name: &str,
        model: Option<String>,
    ) -> Result<OwnedObjectPath, BusError> {
        let path = self.path(uid, name);
        let server = connection.object_server();
        if model.is_some()
            && let Ok(known) = server.interface::<_, Session>(&path).await
        {
            known.get_mut().await.model = model;
            return Ok(path);
        }
        let requests = Arc::default();
        let session = Session { context: self.clone(), uid, name: name.into(), model, requests };
        server.at(&path, session).await?; // nothing happens if it is there
        Ok(path)
    }

    /// Takes a session from the bus, when the call that is being answered has ended.
    fn withdraw(&self, connection: &Connection, uid: u32, name: &str) {
        let (connection, path) = (connection.clone(), self.path(uid, name));
        tokio::spawn(async move {
            if let Err(why) = connection.object_server().remove::<Session, _>(&path).await {
                log::debug!("a session stays on the bus: {why}");
            }
        });
    }
}

/// The service on a bus.
pub struct Bus {
    connection: Connection,
    engine: Engine,
}

impl Bus {
    /// Connects, and puts the service's objects on the bus. It has no name yet. Calls are counted in `calls`.
    ///
    /// # Errors
    /// If there is no such bus.
    pub async fn connect(
        which: Which,
        engine: Engine,
        limits: Limits,
        calls: Arc<AtomicU64>,
    ) -> zbus::Result<Bus> {
        let limits = Arc::new(limits);
        let context = Arc::new(Context { engine: engine.clone(), limits, secret: random(), calls });
        let mut builder = match which {
            Which::System => connection::Builder::system(),
            Which::Session => connection::Builder::session(),
        };
        builder = builder.serve_at(ROOT, Manager(context.clone()));
        for file in &engine.settings().models {
            let path = format!("{ROOT}/model/{}", escaped(&file.name));
            builder = builder.serve_at(path, Model::new(context.clone(), file.clone()));
        }
        Ok(Bus { connection: builder.build().await?, engine })
    }

    /// Takes the name, by which clients find the service, and serves until the bus is gone.
    pub async fn serve(&self) {
        if !self.take_name().await {
            return self.connection.closed().await;
        }
        tokio::select! {
            () = self.connection.closed() => log::warn!("the bus has gone"),
            () = self.tell() => self.connection.closed().await,
        }
    }

    async fn take_name(&self) -> bool {
        for attempt in 1..=ATTEMPTS {
            let name = self.connection.request_name_with_flags(NAME, RequestNameFlags::DO_NOT_QUEUE).await;
            match name {
                Ok(RequestNameReply::PrimaryOwner | RequestNameReply::AlreadyOwner) => {
                    log::info!("on the bus as {NAME}");
                    return true;
                }
                Ok(_) | Err(zbus::Error::NameTaken) => {
                    log::warn!("{NAME} is taken on the bus: another kadenced is there");
                    return false;
                }
                Err(why) => {
                    let denied = matches!(&why, zbus::Error::FDO(e) if matches!(**e, Error::AccessDenied(_)))
                        || why.to_string().contains("AccessDenied");
                    if !denied || attempt == ATTEMPTS {
                        log::warn!("not on the bus: {why}");
                        return false;
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        false
    }

    /// Signals what becomes of models, as long as the engine is there.
    async fn tell(&self) {
        let mut model = self.engine.model();
        let Ok(emitter) = SignalEmitter::new(&self.connection, ROOT) else { return };
        let mut before = ModelState::Closed;
        while model.changed().await.is_ok() {
            let now = model.borrow_and_update().clone();
            let (name, word) = match (&now, &before) {
                (ModelState::Open(name), _) => (name.clone(), "open"),
                (ModelState::Opening(name), _) => (name.clone(), "opening"),
                (_, ModelState::Open(name) | ModelState::Opening(name)) => (name.clone(), "closed"),
                _ => continue,
            };
            before = now;
            // The names of models that a user has added are that user's business.
            if self.engine.settings().models.iter().any(|m| m.name == name) {
                let told = Manager::model_state_changed(&emitter, &name, word).await;
                told.unwrap_or_else(|e| log::debug!("a signal wasn't sent: {e}"));
            }
        }
    }

    /// The connection: for what else is on the bus.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// A name as an element of an object path, as systemd does it: what isn't a letter or a digit becomes `_` and its hex code.
fn escaped(name: &str) -> String {
    let plain = |(i, b): (usize, u8)| b.is_ascii_alphabetic() || i > 0 && b.is_ascii_digit();
    name.bytes()
        .enumerate()
        .map(|(i, b)| if plain((i, b)) { (b as char).to_string() } else { format!("_{b:02x}") })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_become_elements_of_paths() {
        assert_eq!(super::escaped("k3-mini.q8"), "k3_2dmini_2eq8");
        assert_eq!(super::escaped("9_ä"), "_39_5f_c3_a4");
    }
}
