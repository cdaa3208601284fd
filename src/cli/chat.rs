//! `kadence chat`: a conversation that goes on where it was, also tomorrow.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kadence_quant::Format;
use serde_json::json;

use crate::engine::{Finish, Generation, Generator, Request, Sampling};
use crate::session::{Bound, Codec, RealDisk, Resumed, Session, Settings, Store};
use crate::text::{Chat, Message, Parser, Role, Template, Tokenizer};

use super::generate::content;
use super::sampling::SamplingArgs;
use super::{Failure, interrupt, open};

/// Talk to a model that remembers: the session goes on where it was, also after a restart
///
/// Reads messages from the terminal, or one a line from the standard input.
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model); without it, the model in the box
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Name of the conversation
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    session: String,
    #[command(flatten)]
    place: Place,
    /// What the model is told before a new conversation begins
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    number: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// How the memory is stored when a new conversation sleeps: exact, f16, q8 or q4
    #[arg(long, value_name = "CODEC", default_value = "q8")]
    codec: Codec,
    /// How a new conversation keeps what is looked back at: f16 or q8_0
    #[arg(long, value_name = "FORMAT", default_value = "f16", value_parser = rows)]
    rows: Format,
    /// Look back only at the first S and the last W tokens, so that memory and time stay constant for ever
    #[arg(long, value_name = "S,W", value_parser = window)]
    window: Option<crate::model::Window>,
    /// Threads [default: as many as the process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object a turn
    #[arg(long)]
    json: bool,
}

/// Where sessions are.
#[derive(clap::Args)]
pub struct Place {
    /// Folder of the sessions [default: $XDG_STATE_HOME/kadence or ~/.local/state/kadence]
    #[arg(long, value_name = "FOLDER", env = "KADENCE_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

impl Place {
    /// The store there.
    ///
    /// # Errors
    /// If no place is named and there is no home.
    pub fn store(&self, settings: Settings) -> Result<Store, Failure> {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let state = self.state_dir.clone().or_else(|| {
            let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
            Some(state?.join("kadence"))
        });
        let state =
            state.ok_or_else(|| Failure::new("there is no home folder: name one with --state-dir"))?;
        Ok(Store::new(&state, settings, Arc::new(RealDisk)))
    }
}

/// Whose sessions are meant: those of who runs the program.
pub fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

fn rows(text: &str) -> Result<Format, String> {
    Format::from_name(text)
        .filter(|f| matches!(f, Format::F16 | Format::Q8_0 | Format::F32))
        .ok_or_else(|| "f16 and q8_0 are known".into())
}

fn window(text: &str) -> Result<crate::model::Window, String> {
    let (first, last) = text.split_once(',').ok_or("two numbers are needed, as in 256,4096")?;
    let number = |n: &str| n.trim().parse::<usize>().map_err(|e| format!("{n:?}: {e}"));
    let window = crate::model::Window { first: number(first)?, last: number(last)? };
    if window.last == 0 { Err("the last tokens must be seen".into()) } else { Ok(window) }
}

/// What answers.
struct Talk<'a> {
    args: &'a Args,
    path: &'a Path,
    generator: Generator,
    tokenizer: Arc<Tokenizer>,
    template: Template,
    session: Session,
    sampling: Sampling,
    /// What the session started from, until that was told.
    resumed: Option<Resumed>,
}

/// An answer, and what it took.
struct Turn {
    answer: String,
    resumed: Option<Resumed>,
    /// Tokens that needn't be read.
    reused: usize,
    done: Generation,
    first_token: f64,
    /// Why it couldn't be saved.
    unsaved: Option<String>,
}

