//! `/v1/chat/completions`.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::{Ask, Done, Finish, KeepOpen, Prompt, Sampling, TokenChance};
use crate::text::{Arguments, Chat, Effort, Event, Message, Reply, ResponseFormat, ToolChoice};

use super::sampling::{Common, Delivery, MOST_CHANCES, random};
use super::stream::{Form, send};
use super::{ApiError, Context, Limits, Peer};

/// What chat has beyond [`Common`].
#[derive(Deserialize)]
struct Conversation {
    #[serde(default)]
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    response_format: Option<ResponseFormat>,
    reasoning_effort: Option<String>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

impl Conversation {
    /// What the model is shown.
    fn chat(self, effort: Option<Effort>) -> Result<Chat, ApiError> {
        let effort = match self.reasoning_effort.as_deref() {
            None => effort,
            Some("none" | "minimal") => None,
            Some("low") => Some(Effort::Low),
            Some("medium") => Some(Effort::Medium),
            Some("high") => Some(Effort::High),
            Some("max" | "xhigh") => Some(Effort::Max),
            Some(other) => {
                let why = format!("reasoning_effort can't be {other:?}: none, low, medium, high or max");
                return Err(ApiError::parameter("reasoning_effort", why));
            }
        };
        let mut tool = None;
        let tool_choice = match self.tool_choice {
            None | Some(Value::Null) => ToolChoice::Auto,
            Some(Value::String(word)) if word == "auto" => ToolChoice::Auto,
            Some(Value::String(word)) if word == "required" => ToolChoice::Required,
            Some(Value::String(word)) if word == "none" => ToolChoice::None,
            Some(choice) => {
                let name = choice.pointer("/function/name").and_then(Value::as_str);
                let why = "tool_choice is \"auto\", \"required\", \"none\" or \
                     {\"type\": \"function\", \"function\": {\"name\": …}}";
                tool = Some(name.ok_or_else(|| ApiError::parameter("tool_choice", why))?.to_owned());
                ToolChoice::Required
            }
        };
        let tools = self.tools.unwrap_or_default();
        if tools.is_empty() && tool_choice == ToolChoice::Required {
            return Err(ApiError::parameter(
                "tool_choice",
                "there are no tools to call: declare them in tools",
            ));
        }
        // Who declares no tools can't forbid them either: it would only make the prompt longer.
        let tool_choice = if tools.is_empty() { ToolChoice::Auto } else { tool_choice };
        let mut messages = self.messages;
        for call in messages.iter_mut().flat_map(|m| &mut m.tool_calls) {
            call.function.arguments = std::mem::take(&mut call.function.arguments).parsed();
        }
        Ok(Chat {
            messages,
            tools,
            thinking: effort.is_some(),
            effort: effort.unwrap_or_default(),
            tool_choice,
            tool,
            response_format: self.response_format.unwrap_or_default(),
        })
    }

    /// How many likely tokens are wanted beside each, if any probabilities are.
    fn chances(&self) -> Result<Option<usize>, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if top > MOST_CHANCES {
            return Err(ApiError::parameter(
                "top_logprobs",
                format!("top_logprobs is at most {MOST_CHANCES}"),
            ));
        }
        if top > 0 && self.logprobs != Some(true) {
            return Err(ApiError::parameter("top_logprobs", "top_logprobs needs \"logprobs\": true"));
        }
        Ok(self.logprobs.unwrap_or(false).then_some(top))
    }
}

/// What a request asks for, and how the answer is to be sent.
pub(super) fn asked(body: &[u8], limits: &Limits) -> Result<(Ask, Delivery), ApiError> {
    let common: Common = serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?;
    let conversation: Conversation = serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?;
    common.check()?;
    if conversation.messages.is_empty() {
        return Err(ApiError::parameter("messages", "there are no messages: send at least one"));
    }
    let logprobs = conversation.chances()?;
    let chat = conversation.chat(limits.effort)?;
    let ask = Ask {
        model: common.model.clone(),
        session: common.session.clone(),
        prompt: Prompt::Chat(Box::new(chat)),
        limit: common.limit()?,
        sampling: common.sampling()?,
        endless: common.ignore_eos.unwrap_or(false),
        stops: common.stops()?,
        logprobs,
        keep_open: common.keep_open()?,
    };
    Ok((ask, common.delivery()))
}

