//! The client and the tools: what `kadence` understands, and the commands.

mod bench;
mod chat;
mod drift;
mod generate;
mod info;
mod interrupt;
mod logits;
mod memory;
mod open;
mod sampling;
mod sessions;
mod tokenize;

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
    Session(sessions::Args),
    Generate(generate::Args),
    Tokenize(tokenize::Args),
    Info(info::Args),
    Logits(logits::Args),
    Bench(bench::Args),
    Drift(drift::Args),
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