impl Talk<'_> {
    /// The tokens that a message adds to the conversation, with the opening of the answer.
    fn prompt(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let begun = !self.session.turn_ends().is_empty();
        let mut messages = vec![Message::new(Role::User, text)];
        if begun {
            messages.insert(0, Message::new(Role::Assistant, "")); // stands for all that was said before
        } else if let Some(system) = &self.args.system {
            messages.insert(0, Message::new(Role::System, system));
        }
        let chat = Chat { messages, thinking: false, ..Chat::default() };
        let prompt = self.template.render_after(&chat, usize::from(begun));
        let tokens =
            prompt.and_then(|p| p.tokens(&self.tokenizer)).map_err(|e| Failure::new(e.to_string()))?;
        Ok(tokens.tokens)
    }

    fn turn(&mut self, text: &str, cancel: &AtomicBool, mut show: impl FnMut(&str)) -> Result<Turn, Failure> {
        let fail = |e: crate::session::Error| Failure::new(e.to_string());
        let prompt = self.prompt(text)?;
        let start = Instant::now();
        self.session.say(&prompt).map_err(fail)?;
        let resumed = self.session.adopt_prefix().or(self.resumed.take());
        let (reused, known) = (self.session.state().tokens(), self.session.resumed());
        let mut parser = Parser::new(self.tokenizer.clone(), &self.template, false);
        let (mut answer, mut first_token) = (String::new(), None);
        let request = Request {
            prompt: &[],
            limit: self.args.number,
            sampling: self.sampling,
            stops: self.tokenizer.stops(),
        };
        let done = self.generator.generate(&request, &mut self.session, cancel, |token| {
            first_token.get_or_insert_with(|| start.elapsed().as_secs_f64());
            let text = content(parser.push(token));
            show(&text);
            answer.push_str(&text);
        });
        let done = done.map_err(|e| Failure::in_file(self.path, &e))?;
        // Damage that was found only now.
        let found = Some(self.session.resumed()).filter(|r| *r != known);
        let rest = content(parser.finish());
        show(&rest);
        answer.push_str(&rest);
        if done.finish != Finish::Stop {
            let closing = self.template.closing().and_then(|p| p.tokens(&self.tokenizer));
            self.session.push(&closing.map_err(|e| Failure::new(e.to_string()))?.tokens);
        }
        self.session.end_turn();
        let unsaved = self.session.save().err().map(|e| e.to_string());
        self.sampling.seed = self.sampling.seed.wrapping_add(1); // or the next answer draws the same numbers
        let first_token = first_token.unwrap_or_else(|| start.elapsed().as_secs_f64());
        Ok(Turn { answer, resumed: found.or(resumed), reused, done, first_token, unsaved })
    }
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let sampling = args.sampling.sampling()?;
    let path = open::path(args.model.as_deref())?;
    let forward = open::forward(&path, args.threads.map(usize::from))?;
    let fail = |e: &dyn std::fmt::Display| Failure::new(e.to_string());
    let file = forward.model().file();
    let tokenizer = Arc::new(Tokenizer::from_gguf(file).map_err(|e| fail(&e))?);
    let template = Template::from_gguf(file, &tokenizer).map_err(|e| fail(&e))?;
    if matches!(template, Template::Jinja(_)) {
        return Err(Failure::in_file(
            &path,
            &"its chat template is its own, and sessions can't go on with it",
        ));
    }
    let settings =
        Settings { codec: args.codec, rows: args.rows, window: args.window, ..Settings::default() };
    let bound = Bound::new(forward.model().clone());
    let session = args.place.store(settings)?.open(user(), &args.session, &bound).map_err(|e| fail(&e))?;
    let resumed = Some(session.resumed());
    let generator = Generator::new(forward);
    let mut talk = Talk { args, path: &path, generator, tokenizer, template, session, sampling, resumed };
    let terminal = std::io::stdin().is_terminal();
    if terminal {
        greet(&talk);
    }
    let (cancel, idle) = interrupt::cancel_or_end()?;
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if terminal {
            write!(out, "\n> ")?;
            out.flush()?;
        }
        cancel.store(false, Ordering::Relaxed);
        idle.store(true, Ordering::Relaxed);
        let line = lines.next();
        idle.store(false, Ordering::Relaxed);
        let Some(line) = line.transpose()? else { break };
        if line.trim().is_empty() {
            continue;
        }
        answer(&mut talk, &line, &cancel, out)?;
    }
    if terminal {
        writeln!(out)?;
    }
    Ok(())
}

fn greet(talk: &Talk<'_>) {
    let Resumed { reason, reused, reread } = talk.session.resumed();
    let name = talk.session.name();
    match talk.session.turn_ends().len() {
        0 => eprintln!("Session {name} begins. Ctrl-C stops an answer, Ctrl-D ends."),
        turns => eprintln!(
            "Session {name} goes on: {turns} turns, {reused} tokens remembered, {reread} to be read again ({reason})."
        ),
    }
}

/// Answers one message.
fn answer(talk: &mut Talk<'_>, line: &str, cancel: &AtomicBool, out: &mut dyn Write) -> Result<(), Failure> {
    let json = talk.args.json;
    let mut written = Ok(());
    let turn = talk.turn(line, cancel, |text| {
        if !json && written.is_ok() && !text.is_empty() {
            written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if written.is_err() {
                cancel.store(true, Ordering::Relaxed); // nobody reads any more
            }
        }
    })?;
    written?;
    if json {
        writeln!(out, "{}", report(&turn, talk.session.tokens().len()))?;
    } else {
        writeln!(out)?;
        if let Some(why) = &turn.unsaved {
            eprintln!("kadence: not saved, and only in memory: {why}");
        }
    }
    out.flush()?;
    Ok(())
}

fn report(turn: &Turn, tokens: usize) -> serde_json::Value {
    let reason = turn.resumed.map_or("live", |r| r.reason.code());
    json!({
        "answer": turn.answer,
        "finish": turn.done.finish.name(),
        "reason": reason,
        "tokens_reused": turn.reused,
        "tokens_read": turn.done.prompt_tokens,
        "tokens_reread": turn.resumed.map_or(0, |r| r.reread),
        "tokens_generated": turn.done.tokens,
        "tokens": tokens,
        "seconds_to_first_token": turn.first_token,
        "saved": turn.unsaved.is_none(),
        "error": turn.unsaved,
    })
}
