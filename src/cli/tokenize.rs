//! `kadence tokenize`: the tokens of a text.

use std::io::Write;
use std::path::PathBuf;

use crate::text::{Special, Tokenizer};

use super::{Failure, open};

/// Print the tokens of a text
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model); without it, the model in the box
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The text; `-` reads it from the standard input
    text: String,
    /// Take the names of special tokens in the text for these tokens
    #[arg(long)]
    special: bool,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let file = open::file(&open::path(args.model.as_deref())?)?;
    let tokenizer = Tokenizer::from_gguf(&file).map_err(|e| Failure::new(e.to_string()))?;
    let text = if args.text == "-" { std::io::read_to_string(std::io::stdin())? } else { args.text.clone() };
    let special = if args.special { Special::Allow } else { Special::Forbid };
    let ids: Vec<String> = tokenizer.encode(&text, special).iter().map(u32::to_string).collect();
    Ok(writeln!(out, "{}", ids.join(","))?)
}
