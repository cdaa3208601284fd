//! An answer on its way to the client: whole, or in pieces by server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};

use crate::engine::{Answer, Begun, Done, Refusal, Said, TokenChance};
use crate::text::Event;

use super::ApiError;
use super::body::Json;
use super::sampling::{Delivery, random};

/// A connection that is silent for this long gets a comment, so that nobody takes it for dead.
const SILENCE: Duration = Duration::from_secs(15);

/// How one kind of completion is written.
pub(super) trait Form: Send + 'static {
    /// What its ids begin with.
    const ID: &str;
    /// `object` of a whole answer, and of a chunk.
    const OBJECT: [&str; 2];

    /// The choice of the first chunk, if there is one that says nothing yet.
    fn first(&self) -> Option<Value>;
    /// The choices of what was said now, to be sent in one chunk each.
    fn parts(&mut self, events: Vec<Event>, chances: Vec<TokenChance>) -> Vec<Value>;
    /// The choice of the last chunk.
    fn last(&self, done: &Done) -> Value;
    /// The one choice of a whole answer, to which all parts have been shown.
    fn whole(self, done: &Done) -> Value;
}

/// What all objects of an answer have in common.
struct Frame {
    id: String,
    created: u64,
    begun: Begun,
}

impl Frame {
    fn new(prefix: &str, begun: Begun) -> Frame {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        Frame { id: format!("{prefix}-{:016x}", random()), created, begun }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.begun.model,
            "choices": choices,
        })
    }

    fn usage(&self, done: &Done) -> Value {
        let prompt = self.begun.prompt_tokens;
        let reason = self.begun.session.as_ref().map(|(_, resumed)| resumed.reason.code());
        json!({
            "prompt_tokens": prompt, "completion_tokens": done.tokens, "total_tokens": prompt + done.tokens,
            "prompt_tokens_details": {"cached_tokens": self.begun.cached_tokens, "reason": reason},
        })
    }

    /// What became of the session, to be told with the end of the answer.
    fn session(&self, done: &Done) -> Option<Value> {
        let (name, resumed) = self.begun.session.as_ref()?;
        Some(json!({
            "id": name, "reason": resumed.reason.code(), "reread_tokens": resumed.reread,
            "saved": done.unsaved.is_none(), "error": done.unsaved,
        }))
    }
}

/// Sends an answer, once it has begun: what fails before has a status of its own.
pub(super) async fn send(mut answer: Answer, form: impl Form, how: Delivery) -> Result<Response, ApiError> {
    let begun = match answer.next().await {
        Some(Said::Begun(begun)) => begun,
        Some(Said::Failed(why)) => return Err(why.into()),
        Some(Said::Part(..) | Said::Done(_)) | None => return Err(Refusal::Engine.into()),
    };
    match how {
        Delivery::Whole => whole(answer, form, begun).await,
        Delivery::Stream { usage } => Ok(chunks(answer, form, begun, usage)),
    }
}

async fn whole<F: Form>(mut answer: Answer, mut form: F, begun: Begun) -> Result<Response, ApiError> {
    let frame = Frame::new(F::ID, begun);
    loop {
        match answer.next().await {
            Some(Said::Part(events, chances)) => drop(form.parts(events, chances)),
            Some(Said::Done(done)) => {
                let usage = frame.usage(&done);
                let mut object = frame.object(F::OBJECT[0], vec![form.whole(&done)]);
                object["usage"] = usage;
                object["session"] = frame.session(&done).into();
                return Ok(Json(object).into_response());
            }
            Some(Said::Failed(why)) => return Err(why.into()),
            Some(Said::Begun(_)) | None => return Err(Refusal::Engine.into()),
        }
    }
}

/// A stream under way.
struct Chunks<F> {
    /// None when it has ended.
    answer: Option<Answer>,
    form: F,
    frame: Frame,
    usage: bool,
    ready: VecDeque<String>,
}

impl<F: Form> Chunks<F> {
    fn chunk(&mut self, choice: Value, session: Option<Value>) {
        let mut object = self.frame.object(F::OBJECT[1], vec![choice]);
        if self.usage {
            object["usage"] = Value::Null;
        }
        if let Some(session) = session {
            object["session"] = session;
        }
        self.ready.push_back(object.to_string());
    }

    /// Turns what is said next into chunks.
    fn hear(&mut self, said: Option<Said>) {
        match said {
            Some(Said::Part(events, chances)) => {
                self.form.parts(events, chances).into_iter().for_each(|choice| self.chunk(choice, None));
            }
            Some(Said::Done(done)) => {
                self.answer = None;
                self.chunk(self.form.last(&done), self.frame.session(&done));
                if self.usage {
                    let mut object = self.frame.object(F::OBJECT[1], Vec::new());
                    object["usage"] = self.frame.usage(&done);
                    self.ready.push_back(object.to_string());
                }
                self.ready.push_back("[DONE]".into());
            }
            Some(Said::Failed(why)) => self.fail(why),
            Some(Said::Begun(_)) | None => self.fail(Refusal::Engine),
        }
    }

    fn fail(&mut self, why: Refusal) {
        self.answer = None;
        self.ready.push_back(ApiError::from(why).to_json().to_string());
    }

    async fn next(mut self) -> Option<(Result<SseEvent, Infallible>, Self)> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some((Ok(SseEvent::default().data(data)), self));
            }
            let said = self.answer.as_mut()?.next().await;
            self.hear(said);
        }
    }
}

fn chunks<F: Form>(answer: Answer, form: F, begun: Begun, usage: bool) -> Response {
    let frame = Frame::new(F::ID, begun);
    let mut chunks = Chunks { answer: Some(answer), form, frame, usage, ready: VecDeque::new() };
    if let Some(first) = chunks.form.first() {
        chunks.chunk(first, None);
    }
    let keep_alive = KeepAlive::new().interval(SILENCE);
    Sse::new(stream::unfold(chunks, Chunks::next)).keep_alive(keep_alive).into_response()
}
