//! Chat templates in Jinja, as model files bring them, with what Hugging Face's renderer offers to them.
//!
//! A template yields one string, in which what it wrote itself and what it quoted from users stand next to
//! each other, and only the former may contain special tokens. So quoted text goes in with a guard character
//! wherever a special token begins in it or could continue into or out of it; a special token is recognised
//! in the output only if it holds no guard and none stands before it; then the guards are taken out again.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value as Jinja};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Value, json};

use super::chat::{
    Chat, ChatError, Message, Prompt, ResponseFormat, Segment, ToolChoice, push_marker, push_text,
};
use super::json::{Order, Style};
use super::strftime::strftime_now;
use super::tokenizer::{Specials, Tokenizer};

/// A noncharacter: not for interchange between programs, so nobody's text may contain it.
const GUARD: char = '\u{fdd0}';

/// What a template may spend, in minijinja's units (about one for each step and each 64 bytes).
const FUEL: u64 = 20_000_000;

/// What formats say with fixed words; a guard in them would only confuse a template that compares them.
const WORDS: [&str; 11] = [
    "function",
    "text",
    "object",
    "array",
    "string",
    "number",
    "integer",
    "boolean",
    "null",
    "json_object",
    "json_schema",
];

/// A chat template in Jinja.
#[derive(Debug)]
pub struct JinjaTemplate {
    environment: Environment<'static>,
    specials: Specials,
    bos: String,
    eos: String,
}

const NAME: &str = "chat";

impl JinjaTemplate {
    /// Compiles `source` for a vocabulary.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("strftime_now", |format: &str| strftime_now(format));
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, source.to_owned())?;
        let written = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.bytes(id)).into_owned()).unwrap_or_default()
        };
        Ok(Self {
            environment,
            specials: tokenizer.specials().clone(),
            bos: written(tokenizer.bos()),
            eos: written(tokenizer.eos()),
        })
    }

    /// The conversation as a prompt. If the template does not simply append the opening, all of it is
    /// opening.
    pub(super) fn render(&self, chat: &Chat) -> Result<Prompt, ChatError> {
        let mut context = self.context(chat)?;
        let template = self.environment.get_template(NAME)?;
        context["add_generation_prompt"] = false.into();
        let history = template.render(Serde(&context))?;
        context["add_generation_prompt"] = true.into();
        let whole = template.render(Serde(&context))?;
        Ok(match whole.strip_prefix(&history) {
            Some(opening) => Prompt { history: self.segments(&history), opening: self.segments(opening) },
            None => Prompt { history: Vec::new(), opening: self.segments(&whole) },
        })
    }

    /// The variables that templates expect.
    fn context(&self, chat: &Chat) -> Result<Value, ChatError> {
        let messages: Result<Vec<Value>, ChatError> = chat.messages.iter().map(message).collect();
        let mut context = json!({
            "messages": messages?,
            "tools": if chat.tools.is_empty() { Value::Null } else { chat.tools.as_slice().into() },
            "documents": null,
            "thinking": chat.thinking,
            "enable_thinking": chat.thinking,
            "thinking_effort": chat.effort.to_string(),
            "reasoning_effort": chat.effort.to_string(),
        });
        match chat.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::Required => context["tool_choice"] = "required".into(),
            ToolChoice::None => context["tool_choice"] = "none".into(),
        }
        if chat.response_format != ResponseFormat::Text {
            context["response_format"] = plain(&chat.response_format)?;
        }
        self.guard_all(&mut context);
        context["bos_token"] = self.bos.as_str().into();
        context["eos_token"] = self.eos.as_str().into();
        Ok(context)
    }

    fn guard_all(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.guard(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.guard_all(item)),
            Value::Object(map) => {
                *map = std::mem::take(map)
                    .into_iter()
                    .map(|(key, mut value)| {
                        // Of a message this is one of four words, and templates compare it.
                        if key != "role" {
                            self.guard_all(&mut value);
                        }
                        (self.guard_inside(&key), value)
                    })
                    .collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// `text` such that nothing of it can become (part of) a special token, whatever is written around it.
    fn guard(&self, text: &str) -> String {
        if WORDS.contains(&text) {
            return text.to_owned();
        }
        let mut out = self.guard_inside(text);
        let ends_one = |name: &str| {
            let inner = &name[name.chars().next().map_or(0, char::len_utf8)..];
            inner.contains(text) || inner.char_indices().any(|(i, _)| text.starts_with(&inner[i..]))
        };
        if !text.is_empty() && self.specials.names().any(ends_one) {
            out.insert(0, GUARD);
        }
        out
    }

    /// `text` with a guard before every special token in it, and before its end if one may begin there.
    fn guard_inside(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            if self.specials.at(text, at).is_some() || self.specials.begins_with(&text[at..]) {
                out.push(GUARD);
            }
            out.push(if c == GUARD { char::REPLACEMENT_CHARACTER } else { c });
        }
        out
    }

    /// Tells special tokens from text, and takes out the guards.
    fn segments(&self, rendered: &str) -> Vec<Segment> {
        let mut segments = Vec::new();
        let unguarded = |text: &str| text.replace(GUARD, "");
        let (mut done, mut from) = (0, 0);
        while let Some((range, _)) = self.specials.find(rendered, from) {
            if rendered[..range.start].ends_with(GUARD) {
                from = range.start + 1;
                continue;
            }
            push_text(&mut segments, &unguarded(&rendered[done..range.start]));
            push_marker(&mut segments, &rendered[range.clone()]);
            (done, from) = (range.end, range.end);
        }
        push_text(&mut segments, &unguarded(&rendered[done..]));
        segments
    }
}

/// A message as templates know it: text content as one string, arguments as objects.
fn message(message: &Message) -> Result<Value, ChatError> {
    let mut message = message.clone();
    if message.content.is_some() {
        message.content = Some(super::chat::Content::Text(message.text()?));
    }
    for call in &mut message.tool_calls {
        call.function.arguments = std::mem::take(&mut call.function.arguments).parsed();
    }
    plain(&message)
}

fn plain(value: &impl serde::Serialize) -> Result<Value, ChatError> {
    let invalid = |error| Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error);
    Ok(serde_json::to_value(value).map_err(invalid)?)
}

/// `tojson` as Hugging Face has it: nothing is escaped for HTML or beyond ASCII, and the keywords of
/// `json.dumps` are understood.
fn tojson(value: &Jinja, options: Kwargs) -> Result<Jinja, Error> {
    let invalid =
        |error| Error::new(ErrorKind::BadSerialization, "cannot be written as JSON").with_source(error);
    let value = serde_json::to_value(value).map_err(invalid)?;
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let (comma, colon) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }, ": "),
        Some([comma, colon]) => (comma.as_str(), colon.as_str()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: two separators are needed")),
    };
    let order = if sort == Some(true) { Order::Sorted } else { Order::Kept };
    let text = Style { comma, colon, indent, order, ascii: ascii == Some(true) }.write(&value);
    // Not "safe": nothing is escaped here, and safe strings would escape what they are joined with.
    Ok(Jinja::from(text))
}
