//! `kadence chat`: a conversation that goes on where it was, also tomorrow.

mod commands;
mod editor;

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::daemon::OwnPlaces;

use super::client::{Client, Trouble, session_path};
use super::daemon::Place;
use super::reports::time;
use super::terminal::{clean, colours};
use super::turn::{Paper, Turn, Wishes, ask};
use super::{Failure, interrupt, sessions};

use editor::{Editor, Line};

/// Talk to a model that remembers: the last conversation goes on where it was, also after a restart
///
/// In a terminal, /help tells what can be done beside talking. Otherwise reads one message a line.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the conversation [default: the one that was talked in last]
    #[arg(short, long, value_name = "NAME")]
    session: Option<String>,
    #[command(flatten)]
    wishes: Wishes,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object a turn
    #[arg(long)]
    json: bool,
}

/// The first conversation's name.
const FIRST: &str = "default";
/// Holds the name of the conversation that was talked in last.
const LAST: &str = "last-session";
/// Holds what was typed.
const HISTORY: &str = "history";

/// A conversation in a terminal, or by lines.
struct Chat<'a> {
    args: &'a Args,
    client: Client,
    /// The folder for what the client itself keeps; without it nothing is kept.
    folder: Option<PathBuf>,
    session: String,
    /// Answers in this run.
    answers: u64,
    /// What was asked last in this session, in this run.
    question: Option<String>,
    /// The last answer in this session, in this run.
    turn: Option<Turn>,
    /// Whether it is a terminal, and whether it has colours.
    terminal: bool,
    colours: bool,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let folder = OwnPlaces::find().ok().map(|places| places.state_dir);
    let last = || std::fs::read_to_string(folder.as_ref()?.join(LAST)).ok();
    let session = args.session.clone().or_else(last).unwrap_or_else(|| FIRST.into());
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !args.json;
    let client = args.place.client(args.wishes.file())?;
    let colours = terminal && colours();
    let session = session.trim().to_owned();
    let mut chat =
        Chat { args, client, folder, session, answers: 0, question: None, turn: None, terminal, colours };
    if terminal { chat.converse(out) } else { chat.lines(out) }
}

