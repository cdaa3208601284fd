//! `org.kadence.Kadence1.Session`.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use zbus::message::Header;
use zbus::names::BusName;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, OwnedObjectPath, OwnedVariant, interface};

use crate::api::sessions::{let_go, named, read, with};
use crate::api::{ApiError, chat};
use crate::session::Summary;

use super::Context;
use super::caller::Caller;
use super::error::BusError;
use super::options::{self, Options};
use super::stream::{self, Ended};

/// A session of one user.
pub(super) struct Session {
    pub(super) context: Arc<Context>,
    pub(super) uid: u32,
    pub(super) name: String,
    /// The model that it goes on with; the default without one.
    pub(super) model: Option<String>,
    pub(super) requests: Arc<Mutex<Requests>>,
}

/// The answers under way in a session.
#[derive(Default)]
pub(super) struct Requests {
    number: u32,
    /// Dropping one ends that answer.
    running: HashMap<u32, oneshot::Sender<()>>,
}

impl Requests {
    /// The next request's number, and what tells that it is to end.
    fn begin(requests: &Mutex<Requests>) -> Result<(u32, oneshot::Receiver<()>), BusError> {
        let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
        if !requests.running.is_empty() {
            return Err(BusError::SessionBusy(
                "an answer is under way: wait for its end, or cancel it".into(),
            ));
        }
        let (cancel, cancelled) = oneshot::channel();
        requests.number = requests.number.wrapping_add(1).max(1);
        let number = requests.number;
        requests.running.insert(number, cancel);
        Ok((number, cancelled))
    }

    fn end(requests: &Mutex<Requests>, number: u32) {
        let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
        match number {
            0 => requests.running.clear(),
            number => drop(requests.running.remove(&number)),
        }
    }

    fn busy(requests: &Mutex<Requests>) -> bool {
        !requests.lock().unwrap_or_else(PoisonError::into_inner).running.is_empty()
    }
}

impl Session {
    /// The caller, who has to own the session.
    async fn owner(&self, connection: &Connection, header: &Header<'_>) -> Result<Caller, BusError> {
        let caller = self.context.caller(connection, header).await?;
        if caller.uid != self.uid {
            return Err(BusError::NotOwner("this is another user's session: open one of your own".into()));
        }
        Ok(caller)
    }

    /// A request's parameters: the options, and these messages.
    fn body(&self, mut options: Map<String, Value>, messages: Value) -> Vec<u8> {
        options.insert("messages".into(), messages);
        options.insert("session".into(), self.name.as_str().into());
        if let Some(model) = &self.model {
            options.entry("model").or_insert_with(|| model.as_str().into());
        }
        Value::from(options).to_string().into_bytes()
    }

    /// Begins to answer messages.
    async fn ask(
        &self,
        options: Map<String, Value>,
        messages: Value,
        caller: Caller,
        emitter: SignalEmitter<'_>,
    ) -> Result<(u32, zbus::OwnedFd), BusError> {
        let context = &self.context;
        let (ask, _) = chat::asked(&self.body(options, messages), &context.limits)?;
        let (pipe, reader) = stream::pipe()?;
        let place = context.engine.place(self.uid)?;
        let (number, cancelled) = Requests::begin(&self.requests)?;
        let answer = context.engine.ask(place, ask).inspect_err(|_| Requests::end(&self.requests, number))?;
        let requests = self.requests.clone();
        let emitter = emitter.set_destination(BusName::from(caller.name)).into_owned();
        tokio::spawn(async move {
            let ended = stream::send(answer, pipe, cancelled).await;
            Requests::end(&requests, number);
            let (reason, usage) = (ended.reason, usage(&ended));
            if let Err(why) = Session::finished(&emitter, number, reason, usage).await {
                log::debug!("a signal wasn't sent: {why}");
            }
        });
        Ok((number, reader.into()))
    }

    async fn summary(&self) -> Result<Summary, BusError> {
        let (uid, name) = (self.uid, self.name.clone());
        Ok(with(&self.context.engine, uid, move |store| store.show(uid, &name)).await?.0)
    }
}

fn usage(ended: &Ended) -> HashMap<&'static str, OwnedVariant> {
    let mut usage = HashMap::from([("completion_tokens", OwnedVariant::from(ended.tokens as u64))]);
    if let Some(begun) = &ended.begun {
        usage.insert("prompt_tokens", OwnedVariant::from(begun.prompt_tokens as u64));
        usage.insert("cached_tokens", OwnedVariant::from(begun.cached_tokens as u64));
    }
    usage
}

