//! What a conversation is, in the terms of OpenAI's chat format, and how one becomes a prompt.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::jinja::JinjaTemplate;
use super::tokenizer::{Special, Tokenizer};
use super::{chat_k2, chat_k3};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Who runs the assistant.
    #[serde(alias = "developer")]
    System,
    /// Who talks to it.
    User,
    /// The model.
    Assistant,
    /// The answer to a tool call.
    Tool,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        })
    }
}

/// What is said: text, or parts of which each has a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text.
    Text(String),
    /// Parts, to be joined without anything between them.
    Parts(Vec<Part>),
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// `text` is the only type that can be rendered.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text, for that type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The arguments of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Arguments {
    /// By name, in order.
    Object(Map<String, Value>),
    /// As JSON text, which is how OpenAI's format has them. It may be what a model wrote, and need not be
    /// valid.
    Text(String),
}

impl Default for Arguments {
    fn default() -> Self {
        Self::Object(Map::new())
    }
}

impl Arguments {
    /// The same as an object where the text is one, which is how models were taught to write them: a client
    /// that sends back what it was given gets the prompt that the model has already read.
    pub fn parsed(self) -> Self {
        match self {
            Self::Text(text) => serde_json::from_str(&text).map_or(Self::Text(text), Self::Object),
            object => object,
        }
    }
}

/// The function of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Its name.
    pub name: String,
    /// What it is called with.
    #[serde(default, deserialize_with = "null_as_default")]
    pub arguments: Arguments,
}

/// One call of a tool by the assistant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the answer refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function` is the only type there is.
    #[serde(rename = "type", default = "function_kind")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

fn function_kind() -> String {
    "function".into()
}

impl ToolCall {
    /// A call of the function `name`.
    pub fn new(id: Option<String>, name: String, arguments: Arguments) -> Self {
        Self { id, kind: function_kind(), function: FunctionCall { name, arguments } }
    }
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; an assistant that only calls tools says nothing.
    #[serde(default)]
    pub content: Option<Content>,
    /// Which of several speakers with this role; for a tool, its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the assistant thought before it spoke.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// What the assistant calls.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// For a tool: the call that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// For the system: tools that are there from now on. Such a message has no content.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

impl Message {
    /// A message of text.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(Content::Text(text.into())),
            name: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            tools: Vec::new(),
        }
    }

    /// The text of all parts.
    pub fn text(&self) -> Result<String, ChatError> {
        match &self.content {
            None => Ok(String::new()),
            Some(Content::Text(text)) => Ok(text.clone()),
            Some(Content::Parts(parts)) => parts
                .iter()
                .map(|part| match &part.text {
                    Some(text) if part.kind == "text" => Ok(text.as_str()),
                    _ => Err(ChatError::Part(part.kind.clone())),
                })
                .collect(),
        }
    }

    /// What was thought, if it is more than white space.
    pub(super) fn thought(&self) -> Option<&str> {
        self.reasoning_content.as_deref().filter(|text| !text.trim().is_empty())
    }
}

/// How much to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// As much as it takes.
    #[default]
    Max,
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::Max => "max",
        })
    }
}

/// Whether the model may, must or must not call tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoice {
    /// It may.
    #[default]
    Auto,
    /// It must.
    Required,
    /// It must not.
    None,
}

/// What the response is to look like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Like anything.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a given schema.
    JsonSchema {
        /// `{"name": …, "schema": …}`
        json_schema: Value,
    },
}