impl Chat<'_> {
    /// One message a line, until the first that isn't answered.
    fn lines(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let idle = interrupt::ends_while()?;
        for line in std::io::stdin().lock().lines() {
            idle.store(false, Ordering::Relaxed);
            let line = line?;
            if !line.trim().is_empty() {
                self.say(&line, out)?;
            }
            idle.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Talks with who sits at the terminal. What goes wrong is told, and the talk goes on.
    fn converse(&mut self, out: &mut dyn Write) -> Result<(), Failure> {
        let history = self.folder.as_ref().map(|folder| folder.join(HISTORY));
        let mut editor = Editor::new(history, self.colours)?;
        self.greet();
        loop {
            editor.sessions(self.names());
            let result = match editor.read()? {
                Line::End => return Ok(()),
                Line::Nothing => Ok(()),
                Line::Text(text) if text.starts_with('/') => match commands::run(self, &text, out) {
                    Ok(commands::Next::Quit) => return Ok(()),
                    other => other.map(|_| ()),
                },
                Line::Text(text) => self.say(&text, out),
            };
            if let Err(failure) = result {
                self.complain(&failure.why);
            }
        }
    }

    /// Tells what is remembered, and how it ended.
    fn greet(&self) {
        let session = match self.client.get(&session_path(&self.session, "")) {
            Ok(session) => session,
            Err(why) if why.is("session_not_found") => {
                return self.note(&format!(
                    "Session {} begins. Ctrl-C stops an answer, Ctrl-D ends; /help tells more.",
                    self.session
                ));
            }
            Err(why) => return self.complain(&Failure::from(why).why),
        };
        let number = |key: &str| session[key].as_u64().unwrap_or(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        self.note(&format!(
            "Session {} goes on: {} turns, {} tokens remembered, last used {} ago. /help tells more.",
            self.session,
            number("turns"),
            number("tokens"),
            time(now.saturating_sub(number("updated"))),
        ));
        for message in self.messages().unwrap_or_default().iter().rev().take(2).rev() {
            let role = if message["role"] == "user" { "you" } else { "it" };
            self.note(&format!("  {role}: {}", short(&sessions::text(message))));
        }
    }

    /// Has a message answered.
    fn say(&mut self, text: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let turn = match self.turn(text, out) {
            Err(Trouble::Nobody(_)) if !self.args.place.named() => {
                // It has ended since the last message.
                self.client = self.args.place.client(self.args.wishes.file())?;
                self.turn(text, out)?
            }
            turn => turn?,
        };
        if self.args.json {
            writeln!(out, "{}", turn.report())?;
        }
        out.flush()?;
        self.tell(&turn);
        self.question = Some(text.into());
        self.turn = Some(turn);
        self.remember();
        Ok(())
    }

    fn turn(&mut self, text: &str, out: &mut dyn Write) -> Result<Turn, Trouble> {
        // Only then a system prompt is of use.
        let begins = self.turn.is_none() && !sessions::begun(&self.client, &self.session)?;
        let request = self.args.wishes.request(text, Some(&self.session), begins, self.answers);
        let request = request.map_err(|f| Trouble::Here(std::io::Error::other(f.why)))?;
        let Chat { terminal, colours, .. } = *self;
        let turn =
            ask(&self.client, &request, &mut Paper { out, terminal, colours, silent: self.args.json })?;
        self.answers += 1;
        Ok(turn)
    }

    /// What is worth to be known about an answer.
    fn tell(&self, turn: &Turn) {
        if let Some(why) = turn.unsaved() {
            self.complain(&format!("not saved: {why}"));
        }
        let reason = turn.session["reason"].as_str().unwrap_or("live");
        let first = self.turn.is_none() && reason != "new";
        if self.terminal && (first || reason.starts_with("reread")) {
            self.note(&format!("[{}]", turn.memory()));
        }
        match turn.finish.as_str() {
            "length" if !self.args.json => self.note("[cut off: allow more tokens with -n]"),
            "cancelled" if self.terminal => self.note("[stopped; it remembers what it has said]"),
            _ => {}
        }
    }

    /// Goes over to another session.
    fn enter(&mut self, session: String) {
        self.session = session;
        self.turn = None;
        self.question = None;
        self.remember();
    }

    /// Keeps the session's name for the next start.
    fn remember(&self) {
        let Some(folder) = &self.folder else { return };
        if self.args.session.as_ref() == Some(&self.session) && self.answers > 1 {
            return; // it was written with the first
        }
        if let Err(e) =
            std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(LAST), &self.session))
        {
            self.complain(&format!("{}: {e}: the next start won't know this session", folder.display()));
        }
    }

    /// What was said so far.
    fn messages(&self) -> Result<Vec<Value>, Trouble> {
        let mut all = self.client.get(&session_path(&self.session, "/messages"))?;
        Ok(all["data"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// The names of all sessions; none if the daemon doesn't say.
    fn names(&self) -> Vec<String> {
        let all = self.client.get("/v1/sessions").unwrap_or_default();
        let named = all["data"].as_array().into_iter().flatten().filter(|s| s["automatic"] != true);
        named.filter_map(|s| Some(s["id"].as_str()?.to_owned())).collect()
    }

    /// Something beside the talk.
    fn note(&self, text: &str) {
        let text = clean(text);
        if self.colours {
            eprintln!("\x1b[2m{text}\x1b[0m");
        } else {
            eprintln!("{text}");
        }
    }

    /// Something that went wrong.
    fn complain(&self, why: &str) {
        eprintln!("kadence: {}", clean(why));
    }
}

/// The beginning of a text, as one line.
fn short(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(70) {
        Some((end, _)) => format!("{}\u{2026}", &line[..end]),
        None => line,
    }
}
