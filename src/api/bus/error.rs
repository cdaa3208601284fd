//! Errors by name, the same as over HTTP.

use crate::api::ApiError;
use crate::engine::Refusal;

/// Why a call has no result. Each says what to do.
#[derive(Debug, zbus::DBusError)]
#[zbus(prefix = "org.kadence.Kadence1.Error")]
pub(super) enum BusError {
    /// Of the bus itself.
    #[zbus(error)]
    Bus(zbus::Error),
    ModelNotFound(String),
    ModelExists(String),
    ModelUnusable(String),
    SessionNotFound(String),
    SessionExists(String),
    SessionBusy(String),
    SessionDamaged(String),
    StateIncompatible(String),
    ContextFull(String),
    InvalidOption(String),
    QuotaExceeded(String),
    DiskFull(String),
    Busy(String),
    Stopping(String),
    NotOwner(String),
    NotAuthorized(String),
    Failed(String),
}

impl From<ApiError> for BusError {
    fn from(why: ApiError) -> BusError {
        let kind = match why.code() {
            "model_not_found" => BusError::ModelNotFound,
            "model_exists" => BusError::ModelExists,
            "model_unusable" | "model_failed" => BusError::ModelUnusable,
            "session_not_found" | "sessions_off" => BusError::SessionNotFound,
            "session_exists" => BusError::SessionExists,
            "session_busy" => BusError::SessionBusy,
            "session_damaged" => BusError::SessionDamaged,
            "session_of_other_model" | "session_too_new" | "invalid_session_file" => {
                BusError::StateIncompatible
            }
            "context_length_exceeded" => BusError::ContextFull,
            "quota_exceeded" => BusError::QuotaExceeded,
            "disk_full" | "session_unsaved" => BusError::DiskFull,
            "busy" => BusError::Busy,
            "stopping" => BusError::Stopping,
            "internal_error" | "session_failed" => BusError::Failed,
            _ => BusError::InvalidOption,
        };
        kind(why.message().to_owned())
    }
}

impl From<Refusal> for BusError {
    fn from(why: Refusal) -> BusError {
        ApiError::from(why).into()
    }
}

impl From<std::io::Error> for BusError {
    fn from(why: std::io::Error) -> BusError {
        BusError::Failed(why.to_string())
    }
}
