//! `kadence session`: what there is, and what can be done with it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Failure;
use super::client::{Client, Trouble, session_path};
use super::daemon::Place;
use super::terminal::clean;

/// List, show, branch, move and delete conversations
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// All conversations, the one used last first
    List,
    /// A conversation and what was said in it
    Show {
        /// Its name
        name: String,
    },
    /// Begin a conversation with what another one has
    Fork {
        /// The other one's name
        from: String,
        /// The new one's name
        to: String,
        #[command(flatten)]
        position: Position,
    },
    /// Go back to an earlier place; what came after is forgotten
    Rewind {
        /// Its name
        name: String,
        #[command(flatten)]
        position: Position,
    },
    /// Write a conversation to one file
    Export {
        /// Its name
        name: String,
        /// The file, which must not be there yet
        file: PathBuf,
    },
    /// Begin a conversation from an exported file
    Import {
        /// The file
        file: PathBuf,
        /// The new one's name
        name: String,
    },
    /// Delete a conversation and all that is on disk of it
    Delete {
        /// Its name
        name: String,
    },
}

/// A place in a conversation.
#[derive(clap::Args)]
#[group(multiple = false)]
struct Position {
    /// After so many turns; negative counts from the end
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    turns: Option<i64>,
    /// After so many tokens
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
}

impl Position {
    /// Tokens before the place, if one is named.
    fn tokens(&self, client: &Client, name: &str) -> Result<Option<u64>, Failure> {
        let Some(wanted) = self.turns else { return Ok(self.tokens) };
        let session = client.get(&session_path(name, ""))?;
        let turns = session["turn_tokens"].as_array().map_or(&[][..], Vec::as_slice);
        let count = if wanted < 0 { turns.len() as i64 + wanted } else { wanted };
        let count = usize::try_from(count).ok().filter(|&c| c <= turns.len());
        let count =
            count.ok_or_else(|| Failure::new(format!("session {name:?} has {} turns", turns.len())))?;
        Ok(Some(count.checked_sub(1).map_or(0, |last| turns[last][1].as_u64().unwrap_or(0))))
    }
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let client = args.place.client(false)?;
    let changed = match &args.command {
        Command::List => return list(&client, args.json, out),
        Command::Show { name } => return show(&client, name, args.json, out),
        Command::Fork { from, to, position } => {
            let tokens = position.tokens(&client, from)?;
            client.post(&session_path(from, "/fork"), &json!({"to": to, "tokens": tokens}))?
        }
        Command::Rewind { name, position } => {
            let tokens = position.tokens(&client, name)?;
            let tokens = tokens.ok_or_else(|| Failure::usage("say where to: --turns N or --tokens N"))?;
            client.post(&session_path(name, "/rewind"), &json!({"tokens": tokens}))?
        }
        Command::Export { name, file } => {
            export(&client, name, file)?;
            client.get(&session_path(name, ""))?
        }
        Command::Import { file, name } => {
            let opened = File::open(file).map_err(|e| Failure::in_file(file, &e))?;
            client.upload(&session_path(name, "/import"), opened)?
        }
        Command::Delete { name } => return delete(&client, name, args.json, out),
    };
    if args.json {
        writeln!(out, "{changed}")?;
    } else {
        writeln!(out, "{}", line(&changed))?;
    }
    Ok(())
}

/// Whether a session has turns.
///
/// # Errors
/// If the daemon doesn't say.
pub fn begun(client: &Client, name: &str) -> Result<bool, Trouble> {
    match client.get(&session_path(name, "")) {
        Ok(session) => Ok(session["turns"].as_u64() > Some(0)),
        Err(why) if why.is("session_not_found") => Ok(false),
        Err(why) => Err(why),
    }
}

/// Writes a session to a new file.
///
/// # Errors
/// If the file is there already or can't be written, or there is no such session.
pub fn export(client: &Client, name: &str, path: &Path) -> Result<(), Failure> {
    let mut file = File::create_new(path).map_err(|e| Failure::in_file(path, &e))?;
    let done = client.download(&session_path(name, "/export"), &mut file);
    done.map_err(|why| match why {
        Trouble::Here(e) => Failure::in_file(path, &e),
        why => why.into(),
    })
    .and_then(|()| Ok(file.sync_all()?))
    .inspect_err(|_| drop(std::fs::remove_file(path))) // half a session is none
}

/// A session in one line.
pub fn line(session: &Value) -> String {
    let number = |key: &str| session[key].as_u64().unwrap_or(0);
    let checkpoints = session["checkpoints"].as_array().map_or(0, Vec::len);
    format!(
        "{}: {} turns, {} tokens, {:.1} MB, {checkpoints} checkpoints",
        clean(session["id"].as_str().unwrap_or_default()),
        number("turns"),
        number("tokens"),
        number("bytes") as f64 / 1e6,
    )
}

fn list(client: &Client, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let all = client.get("/v1/sessions")?;
    if json {
        writeln!(out, "{}", all["data"])?;
    } else {
        all["data"].as_array().into_iter().flatten().try_for_each(|s| writeln!(out, "{}", line(s)))?;
    }
    Ok(())
}

fn show(client: &Client, name: &str, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let mut session = client.get(&session_path(name, ""))?;
    let messages = client.get(&session_path(name, "/messages"));
    if json {
        session["messages"] = messages?["data"].take();
        writeln!(out, "{session}")?;
        return Ok(());
    }
    writeln!(out, "{}", line(&session))?;
    for message in messages?["data"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        writeln!(out, "\n[{role}]\n{}", clean(text(message).trim_end()))?;
    }
    Ok(())
}

/// What a message says, as text.
pub fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
        _ => {
            message["tool_calls"].as_array().map_or_else(String::new, |c| Value::from(c.clone()).to_string())
        }
    }
}

fn delete(client: &Client, name: &str, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let deleted = client.delete(&session_path(name, ""))?;
    if json {
        writeln!(out, "{deleted}")?;
    }
    Ok(())
}
