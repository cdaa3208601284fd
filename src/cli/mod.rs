//! The client and the tools: what `kadence` understands, and the commands.

mod bench;
mod open;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// Tokens of a pass when a prompt is read: enough that each weight is read from memory once for many tokens, few
/// enough that the activations of a pass stay small.
pub const PASS: usize = 512;

/// Keeps a long-lived assistant's memory on your own machine.
#[derive(Parser)]
#[command(name = "kadence", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Bench(bench::Args),
}

/// Why a command failed: one line, what and what to do.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// What is wrong with a file.
    pub fn in_file(path: &Path, why: &dyn std::fmt::Display) -> Failure {
        Failure(format!("{}: {why}", path.display()))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<crate::model::Error> for Failure {
    fn from(e: crate::model::Error) -> Failure {
        Failure(e.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure(e.to_string())
    }
}

/// Runs `kadence` with the arguments of the process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = std::io::stdout().lock();
    let result = match &cli.command {
        Command::Bench(args) => bench::run(args, &mut out),
    };
    match result.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kadence: {failure}");
            ExitCode::FAILURE
        }
    }
}
