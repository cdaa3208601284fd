//! How Kimi K3 writes a conversation ("XTML"): tags made of three markers, and a fourth at the end of a
//! message.
//!
//! `open(tag, attributes)` is `<|open|>tag name="value"…<|sep|>` and `close(tag)` is `<|close|>tag<|sep|>`.
//! What is between markers is text, so nothing that anybody says can open or close anything.

use std::ops::Range;

use serde_json::{Map, Value};

use super::chat::{
    Arguments, Chat, ChatError, FunctionCall, Message, Prompt, ResponseFormat, Role, Segment, ToolCall,
    ToolChoice, push_marker, push_text,
};
use super::json::{Order, Style};
use super::shape::{Shape, Tool, Wanted};

pub(super) const OPEN: &str = "<|open|>";
pub(super) const CLOSE: &str = "<|close|>";
pub(super) const SEP: &str = "<|sep|>";
pub(super) const END: &str = "<|end_of_msg|>";

const TOOLS: &str = "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
const NEW_TOOLS: &str = "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n\
    You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n";
const RAW_JSON: &str = "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.";

/// Renders the messages from `known` on; what comes before the messages only if `known` is 0.
pub(super) fn render(chat: &Chat, known: usize) -> Result<Prompt, ChatError> {
    let mut history = Xtml::default();
    if known == 0 {
        preamble(&mut history, chat);
    }
    let mut calls: &[ToolCall] = &[];
    let mut results = 0;
    let mut at = 0;
    while let Some(message) = chat.messages.get(at) {
        if message.role == Role::Tool {
            let run = chat.messages[at..].iter().take_while(|m| m.role == Role::Tool).count();
            for (i, name) in answers(&chat.messages, at..at + run, results, calls)? {
                results += 1;
                if i >= known {
                    result(&mut history, &chat.messages[i], name, results)?;
                }
            }
            at += run;
            continue;
        }
        if message.role == Role::Assistant {
            (calls, results) = (&message.tool_calls, 0);
        }
        if at >= known {
            turn(&mut history, message, chat.thinking)?;
        }
        at += 1;
    }
    Ok(Prompt { history: history.0, opening: opening(chat) })
}

/// What the system says before the conversation.
fn preamble(out: &mut Xtml, chat: &Chat) {
    if !chat.tools.is_empty() {
        out.declare(TOOLS, &chat.tools);
    }
    if chat.thinking {
        let effort = format!(
            "`thinking_effort` guides on how much to think in your thinking channel (not including the response \
             channel), supported values include `low`, `medium`, `high`, and `max`.\n\
             Now the system is invoked with `thinking_effort={}`.",
            chat.effort
        );
        out.system("thinking-effort", &effort);
    }
}

/// What the system says after the conversation, and the beginning of the answer.
fn opening(chat: &Chat) -> Vec<Segment> {
    let mut out = Xtml::default();
    match chat.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::Required => out.system(
            "tool-choice",
            "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
        ),
        ToolChoice::None => out.system(
            "tool-choice",
            "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
        ),
    }
    match &chat.response_format {
        ResponseFormat::Text => {}
        ResponseFormat::JsonObject => out.system(
            "response-format",
            &format!("The system is invoked with `response_format=json_object`.\n{RAW_JSON}"),
        ),
        ResponseFormat::JsonSchema { json_schema } => {
            let schema = json_schema.get("schema").or_else(|| json_schema.get("json_schema"));
            let schema = sorted(schema.unwrap_or(json_schema));
            out.system(
                "response-format",
                &format!(
                    "The system is invoked with `response_format=json_schema`.\n{RAW_JSON}\n\
                     The JSON data must match the following schema:\n```json\n{schema}\n```"
                ),
            );
        }
    }
    out.open("message", &[("role", "assistant")]);
    out.open(if chat.thinking { "think" } else { "response" }, &[]);
    out.0
}

/// The end of an answer.
pub(super) fn closing() -> Vec<Segment> {
    let mut out = Xtml::default();
    out.close("response");
    out.close("message");
    push_marker(&mut out.0, END);
    out.0
}

