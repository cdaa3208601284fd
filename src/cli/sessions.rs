//! `kadence session`: what there is, and what can be done with it.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::session::{Fingerprint, Settings, Store, Summary};
use crate::text::Tokenizer;

use super::chat::{Place, user};
use super::{Failure, open};

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
    /// A conversation, turn by turn
    Show {
        /// Its name
        name: String,
        /// A model with its vocabulary, to show tokens as text; without it, the model in the box
        #[arg(short, long, value_name = "FILE")]
        model: Option<PathBuf>,
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
    tokens: Option<usize>,
}

impl Position {
    /// Tokens before the place, if one is named.
    fn tokens(&self, store: &Store, name: &str) -> Result<Option<usize>, Failure> {
        let Some(wanted) = self.turns else { return Ok(self.tokens) };
        let (_, _, turns) = store.show(user(), name).map_err(fail)?;
        let count = if wanted < 0 { turns.len() as i64 + wanted } else { wanted };
        let count = usize::try_from(count).ok().filter(|&c| c <= turns.len());
        let count =
            count.ok_or_else(|| Failure::new(format!("session {name:?} has {} turns", turns.len())))?;
        Ok(Some(count.checked_sub(1).map_or(0, |last| turns[last].end)))
    }
}

fn fail(e: crate::session::Error) -> Failure {
    Failure::new(e.to_string())
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let store = args.place.store(Settings::default())?;
    let changed = match &args.command {
        Command::List => return list(&store, args.json, out),
        Command::Show { name, model } => return show(&store, name, model.as_deref(), args.json, out),
        Command::Fork { from, to, position } => {
            let tokens = position.tokens(&store, from)?;
            store.fork(user(), from, to, tokens)
        }
        Command::Rewind { name, position } => {
            let tokens = position.tokens(&store, name)?;
            let tokens = tokens.ok_or_else(|| Failure::usage("say where to: --turns N or --tokens N"))?;
            store.rewind(user(), name, tokens)
        }
        Command::Export { name, file } => {
            let (summary, mut from) = store.export(user(), name).map_err(fail)?;
            let to = std::fs::File::options().write(true).create_new(true).open(file);
            let copied = to.and_then(|mut to| std::io::copy(&mut from, &mut to));
            copied.map_err(|e| Failure::in_file(file, &e))?;
            Ok(summary)
        }
        Command::Import { file, name } => store.import(user(), name, file),
        Command::Delete { name } => return store.delete(user(), name).map_err(fail),
    };
    let summary = changed.map_err(fail)?;
    if args.json {
        writeln!(out, "{}", object(&summary))?;
    } else {
        writeln!(out, "{}", line(&summary))?;
    }
    Ok(())
}

fn line(s: &Summary) -> String {
    format!(
        "{}: {} turns, {} tokens, {:.1} MB, {} checkpoints",
        s.name,
        s.turns,
        s.tokens,
        s.bytes as f64 / 1e6,
        s.checkpoints.len()
    )
}

fn object(s: &Summary) -> Value {
    json!({
        "name": s.name,
        "turns": s.turns,
        "tokens": s.tokens,
        "bytes": s.bytes,
        "created": s.created,
        "updated": s.updated,
        "checkpoints": s.checkpoints,
        "model": s.fingerprint.model.to_string(),
    })
}

fn list(store: &Store, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let all = store.list(user());
    if json {
        writeln!(out, "{}", Value::from(all.iter().map(object).collect::<Vec<_>>()))?;
    } else {
        all.iter().try_for_each(|s| writeln!(out, "{}", line(s)))?;
    }
    Ok(())
}

fn show(
    store: &Store,
    name: &str,
    model: Option<&std::path::Path>,
    json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (summary, tokens, turns) = store.show(user(), name).map_err(fail)?;
    // Without a model that has its vocabulary, there are only numbers to show.
    let tokenizer = match open::path(model).and_then(|path| open::file(&path)) {
        Ok(file) if Fingerprint::of(&file).vocabulary == summary.fingerprint.vocabulary => {
            Tokenizer::from_gguf(&file).ok()
        }
        Ok(_) if model.is_some() => {
            return Err(Failure::new("the model has another vocabulary than the session"));
        }
        Err(e) if model.is_some() => return Err(e),
        _ => None,
    };
    let text =
        |tokens: &[u32]| tokenizer.as_ref().map(|t| String::from_utf8_lossy(&t.decode(tokens)).into_owned());
    if json {
        let mut all = object(&summary);
        let turns =
            turns.iter().map(|t| json!({ "tokens": tokens[t.clone()], "text": text(&tokens[t.clone()]) }));
        all["content"] = turns.collect();
        writeln!(out, "{all}")?;
        return Ok(());
    }
    writeln!(out, "{}", line(&summary))?;
    for (i, turn) in (1..).zip(turns) {
        let tokens = &tokens[turn.clone()];
        let shown = text(tokens).unwrap_or_else(|| format!("{tokens:?}"));
        writeln!(out, "\n[{i}: tokens {}..{}]\n{}", turn.start, turn.end, shown.trim_end())?;
    }
    Ok(())
}
