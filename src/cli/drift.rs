//! `kadence drift`: what it costs to store a state with fewer bits.
//!
//! A session reads a text and is put to sleep again and again on the way. Then the model's opinion of the next tokens
//! is compared with that of a session that read the same and never slept.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::engine::{PASS, Sampler, Sampling};
use crate::model::{Chunk, Forward, Logits, State};
use crate::session::{Codec, sleep_and_wake};
use crate::text::{Special, Tokenizer};

use super::{Failure, open};

/// Measure what storing a session's memory with fewer bits does to what the model says
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model); without it, the model in the box
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Text to read [default: one that the model makes up]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens that are read before the comparison
    #[arg(long, value_name = "N", default_value_t = 1024)]
    read: usize,
    /// Tokens that are compared
    #[arg(short, long, value_name = "N", default_value_t = 256)]
    number: usize,
    /// How often the session sleeps on the way
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 10, 50])]
    sleeps: Vec<usize>,
    /// Write the table as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the table as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Threads [default: as many as the process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the table.
struct Row {
    codec: Codec,
    sleeps: usize,
    /// Mean divergence KL(never slept ‖ slept), in nats.
    kl: f64,
    /// Share of tokens at which both would say the same.
    same: f64,
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let path = open::path(args.model.as_deref())?;
    let mut forward = open::forward(&path, args.threads.map(usize::from))?;
    if args.number == 0 || args.sleeps.iter().any(|&n| n == 0 || n > args.read) {
        return Err(Failure::usage(
            "there must be tokens to compare, and at least as many read as there are sleeps",
        ));
    }
    let (text, after) = text(args, &mut forward)?;
    let fail = |e: crate::model::Error| Failure::in_file(&path, &e);
    let vocabulary = forward.model().config().vocabulary;
    let mut opinions = |codec: Option<Codec>, sleeps: usize| -> Result<Vec<f32>, Failure> {
        let mut state = open::state(&forward);
        let head = forward.model().config().kda_head;
        for i in 0..sleeps {
            read(&mut forward, &mut state, &text[text.len() * i / sleeps..text.len() * (i + 1) / sleeps])
                .map_err(fail)?;
            if let Some(codec) = codec {
                sleep_and_wake(&mut state, codec, head);
            }
        }
        let chunk = Chunk { tokens: &after, state: &mut state, logits: Logits::All };
        Ok(forward.run(&mut [chunk]).map_err(fail)?.to_vec())
    };
    let mut rows = Vec::new();
    for &sleeps in &args.sleeps {
        // Read in the same pieces: what is left is what sleeping does.
        let awake = opinions(None, sleeps)?;
        for codec in Codec::ALL {
            let slept = opinions(Some(codec), sleeps)?;
            let (kl, same) = compare(&awake, &slept, vocabulary);
            rows.push(Row { codec, sleeps, kl, same });
        }
    }
    rows.sort_by_key(|r| (Codec::ALL.iter().position(|c| *c == r.codec), r.sleeps));
    if let Some(file) = &args.csv {
        std::fs::write(file, csv(&rows)).map_err(|e| Failure::in_file(file, &e))?;
    }
    if let Some(file) = &args.svg {
        std::fs::write(file, svg(&rows)).map_err(|e| Failure::in_file(file, &e))?;
    }
    print(args, &rows, out)
}

fn print(args: &Args, rows: &[Row], out: &mut dyn Write) -> Result<(), Failure> {
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|r| json!({ "codec": r.codec.name(), "sleeps": r.sleeps, "mean_kl": r.kl, "top1_agreement": r.same }))
            .collect();
        writeln!(out, "{}", json!({ "read": args.read, "compared": args.number, "rows": rows }))?;
        return Ok(());
    }
    writeln!(out, "| codec | sleeps | mean KL | same top token |\n|---|---|---|---|")?;
    for Row { codec, sleeps, kl, same } in rows {
        writeln!(out, "| {codec} | {sleeps} | {kl:.2e} | {:.1}% |", 100.0 * same)?;
    }
    Ok(())
}

/// The tokens to be read, and those that follow.
fn text(args: &Args, forward: &mut Forward) -> Result<(Vec<u32>, Vec<u32>), Failure> {
    let count = args.read + args.number;
    let mut tokens = match &args.text {
        None => invent(forward, count)?,
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|e| Failure::in_file(file, &e))?;
            let tokenizer =
                Tokenizer::from_gguf(forward.model().file()).map_err(|e| Failure::new(e.to_string()))?;
            tokenizer.encode(&text, Special::Forbid)
        }
    };
    if tokens.len() < count {
        return Err(Failure::new(format!(
            "the text has {} tokens, and {count} are needed: see --read",
            tokens.len()
        )));
    }
    tokens.truncate(count);
    let after = tokens.split_off(args.read);
    Ok((tokens, after))
}