/// What is only to be read, in a session: messages, or nothing for one that is to begin.
pub(super) fn noted(body: &[u8], session: String, limits: &Limits) -> Result<Ask, ApiError> {
    #[derive(Deserialize)]
    struct Model {
        model: Option<String>,
    }
    let Model { model } = serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?;
    let conversation: Conversation = serde_json::from_slice(body).map_err(|e| ApiError::json(&e))?;
    let prompt = Prompt::Notes(Box::new(conversation.chat(limits.effort)?));
    Ok(Ask {
        model,
        session: Some(session),
        prompt,
        limit: None,
        sampling: Sampling::default(),
        endless: false,
        stops: Vec::new(),
        logprobs: None,
        keep_open: KeepOpen::Usual,
    })
}

/// Answers a conversation.
pub(super) async fn complete(
    State(context): State<Context>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Response, ApiError> {
    let (place, bytes) = context.admit(peer, body).await?;
    let (ask, delivery) = asked(&bytes, &context.limits)?;
    drop(bytes);
    let chances = ask.logprobs.map(|_| Vec::new());
    let form = Turn { reply: Reply::default(), call: random(), chances };
    send(context.engine.ask(place, ask)?, form, delivery).await
}

/// What the model says in its turn.
struct Turn {
    reply: Reply,
    /// Makes the ids of tool calls unique, where the model gives them none.
    call: u64,
    /// The probabilities so far, if they are wanted.
    chances: Option<Vec<Value>>,
}

impl Turn {
    fn finish(&self, done: &Done) -> &'static str {
        match done.finish {
            Finish::Stop if self.reply.complete_calls > 0 => "tool_calls",
            Finish::Stop => "stop",
            Finish::Length | Finish::Cancelled => "length",
        }
    }

    fn call_id(&self, id: Option<String>, index: usize) -> String {
        id.unwrap_or_else(|| format!("call_{:016x}_{index}", self.call))
    }

    /// What changes by an event.
    fn delta(&self, event: &Event) -> Option<Value> {
        Some(match event {
            Event::Reasoning(text) => json!({"reasoning_content": text}),
            Event::Content(text) => json!({"content": text}),
            Event::ToolCallStart { index, id, name } => json!({"tool_calls": [{
                "index": index, "id": self.call_id(id.clone(), *index), "type": "function",
                "function": {"name": name, "arguments": ""},
            }]}),
            Event::ToolCallArguments { index, json } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]})
            }
            Event::ToolCallEnd { .. } | Event::EndOfTurn => return None,
        })
    }
}

fn choice(delta: Value, chances: Option<&Vec<Value>>, finish: Option<&str>) -> Value {
    let logprobs = chances.map(|content| json!({"content": content}));
    json!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish})
}

impl Form for Turn {
    const ID: &str = "chatcmpl";
    const OBJECT: [&str; 2] = ["chat.completion", "chat.completion.chunk"];

    fn first(&self) -> Option<Value> {
        Some(choice(json!({"role": "assistant", "content": ""}), None, None))
    }

    fn parts(&mut self, events: Vec<Event>, chances: Vec<TokenChance>) -> Vec<Value> {
        let now: Vec<Value> = chances.iter().map(chance).collect();
        let mut choices = Vec::new();
        for event in events {
            if let Some(delta) = self.delta(&event) {
                let with = self.chances.is_some() && matches!(event, Event::Content(_)) && !now.is_empty();
                choices.push(choice(delta, with.then_some(&now), None));
            }
            self.reply.push(event);
        }
        if let Some(chances) = &mut self.chances {
            chances.extend(now);
        }
        choices
    }

    fn last(&self, done: &Done) -> Value {
        choice(json!({}), None, Some(self.finish(done)))
    }

    fn whole(self, done: &Done) -> Value {
        let finish = self.finish(done);
        let calls: Vec<Value> = (0..)
            .zip(&self.reply.tool_calls)
            .map(|(index, call)| {
                let arguments = match &call.function.arguments {
                    Arguments::Text(text) => text.clone(),
                    Arguments::Object(object) => Value::Object(object.clone()).to_string(),
                };
                json!({
                    "id": self.call_id(call.id.clone(), index), "type": "function",
                    "function": {"name": call.function.name, "arguments": arguments},
                })
            })
            .collect();
        let silent = self.reply.content.is_empty() && !calls.is_empty();
        let content = (!silent).then_some(self.reply.content);
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reply.reasoning.is_empty() {
            message["reasoning_content"] = self.reply.reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = self.chances.map(|content| json!({"content": content}));
        json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish})
    }
}

/// A token and its probability, as OpenAI has it.
fn chance(chance: &TokenChance) -> Value {
    let one = |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "bytes": bytes, "logprob": logprob});
    let mut value = one(&chance.bytes, chance.logprob);
    value["top_logprobs"] = chance.top.iter().map(|(bytes, logprob)| one(bytes, *logprob)).collect();
    value
}