/// The shape of a turn, up to its last marker.
pub(super) fn shape(wanted: &Wanted, thinking: bool) -> Shape {
    let markup = |build: &dyn Fn(&mut Xtml)| {
        let mut out = Xtml::default();
        build(&mut out);
        Shape::segments(out.0)
    };
    let mut turn = Vec::new();
    if thinking {
        turn.push(Shape::Free);
        turn.push(markup(&|out| {
            out.close("think");
            out.open("response", &[]);
        }));
    }
    let answered = markup(&|out| out.close("response"));
    let calls = || {
        let calls = wanted.tools.iter().map(call_shape).collect();
        let open = markup(&|out| out.open("tools", &[]));
        let close = markup(&|out| out.close("tools"));
        Shape::All(vec![open, wanted.calls(calls), close])
    };
    match &wanted.answer {
        _ if wanted.call => turn.extend([answered, calls()]),
        Some(schema) if wanted.tools.is_empty() => turn.extend([Shape::Json(schema.clone()), answered]),
        Some(schema) => {
            let answer = Shape::All(vec![Shape::Json(schema.clone()), answered.clone()]);
            turn.push(Shape::Any(vec![answer, Shape::All(vec![answered, calls()])]));
        }
        None => turn.extend([Shape::Free, answered]),
    }
    turn.push(markup(&|out| out.close("message")));
    Shape::All(turn)
}

/// The shape of a call: argument by argument where their types are plain, else as JSON in one piece.
fn call_shape(tool: &Tool) -> Shape {
    let arguments = argument_shapes(&tool.parameters).unwrap_or_else(|| {
        let mut open = Xtml::default();
        open.open("json", &[("type", "object")]);
        let mut close = Xtml::default();
        close.close("json");
        let json = Shape::Json(tool.parameters.clone());
        Shape::All(vec![Shape::segments(open.0), json, Shape::segments(close.0)])
    });
    // The number is in the middle of a text: `index="1"`.
    let mut open = Xtml::default();
    open.open("call", &[("tool", tool.name), ("index", "")]);
    let mut open = open.0;
    let sep = open.pop();
    if let Some(Segment::Text(text)) = open.last_mut() {
        text.pop();
    }
    let mut rest = vec![Segment::Text("\"".into())];
    rest.extend(sep);
    let mut close = Xtml::default();
    close.close("call");
    let close = Shape::segments(close.0);
    Shape::All(vec![Shape::segments(open), Shape::Number, Shape::segments(rest), arguments, close])
}

/// `None` if the arguments can't be told apart by their schema.
fn argument_shapes(parameters: &Value) -> Option<Shape> {
    // What refers to other parts of the schema can't be taken out of it.
    let plain =
        ["$ref", "$defs", "allOf", "anyOf", "oneOf", "patternProperties", "minProperties", "maxProperties"];
    if parameters.to_string().contains("\"$ref\"") || plain.iter().any(|key| parameters.get(key).is_some()) {
        return None;
    }
    let empty = Map::new();
    let properties = parameters.get("properties").map_or(Some(&empty), Value::as_object)?;
    let required: Vec<&str> = parameters
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !required.iter().all(|key| properties.contains_key(*key)) {
        return None;
    }
    let mut all = Vec::new();
    for (key, schema) in properties {
        let kind = schema.get("type")?.as_str()?;
        let fixed = schema.get("enum").and_then(Value::as_array);
        let value = match (kind, fixed) {
            ("string", None)
                if ["pattern", "format", "const", "minLength", "maxLength"]
                    .iter()
                    .any(|k| schema.get(k).is_some()) =>
            {
                return None;
            }
            ("string", None) => Shape::Free,
            ("string", Some(words)) => {
                let words: Option<Vec<Shape>> = words
                    .iter()
                    .map(|w| w.as_str().filter(|w| !w.is_empty()).map(|w| Shape::Text(w.into())))
                    .collect();
                Shape::Any(words.filter(|words| !words.is_empty())?)
            }
            _ => Shape::Json(schema.clone()),
        };
        let kind = if kind == "integer" { "number" } else { kind };
        let mut open = Xtml::default();
        open.open("argument", &[("key", key), ("type", kind)]);
        let mut close = Xtml::default();
        close.close("argument");
        let argument = Shape::All(vec![Shape::segments(open.0), value, Shape::segments(close.0)]);
        let needed = required.contains(&key.as_str());
        all.push(if needed { argument } else { Shape::Maybe(Box::new(argument)) });
    }
    Some(Shape::All(all))
}

