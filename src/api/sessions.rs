//! `/v1/sessions`: what is remembered of the caller's conversations. Sessions begin and go on by chat, with `session`.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::{AUTOMATIC, Refusal};
use crate::session::{Error, Store, Summary};

use super::body::{self, Json};
use super::{ApiError, Context, Peer};

fn described(summary: &Summary) -> Value {
    json!({
        "id": summary.name, "object": "session", "created": summary.created, "updated": summary.updated,
        "tokens": summary.tokens, "turns": summary.turns, "bytes": summary.bytes,
        "checkpoints": summary.checkpoints, "model_fingerprint": summary.fingerprint.model.to_string(),
        "automatic": summary.name.starts_with(AUTOMATIC),
    })
}

/// Does something with the store, beside the thread of the connections: disks may be slow.
async fn with<T: Send + 'static>(
    context: &Context,
    work: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let store = context.engine.settings().sessions.as_ref().map(|s| s.named.clone());
    let store = store.ok_or_else(ApiError::no_sessions)?;
    let done = tokio::task::spawn_blocking(move || work(&store)).await;
    done.map_err(|_| ApiError::from(Refusal::Engine))?.map_err(|e| ApiError::session(&e))
}

/// The caller's sessions, the one used last first.
pub(super) async fn list(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
) -> Result<Json, ApiError> {
    let all = with(&context, move |store| Ok(store.list(uid))).await?;
    Ok(Json(json!({"object": "list", "data": all.iter().map(described).collect::<Vec<_>>()})))
}

/// One of them, and where its turns begin and end.
pub(super) async fn show(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Json, ApiError> {
    let (summary, _, turns) = with(&context, move |store| store.show(uid, &name)).await?;
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
    with(&context, move |store| store.delete(uid, &name)).await?;
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
    if to.starts_with(AUTOMATIC) {
        return Err(ApiError::session(&Error::Name(to)));
    }
    let summary = with(&context, move |store| store.fork(uid, &name, &to, tokens)).await?;
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
    let summary = with(&context, move |store| store.rewind(uid, &name, tokens)).await?;
    Ok(Json(described(&summary)))
}

async fn parsed<T: for<'a> Deserialize<'a>>(context: &Context, body: Body) -> Result<T, ApiError> {
    let bytes = body::read(body, &context.limits).await?;
    serde_json::from_slice(&bytes).map_err(|e| ApiError::json(&e))
}
