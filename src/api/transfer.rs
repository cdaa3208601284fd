//! Sessions as files: `GET /v1/sessions/{name}/export`, `POST /v1/sessions/{name}/import`.

use std::fs::File;
use std::io::{Read, Write};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http_body_util::BodyExt;

use crate::engine::Refusal;

use super::body::Json;
use super::sessions::{beside, described, named, with};
use super::{ApiError, Context, Peer};

/// Bytes read and sent at a time.
const PIECE: usize = 256 << 10;
/// Pieces that come in between two looks at the space on the disk.
const LOOK: usize = 128;

/// Sends a session as one file.
pub(super) async fn export(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let (_, file) = with(&context.engine, uid, move |store| store.export(uid, &name)).await?;
    let length = file.metadata().map_or(0, |m| m.len());
    let mut response = Body::from_stream(stream::unfold(file, piece)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, length.into());
    Ok(response)
}

/// The next piece of a file; nothing at its end.
async fn piece(mut file: File) -> Option<(std::io::Result<Bytes>, File)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece).map(|n| piece.truncate(n));
        (read.map(|()| piece), file)
    });
    match read.await {
        Ok((Ok(piece), _)) if piece.is_empty() => None,
        Ok((piece, file)) => Some((piece.map(Bytes::from), file)),
        Err(_) => None, // then less was sent than was announced, and the client sees that
    }
}

/// Begins a session from a file that was exported.
pub(super) async fn import(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Json, ApiError> {
    let name = named(Some(name))?;
    let file = beside(&context.engine, |sessions| sessions.named.passage()).await?;
    let file = receive(&context, body, file).await?;
    let summary = with(&context.engine, uid, move |store| store.import_file(uid, &name, &file)).await?;
    Ok(Json(described(&summary)))
}

/// Writes a body to a file, as long as it keeps coming and the disk has room.
async fn receive(context: &Context, mut body: Body, mut file: File) -> Result<File, ApiError> {
    let wait = context.limits.arrival;
    for number in 1.. {
        let frame = tokio::time::timeout(wait, body.frame()).await;
        let Some(frame) = frame.map_err(|_| ApiError::slow_body(wait.as_secs()))? else { break };
        let frame = frame.map_err(|_| ApiError::broken_body())?;
        let Ok(data) = frame.into_data() else { continue };
        let written = tokio::task::spawn_blocking(move || (file.write_all(&data), file)).await;
        let (result, back) = written.map_err(|_| ApiError::from(Refusal::Engine))?;
        result.map_err(|e| ApiError::unsaved(&format!("the file can't be kept while it comes: {e}")))?;
        file = back;
        if number % LOOK == 0 {
            beside(&context.engine, |sessions| sessions.named.check_space()).await?;
        }
    }
    Ok(file)
}
