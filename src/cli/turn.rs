//! One question and its answer, of `kadence chat` and `kadence ask`.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Failure;
use super::client::{Client, Listener, Trouble};
use super::sampling::SamplingArgs;
use super::terminal::{Progress, clean};

/// How a question is to be answered.
#[derive(clap::Args)]
pub struct Wishes {
    /// Model: a name that the daemon knows, or a file (GGUF; any file of a split model) [default: the daemon's]
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    /// What the model is told before a new conversation begins
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer
    #[arg(short, long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// How much the model thinks: none, low, medium, high or max [default: as the daemon is configured]
    #[arg(long, value_name = "LEVEL")]
    effort: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl Wishes {
    /// Whether the model is a file of the user's.
    pub fn file(&self) -> bool {
        self.model.as_ref().is_some_and(|m| m.contains('/') || m.ends_with(".gguf"))
    }

    /// The request for an answer to a question; `begins` a conversation; the `number` of answers before it.
    ///
    /// # Errors
    /// If a flag can't be meant.
    pub fn request(
        &self,
        question: &str,
        session: Option<&str>,
        begins: bool,
        number: u64,
    ) -> Result<Value, Failure> {
        let sampling = self.sampling.sampling()?;
        let mut messages = vec![json!({"role": "user", "content": question})];
        if let Some(system) = self.system.as_ref().filter(|_| begins) {
            messages.insert(0, json!({"role": "system", "content": system}));
        }
        let mut request = json!({
            "messages": messages, "stream": true, "stream_options": {"include_usage": true},
            "max_tokens": self.number, "temperature": sampling.temperature, "top_k": sampling.top_k,
            "top_p": sampling.top_p, "min_p": sampling.min_p, "repeat_penalty": sampling.repeat_penalty,
            // Another one each time, or the next answer would draw the same numbers.
            "seed": sampling.seed.wrapping_add(number) >> 1,
        });
        if let Some(session) = session {
            request["session"] = session.into();
        }
        if let Some(effort) = &self.effort {
            request["reasoning_effort"] = effort.as_str().into();
        }
        if let Some(model) = &self.model {
            request["model"] = if self.file() { absolute(model)? } else { model.clone() }.into();
        }
        Ok(request)
    }
}

/// The path of a file as the daemon knows it.
fn absolute(path: &str) -> Result<String, Failure> {
    let path = Path::new(path);
    let found = path.canonicalize().map_err(|e| Failure::in_file(path, &e))?;
    found
        .into_os_string()
        .into_string()
        .map_err(|_| Failure::in_file(path, &"its path isn't UTF-8: rename it"))
}

/// Where an answer is written as it comes.
pub struct Paper<'a> {
    /// Where to.
    pub out: &'a mut dyn Write,
    /// Whether it is a terminal: then thoughts are shown too, and nothing that it would obey.
    pub terminal: bool,
    /// Whether thoughts are dimmed.
    pub colours: bool,
    /// Whether nothing is written until all is there.
    pub silent: bool,
}

/// An answer, and what it took.
#[derive(Default)]
pub struct Turn {
    /// What the model says.
    pub answer: String,
    /// What it thought before.
    pub reasoning: String,
    /// Why it ended: `stop`, `length`; or `cancelled` by Ctrl-C.
    pub finish: String,
    /// Tokens of the prompt, with all that was said before.
    pub prompt_tokens: u64,
    /// How many of them were remembered.
    pub cached_tokens: u64,
    /// Tokens of the answer.
    pub tokens: u64,
    /// What became of the session.
    pub session: Value,
    /// Until the first word.
    pub first_word: Duration,
}

impl Turn {
    /// Why it isn't saved, if it isn't.
    pub fn unsaved(&self) -> Option<&str> {
        self.session["error"].as_str()
    }

    /// What it went on from: the reason, and how much was remembered.
    pub fn memory(&self) -> String {
        let reason = self.session["reason"].as_str().unwrap_or("not kept");
        format!("{reason}: {} of {} tokens remembered", self.cached_tokens, self.prompt_tokens)
    }

