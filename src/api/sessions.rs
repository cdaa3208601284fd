//! `/v1/sessions`: what is remembered of the caller's conversations. Sessions begin and go on by chat, with `session`.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::{AUTOMATIC, Ask, Begun, Done, Engine, Place, Refusal, Said, Sessions};
use crate::session::{Error, Store, Summary};

use super::body::{self, Json};
use super::chat::noted;
use super::sampling::random;
use super::{ApiError, Context, Limits, Peer};

pub(super) fn described(summary: &Summary) -> Value {
    json!({
        "id": summary.name, "object": "session", "created": summary.created, "updated": summary.updated,
        "tokens": summary.tokens, "turns": summary.turns, "bytes": summary.bytes,
        "checkpoints": summary.checkpoints, "model_fingerprint": summary.fingerprint.model.to_string(),
        "automatic": summary.name.starts_with(AUTOMATIC),
    })
}

/// Does something with the store, beside the thread of the connections: disks may be slow. What the disk wouldn't take of
/// the user's sessions is saved first, if it can be.
pub(super) async fn with<T: Send + 'static>(
    engine: &Engine,
    uid: u32,
    work: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let work = move |sessions: &Sessions| {
        let saved = sessions.unsaved.save(Some(uid));
        match (work(&sessions.named), saved) {
            (Err(Error::InUse(_)), Err(why)) => Err(why), // it is in use because it can't be saved
            (done, _) => done,
        }
    };
    beside(engine, work).await
}

/// Does something beside the thread of the connections that no session of a user needs to be saved for.
pub(super) async fn beside<T: Send + 'static>(
    engine: &Engine,
    work: impl FnOnce(&Sessions) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let sessions = engine.settings().sessions.clone().ok_or(Refusal::NoSessions)?;
    let done = tokio::task::spawn_blocking(move || work(&sessions)).await;
    done.map_err(|_| ApiError::from(Refusal::Engine))?.map_err(|e| ApiError::session(&e))
}

/// A session's name, unless it is one that only automatic sessions have.
pub(super) fn named(name: Option<String>) -> Result<String, ApiError> {
    match name {
        Some(name) if name.starts_with(AUTOMATIC) => Err(ApiError::session(&Error::Name(name))),
        Some(name) => Ok(name),
        None => Ok(format!("session-{:016x}", random())),
    }
}

/// Lets go of what the disk wouldn't take of a session that is to be deleted.
pub(super) fn let_go(engine: &Engine, uid: u32, name: &str) {
    if let Some(sessions) = &engine.settings().sessions {
        sessions.unsaved.remove(uid, name);
    }
}

/// Has a session read what is only to be read, and tells what became of it.
pub(super) async fn read(engine: &Engine, uid: u32, place: Place, ask: Ask) -> Result<Begun, ApiError> {
    let mut answer = engine.ask(place, ask)?;
    let mut begun = None;
    loop {
        match answer.next().await {
            Some(Said::Begun(b)) => begun = Some(b),
            Some(Said::Part(..)) => {}
            Some(Said::Done(Done { unsaved: Some(why), .. })) => return Err(ApiError::unsaved(&why)),
            Some(Said::Done(_)) => break,
            Some(Said::Failed(why)) => return Err(why.into()),
            None => return Err(Refusal::Engine.into()),
        }
    }
    log::debug!("user {uid}: a session has read what it was given");
    begun.ok_or_else(|| Refusal::Engine.into())
}

/// Begins a session, with what messages say, if there are any.
///
/// # Errors
/// If there is one of this name, and as [`read`].
pub(super) async fn begin(
    engine: &Engine,
    limits: &Limits,
    uid: u32,
    place: Place,
    body: &[u8],
) -> Result<Summary, ApiError> {
    #[derive(Deserialize)]
    struct New {
        id: Option<String>,
    }
    let New { id } = serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?;
    let name = named(id)?;
    let ask = noted(body, name.clone(), limits)?;
    let id = name.clone();
    match with(engine, uid, move |store| store.show(uid, &id)).await {
        Ok(_) => return Err(ApiError::session(&Error::Exists(name))),
        Err(e) if e.is_missing() => {}
        Err(e) => return Err(e),
    }
    read(engine, uid, place, ask).await?;
    with(engine, uid, move |store| store.show(uid, &name)).await.map(|(summary, ..)| summary)
}

