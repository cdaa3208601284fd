//! `kadence logits`: what a model makes of given tokens, for comparing it with other engines.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use kadence_quant::Format;

use crate::model::{Chunk, Logits, State};

use super::{Failure, open};

/// Tokens of a pass: the logits of one are kept in memory, and a row of them can be large.
const PASS: usize = 64;

/// Write the logits after each of the given tokens
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model)
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Tokens
    #[arg(long, value_name = "ID,ID", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Where to write: little-endian f32, one row of the vocabulary's size a token
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How MLA rows are kept: f32, f16 or q8_0
    #[arg(long, value_name = "FORMAT", default_value = "f32")]
    rows: String,
    /// Threads [default: as many as the process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut forward = open::forward(&args.model, args.threads.map(usize::from))?;
    let config = forward.model().config();
    let format = Format::from_name(&args.rows).filter(|f| State::row_formats(config).any(|g| g == *f));
    let Some(format) = format else {
        let known: Vec<_> = State::row_formats(config).map(|f| f.name().to_lowercase()).collect();
        return Err(Failure::usage(format!("--rows can't be {:?} here: {}", args.rows, known.join(", "))));
    };
    let mut state = State::new(config, format);
    let file = std::fs::File::create(&args.out).map_err(|e| Failure::in_file(&args.out, &e))?;
    let mut out = BufWriter::new(file);
    for tokens in args.tokens.chunks(PASS) {
        let chunk = Chunk { tokens, state: &mut state, logits: Logits::All };
        let logits = forward.run(&mut [chunk]).map_err(|e| Failure::in_file(&args.model, &e))?;
        let written = logits.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()));
        written.map_err(|e| Failure::in_file(&args.out, &e))?;
    }
    out.flush().map_err(|e| Failure::in_file(&args.out, &e))
}