/// A text that the model makes up: it is what the model says and reads day by day.
fn invent(forward: &mut Forward, count: usize) -> Result<Vec<u32>, Failure> {
    let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed: 1, ..Sampling::default() });
    let mut state = open::state(forward);
    let mut tokens = vec![0];
    while tokens.len() < count {
        let chunk = Chunk { tokens: &tokens[tokens.len() - 1..], state: &mut state, logits: Logits::Last };
        let logits = forward.run(&mut [chunk]).map_err(|e| Failure::new(e.to_string()))?;
        tokens.push(sampler.next(logits));
    }
    Ok(tokens)
}

fn read(forward: &mut Forward, state: &mut State, tokens: &[u32]) -> Result<(), crate::model::Error> {
    for tokens in tokens.chunks(PASS) {
        forward.run(&mut [Chunk { tokens, state, logits: Logits::None }])?;
    }
    Ok(())
}

/// Mean KL(a ‖ b) of the distributions that logits stand for, and how often both have the same top.
fn compare(a: &[f32], b: &[f32], vocabulary: usize) -> (f64, f64) {
    let (mut kl, mut same, mut count) = (0.0, 0usize, 0usize);
    for (a, b) in a.chunks_exact(vocabulary).zip(b.chunks_exact(vocabulary)) {
        let (a_rest, b_rest) = (log_sum(a), log_sum(b));
        kl += a
            .iter()
            .zip(b)
            .map(|(&a, &b)| {
                let (p, q) = (f64::from(a) - a_rest, f64::from(b) - b_rest);
                p.exp() * (p - q)
            })
            .sum::<f64>();
        same += usize::from(top(a) == top(b));
        count += 1;
    }
    // Rounding may leave a sum of nothing just below it.
    ((kl / count as f64).max(0.0), same as f64 / count as f64)
}

fn log_sum(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
}

fn top(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))
}

fn csv(rows: &[Row]) -> String {
    let lines = rows.iter().map(|r| format!("{},{},{:e},{}\n", r.codec, r.sleeps, r.kl, r.same));
    std::iter::once("codec,sleeps,mean_kl,top1_agreement\n".to_owned()).chain(lines).collect()
}

/// Mean KL over sleeps, both on logarithmic axes; a line a codec. What is exact lies on the bottom.
fn svg(rows: &[Row]) -> String {
    const SIZE: (f64, f64) = (640.0, 360.0);
    const PLOT: [f64; 4] = [70.0, 20.0, 540.0, 310.0]; // left, top, right, bottom
    const DECADES: (i32, i32) = (-9, 0);
    const COLOURS: [&str; 4] = ["#555", "#1b7f4d", "#1f5fbf", "#c2410c"];
    let [left, top, right, bottom] = PLOT;
    let most = rows.iter().map(|r| r.sleeps).max().unwrap_or(1).max(2) as f64;
    let x = |sleeps: usize| left + (right - left) * (sleeps as f64).ln() / most.ln();
    let y = |kl: f64| {
        let exponent = kl.max(1e-12).log10().clamp(DECADES.0.into(), DECADES.1.into());
        bottom - (bottom - top) * (exponent - f64::from(DECADES.0)) / f64::from(DECADES.1 - DECADES.0)
    };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        SIZE.0, SIZE.1
    );
    // Writing to a string can't fail.
    for decade in DECADES.0..=DECADES.1 {
        let at = y(10f64.powi(decade));
        _ = writeln!(
            out,
            "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">1e{decade}</text>",
            left - 8.0,
            at + 4.0
        );
    }
    let mut sleeps: Vec<usize> = rows.iter().map(|r| r.sleeps).collect();
    sleeps.sort_unstable();
    sleeps.dedup();
    for count in sleeps {
        _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{count}</text>",
            x(count),
            bottom + 18.0
        );
    }
    _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">sleeps</text>",
        (left + right) / 2.0,
        bottom + 38.0
    );
    _ = writeln!(
        out,
        "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">mean KL of the next tokens</text>",
        (top + bottom) / 2.0
    );
    for (codec, colour) in Codec::ALL.into_iter().zip(COLOURS) {
        let points: Vec<(f64, f64)> =
            rows.iter().filter(|r| r.codec == codec).map(|r| (x(r.sleeps), y(r.kl))).collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        for (x, y) in &points {
            _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        if let Some((x, y)) = points.last() {
            _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{codec}</text>",
                x + 10.0,
                y + 4.0
            );
        }
    }
    out.push_str("</svg>\n");
    out
}
