//! `kadence ask`: one question, for scripts.

use std::io::{IsTerminal, Read, Write};

use super::Failure;
use super::daemon::Place;
use super::terminal::colours;
use super::turn::{Paper, Wishes, ask};

/// Ask one question: the text, followed by the standard input unless that is a terminal
///
/// Ends with 0 if it is answered, 1 if not, 2 if the command line can't be meant, 75 if it may be tried again (the daemon
/// is busy), 130 if it was interrupted.
#[derive(clap::Args)]
pub struct Args {
    /// The question
    text: Vec<String>,
    /// Ask in this conversation, which is kept [default: a conversation of its own]
    #[arg(short, long, value_name = "NAME")]
    session: Option<String>,
    #[command(flatten)]
    wishes: Wishes,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// What is asked: the arguments, then what is piped in.
    fn question(&self) -> Result<String, Failure> {
        let mut question = self.text.join(" ");
        if !std::io::stdin().is_terminal() {
            let mut piped = String::new();
            std::io::stdin().read_to_string(&mut piped)?;
            let between = if question.is_empty() || piped.trim().is_empty() { "" } else { "\n\n" };
            question = question + between + piped.trim_end();
        }
        if question.trim().is_empty() {
            return Err(Failure::usage("there is no question: give one, as in kadence ask \"Why?\""));
        }
        Ok(question)
    }
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let question = args.question()?;
    // A system prompt begins a conversation: with a session the daemon is asked whether it has begun.
    let client = args.place.client(args.wishes.file())?;
    let begins = match &args.session {
        Some(name) => !super::sessions::begun(&client, name)?,
        None => true,
    };
    let request = args.wishes.request(&question, args.session.as_deref(), begins, 0)?;
    let terminal = std::io::stdout().is_terminal();
    let mut paper = Paper { out, terminal, colours: colours(), silent: args.json };
    let turn = ask(&client, &request, &mut paper)?;
    if args.json {
        writeln!(out, "{}", turn.report())?;
    }
    if let Some(why) = turn.unsaved() {
        return Err(Failure::new(format!("not saved: {why}")));
    }
    match turn.finish.as_str() {
        "cancelled" => Err(Failure { why: "interrupted".into(), code: Failure::INTERRUPTED }),
        "length" if !args.json => {
            eprintln!("kadence: the answer was cut off: allow more tokens with -n");
            Ok(())
        }
        _ => Ok(()),
    }
}
