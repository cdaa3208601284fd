//! `/v1/completions`: a text goes on.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::engine::{Ask, Done, Finish, Prompt, TokenChance};
use crate::text::Event;

use super::sampling::{Common, MOST_CHANCES};
use super::stream::{Form, send};
use super::{ApiError, Context, Peer};

/// Tokens of an answer where the request doesn't say; OpenAI's number.
const USUAL_LIMIT: usize = 16;

/// What completions have beyond [`Common`].
#[derive(Deserialize)]
struct Completion {
    prompt: Given,
    logprobs: Option<usize>,
    echo: Option<bool>,
    suffix: Option<String>,
    best_of: Option<u64>,
}

/// A prompt: text or tokens, or a list with one of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Completion {
    fn check(&self) -> Result<(), ApiError> {
        if self.echo == Some(true) {
            return Err(ApiError::unsupported("echo", "echo isn't supported: you have the prompt"));
        }
        if self.suffix.as_ref().is_some_and(|s| !s.is_empty()) {
            return Err(ApiError::unsupported("suffix", "suffix isn't supported: leave it out"));
        }
        if self.best_of.is_some_and(|n| n != 1) {
            return Err(ApiError::unsupported("best_of", "only best_of = 1 is supported"));
        }
        if self.logprobs.is_some_and(|n| n > MOST_CHANCES) {
            return Err(ApiError::parameter("logprobs", format!("logprobs is at most {MOST_CHANCES}")));
        }
        Ok(())
    }

    fn prompt(self) -> Result<Prompt, ApiError> {
        let one = || ApiError::unsupported("prompt", "one prompt a request: ask several times");
        match self.prompt {
            Given::Text(text) => Ok(Prompt::Text(text)),
            Given::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
            Given::Texts(texts) => {
                <[String; 1]>::try_from(texts).map(|[t]| Prompt::Text(t)).map_err(|_| one())
            }
            Given::TokenLists(lists) => {
                <[Vec<u32>; 1]>::try_from(lists).map(|[t]| Prompt::Tokens(t)).map_err(|_| one())
            }
        }
    }
}

/// Goes on with a text.
pub(super) async fn complete(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Response, ApiError> {
    let (place, bytes) = context.admit(peer, body).await?;
    let common: Common = serde_json::from_slice(&bytes).map_err(|e| ApiError::json(&e))?;
    let completion: Completion = serde_json::from_slice(&bytes).map_err(|e| ApiError::json(&e))?;
    drop(bytes);
    common.check()?;
    completion.check()?;
    let logprobs = completion.logprobs;
    let ask = Ask {
        model: common.model.clone(),
        session: common.session.clone(),
        prompt: completion.prompt()?,
        limit: Some(common.limit()?.unwrap_or(USUAL_LIMIT)),
        sampling: common.sampling()?,
        endless: common.ignore_eos.unwrap_or(false),
        stops: common.stops()?,
        logprobs,
        keep_open: common.keep_open()?,
    };
    let form = Text { text: String::new(), chances: logprobs.map(|_| Vec::new()) };
    send(context.engine.ask(place, ask)?, form, common.delivery()).await
}

/// The text so far.
struct Text {
    text: String,
    chances: Option<Vec<TokenChance>>,
}

fn finish(done: &Done) -> &'static str {
    if done.finish == Finish::Stop { "stop" } else { "length" }
}

fn choice(text: &str, chances: Option<&[TokenChance]>, finish: Option<&str>) -> Value {
    json!({"index": 0, "text": text, "logprobs": chances.map(lists), "finish_reason": finish})
}

impl Form for Text {
    const ID: &str = "cmpl";
    const OBJECT: [&str; 2] = ["text_completion", "text_completion"];

    fn first(&self) -> Option<Value> {
        None
    }

    fn parts(&mut self, events: Vec<Event>, chances: Vec<TokenChance>) -> Vec<Value> {
        let text: String = events
            .into_iter()
            .filter_map(|e| if let Event::Content(t) = e { Some(t) } else { None })
            .collect();
        self.text += &text;
        let part = choice(&text, self.chances.as_ref().map(|_| chances.as_slice()), None);
        if let Some(all) = &mut self.chances {
            all.extend(chances);
        }
        vec![part]
    }

    fn last(&self, done: &Done) -> Value {
        choice("", None, Some(finish(done)))
    }

    fn whole(self, done: &Done) -> Value {
        choice(&self.text, self.chances.as_deref(), Some(finish(done)))
    }
}

/// Tokens and their probabilities, as this older interface has them: a list of each.
fn lists(chances: &[TokenChance]) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let top = |chance: &TokenChance| -> Map<String, Value> {
        chance.top.iter().map(|(bytes, logprob)| (text(bytes), json!(logprob))).collect()
    };
    json!({
        "tokens": chances.iter().map(|c| text(&c.bytes)).collect::<Vec<_>>(),
        "token_logprobs": chances.iter().map(|c| c.logprob).collect::<Vec<_>>(),
        "top_logprobs": chances.iter().map(top).collect::<Vec<_>>(),
        "text_offset": [],
    })
}
