//! `org.kadence.Kadence1.Manager`.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::{Value, json};
use zbus::message::Header;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, OwnedObjectPath, OwnedVariant, interface};

use crate::api::sessions::{begin, named, read, with};
use crate::engine::{AUTOMATIC, Ask, ModelState, Prompt};
use crate::session::Error;
use crate::text::Chat;

use super::caller::Caller;
use super::error::BusError;
use super::options::{self, Options};
use super::stream;
use super::{Context, FEATURES, VERSION};

/// The service.
pub(super) struct Manager(pub(super) Arc<Context>);

/// A model: name, state, bytes, and "default" (b).
type ModelEntry = (String, &'static str, u64, HashMap<&'static str, OwnedVariant>);
/// A session: object, name, tokens, and "created", "last_used", "turns", "bytes" (t).
type SessionEntry = (OwnedObjectPath, String, u64, HashMap<&'static str, OwnedVariant>);

/// What state a model is in.
pub(super) fn state(state: &ModelState, model: &str) -> &'static str {
    match state {
        ModelState::Open(name) if name == model => "open",
        ModelState::Opening(name) if name == model => "opening",
        _ => "closed",
    }
}

/// The service: its models, and the sessions of whoever calls. Nobody sees another user's sessions.
#[interface(name = "org.kadence.Kadence1.Manager")]
impl Manager {
    /// The models that the caller may use, the default first: name, state ("closed", "opening", "open"), bytes, and
    /// details: default (b).
    #[zbus(out_args("models"))]
    async fn list_models(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<Vec<ModelEntry>, BusError> {
        let caller = self.0.caller(connection, &header).await?;
        let now = self.0.engine.model().borrow().clone();
        let models = self.0.engine.models(caller.uid).into_iter().enumerate();
        let entry = models.map(|(i, model)| {
            let bytes = model.path.metadata().map_or(0, |m| m.len());
            let word = state(&now, &model.name);
            (model.name, word, bytes, HashMap::from([("default", OwnedVariant::from(i == 0))]))
        });
        Ok(entry.collect())
    }

    /// Opens a model. The pipe tells how it goes, a JSON object a line: "state", at last "open"; or "error".
    ///
    /// Options: file (h): the model is in this file, and is the caller's alone under that name: so files can be used that
    /// the service can't reach. Opening one of the service's models needs org.kadence.Kadence1.manage-models.
    #[zbus(out_args("progress"))]
    async fn load_model(
        &self,
        model: String,
        mut options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<zbus::OwnedFd, BusError> {
        let caller = self.0.caller(connection, &header).await?;
        let file = options::file(&mut options, "file")?;
        options::json(&options, &[])?;
        let engine = self.0.engine.clone();
        match file {
            Some(file) => engine.give(caller.uid, &model, file)?,
            None => caller.manages_models(connection, &header).await?,
        }
        engine.model_named(caller.uid, Some(&model))?;
        let place = engine.place(caller.uid)?;
        let (mut pipe, reader) = stream::pipe()?;
        let ask = Ask::reading(Some(model), Prompt::Notes(Box::<Chat>::default()));
        tokio::spawn(async move {
            stream::line(&mut pipe, &json!({"state": "opening"})).await;
            let last = match read(&engine, caller.uid, place, ask).await {
                Ok(_) => json!({"state": "open"}),
                Err(why) => stream::failed(&why.into()),
            };
            stream::line(&mut pipe, &last).await;
        });
        Ok(reader.into())
    }

    /// Closes a model as soon as nobody uses it. Needs org.kadence.Kadence1.manage-models. There are no options yet.
    async fn unload_model(
        &self,
        model: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        let caller = self.0.caller(connection, &header).await?;
        options::json(&options, &[])?;
        caller.manages_models(connection, &header).await?;
        let model = self.0.engine.model_named(caller.uid, Some(&model))?;
        self.0.engine.unload(Some(&model.name));
        Ok(())
    }

    /// Begins a session; an empty name is the default model. Options: name (s), system (s): what the model is told first.
    #[zbus(out_args("session"))]
    async fn create_session(
        &self,
        model: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, BusError> {
        let caller = self.0.caller(connection, &header).await?;
        let mut options = options::json(&options, &["name", "system"])?;
        let (name, system) = (options::text(&mut options, "name")?, options::text(&mut options, "system")?);
        let model = Some(model).filter(|m| !m.is_empty());
        let messages: Vec<Value> =
            system.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
        let body = json!({"id": name, "model": model, "messages": messages}).to_string();
        let Context { engine, limits, .. } = &*self.0;
        let place = engine.place(caller.uid)?;
        let summary = begin(engine, limits, caller.uid, place, body.as_bytes()).await?;
        self.0.export(connection, caller.uid, &summary.name, model).await
    }

    /// The object of a session that the caller has. Options: model (s): the one that it goes on with.
    #[zbus(out_args("session"))]
    async fn open_session(
        &self,
        name: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, BusError> {
        let caller = self.0.caller(connection, &header).await?;
        let mut options = options::json(&options, &["model"])?;
        let model = options::text(&mut options, "model")?;
        if model.is_some() {
            self.0.engine.model_named(caller.uid, model.as_deref())?;
        }
        let (uid, id) = (caller.uid, name.clone());
        with(&self.0.engine, uid, move |store| store.show(uid, &id)).await?;
        self.0.export(connection, uid, &name, model).await
    }

    /// The caller's sessions, the one used last first: object, name, tokens, and details: created, last_used, turns,
    /// bytes (t). Filter: prefix (s): only names that begin so.
    #[zbus(out_args("sessions"))]
    async fn list_sessions(
        &self,
        filter: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<Vec<SessionEntry>, BusError> {
        let Caller { uid, .. } = self.0.caller(connection, &header).await?;
        let prefix = options::text(&mut options::json(&filter, &["prefix"])?, "prefix")?.unwrap_or_default();
        let all = with(&self.0.engine, uid, move |store| Ok::<_, Error>(store.list(uid))).await?;
        let wanted = all.iter().filter(|s| s.name.starts_with(&prefix) && !s.name.starts_with(AUTOMATIC));
        let mut sessions = Vec::new();
        for s in wanted {
            let details = [
                ("created", s.created),
                ("last_used", s.updated),
                ("turns", s.turns as u64),
                ("bytes", s.bytes),
            ];
            let details = details.map(|(key, n)| (key, OwnedVariant::from(n))).into();
            let object = self.0.export(connection, uid, &s.name, None).await?;
            sessions.push((object, s.name.clone(), s.tokens as u64, details));
        }
        Ok(sessions)
    }

    /// Begins a session from an open file that a session was exported to. Options: name (s), model (s).
    #[zbus(out_args("session"))]
    async fn import_session(
        &self,
        file: zbus::OwnedFd,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, BusError> {
        let Caller { uid, .. } = self.0.caller(connection, &header).await?;
        let mut options = options::json(&options, &["name", "model"])?;
        let name = named(options::text(&mut options, "name")?)?;
        let model = options::text(&mut options, "model")?;
        let (file, id) = (File::from(OwnedFd::from(file)), name.clone());
        with(&self.0.engine, uid, move |store| store.import_file(uid, &id, &file)).await?;
        self.0.export(connection, uid, &name, model).await
    }

    /// The version of this interface.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn version(&self) -> u32 {
        VERSION
    }

    /// The version of the service.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn daemon_version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// What this service can do beyond what its version says.
    #[zbus(property(emits_changed_signal = "const"))]
    async fn features(&self) -> Vec<&'static str> {
        FEATURES.to_vec()
    }

    /// The models that are open.
    #[zbus(property)]
    async fn loaded_models(&self) -> Vec<String> {
        match &*self.0.engine.model().borrow() {
            ModelState::Open(name) => vec![name.clone()],
            ModelState::Closed | ModelState::Opening(_) => Vec::new(),
        }
    }

    /// Requests that are being answered, of all users.
    #[zbus(property(emits_changed_signal = "false"))]
    async fn active_requests(&self) -> u32 {
        self.0.engine.load().0 as u32
    }

    /// Requests that wait, of all users.
    #[zbus(property(emits_changed_signal = "false"))]
    async fn queue_length(&self) -> u32 {
        self.0.engine.load().1 as u32
    }

    /// Bytes of the states that are being worked on.
    #[zbus(property(emits_changed_signal = "false"))]
    async fn state_bytes(&self) -> u64 {
        self.0.engine.state_bytes()
    }

    /// A model is "closed", "opening" or "open" now.
    #[zbus(signal)]
    pub(super) async fn model_state_changed(
        emitter: &SignalEmitter<'_>,
        model: &str,
        state: &str,
    ) -> zbus::Result<()>;
}