/// Begins one.
pub(super) async fn create(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json, ApiError> {
    let (place, mut body) = context.admit(peer, body).await?;
    if body.is_empty() {
        body = b"{}".into();
    }
    let summary = begin(&context.engine, &context.limits, peer.uid, place, &body).await?;
    Ok(Json(described(&summary)))
}

/// Has a session read messages that nobody answers.
pub(super) async fn note(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json, ApiError> {
    let (place, body) = context.admit(peer, body).await?;
    let ask = noted(&body, name.clone(), &context.limits)?;
    let begun = read(&context.engine, peer.uid, place, ask).await?;
    let (summary, ..) = with(&context.engine, peer.uid, move |store| store.show(peer.uid, &name)).await?;
    let mut session = described(&summary);
    session["usage"] = json!({
        "prompt_tokens": begun.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": begun.cached_tokens},
    });
    Ok(Json(session))
}

/// What was said in one of them.
pub(super) async fn messages(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Json, ApiError> {
    let read = tokio::task::spawn_blocking(move || context.engine.messages(uid, &name)).await;
    let messages = read.map_err(|_| Refusal::Engine)??;
    Ok(Json(json!({"object": "list", "data": messages})))
}

/// How long a session's answer may take to end before it is said that the session is in use.
const SETTLES: Duration = Duration::from_secs(10);

/// Waits until all of one of them is on the disk: every turn is saved when it ends.
pub(super) async fn save(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Json, ApiError> {
    let start = Instant::now();
    loop {
        let id = name.clone();
        match with(&context.engine, uid, move |store| store.settled(uid, &id)).await {
            Ok(summary) => return Ok(Json(described(&summary))),
            Err(why) if why.is_busy() && start.elapsed() < SETTLES => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(why) => return Err(why),
        }
    }
}

/// The caller's sessions, the one used last first.
pub(super) async fn list(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
) -> Result<Json, ApiError> {
    let all = with(&context.engine, uid, move |store| Ok(store.list(uid))).await?;
    Ok(Json(json!({"object": "list", "data": all.iter().map(described).collect::<Vec<_>>()})))
}

/// One of them, and where its turns begin and end.
pub(super) async fn show(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Json, ApiError> {
    let (summary, _, turns) = with(&context.engine, uid, move |store| store.show(uid, &name)).await?;
    let mut session = described(&summary);
    session["turn_tokens"] = turns.iter().map(|t| json!([t.start, t.end])).collect();
    Ok(Json(session))
}

/// Forgets one of them.
pub(super) async fn delete(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Json, ApiError> {
    let id = name.clone();
    let_go(&context.engine, uid, &name);
    with(&context.engine, uid, move |store| store.delete(uid, &name)).await?;
    Ok(Json(json!({"id": id, "object": "session", "deleted": true})))
}

/// Where a branch begins.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fork {
    to: String,
    tokens: Option<usize>,
}

/// Begins a session with what another one has, or had.
pub(super) async fn fork(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json, ApiError> {
    let Fork { to, tokens } = parsed(&context, body).await?;
    let to = named(Some(to))?;
    let summary = with(&context.engine, uid, move |store| store.fork(uid, &name, &to, tokens)).await?;
    Ok(Json(described(&summary)))
}

/// Where to go back to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rewind {
    tokens: usize,
}

/// Goes back to where a session had fewer tokens.
pub(super) async fn rewind(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json, ApiError> {
    let Rewind { tokens } = parsed(&context, body).await?;
    let summary = with(&context.engine, uid, move |store| store.rewind(uid, &name, tokens)).await?;
    Ok(Json(described(&summary)))
}

async fn parsed<T: for<'a> Deserialize<'a>>(context: &Context, body: Body) -> Result<T, ApiError> {
    let bytes = body::read(body, &context.limits).await?;
    serde_json::from_slice(&bytes).map_err(|e| ApiError::json(&e))
}
