//! How others reach the engine: HTTP over a Unix socket, as OpenAI's API has it.
//!
//! The socket's peer says who asks; there are no keys, and no browser can reach it.

mod body;
mod chat;
mod completions;
mod connections;
mod error;
mod keep_alive;
mod reports;
mod sampling;
mod sessions;
mod stream;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::ORIGIN;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::engine::{Engine, Place};
use crate::text::Effort;

pub use connections::Connections;
pub use error::ApiError;

/// What the interface goes by.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Time for a request's head, and again for its body, to arrive.
    pub arrival: Duration,
    /// Connections of one user.
    pub connections: usize,
    /// How much models think where a request doesn't say; not at all without.
    pub effort: Option<Effort>,
}

/// What every handler has.
#[derive(Clone)]
struct Context {
    engine: Engine,
    limits: Arc<Limits>,
}

impl Context {
    /// A place in the engine, and the body of the request. The place comes first, so that nobody can make the service
    /// hold more bodies than requests.
    async fn admit(&self, peer: Peer, body: Body) -> Result<(Place, Vec<u8>), ApiError> {
        match self.engine.place(peer.uid) {
            Ok(place) => Ok((place, body::read(body, &self.limits).await?)),
            Err(why) => {
                body::discard(body, &self.limits).await;
                Err(why.into())
            }
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    uid: u32,
}

/// Everything that can be asked for.
fn router(engine: Engine, limits: Arc<Limits>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/models", get(reports::models))
        .route("/v1/models/{*name}", get(reports::model))
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{name}", get(sessions::show).delete(sessions::delete))
        .route("/v1/sessions/{name}/messages", get(sessions::messages).post(sessions::note))
        .route("/v1/sessions/{name}/save", post(sessions::save))
        .route("/v1/sessions/{name}/export", get(transfer::export))
        .route("/v1/sessions/{name}/import", post(transfer::import))
        .route("/v1/sessions/{name}/fork", post(sessions::fork))
        .route("/v1/sessions/{name}/rewind", post(sessions::rewind))
        .route("/v1/status", get(reports::status))
        .route("/healthz", get(reports::health))
        .route("/metrics", get(reports::metrics))
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(no_browsers))
        .with_state(Context { engine, limits })
}

/// A browser says from which site a request comes. No site has any business here.
async fn no_browsers(request: Request, next: Next) -> Response {
    if request.headers().contains_key(ORIGIN) {
        return ApiError::origin().into_response();
    }
    next.run(request).await
}

async fn no_path(request: Request) -> ApiError {
    ApiError::no_path(request.uri().path())
}

async fn no_method(request: Request) -> ApiError {
    ApiError::no_method(request.method().as_str(), request.uri().path())
}
