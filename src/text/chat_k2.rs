//! How Kimi K2 and Kimi-Linear write a conversation: a marker for who speaks, the role, a marker, what is
//! said, and a marker for the end. There are no words for tool choice, response format and effort.

use serde_json::Value;

use super::chat::{Arguments, Chat, ChatError, Message, Prompt, Role, Segment, push_marker, push_text};
use super::json::Style;
use super::shape::{Shape, Wanted};

pub(super) const SYSTEM: &str = "<|im_system|>";
pub(super) const USER: &str = "<|im_user|>";
pub(super) const ASSISTANT: &str = "<|im_assistant|>";
pub(super) const MIDDLE: &str = "<|im_middle|>";
pub(super) const END: &str = "<|im_end|>";

pub(super) const CALLS_BEGIN: &str = "<|tool_calls_section_begin|>";
pub(super) const CALLS_END: &str = "<|tool_calls_section_end|>";
pub(super) const CALL_BEGIN: &str = "<|tool_call_begin|>";
pub(super) const CALL_ARGUMENTS: &str = "<|tool_call_argument_begin|>";
pub(super) const CALL_END: &str = "<|tool_call_end|>";

/// Reasoning is written as text in front of the answer.
pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";

const DEFAULT_SYSTEM: &str = "You are a helpful assistant";

/// Renders the messages from `known` on; what comes before the messages only if `known` is 0.
pub(super) fn render(chat: &Chat, known: usize) -> Result<Prompt, ChatError> {
    let mut history = Vec::new();
    if known == 0 {
        if !chat.tools.is_empty() {
            declare(&mut history, &chat.tools);
        }
        if chat.messages.first().is_some_and(|message| message.role != Role::System) {
            header(&mut history, SYSTEM, "system");
            push_text(&mut history, DEFAULT_SYSTEM);
            push_marker(&mut history, END);
        }
    }
    let mut calls = 0;
    for (i, message) in chat.messages.iter().enumerate() {
        if i >= known {
            turn(&mut history, message, calls, chat.thinking)?;
        }
        calls += message.tool_calls.len();
    }
    let mut opening = Vec::new();
    header(&mut opening, ASSISTANT, "assistant");
    Ok(Prompt { history, opening })
}

fn header(out: &mut Vec<Segment>, marker: &str, role: &str) {
    push_marker(out, marker);
    push_text(out, role);
    push_marker(out, MIDDLE);
}

fn declare(out: &mut Vec<Segment>, tools: &[Value]) {
    header(out, SYSTEM, "tool_declare");
    push_text(out, &Style::PYTHON.write(&tools.into()));
    push_marker(out, END);
}

/// One message, before which there were `calls` tool calls.
fn turn(out: &mut Vec<Segment>, message: &Message, calls: usize, thinking: bool) -> Result<(), ChatError> {
    let marker = match message.role {
        Role::System | Role::Tool => SYSTEM,
        Role::User => USER,
        Role::Assistant => ASSISTANT,
    };
    if message.role == Role::System && !message.tools.is_empty() {
        declare(out, &message.tools);
        return Ok(());
    }
    header(out, marker, &message.role.to_string());
    match message.role {
        Role::Assistant if thinking => {
            if let Some(thought) = message.thought() {
                push_text(out, &format!("{THINK}{thought}{THINK_END}"));
            }
        }
        Role::Tool => {
            if let Some(id) = &message.tool_call_id {
                push_text(out, &format!("## Return of {id}\n"));
            }
        }
        _ => {}
    }
    push_text(out, &message.text()?);
    if !message.tool_calls.is_empty() {
        push_marker(out, CALLS_BEGIN);
        for (number, call) in (calls..).zip(&message.tool_calls) {
            let id = call.id.clone().unwrap_or_else(|| format!("functions.{}:{number}", call.function.name));
            push_marker(out, CALL_BEGIN);
            push_text(out, &id);
            push_marker(out, CALL_ARGUMENTS);
            match &call.function.arguments {
                Arguments::Text(json) => push_text(out, json),
                Arguments::Object(map) => push_text(out, &Style::PYTHON.write(&map.clone().into())),
            }
            push_marker(out, CALL_END);
        }
        push_marker(out, CALLS_END);
    }
    push_marker(out, END);
    Ok(())
}

/// The shape of a turn. The models of this format that are supported don't think.
pub(super) fn shape(wanted: &Wanted) -> Shape {
    let marker = |name: &str| Shape::Marker(name.into());
    let call = |name: &str, parameters: &Value| {
        let header =
            Shape::All(vec![marker(CALL_BEGIN), Shape::Text(format!("functions.{name}:")), Shape::Number]);
        let arguments = vec![marker(CALL_ARGUMENTS), Shape::Json(parameters.clone()), marker(CALL_END)];
        Shape::All(std::iter::once(header).chain(arguments).collect())
    };
    let calls = wanted.tools.iter().map(|tool| call(tool.name, &tool.parameters)).collect();
    let calls = Shape::All(vec![marker(CALLS_BEGIN), wanted.calls(calls), marker(CALLS_END)]);
    match &wanted.answer {
        _ if wanted.call => calls,
        Some(schema) if wanted.tools.is_empty() => Shape::Json(schema.clone()),
        Some(schema) => Shape::Any(vec![Shape::Json(schema.clone()), calls]),
        None => Shape::Free,
    }
}
