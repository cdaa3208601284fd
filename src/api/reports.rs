//! What there is and how it goes: models, status, health, metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::engine::{ModelFile, ModelState};

use super::body::Json;
use super::{ApiError, Context, Peer};

/// An engine that has had something to do for this long, and has done nothing, hangs.
const HANGS: Duration = Duration::from_secs(600);

fn described(model: &ModelFile, state: &ModelState) -> Value {
    let word = match state {
        ModelState::Open(name) if *name == model.name => "open",
        ModelState::Opening(name) if *name == model.name => "opening",
        _ => "closed",
    };
    let changed = model.path.metadata().and_then(|m| m.modified()).ok();
    let created =
        changed.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |t| t.as_secs());
    json!({"id": model.name, "object": "model", "created": created, "owned_by": "kadence", "state": word})
}

/// The models that can be asked.
pub(super) async fn models(State(context): State<Context>, Extension(Peer { uid }): Extension<Peer>) -> Json {
    let state = context.engine.model().borrow().clone();
    let models: Vec<Value> = context.engine.models(uid).iter().map(|m| described(m, &state)).collect();
    Json(json!({"object": "list", "data": models}))
}

/// One of them.
pub(super) async fn model(
    State(context): State<Context>,
    Extension(Peer { uid }): Extension<Peer>,
    Path(name): Path<String>,
) -> Result<Json, ApiError> {
    let state = context.engine.model().borrow().clone();
    Ok(Json(described(&context.engine.model_named(uid, Some(&name))?, &state)))
}

/// What is open, who waits, what was done.
pub(super) async fn status(State(context): State<Context>) -> Json {
    let engine = &context.engine;
    let (running, waiting) = engine.load();
    let (state, name) = match engine.model().borrow().clone() {
        ModelState::Closed => ("closed", None),
        ModelState::Opening(name) => ("opening", Some(name)),
        ModelState::Open(name) => ("open", Some(name)),
    };
    let settings = engine.settings();
    let c = engine.counters();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": engine.uptime().as_secs(),
        "model": {"id": name, "state": state, "default": settings.models.first().map(|m| &m.name)},
        "threads": settings.threads,
        "requests": {
            "running": running, "waiting": waiting,
            "limit_running": settings.parallel, "limit_waiting": settings.queue,
            "limit_per_user": settings.per_user,
        },
        "state_bytes": engine.state_bytes(),
        "reuse": engine.reuse().into_iter().map(|(reason, n)| (reason.code().to_owned(), n.into())).collect::<Map<_, _>>(),
        "totals": {
            "requests": read(&c.requests), "busy": read(&c.busy), "finished": read(&c.finished),
            "cancelled": read(&c.cancelled), "failed": read(&c.failed),
            "prompt_tokens": read(&c.prompt_tokens), "cached_tokens": read(&c.cached_tokens),
            "tokens": read(&c.tokens), "passes": read(&c.passes),
            "pass_seconds": read(&c.pass_micros) as f64 / 1e6, "models_opened": read(&c.opened),
        },
    }))
}

/// Whether the engine is alive.
pub(super) async fn health(State(context): State<Context>) -> Response {
    if context.engine.alive(HANGS) {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the engine hangs\n").into_response()
    }
}

/// For Prometheus.
pub(super) async fn metrics(State(context): State<Context>) -> Response {
    let engine = &context.engine;
    let (running, waiting) = engine.load();
    let c = engine.counters();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let open = matches!(*engine.model().borrow(), ModelState::Open(_));
    let all = [
        ("requests_running", "gauge", "Requests that are being answered.", running as f64),
        ("requests_waiting", "gauge", "Requests that wait.", waiting as f64),
        ("model_open", "gauge", "1 if a model is open.", f64::from(u8::from(open))),
        ("state_bytes", "gauge", "Bytes of the states being worked on.", engine.state_bytes() as f64),
        ("uptime_seconds", "gauge", "Time since the start.", engine.uptime().as_secs_f64()),
        ("requests_total", "counter", "Requests let in.", read(&c.requests)),
        ("requests_busy_total", "counter", "Requests refused as too many.", read(&c.busy)),
        ("requests_finished_total", "counter", "Answers that came to their end.", read(&c.finished)),
        ("requests_cancelled_total", "counter", "Answers that nobody read.", read(&c.cancelled)),
        ("requests_failed_total", "counter", "Requests that failed.", read(&c.failed)),
        ("prompt_tokens_total", "counter", "Tokens of prompts read.", read(&c.prompt_tokens)),
        ("cached_tokens_total", "counter", "Tokens of prompts remembered.", read(&c.cached_tokens)),
        ("tokens_total", "counter", "Tokens generated.", read(&c.tokens)),
        ("passes_total", "counter", "Passes over the weights.", read(&c.passes)),
        ("pass_seconds_total", "counter", "Time that these took.", read(&c.pass_micros) / 1e6),
        ("models_opened_total", "counter", "Times that a model was opened.", read(&c.opened)),
    ];
    let mut text: String = all
        .iter()
        .map(|(name, kind, help, value)| {
            format!("# HELP kadence_{name} {help}\n# TYPE kadence_{name} {kind}\nkadence_{name} {value}\n")
        })
        .collect();
    text += "# HELP kadence_reuse_total What requests went on from.\n# TYPE kadence_reuse_total counter\n";
    for (reason, count) in engine.reuse() {
        text += &format!("kadence_reuse_total{{reason=\"{reason}\"}} {count}\n");
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