/// A conversation and how it is to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chat {
    /// What was said so far.
    pub messages: Vec<Message>,
    /// What can be called, each as OpenAI's format describes it; the order of keys is kept.
    #[serde(deserialize_with = "null_as_default")]
    pub tools: Vec<Value>,
    /// Whether the model thinks before it speaks, where it can be told.
    pub thinking: bool,
    /// How much it thinks, where it can be told.
    pub effort: Effort,
    /// Whether it calls tools, where it can be told.
    #[serde(deserialize_with = "null_as_default")]
    pub tool_choice: ToolChoice,
    /// The one tool that it has to call, with [`ToolChoice::Required`]; any without.
    pub tool: Option<String>,
    /// What the response looks like, where it can be told.
    #[serde(deserialize_with = "null_as_default")]
    pub response_format: ResponseFormat,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: Vec::new(),
            thinking: true,
            effort: Effort::default(),
            tool_choice: ToolChoice::default(),
            tool: None,
            response_format: ResponseFormat::default(),
        }
    }
}

/// Why a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// Only text can be rendered.
    #[error("a message part of type {0:?} cannot be used: this model reads text only")]
    Part(String),
    /// The K3 format names the tool of each result.
    #[error("message {0} is a tool result, but neither has a name nor answers a call of the message before")]
    ToolName(usize),
    /// The vocabulary has no known set of markers and the file brings no template.
    #[error(
        "no chat format: the vocabulary has neither <|open|>, <|close|>, <|sep|> nor <|im_middle|>, \
         and the model file has no tokenizer.chat_template"
    )]
    NoTemplate,
    /// The template of the file does not work.
    #[error("chat template: {0}")]
    Template(#[from] minijinja::Error),
    /// A marker that the format needs is not in the vocabulary.
    #[error("the vocabulary has no token {0}")]
    Marker(String),
    /// The format changes what it said before when it goes on.
    #[error("this chat format rewrites earlier turns: the conversation has to be rendered as a whole")]
    Rewritten,
}

/// Part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A special token.
    Marker(String),
    /// Text in which nothing is special, whatever it looks like.
    Text(String),
}

impl Segment {
    /// How it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Segment::Marker(text) | Segment::Text(text) => text,
        }
    }
}

/// Appends text; what stands next to each other becomes one segment, so that tokens do not depend on how a
/// renderer puts its text together.
pub(super) fn push_text(segments: &mut Vec<Segment>, text: &str) {
    match segments.last_mut() {
        _ if text.is_empty() => {}
        Some(Segment::Text(last)) => last.push_str(text),
        _ => segments.push(Segment::Text(text.to_owned())),
    }
}

/// Appends a special token.
pub(super) fn push_marker(segments: &mut Vec<Segment>, name: &str) {
    segments.push(Segment::Marker(name.to_owned()));
}

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// What was said. Where the format permits, the history of a conversation begins with the history of the
    /// same conversation at any earlier time.
    pub history: Vec<Segment>,
    /// What makes the model speak now; the next history does not contain it.
    pub opening: Vec<Segment>,
}

/// The tokens of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptTokens {
    /// All of them.
    pub tokens: Vec<u32>,
    /// How many of them are the history, and so begin the tokens of the conversation's next prompt.
    pub history: usize,
}

impl Prompt {
    /// The prompt as one string; user text that looks like a marker cannot be told from one in it.
    pub fn text(&self) -> String {
        self.history.iter().chain(&self.opening).map(Segment::as_str).collect()
    }

    /// The prompt as tokens.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<PromptTokens, ChatError> {
        let mut tokens = Vec::new();
        let mut history = 0;
        let mut text = String::new();
        for (i, segment) in self.history.iter().chain(&self.opening).enumerate() {
            match segment {
                // Text on both sides of the seam is one text, and its tokens are not the history's.
                Segment::Text(more) => text.push_str(more),
                Segment::Marker(name) => {
                    tokens.extend(tokenizer.encode(&std::mem::take(&mut text), Special::Forbid));
                    if i <= self.history.len() {
                        history = tokens.len();
                    }
                    tokens.push(tokenizer.special(name).ok_or_else(|| ChatError::Marker(name.clone()))?);
                    if i < self.history.len() {
                        history = tokens.len();
                    }
                }
            }
        }
        tokens.extend(tokenizer.encode(&text, Special::Forbid));
        if self.opening.is_empty() {
            history = tokens.len();
        }
        Ok(PromptTokens { tokens, history })
    }
}

