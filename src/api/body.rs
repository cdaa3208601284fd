//! Bodies of requests and answers.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde_json::Value;

use super::{ApiError, Limits};

/// Bytes beyond the limit that are read and thrown away, before the connection is closed on the client: on a Unix socket
/// a client that is still writing would get an error, and not the answer.
const PATIENCE: usize = 64 << 20;

/// All bytes of a body, if there aren't too many and they come in time.
pub(super) async fn read(body: Body, limits: &Limits) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut large = body.size_hint().lower() > limits.body as u64;
    let whole = take(body, limits.body + PATIENCE, |data| {
        large |= bytes.len() + data.len() > limits.body;
        if large {
            bytes = Vec::new();
        } else {
            bytes.extend_from_slice(data);
        }
    });
    let end = tokio::time::timeout(limits.arrival, whole).await;
    match end {
        _ if large => Err(ApiError::large_body(limits.body)),
        Err(_) => Err(ApiError::slow_body(limits.arrival.as_secs())),
        Ok(Err(_)) => Err(ApiError::broken_body()),
        Ok(Ok(())) => Ok(bytes),
    }
}

/// Reads a body that isn't wanted, so that the client gets to read why.
pub(super) async fn discard(body: Body, limits: &Limits) {
    // Whether it came to its end matters no more.
    let _ = tokio::time::timeout(limits.arrival, take(body, limits.body + PATIENCE, |_| {})).await;
}

/// Shows the data of a body, until it has ended or there was too much.
async fn take(mut body: Body, most: usize, mut show: impl FnMut(&[u8])) -> Result<(), axum::Error> {
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            show(data);
            seen += data.len();
        }
        if seen > most {
            break;
        }
    }
    Ok(())
}

/// An answer in JSON.
pub(super) struct Json(pub(super) Value);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.0.to_string()).into_response()
    }
}