/// One session. Only its owner can call it; it has no properties, and its signals go to whoever asked.
///
/// Everything is saved when a turn ends, so there is nothing that a client must do to keep a session.
#[interface(name = "org.kadence.Kadence1.Session")]
impl Session {
    /// Says something to the model. The answer comes on the pipe, a JSON object a line: first "begin", then "text",
    /// "reasoning" or "tool_call", at last "finish_reason" with "usage", or "error". Closing the pipe cancels the answer;
    /// what was said until then is remembered.
    ///
    /// Options: max_tokens (u), temperature (d), top_p (d), top_k (u), min_p (d), repeat_penalty (d), seed (t),
    /// stop (as), role (s), name (s), reasoning_effort (s), tools (s, JSON), tool_choice (s), response_format (s, JSON),
    /// model (s).
    #[zbus(out_args("request", "stream"))]
    async fn prompt(
        &self,
        text: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<(u32, zbus::OwnedFd), BusError> {
        let caller = self.owner(connection, &header).await?;
        let mut options = options::json(&options, options::PROMPT)?;
        let message = message(&mut options, text)?;
        self.ask(options, json!([message]), caller, emitter).await
    }

    /// The same with several messages, as JSON in OpenAI's format: results of tools, say.
    #[zbus(out_args("request", "stream"))]
    async fn prompt_messages(
        &self,
        json: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<(u32, zbus::OwnedFd), BusError> {
        let caller = self.owner(connection, &header).await?;
        let options = options::json(&options, options::PROMPT)?;
        let messages = serde_json::from_str(&json)
            .map_err(|e| BusError::InvalidOption(format!("the messages aren't JSON: {e}")))?;
        self.ask(options, messages, caller, emitter).await
    }

    /// Has the model read a message that nobody answers, and returns the session's tokens. Options: role (s), name (s),
    /// model (s).
    #[zbus(out_args("tokens"))]
    async fn feed(
        &self,
        text: String,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<u64, BusError> {
        self.owner(connection, &header).await?;
        let mut options = options::json(&options, options::PROMPT)?;
        let message = message(&mut options, text)?;
        let body = self.body(options, json!([message]));
        let ask = chat::noted(&body, self.name.clone(), &self.context.limits)?;
        let engine = &self.context.engine;
        let (number, _cancelled) = Requests::begin(&self.requests)?;
        let done = match engine.place(self.uid) {
            Ok(place) => read(engine, self.uid, place, ask).await,
            Err(why) => Err(ApiError::from(why)),
        };
        Requests::end(&self.requests, number);
        done?;
        Ok(self.summary().await?.tokens as u64)
    }

    /// Ends an answer at its next token; all that are under way with 0.
    async fn cancel(
        &self,
        request: u32,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        self.owner(connection, &header).await?;
        Requests::end(&self.requests, request);
        Ok(())
    }

    /// What was said, as JSON messages in OpenAI's format.
    #[zbus(out_args("json"))]
    async fn get_messages(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<String, BusError> {
        self.owner(connection, &header).await?;
        let (engine, uid, name) = (self.context.engine.clone(), self.uid, self.name.clone());
        let messages = tokio::task::spawn_blocking(move || engine.messages(uid, &name)).await;
        let messages = messages.map_err(|e| BusError::Failed(e.to_string()))??;
        serde_json::to_string(&messages).map_err(|e| BusError::Failed(e.to_string()))
    }

    /// Begins a session with what this one has. Options: name (s), tokens (t): with what it had at so many tokens.
    #[zbus(out_args("session"))]
    async fn fork(
        &self,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, BusError> {
        self.owner(connection, &header).await?;
        let mut options = options::json(&options, &["name", "tokens"])?;
        let to = named(options::text(&mut options, "name")?)?;
        let tokens = options.get("tokens").map(|n| n.as_u64().map(|n| n as usize));
        let tokens =
            tokens.map(|n| n.ok_or_else(|| BusError::InvalidOption("tokens has to be a number".into())));
        let (uid, from, name, tokens) = (self.uid, self.name.clone(), to.clone(), tokens.transpose()?);
        with(&self.context.engine, uid, move |store| store.fork(uid, &from, &name, tokens)).await?;
        self.context.export(connection, self.uid, &to, self.model.clone()).await
    }

    /// Goes back to where it had so many tokens; what came after is forgotten.
    async fn rewind(
        &self,
        tokens: u64,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        self.owner(connection, &header).await?;
        let (uid, name) = (self.uid, self.name.clone());
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
        with(&self.context.engine, uid, move |store| store.rewind(uid, &name, tokens)).await?;
        Ok(())
    }

    /// The bytes of what is on the disk: everything up to the end of the last turn. There are no options yet.
    #[zbus(out_args("bytes"))]
    async fn save(
        &self,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<u64, BusError> {
        self.owner(connection, &header).await?;
        options::json(&options, &[])?;
        Ok(self.summary().await?.bytes)
    }

    /// Writes the session to an open file, from which it can be imported. There are no options yet.
    async fn export(
        &self,
        file: zbus::OwnedFd,
        options: Options,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        self.owner(connection, &header).await?;
        options::json(&options, &[])?;
        let (uid, name) = (self.uid, self.name.clone());
        let (_, mut from) = with(&self.context.engine, uid, move |store| store.export(uid, &name)).await?;
        let mut to = File::from(OwnedFd::from(file));
        let copied = tokio::task::spawn_blocking(move || std::io::copy(&mut from, &mut to)).await;
        copied.map_err(|e| BusError::Failed(e.to_string()))??;
        Ok(())
    }

    /// Ends the answer that is under way and returns when nothing of the session is in memory.
    async fn suspend(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        self.owner(connection, &header).await?;
        Requests::end(&self.requests, 0);
        let (uid, name) = (self.uid, self.name.clone());
        with(&self.context.engine, uid, move |store| store.asleep(uid, &name)).await?;
        Ok(())
    }

    /// The same, and takes the object from the bus. The session stays on the disk.
    async fn close(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        self.suspend(header, connection).await?;
        self.context.withdraw(connection, self.uid, &self.name);
        Ok(())
    }

    /// Deletes the session and all that is on the disk of it.
    async fn delete(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<(), BusError> {
        self.owner(connection, &header).await?;
        let (uid, name) = (self.uid, self.name.clone());
        let_go(&self.context.engine, uid, &name);
        self.suspend(header, connection).await?;
        with(&self.context.engine, uid, move |store| store.delete(uid, &name)).await?;
        self.context.withdraw(connection, self.uid, &self.name);
        Ok(())
    }

    /// What there is to know: name (s), model (s), tokens (t), turns (t), state_bytes (t), created (t), last_used (t),
    /// checkpoints (at), busy (b).
    #[zbus(out_args("info"))]
    async fn get_info(
        &self,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<HashMap<&'static str, OwnedVariant>, BusError> {
        self.owner(connection, &header).await?;
        let s = self.summary().await?;
        let model = self.context.engine.model_named(self.uid, self.model.as_deref());
        let checkpoints: Vec<u64> = s.checkpoints.iter().map(|&t| t as u64).collect();
        let checkpoints = OwnedVariant::try_from(zbus::Array::from(checkpoints))?;
        Ok(HashMap::from([
            ("name", zbus::Str::from(s.name).into()),
            ("model", zbus::Str::from(model.map_or_else(|_| String::new(), |m| m.name)).into()),
            ("tokens", (s.tokens as u64).into()),
            ("turns", (s.turns as u64).into()),
            ("state_bytes", s.bytes.into()),
            ("created", s.created.into()),
            ("last_used", s.updated.into()),
            ("checkpoints", checkpoints),
            ("busy", Requests::busy(&self.requests).into()),
        ]))
    }

    /// An answer has ended: with "stop", "length", "cancelled" or "error".
    #[zbus(signal)]
    async fn finished(
        emitter: &SignalEmitter<'_>,
        request: u32,
        reason: &str,
        usage: HashMap<&str, OwnedVariant>,
    ) -> zbus::Result<()>;
}

/// A message of a text, with who says it.
fn message(options: &mut Map<String, Value>, text: String) -> Result<Value, BusError> {
    let role = options::text(options, "role")?.unwrap_or_else(|| "user".into());
    let mut message = json!({"role": role, "content": text});
    if let Some(name) = options::text(options, "name")? {
        message["name"] = name.into();
    }
    Ok(message)
}