/// How conversations of a model are written.
#[derive(Debug)]
pub enum Template {
    /// Kimi K3's markup.
    K3,
    /// That of Kimi K2 and Kimi-Linear.
    K2,
    /// A template that the model file brings.
    Jinja(Box<JinjaTemplate>),
}

impl Template {
    /// The template for a vocabulary: a known one if it has the markers, else `chat_template`, the Jinja
    /// source in the model file.
    pub fn choose(tokenizer: &Tokenizer, chat_template: Option<&str>) -> Result<Self, ChatError> {
        let has = |names: &[&str]| names.iter().all(|name| tokenizer.special(name).is_some());
        if has(&[chat_k3::OPEN, chat_k3::CLOSE, chat_k3::SEP, chat_k3::END]) {
            Ok(Self::K3)
        } else if has(&[chat_k2::MIDDLE, chat_k2::SYSTEM, chat_k2::USER, chat_k2::ASSISTANT, chat_k2::END]) {
            Ok(Self::K2)
        } else {
            let source = chat_template.ok_or(ChatError::NoTemplate)?;
            Ok(Self::Jinja(Box::new(JinjaTemplate::new(source, tokenizer)?)))
        }
    }

    /// The whole conversation as a prompt.
    pub fn render(&self, chat: &Chat) -> Result<Prompt, ChatError> {
        self.render_after(chat, 0)
    }

    /// What follows a prompt's history that already stands for the first `known` messages: the other
    /// messages, and the opening. Those `known` need not be complete (the last one that called tools is
    /// enough for the K3 and K2 formats), but they have to end the turn that they belong to.
    ///
    /// Fails with [`ChatError::Rewritten`] if the template would now write the known messages in another way.
    pub fn render_after(&self, chat: &Chat, known: usize) -> Result<Prompt, ChatError> {
        let known = known.min(chat.messages.len());
        match self {
            Self::K3 => chat_k3::render(chat, known),
            Self::K2 => chat_k2::render(chat, known),
            Self::Jinja(template) => {
                let mut prompt = template.render(chat)?;
                if known > 0 {
                    if prompt.history.is_empty() {
                        return Err(ChatError::Rewritten);
                    }
                    let before = Chat { messages: chat.messages[..known].to_vec(), ..chat.clone() };
                    prompt.history = after(&template.render(&before)?.history, prompt.history)?;
                }
                Ok(prompt)
            }
        }
    }

    /// What ends the turn of an answer that was cut off, so that the conversation can go on behind it.
    ///
    /// # Errors
    /// [`ChatError::Rewritten`] for a template of the model file's own, whose parts aren't known.
    pub fn closing(&self) -> Result<Prompt, ChatError> {
        let history = match self {
            Self::K3 => chat_k3::closing(),
            Self::K2 => vec![Segment::Marker(chat_k2::END.to_owned())],
            Self::Jinja(_) => return Err(ChatError::Rewritten),
        };
        Ok(Prompt { history, opening: Vec::new() })
    }
}

/// What `whole` has more than its beginning `known`.
fn after(known: &[Segment], whole: Vec<Segment>) -> Result<Vec<Segment>, ChatError> {
    let mut rest = whole.into_iter();
    for (i, known_segment) in known.iter().enumerate() {
        let segment = rest.next().ok_or(ChatError::Rewritten)?;
        match (known_segment, segment) {
            (a, b) if *a == b => {}
            // The last known text may go on.
            (Segment::Text(a), Segment::Text(b)) if i + 1 == known.len() && b.starts_with(a.as_str()) => {
                let more = Segment::Text(b[a.len()..].to_owned());
                return Ok(std::iter::once(more).chain(rest).collect());
            }
            _ => return Err(ChatError::Rewritten),
        }
    }
    Ok(rest.collect())
}
