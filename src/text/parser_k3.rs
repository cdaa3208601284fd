//! Reads Kimi K3's markup (see `chat_k3`).
//!
//! A tag that is known is obeyed wherever it stands: it closes what has to be closed first, so a missing
//! closer costs nothing. Everything else is part of what is being said where it stands.

use std::mem::take;

use serde::de::IgnoredAny;

use super::chat_k3::{CLOSE, OPEN, SEP};
use super::json::escape;
use super::parser::Output;

/// Where in a message the text is.
#[derive(Debug)]
enum Place {
    /// Between sections.
    Between,
    Think,
    Response,
    /// Between calls.
    Tools,
    /// In a call, between arguments.
    Call,
    /// In a string argument, which is passed on as it comes.
    Text,
    /// In an argument that is JSON, which is kept until it is complete.
    Value(String),
    /// In the whole of the arguments as JSON, passed on as it comes.
    Json,
}

/// What the open call has so far.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Nothing,
    /// Arguments one by one: an object is open.
    Arguments,
    /// JSON for all arguments.
    Json,
}

#[derive(Debug)]
pub(super) struct Xtml {
    place: Place,
    /// The tag that is being read: the marker that began it, and what came since.
    tag: Option<(String, String)>,
    /// The call that is open.
    call: Option<Body>,
}

impl Xtml {
    /// At the place where the opening of a prompt leaves off.
    pub(super) fn new(thinking: bool) -> Self {
        let place = if thinking { Place::Think } else { Place::Response };
        Self { place, tag: None, call: None }
    }

    pub(super) fn text(&mut self, text: &str, out: &mut Output) {
        match &mut self.tag {
            Some((_, tag)) => tag.push_str(text),
            None => self.say(text, out),
        }
    }

    pub(super) fn marker(&mut self, name: &str, out: &mut Output) {
        if name == SEP
            && let Some((marker, tag)) = self.tag.take()
        {
            let known = if marker == OPEN { self.open(&tag, out) } else { self.close(&tag, out) };
            if known.is_none() {
                self.say(&format!("{marker}{tag}{SEP}"), out);
            }
            return;
        }
        self.abandon_tag(out);
        if name == OPEN || name == CLOSE {
            self.tag = Some((name.to_owned(), String::new()));
        } else {
            self.say(name, out);
        }
    }

    pub(super) fn end_turn(&mut self, out: &mut Output) {
        self.abandon_tag(out);
        self.enter(Place::Between, out);
    }

    pub(super) fn finish(&mut self, out: &mut Output) {
        self.abandon_tag(out);
        if let Place::Value(raw) = &mut self.place {
            out.call_arguments(&take(raw));
        }
    }

    /// The tag is none after all.
    fn abandon_tag(&mut self, out: &mut Output) {
        if let Some((marker, tag)) = self.tag.take() {
            self.say(&format!("{marker}{tag}"), out);
        }
    }

    fn say(&mut self, text: &str, out: &mut Output) {
        match &mut self.place {
            Place::Think => out.reasoning(text),
            Place::Between | Place::Response | Place::Tools | Place::Call => out.content(text),
            Place::Text => out.call_arguments(&escaped(text)),
            Place::Value(raw) => raw.push_str(text),
            Place::Json => out.call_arguments(text),
        }
    }

    /// `None`: this opens nothing.
    fn open(&mut self, tag: &str, out: &mut Output) -> Option<()> {
        let (name, attributes) = parse_tag(tag)?;
        let attribute = |name: &str| attributes.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        match (name, self.call) {
            ("think", _) => self.enter(Place::Think, out),
            ("response", _) => self.enter(Place::Response, out),
            ("tools", _) => self.enter(Place::Tools, out),
            ("call", _) => {
                let tool = attribute("tool")?.clone();
                self.enter(Place::Call, out);
                out.start_call(None, tool);
                self.call = Some(Body::Nothing);
            }
            ("argument", Some(body @ (Body::Nothing | Body::Arguments))) => {
                let key = attribute("key")?;
                self.leave_argument(out);
                let before = if body == Body::Nothing { "{" } else { ", " };
                out.call_arguments(&format!("{before}\"{}\": ", escaped(key)));
                self.call = Some(Body::Arguments);
                self.place = if attribute("type").is_some_and(|kind| kind == "string") {
                    out.call_arguments("\"");
                    Place::Text
                } else {
                    Place::Value(String::new())
                };
            }
            ("json", Some(Body::Nothing)) => (self.call, self.place) = (Some(Body::Json), Place::Json),
            _ => return None,
        }
        Some(())
    }

    /// `None`: this closes nothing.
    fn close(&mut self, name: &str, out: &mut Output) -> Option<()> {
        match (name, &self.place, self.call) {
            ("think", Place::Think, _) | ("response", Place::Response, _) | ("message", ..) => {
                self.enter(Place::Between, out);
            }
            ("tools", Place::Tools, _) | ("tools", _, Some(_)) => self.enter(Place::Between, out),
            ("call", _, Some(_)) => self.enter(Place::Tools, out),
            ("argument", Place::Text | Place::Value(_), _) | ("json", Place::Json, _) => {
                self.leave_argument(out)
            }
            _ => return None,
        }
        Some(())
    }

    /// Goes to a place outside of any call.
    fn enter(&mut self, place: Place, out: &mut Output) {
        if self.call.is_some() {
            self.leave_argument(out);
            if self.call.take() == Some(Body::Arguments) {
                out.call_arguments("}");
            }
            out.end_call();
        }
        self.place = place;
    }

    fn leave_argument(&mut self, out: &mut Output) {
        match &self.place {
            Place::Text => out.call_arguments("\""),
            Place::Value(raw) => out.call_arguments(&value(raw)),
            _ => {}
        }
        self.place = Place::Call;
    }
}

/// The text of an argument as JSON: as it is, or as a string if it is not what it says it is.
fn value(raw: &str) -> String {
    match serde_json::from_str::<IgnoredAny>(raw) {
        Ok(_) => raw.trim().to_owned(),
        Err(_) => format!("\"{}\"", escaped(raw)),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| escape(c, &mut out));
    out
}

/// `name key="value" …`
fn parse_tag(tag: &str) -> Option<(&str, Vec<(&str, String)>)> {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some((name, attributes));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        if key.is_empty() || key.contains(char::is_whitespace) {
            return None;
        }
        attributes.push((key, value.replace("&quot;", "\"").replace("&amp;", "&")));
        rest = after;
    }
}