/// A message that is not a tool result.
fn turn(out: &mut Xtml, message: &Message, thinking: bool) -> Result<(), ChatError> {
    if message.role == Role::System && !message.tools.is_empty() {
        out.declare(NEW_TOOLS, &message.tools);
        return Ok(());
    }
    let role = message.role.to_string();
    let mut attributes = vec![("role", role.as_str())];
    attributes.extend(message.name.as_deref().filter(|name| !name.is_empty()).map(|name| ("name", name)));
    out.message(&attributes, |body| {
        if message.role != Role::Assistant {
            body.text(&message.text()?);
            return Ok(());
        }
        if thinking {
            body.element("think", &[], |body| body.text(message.thought().unwrap_or_default()));
        }
        let text = message.text()?;
        body.element("response", &[], |body| body.text(&text));
        if !message.tool_calls.is_empty() {
            body.element("tools", &[], |body| {
                for (i, call) in (1..).zip(&message.tool_calls) {
                    body.call(i, &call.function);
                }
            });
        }
        Ok(())
    })
}

/// The result of a tool, the `index`th since the calls were made.
fn result(out: &mut Xtml, message: &Message, name: &str, index: usize) -> Result<(), ChatError> {
    let text = message.text()?;
    out.message(&[("role", "tool"), ("tool", name), ("index", &index.to_string())], |body| {
        body.text(&text);
        Ok(())
    })
}

/// One run of tool results: which message, and the name of its tool. In the order of the calls if each
/// answers one, else as they come; `before` is the number of results since the calls were made.
fn answers<'a>(
    messages: &'a [Message],
    run: Range<usize>,
    before: usize,
    calls: &'a [ToolCall],
) -> Result<Vec<(usize, &'a str)>, ChatError> {
    let name_of = |call: &'a ToolCall| call.function.name.as_str();
    let call_of = |i: usize| {
        let id = messages[i].tool_call_id.as_ref()?;
        Some((calls.iter().position(|call| call.id.as_ref() == Some(id))?, i))
    };
    if let Some(mut resolved) = run.clone().map(call_of).collect::<Option<Vec<_>>>() {
        resolved.sort();
        return Ok(resolved.into_iter().map(|(call, i)| (i, name_of(&calls[call]))).collect());
    }
    let named = run.zip(before..).map(|(i, number)| {
        let name = messages[i].name.as_deref().or_else(|| calls.get(number).map(name_of));
        Ok((i, name.ok_or(ChatError::ToolName(i))?))
    });
    named.collect()
}

fn sorted(value: &Value) -> String {
    Style { order: Order::CaseInsensitive, ..Style::COMPACT }.write(value)
}

/// Segments under construction.
#[derive(Default)]
struct Xtml(Vec<Segment>);

impl Xtml {
    fn text(&mut self, text: &str) {
        push_text(&mut self.0, text);
    }

    fn open(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        push_marker(&mut self.0, OPEN);
        self.text(tag);
        for (name, value) in attributes {
            self.text(&format!(" {name}=\"{}\"", value.replace('&', "&amp;").replace('"', "&quot;")));
        }
        push_marker(&mut self.0, SEP);
    }

    fn close(&mut self, tag: &str) {
        push_marker(&mut self.0, CLOSE);
        self.text(tag);
        push_marker(&mut self.0, SEP);
    }

    fn element(&mut self, tag: &str, attributes: &[(&str, &str)], body: impl FnOnce(&mut Self)) {
        self.open(tag, attributes);
        body(self);
        self.close(tag);
    }

    fn message(
        &mut self,
        attributes: &[(&str, &str)],
        body: impl FnOnce(&mut Self) -> Result<(), ChatError>,
    ) -> Result<(), ChatError> {
        self.open("message", attributes);
        body(self)?;
        self.close("message");
        push_marker(&mut self.0, END);
        Ok(())
    }

    /// A message from the system itself.
    fn system(&mut self, kind: &str, body: &str) {
        self.element("message", &[("role", "system"), ("type", kind)], |out| out.text(body));
        push_marker(&mut self.0, END);
    }

    fn declare(&mut self, head: &str, tools: &[Value]) {
        let tools = sorted(&Value::Array(tools.to_vec()));
        self.system("tool-declare", &format!("{head}```json\n{tools}\n```"));
    }

    fn call(&mut self, index: usize, function: &FunctionCall) {
        self.element(
            "call",
            &[("tool", &function.name), ("index", &index.to_string())],
            |out| match &function.arguments {
                Arguments::Object(arguments) => {
                    for (key, value) in arguments {
                        let kind = kind_of(value);
                        out.element("argument", &[("key", key), ("type", kind)], |out| match value {
                            Value::String(text) => out.text(text),
                            other => out.text(&Style::PYTHON.write(other)),
                        });
                    }
                }
                Arguments::Text(json) if json.trim().is_empty() => {}
                Arguments::Text(json) => out.element("json", &[("type", "object")], |out| out.text(json)),
            },
        );
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
