//! The shape that a turn has to have: what a request says about it, in the markup of the model's format.
//!
//! The chat formats know where the answer and the calls of a turn are; what may stand there is said by the
//! request's response format, tools and tool choice. Who generates the tokens enforces it.

use serde_json::{Value, json};

use super::chat::{Chat, ResponseFormat, Segment, Template, ToolChoice};
use super::{chat_k2, chat_k3};

/// What may be said.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A special token.
    Marker(String),
    /// Just this text.
    Text(String),
    /// Any text, also none; no special token.
    Free,
    /// A number from 0 to 99.
    Number,
    /// JSON of a schema.
    Json(Value),
    /// One after the other.
    All(Vec<Shape>),
    /// One of these, at least one.
    Any(Vec<Shape>),
    /// This or nothing.
    Maybe(Box<Shape>),
    /// This, once or more often.
    Some(Box<Shape>),
}

impl Shape {
    pub(super) fn segments(segments: Vec<Segment>) -> Shape {
        let shape = |segment| match segment {
            Segment::Marker(name) => Shape::Marker(name),
            Segment::Text(text) => Shape::Text(text),
        };
        Shape::All(segments.into_iter().map(shape).collect())
    }
}

/// Why no shape can be had.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// The response format has no schema, or one that is none.
    #[error("response_format.json_schema.schema has to be a JSON schema: an object")]
    Schema,
    /// The tool that is to be called isn't one of the tools.
    #[error("tool_choice names the tool {0:?}, but tools has none of that name")]
    NoTool(String),
    /// A tool without a name.
    #[error("each of tools has to be {{\"type\": \"function\", \"function\": {{\"name\": …}}}}")]
    Tool,
    /// The format's calls aren't known.
    #[error(
        "this model has a chat format of its own, in which no call can be enforced: leave tool_choice out"
    )]
    Calls,
}

/// A function that can be called.
pub(super) struct Tool<'a> {
    pub(super) name: &'a str,
    /// The schema of its arguments.
    pub(super) parameters: Value,
}

/// What a turn has to be, whatever the format.
pub(super) struct Wanted<'a> {
    /// The schema of the answer; any text without.
    pub(super) answer: Option<Value>,
    /// What may be called.
    pub(super) tools: Vec<Tool<'a>>,
    /// Whether something has to be called.
    pub(super) call: bool,
    /// Whether that is all: one call of the one tool.
    pub(super) once: bool,
}

impl Wanted<'_> {
    /// Calls, each of which is one of these.
    pub(super) fn calls(&self, calls: Vec<Shape>) -> Shape {
        let calls = Shape::Any(calls);
        if self.once { calls } else { Shape::Some(Box::new(calls)) }
    }
}

impl Template {
    /// The shape of the turn that follows the opening of this conversation's prompt, up to the token that
    /// ends the turn. Nothing if it may have any.
    ///
    /// # Errors
    /// If what the conversation asks for makes no sense, or can't be said in this format.
    pub fn shape(&self, chat: &Chat) -> Result<Option<Shape>, ShapeError> {
        let answer = match &chat.response_format {
            ResponseFormat::Text => None,
            ResponseFormat::JsonObject => Some(json!({"type": "object"})),
            ResponseFormat::JsonSchema { json_schema } => {
                let schema = json_schema.get("schema").filter(|s| s.is_object());
                Some(schema.ok_or(ShapeError::Schema)?.clone())
            }
        };
        let call = chat.tool_choice == ToolChoice::Required;
        if answer.is_none() && !call {
            return Ok(None);
        }
        let silent = chat.tool_choice == ToolChoice::None;
        let tools = if silent { Vec::new() } else { tools(chat)? };
        let wanted = Wanted { answer, tools, call, once: call && chat.tool.is_some() };
        match self {
            Self::K3 => Ok(Some(chat_k3::shape(&wanted, chat.thinking))),
            Self::K2 => Ok(Some(chat_k2::shape(&wanted))),
            Self::Jinja(_) if call => Err(ShapeError::Calls),
            Self::Jinja(_) => Ok(wanted.answer.map(Shape::Json)),
        }
    }
}

/// What may be called: all tools, or the one that has to be.
fn tools(chat: &Chat) -> Result<Vec<Tool<'_>>, ShapeError> {
    let mut tools = Vec::new();
    for tool in &chat.tools {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
        let name = name.ok_or(ShapeError::Tool)?;
        let parameters = function.get("parameters").filter(|p| p.is_object());
        let parameters = parameters.cloned().unwrap_or_else(|| json!({"type": "object"}));
        if chat.tool.as_deref().is_none_or(|only| only == name) {
            tools.push(Tool { name, parameters });
        }
    }
    match &chat.tool {
        Some(only) if tools.is_empty() => Err(ShapeError::NoTool(only.clone())),
        _ => Ok(tools),
    }
}
