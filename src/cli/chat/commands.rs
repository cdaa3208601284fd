//! What can be done in a chat beside talking.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::client::session_path;
use crate::cli::reports::described;
use crate::cli::{Failure, sessions};

use super::Chat;

/// The commands, what they take, and what they do.
pub(super) const COMMANDS: [(&str, &str, &str); 10] = [
    ("/help", "", "what can be done"),
    ("/new", "[NAME]", "begin another session"),
    ("/sessions", "", "list the sessions"),
    ("/resume", "NAME", "go on with another session"),
    ("/fork", "[NAME]", "go on in a copy; this session stays as it is"),
    ("/undo", "", "forget the last question and its answer"),
    ("/retry", "", "forget the last answer and ask again"),
    ("/info", "", "what is remembered, and how the daemon goes"),
    ("/save", "[FILE]", "make sure that all is saved; or write the session to a file"),
    ("/quit", "", "end, like Ctrl-D"),
];

/// What comes after a command.
pub(super) enum Next {
    Talk,
    Quit,
}

/// Does what a line says that begins with a slash.
pub(super) fn run(chat: &mut Chat<'_>, line: &str, out: &mut dyn Write) -> Result<Next, Failure> {
    let (command, rest) = line.trim().split_once(char::is_whitespace).unwrap_or((line.trim(), ""));
    let named = Some(rest.trim()).filter(|r| !r.is_empty()).map(str::to_owned);
    match command {
        "/help" => help(out)?,
        "/new" => new(chat, named)?,
        "/sessions" => list(chat, out)?,
        "/resume" => resume(chat, named)?,
        "/fork" => fork(chat, named)?,
        "/undo" => {
            undo(chat)?;
            chat.note(&format!("[forgotten; {} tokens are left]", tokens(chat)?));
        }
        "/retry" => {
            let question = undo(chat)?;
            chat.say(&question, out)?;
        }
        "/info" => info(chat, out)?,
        "/save" => save(chat, named)?,
        "/quit" => return Ok(Next::Quit),
        other => return Err(Failure::new(format!("there is no {other}: /help lists what there is"))),
    }
    Ok(Next::Talk)
}

fn help(out: &mut dyn Write) -> Result<(), Failure> {
    for (name, takes, what) in COMMANDS {
        writeln!(out, "{:<18} {what}", format!("{name} {takes}"))?;
    }
    writeln!(out, "A line that ends in \\ goes on in the next. Ctrl-C stops an answer, Ctrl-D ends.")?;
    Ok(())
}

/// A name that no session has.
fn free(chat: &Chat<'_>) -> String {
    let taken = chat.names();
    let mut number = 1;
    loop {
        let name = format!("chat-{number}");
        if !taken.contains(&name) && name != chat.session {
            return name;
        }
        number += 1;
    }
}

fn new(chat: &mut Chat<'_>, named: Option<String>) -> Result<(), Failure> {
    let name = named.unwrap_or_else(|| free(chat));
    if sessions::begun(&chat.client, &name)? {
        return Err(Failure::new(format!("there is a session {name:?}: /resume {name} goes on with it")));
    }
    chat.enter(name);
    chat.greet();
    Ok(())
}

fn list(chat: &Chat<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let all = chat.client.get("/v1/sessions")?;
    for session in all["data"].as_array().into_iter().flatten() {
        let mark = if session["id"] == chat.session.as_str() { "*" } else { " " };
        writeln!(out, "{mark} {}", sessions::line(session))?;
    }
    Ok(())
}

fn resume(chat: &mut Chat<'_>, named: Option<String>) -> Result<(), Failure> {
    let name = named.ok_or_else(|| Failure::new("/resume needs a name: /sessions lists them"))?;
    chat.client.get(&session_path(&name, ""))?; // there must be one
    chat.enter(name);
    chat.greet();
    Ok(())
}

fn fork(chat: &mut Chat<'_>, named: Option<String>) -> Result<(), Failure> {
    let name = named.unwrap_or_else(|| free(chat));
    chat.client.post(&session_path(&chat.session, "/fork"), &json!({"to": name}))?;
    chat.enter(name);
    chat.greet();
    Ok(())
}

fn tokens(chat: &Chat<'_>) -> Result<u64, Failure> {
    let session = chat.client.get(&session_path(&chat.session, ""))?;
    Ok(session["tokens"].as_u64().unwrap_or(0))
}

/// Goes back to before the last question, which is returned.
fn undo(chat: &mut Chat<'_>) -> Result<String, Failure> {
    let nothing = || Failure::new("nothing was said yet: there is nothing to go back to");
    let session = chat.client.get(&session_path(&chat.session, ""))?;
    let turn = session["turn_tokens"].as_array().and_then(|turns| turns.last()).ok_or_else(nothing)?;
    let question = match chat.question.take() {
        Some(question) => question,
        None => {
            let messages = chat.messages()?;
            let asked = messages.iter().rev().find(|m| m["role"] == "user").ok_or_else(nothing)?;
            sessions::text(asked)
        }
    };
    chat.client.post(&session_path(&chat.session, "/rewind"), &json!({"tokens": turn[0]}))?;
    chat.turn = None;
    Ok(question)
}

fn info(chat: &Chat<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let session: Value = chat.client.get(&session_path(&chat.session, ""))?;
    writeln!(out, "session    {}", sessions::line(&session))?;
    if let Some(turn) = &chat.turn {
        writeln!(out, "last turn  {}; {} tokens generated", turn.memory(), turn.tokens)?;
    }
    write!(out, "{}", described(&chat.client.get("/v1/status")?))?;
    Ok(())
}

fn save(chat: &Chat<'_>, named: Option<String>) -> Result<(), Failure> {
    let session = chat.client.post(&session_path(&chat.session, "/save"), &json!({}))?;
    if let Some(file) = named {
        sessions::export(&chat.client, &chat.session, Path::new(&file))?;
    }
    chat.note(&format!("[saved] {}", sessions::line(&session)));
    Ok(())
}