    /// As JSON.
    pub fn report(&self) -> Value {
        json!({
            "answer": self.answer,
            "reasoning": self.reasoning,
            "finish": self.finish,
            "session": self.session["id"],
            "reason": self.session["reason"],
            "tokens_reused": self.cached_tokens,
            "tokens_read": self.prompt_tokens - self.cached_tokens.min(self.prompt_tokens),
            "tokens_reread": self.session["reread_tokens"],
            "tokens_generated": self.tokens,
            "tokens": self.prompt_tokens + self.tokens,
            "seconds_to_first_token": self.first_word.as_secs_f64(),
            "saved": self.session["saved"],
            "error": self.session["error"],
        })
    }
}

/// Hears an answer, and writes it down.
struct Writer<'a, 'b> {
    paper: &'a mut Paper<'b>,
    turn: Turn,
    start: Instant,
    heard: bool,
    thinks: bool,
}

impl Writer<'_, '_> {
    fn think(&mut self, text: &str) -> std::io::Result<()> {
        self.turn.reasoning += text;
        if self.paper.silent || !self.paper.terminal {
            return Ok(());
        }
        let mark = if std::mem::replace(&mut self.thinks, true) { "" } else { "thinking: " };
        if self.paper.colours {
            write!(self.paper.out, "\x1b[2m{}\x1b[0m", clean(text))
        } else {
            write!(self.paper.out, "{mark}{}", clean(text))
        }
    }

    fn say(&mut self, text: &str) -> std::io::Result<()> {
        self.turn.answer += text;
        if self.paper.silent {
            return Ok(());
        }
        if std::mem::take(&mut self.thinks) {
            self.paper.out.write_all(b"\n\n")?;
        }
        let text = if self.paper.terminal { clean(text) } else { text.into() };
        self.paper.out.write_all(text.as_bytes())
    }
}

impl Listener for Writer<'_, '_> {
    fn hear(&mut self, event: &Value) -> std::io::Result<()> {
        let choice = &event["choices"][0];
        for (key, thought) in [("reasoning_content", true), ("content", false)] {
            let Some(text) = choice["delta"][key].as_str().filter(|t| !t.is_empty()) else { continue };
            if !std::mem::replace(&mut self.heard, true) {
                self.turn.first_word = self.start.elapsed();
            }
            if thought { self.think(text) } else { self.say(text) }?;
            self.paper.out.flush()?;
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.turn.finish = finish.into();
        }
        if event["session"].is_object() {
            self.turn.session = event["session"].clone();
        }
        let usage = &event["usage"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        if usage.is_object() {
            self.turn.prompt_tokens = number(&usage["prompt_tokens"]);
            self.turn.cached_tokens = number(&usage["prompt_tokens_details"]["cached_tokens"]);
            self.turn.tokens = number(&usage["completion_tokens"]);
        }
        Ok(())
    }
}

/// How long another program may have the session before that is an error.
const BUSY: Duration = Duration::from_secs(30);

/// Has a question answered. What Ctrl-C ends is an answer too.
///
/// # Errors
/// If there is no answer, or not all of it.
pub fn ask(client: &Client, request: &Value, paper: &mut Paper<'_>) -> Result<Turn, Trouble> {
    let start = Instant::now();
    let mut writer = Writer { paper, turn: Turn::default(), start, heard: false, thinks: false };
    let mut progress = Progress::default();
    let done = loop {
        let done = client.stream("/v1/chat/completions", request, &mut writer);
        match &done {
            // Whoever has it is about to save it: the last answer, cut off.
            Err(why) if why.is("session_busy") && start.elapsed() < BUSY => {
                if start.elapsed() > Duration::from_secs(1) {
                    progress.show("waiting for the session", start.elapsed());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            _ => break done,
        }
    };
    drop(progress);
    let said = writer.heard && !writer.paper.silent;
    let mut turn = writer.turn;
    if said {
        writeln!(paper.out).and_then(|()| paper.out.flush()).map_err(Trouble::Here)?;
    }
    match done {
        Ok(()) => Ok(turn),
        Err(Trouble::Interrupted) => {
            turn.finish = "cancelled".into();
            Ok(turn)
        }
        Err(why) => Err(why),
    }
}
