//! What a model says, told apart as it comes: reasoning, answer, tool calls, the end of its turn.

use std::sync::Arc;

use super::chat::{Arguments, Content, Message, Role, Template, ToolCall};
use super::decoder::Utf8;
use super::parser_k2::K2;
use super::parser_k3::Xtml;
use super::tokenizer::Tokenizer;

/// Something that the model said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It thinks.
    Reasoning(String),
    /// It answers. What cannot be understood is part of the answer too: nothing is dropped.
    Content(String),
    /// It begins to call a tool.
    ToolCallStart {
        /// Which of its calls, from 0.
        index: usize,
        /// What it calls the call, in formats in which it does.
        id: Option<String>,
        /// The tool.
        name: String,
    },
    /// The arguments go on.
    ToolCallArguments {
        /// Which of its calls.
        index: usize,
        /// The next part of the arguments: all parts together are JSON text, usually of an object.
        json: String,
    },
    /// The call is complete. A call without this event was cut off, and must not be made.
    ToolCallEnd {
        /// Which of its calls.
        index: usize,
    },
    /// It has said all it wants to say for now.
    EndOfTurn,
}

/// Events under construction, with the state that is the same in every format.
#[derive(Debug, Default)]
pub(super) struct Output {
    events: Vec<Event>,
    /// Number of calls that have ended.
    calls: usize,
    /// Whether the current call has arguments yet.
    arguments: bool,
}

impl Output {
    pub(super) fn reasoning(&mut self, text: &str) {
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(Event::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn content(&mut self, text: &str) {
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Content(last)) => last.push_str(text),
            _ => self.events.push(Event::Content(text.to_owned())),
        }
    }

    pub(super) fn start_call(&mut self, id: Option<String>, name: String) {
        self.arguments = false;
        self.events.push(Event::ToolCallStart { index: self.calls, id, name });
    }

    pub(super) fn call_arguments(&mut self, text: &str) {
        self.arguments |= !text.trim().is_empty();
        match self.events.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::ToolCallArguments { json, .. }) => json.push_str(text),
            _ => self.events.push(Event::ToolCallArguments { index: self.calls, json: text.to_owned() }),
        }
    }

    /// A call without arguments has an empty object of them.
    pub(super) fn end_call(&mut self) {
        if !self.arguments {
            self.call_arguments("{}");
        }
        self.events.push(Event::ToolCallEnd { index: self.calls });
        self.calls += 1;
    }
}

/// A format. Each reads text and markers (special tokens other than those that end a turn).
#[derive(Debug)]
enum Grammar {
    K3(Xtml),
    K2(K2),
    /// All is answer.
    Plain,
}

/// Reads the tokens that a model generates, one turn or several.
///
/// Markers are recognised by their ids. Text that looks like a marker is text.
pub struct Parser {
    tokenizer: Arc<Tokenizer>,
    grammar: Grammar,
    utf8: Utf8,
    out: Output,
}

impl Parser {
    /// A parser for what follows the opening of a prompt of this template. `thinking` is that of the
    /// [`Chat`](super::Chat).
    pub fn new(tokenizer: Arc<Tokenizer>, template: &Template, thinking: bool) -> Self {
        let grammar = match template {
            Template::K3 => Grammar::K3(Xtml::new(thinking)),
            Template::K2 => Grammar::K2(K2::default()),
            Template::Jinja(_) => Grammar::Plain,
        };
        Self { tokenizer, grammar, utf8: Utf8::default(), out: Output::default() }
    }

    /// What the next token says. A character, a tag or a marker that is not complete yet is held back.
    pub fn push(&mut self, token: u32) -> Vec<Event> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let ends = tokenizer.stops().contains(&token);
        let mut text = String::new();
        if ends || tokenizer.is_special(token) {
            self.utf8.finish(&mut text);
            self.text(&text);
            if ends {
                self.end_turn();
            } else {
                self.marker(&String::from_utf8_lossy(tokenizer.bytes(token)));
            }
        } else {
            self.utf8.push(tokenizer.bytes(token), &mut text);
            self.text(&text);
        }
        std::mem::take(&mut self.out.events)
    }

    /// The stream ends here, perhaps in the middle of something: what was held back. A tool call that is
    /// not complete is left so.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut text = String::new();
        self.utf8.finish(&mut text);
        self.text(&text);
        match &mut self.grammar {
            Grammar::K3(grammar) => grammar.finish(&mut self.out),
            Grammar::K2(grammar) => grammar.finish(&mut self.out),
            Grammar::Plain => {}
        }
        std::mem::take(&mut self.out.events)
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match &mut self.grammar {
            Grammar::K3(grammar) => grammar.text(text, &mut self.out),
            Grammar::K2(grammar) => grammar.text(text, &mut self.out),
            Grammar::Plain => self.out.content(text),
        }
    }

    fn marker(&mut self, name: &str) {
        match &mut self.grammar {
            Grammar::K3(grammar) => grammar.marker(name, &mut self.out),
            Grammar::K2(grammar) => grammar.marker(name, &mut self.out),
            Grammar::Plain => self.out.content(name),
        }
    }

    fn end_turn(&mut self) {
        match &mut self.grammar {
            Grammar::K3(grammar) => grammar.end_turn(&mut self.out),
            Grammar::K2(grammar) => grammar.end_turn(&mut self.out),
            Grammar::Plain => {}
        }
        self.out.events.push(Event::EndOfTurn);
    }
}

/// The events of one turn, put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// What was thought.
    pub reasoning: String,
    /// What was answered.
    pub content: String,
    /// The calls, with their arguments as JSON text; the last may be incomplete.
    pub tool_calls: Vec<ToolCall>,
    /// How many of the calls are complete.
    pub complete_calls: usize,
    /// Whether the turn came to its end.
    pub ended: bool,
}

impl Reply {
    /// Adds what comes next.
    pub fn push(&mut self, event: Event) {
        match event {
            Event::Reasoning(text) => self.reasoning += &text,
            Event::Content(text) => self.content += &text,
            Event::ToolCallStart { id, name, .. } => {
                self.tool_calls.push(ToolCall::new(id, name, Arguments::Text(String::new())));
            }
            Event::ToolCallArguments { index, json } => {
                if let Some(Arguments::Text(text)) =
                    self.tool_calls.get_mut(index).map(|call| &mut call.function.arguments)
                {
                    *text += &json;
                }
            }
            Event::ToolCallEnd { .. } => self.complete_calls += 1,
            Event::EndOfTurn => self.ended = true,
        }
    }

    /// The message that the conversation goes on with. Without the calls that are incomplete.
    pub fn into_message(mut self) -> Message {
        self.tool_calls.truncate(self.complete_calls);
        let mut message = Message::new(Role::Assistant, "");
        let silent = self.content.is_empty() && !self.tool_calls.is_empty();
        message.content = (!silent).then_some(Content::Text(self.content));
        message.reasoning_content = Some(self.reasoning).filter(|text| !text.is_empty());
        message.tool_calls = self.tool_calls;
        message
    }
}

impl Extend<Event> for Reply {
    fn extend<I: IntoIterator<Item = Event>>(&mut self, events: I) {
        events.into_iter().for_each(|event| self.push(event));
    }
}
