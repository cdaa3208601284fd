//! The client and the tools: what `kadence` understands, and the commands.

mod ask;
mod bench;
mod chat;
mod client;
mod daemon;
mod drift;
mod generate;
mod info;
mod interrupt;
mod logits;
mod manual;
mod open;
mod reports;
mod sampling;
mod sessions;
mod terminal;
mod tokenize;
mod turn;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// Keeps a long-lived assistant's memory on your own machine.
#[derive(Parser)]
#[command(name = "kadence", version, about, arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Chat(chat::Args),
    Ask(ask::Args),
    Session(sessions::Args),
    Models(reports::ModelsArgs),
    Status(reports::StatusArgs),
    Generate(generate::Args),
    Tokenize(tokenize::Args),
    Info(info::Args),
    Logits(logits::Args),
    Bench(bench::Args),
    Drift(drift::Args),
    #[command(hide = true)]
    GenerateDocs(manual::Args),
    /// Be the daemon: how one is started for a user who has none
    #[command(hide = true)]
    Daemon(crate::daemon::Flags),
}

/// Why a command failed: one line, what and what to do.
#[derive(Debug)]
pub struct Failure {
    why: String,
    code: u8,
}

impl Failure {
    const FAILED: u8 = 1;
    const USAGE: u8 = 2;
    /// It may be tried again (EX_TEMPFAIL).
    const LATER: u8 = 75;
    /// As shells have it for SIGINT.
    const INTERRUPTED: u8 = 130;

    fn new(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), code: Failure::FAILED }
    }

    /// A command line that can't be meant.
    fn usage(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), code: Failure::USAGE }
    }

    /// What is wrong with a file.
    fn in_file(path: &Path, why: &dyn std::fmt::Display) -> Failure {
        Failure::new(format!("{}: {why}", path.display()))
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::new(e.to_string())
    }
}

/// Runs `kadence` with the arguments of the process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = std::io::stdout().lock();
    let result = match &cli.command {
        Command::Chat(args) => chat::run(args, &mut out),
        Command::Ask(args) => ask::run(args, &mut out),
        Command::Models(args) => reports::models(args, &mut out),
        Command::Status(args) => reports::status(args, &mut out),
        Command::GenerateDocs(args) => manual::run(args),
        Command::Daemon(flags) => return daemon::run(flags),
        Command::Session(args) => sessions::run(args, &mut out),
        Command::Generate(args) => generate::run(args, &mut out),
        Command::Tokenize(args) => tokenize::run(args, &mut out),
        Command::Info(args) => info::run(args, &mut out),
        Command::Logits(args) => logits::run(args),
        Command::Bench(args) => bench::run(args, &mut out),
        Command::Drift(args) => drift::run(args, &mut out),
    };
    match result.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kadence: {}", failure.why);
            ExitCode::from(failure.code)
        }
    }
}
