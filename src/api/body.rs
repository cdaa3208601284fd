//! Bodies of requests and answers.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes};
use serde_json::Value;

use super::{ApiError, Limits};

/// All bytes of a body, if there aren't too many and they come in time.
pub(super) async fn read(body: Body, limits: &Limits) -> Result<Bytes, ApiError> {
    if body.size_hint().lower() > limits.body as u64 {
        return Err(ApiError::large_body(limits.body));
    }
    let whole = Limited::new(body, limits.body).collect();
    match tokio::time::timeout(limits.arrival, whole).await {
        Err(_) => Err(ApiError::slow_body(limits.arrival.as_secs())),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(ApiError::large_body(limits.body)),
        Ok(Err(_)) => Err(ApiError::broken_body()),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
    }
}

/// An answer in JSON.
pub(super) struct Json(pub(super) Value);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.0.to_string()).into_response()
    }
}
