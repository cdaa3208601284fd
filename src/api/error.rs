//! Errors, in the shape of OpenAI's: a message that says what to do, a type, the parameter and a code.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::Refusal;
use crate::session::Error;

/// Why a request isn't answered.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, message: message.into(), param: None }
    }

    /// A parameter that can't be meant.
    pub(super) fn parameter(param: &'static str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        ApiError { param: Some(param), ..error }
    }

    /// A parameter that would change the answer and isn't supported: ignoring it would be a lie.
    pub(super) fn unsupported(param: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { code: "unsupported_parameter", ..ApiError::parameter(param, message) }
    }

    /// A body that isn't the JSON that was expected; the message has line and column.
    pub(super) fn json(why: &serde_json::Error) -> ApiError {
        let code = if why.is_data() { "invalid_request" } else { "invalid_json" };
        ApiError::new(StatusCode::BAD_REQUEST, code, format!("the body can't be used: {why}"))
    }

    /// A body that doesn't arrive.
    pub(super) fn slow_body(seconds: u64) -> ApiError {
        let message = format!("the body didn't arrive within {seconds} s: send it at once");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    /// A body that is too large.
    pub(super) fn large_body(limit: usize) -> ApiError {
        let message = format!("the body is larger than {limit} bytes: send less, or raise limits.body_mib");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// A body that breaks off.
    pub(super) fn broken_body() -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", "the body broke off: send all of it")
    }

    /// A request from a web site.
    pub(super) fn origin() -> ApiError {
        let message = "requests from web pages (with an Origin header) are refused: ask from a program";
        ApiError::new(StatusCode::FORBIDDEN, "origin_refused", message)
    }

    /// A path that isn't there.
    pub(super) fn no_path(path: &str) -> ApiError {
        let message = format!("there is no {path}: see /v1/models, /v1/chat/completions, /v1/status");
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// A method that the path doesn't have.
    pub(super) fn no_method(method: &str, path: &str) -> ApiError {
        let other = if method == "GET" { "POST" } else { "GET" };
        let message = format!("{path} can't be asked with {method}: use {other}");
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// What can't be done with a session.
    pub(super) fn session(why: &Error) -> ApiError {
        let (status, code) = match why {
            Error::Name(_) => (StatusCode::BAD_REQUEST, "invalid_session_name"),
            Error::Missing(_) => (StatusCode::NOT_FOUND, "session_not_found"),
            Error::Exists(_) => (StatusCode::CONFLICT, "session_exists"),
            Error::InUse(_) => (StatusCode::CONFLICT, "session_busy"),
            Error::TokensDamaged { .. } => (StatusCode::CONFLICT, "session_damaged"),
            Error::Vocabulary(_) => (StatusCode::CONFLICT, "session_of_other_model"),
            Error::Newer { .. } => (StatusCode::CONFLICT, "session_too_new"),
            Error::Position { .. } => (StatusCode::BAD_REQUEST, "invalid_value"),
            Error::Limit { .. } => (StatusCode::FORBIDDEN, "quota_exceeded"),
            Error::Archive { .. } => (StatusCode::BAD_REQUEST, "invalid_session_file"),
            Error::Full { .. } => (StatusCode::INSUFFICIENT_STORAGE, "disk_full"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "session_failed"),
        };
        ApiError { param: Some("session"), ..ApiError::new(status, code, why.to_string()) }
    }

    /// What was read or said couldn't be saved.
    pub(super) fn unsaved(why: &str) -> ApiError {
        ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "session_unsaved", why)
    }

    /// Whether it says that there is no such session.
    pub(super) fn is_missing(&self) -> bool {
        self.code == "session_not_found"
    }

    /// OpenAI's word for the kind.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            429 => "rate_limit_error",
            403 => "permission_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// As JSON.
    pub(super) fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        }})
    }
}

impl From<Refusal> for ApiError {
    fn from(why: Refusal) -> ApiError {
        let (status, code) = match &why {
            Refusal::Busy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            Refusal::UserBusy { .. } => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            Refusal::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            Refusal::NoModel { .. } => (StatusCode::NOT_FOUND, "model_not_found"),
            Refusal::ModelExists(_) => (StatusCode::CONFLICT, "model_exists"),
            Refusal::NoSessions => (StatusCode::NOT_FOUND, "sessions_off"),
            Refusal::ModelUnusable { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "model_unusable"),
            Refusal::ModelFailed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "model_failed"),
            Refusal::Empty => (StatusCode::BAD_REQUEST, "empty_prompt"),
            Refusal::TooLong { .. } => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            Refusal::Unreadable(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Refusal::Shape(_) => (StatusCode::BAD_REQUEST, "invalid_value"),
            Refusal::Stuck(_) => (StatusCode::INTERNAL_SERVER_ERROR, "constraint_failed"),
            Refusal::Session(why) => return ApiError::session(why),
            Refusal::Engine => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        };
        let param = match &why {
            Refusal::NoModel { .. } | Refusal::ModelExists(_) => Some("model"),
            Refusal::Shape(_) => Some("response_format"),
            Refusal::TooLong { .. } | Refusal::Unreadable(_) => Some("messages"),
            _ => None,
        };
        ApiError { param, ..ApiError::new(status, code, why.to_string()) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(CONTENT_TYPE, json)], self.to_json().to_string()).into_response();
        if matches!(self.code, "busy" | "stopping") {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
