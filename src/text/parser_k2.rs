//! Reads what Kimi K2 and Kimi-Linear say (see `chat_k2`): an answer, possibly after reasoning between
//! `<think>` and `</think>`, which are text there, and a section of tool calls.

use std::mem::take;

use super::chat_k2::{CALL_ARGUMENTS, CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, THINK, THINK_END};
use super::parser::Output;

/// Where in a message the text is.
#[derive(Debug, Default)]
enum Place {
    /// At the beginning, where reasoning may follow.
    #[default]
    Start,
    Think,
    Answer,
    /// Between calls.
    Calls,
    /// Between the beginning of a call and its arguments.
    Name(String),
    Arguments,
}

#[derive(Debug, Default)]
pub(super) struct K2 {
    place: Place,
    /// Text that may turn out to be the beginning of `<think>` or `</think>`.
    held: String,
}

impl K2 {
    pub(super) fn text(&mut self, text: &str, out: &mut Output) {
        match &mut self.place {
            Place::Start => {
                self.held.push_str(text);
                self.start(out);
            }
            Place::Think => {
                self.held.push_str(text);
                self.think(out);
            }
            Place::Answer | Place::Calls => out.content(text),
            Place::Name(name) => name.push_str(text),
            Place::Arguments => out.call_arguments(text),
        }
    }

    pub(super) fn marker(&mut self, name: &str, out: &mut Output) {
        let next = match (name, &mut self.place) {
            (THINK, Place::Start) => Place::Think,
            (THINK_END, Place::Think) => Place::Answer,
            (CALLS_BEGIN, _) => Place::Calls,
            (CALL_BEGIN, _) => Place::Name(String::new()),
            (CALL_ARGUMENTS, Place::Name(header)) => {
                let (id, name) = call_name(header);
                out.start_call(Some(id), name);
                self.place = Place::Arguments;
                return;
            }
            (CALL_END, Place::Name(_) | Place::Arguments) => Place::Calls,
            (CALLS_END, Place::Calls | Place::Name(_) | Place::Arguments) => Place::Answer,
            (_, Place::Start) => {
                self.leave(out);
                self.place = Place::Answer;
                out.content(name);
                return;
            }
            _ => {
                self.text(name, out);
                return;
            }
        };
        self.leave(out);
        self.place = next;
    }

    pub(super) fn end_turn(&mut self, out: &mut Output) {
        self.leave(out);
        self.place = Place::Start;
    }

    pub(super) fn finish(&mut self, out: &mut Output) {
        match &mut self.place {
            Place::Name(header) => out.content(&format!("{CALL_BEGIN}{}", take(header))),
            Place::Arguments => {}
            _ => self.leave(out),
        }
    }

    /// Whether the text begins with `<think>`, once that is certain.
    fn start(&mut self, out: &mut Output) {
        if let Some(thought) = self.held.strip_prefix(THINK) {
            self.held = thought.to_owned();
            self.place = Place::Think;
            self.think(out);
        } else if !THINK.starts_with(&self.held) {
            self.leave(out);
            self.place = Place::Answer;
        }
    }

    /// Passes on what is reasoning for certain.
    fn think(&mut self, out: &mut Output) {
        if let Some((thought, answer)) = self.held.split_once(THINK_END) {
            out.reasoning(thought);
            out.content(answer);
            self.held.clear();
            self.place = Place::Answer;
            return;
        }
        let kept = (1..THINK_END.len()).rev().find(|&n| self.held.ends_with(&THINK_END[..n])).unwrap_or(0);
        let certain = self.held.len() - kept;
        out.reasoning(&self.held[..certain]);
        self.held.drain(..certain);
    }

    /// Ends what is going on.
    fn leave(&mut self, out: &mut Output) {
        match &mut self.place {
            Place::Start => out.content(&take(&mut self.held)),
            Place::Think => out.reasoning(&take(&mut self.held)),
            Place::Answer | Place::Calls => {}
            Place::Name(header) if header.trim().is_empty() => out.content(&format!("{CALL_BEGIN}{header}")),
            Place::Name(header) => {
                let (id, name) = call_name(header);
                out.start_call(Some(id), name);
                out.end_call();
            }
            Place::Arguments => out.end_call(),
        }
    }
}

/// The id of a call, and the name in it: `functions.NAME:NUMBER`, but any other id is a name too.
fn call_name(header: &str) -> (String, String) {
    let id = header.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = match name.rsplit_once(':') {
        Some((name, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    (id.to_owned(), name.to_owned())
}
