//! `kadence bench`: how fast a model reads and answers here, and how near that is to what the memory can deliver.

mod limits;
mod parts;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::engine::PASS;
use crate::model::{Chunk, Forward, Logits, Parts, State};

use super::{Failure, open};
use limits::Limits;

/// Measure how fast a model reads prompts and generates
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model)
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Prompt lengths to read, in tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "128,512")]
    pp: Vec<usize>,
    /// Tokens to generate
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64")]
    tg: Vec<usize>,
    /// Sessions that generate together
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1")]
    sessions: Vec<usize>,
    /// Tokens that the session has read before
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Threads
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Runs of each test, of which the median is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Show which part of the model takes how long, and how near that is to what memory and processor can do
    #[arg(long)]
    parts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The outcome of one test.
struct Run {
    test: String,
    depth: usize,
    threads: usize,
    tokens_per_second: f64,
    parts: Option<Measured>,
}

/// Where the time of a run went.
#[derive(Default)]
struct Measured {
    parts: Parts,
    passes: usize,
    /// How long the passes took, seen from outside.
    time: Duration,
}

/// Runs passes, and measures their parts if that is wanted.
struct Runner<'a> {
    forward: &'a mut Forward,
    measured: Option<Measured>,
}

impl Runner<'_> {
    fn pass(&mut self, chunks: &mut [Chunk<'_>]) -> Result<(), Failure> {
        let start = Instant::now();
        match &mut self.measured {
            None => self.forward.run(chunks).map_err(failed)?,
            Some(measured) => self.forward.measure(chunks, &mut measured.parts).map_err(failed)?,
        };
        if let Some(measured) = &mut self.measured {
            measured.passes += 1;
            measured.time += start.elapsed();
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let model = open::model(&args.model)?;
    let bytes = model.bytes_per_token();
    let default = [crate::compute::Pool::default_threads()];
    let threads = if args.threads.is_empty() { &default[..] } else { &args.threads };
    let mut runs = Vec::new();
    let mut all_limits = Vec::new();
    for &threads in threads {
        let mut forward = Forward::new(model.clone(), threads).map_err(failed)?;
        let limits = Limits::measure(threads);
        // The first pass maps the file and makes room for activations: what a daemon does once isn't what is measured.
        let longest = args.pp.iter().copied().max().unwrap_or(1);
        let mut state = open::state(&forward);
        read(&mut Runner { forward: &mut forward, measured: None }, &mut state, longest)?;
        for &depth in &args.depth {
            let mut base = open::state(&forward);
            read(&mut Runner { forward: &mut forward, measured: None }, &mut base, depth)?;
            let mut measure =
                |name: String, f: &mut dyn FnMut(&mut Runner<'_>, &mut State) -> Result<usize, Failure>| {
                    let mut rates = Vec::new();
                    for _ in 0..args.runs.max(1) {
                        let mut state = base.clone();
                        let mut runner = Runner { forward: &mut forward, measured: None };
                        runner.measured = args.parts.then(Measured::default);
                        let start = Instant::now();
                        let tokens = f(&mut runner, &mut state)?;
                        rates.push((tokens as f64 / start.elapsed().as_secs_f64(), runner.measured));
                    }
                    rates.sort_by(|a, b| f64::total_cmp(&a.0, &b.0));
                    let (tokens_per_second, parts) = rates.swap_remove(rates.len() / 2);
                    let run = Run { test: name, depth, threads, tokens_per_second, parts };
                    if !args.json {
                        let Run { test, tokens_per_second, .. } = &run;
                        writeln!(
                            out,
                            "{test:>8}  depth {depth:>6}  {threads} threads  {tokens_per_second:9.2} tokens/s"
                        )?;
                        if let Some(measured) = &run.parts {
                            parts::print(measured, &limits, out)?;
                        }
                    }
                    runs.push(run);
                    Ok::<(), Failure>(())
                };
            for &n in &args.pp {
                measure(format!("pp{n}"), &mut |runner, state| read(runner, state, n))?;
            }
            for &n in &args.tg {
                for &sessions in &args.sessions {
                    let name = if sessions == 1 { format!("tg{n}") } else { format!("{sessions} x tg{n}") };
                    measure(name, &mut |runner, state| generate(runner, state, n, sessions))?;
                }
            }
        }
        all_limits.push((threads, limits));
    }
    report(args, out, bytes, &all_limits, &runs)
}

fn report(
    args: &Args,
    out: &mut dyn Write,
    bytes: u64,
    limits: &[(usize, Limits)],
    runs: &[Run],
) -> Result<(), Failure> {
    let gigabytes = |run: &Run| run.tokens_per_second * bytes as f64 / 1e9;
    if args.json {
        let runs: Vec<_> = runs
            .iter()
            .map(|r| {
                let mut run = json!({
                    "test": r.test, "depth": r.depth, "threads": r.threads, "tokens_per_second": r.tokens_per_second,
                });
                if r.test.starts_with("tg") {
                    run["weight_bytes_per_second"] = json!(r.tokens_per_second * bytes as f64);
                }
                if let Some(measured) = &r.parts {
                    let limits = limits.iter().find(|(threads, _)| *threads == r.threads);
                    run["passes"] = json!(measured.passes);
                    run["seconds"] = json!(measured.time.as_secs_f64());
                    run["parts"] = limits.map(|(_, limits)| parts::report(measured, limits)).into();
                }
                run
            })
            .collect();
        let bandwidth: Vec<_> =
            limits.iter().map(|(t, l)| json!({ "threads": t, "bytes_per_second": l.memory })).collect();
        let peak: Vec<_> = limits
            .iter()
            .map(|(t, l)| json!({ "threads": t, "integer_macs_per_second": l.integers, "float_macs_per_second": l.floats }))
            .collect();
        let report = json!({
            "model": args.model, "kernels": kadence_quant::kernels(), "weight_bytes_per_token": bytes,
            "read_bandwidth": bandwidth, "peak": peak, "runs": runs,
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    writeln!(
        out,
        "weights read per token: {:.1} MB ({} kernels)",
        bytes as f64 / 1e6,
        kadence_quant::kernels()
    )?;
    for (threads, Limits { memory, .. }) in limits {
        let best = runs.iter().filter(|r| r.threads == *threads && r.test.starts_with("tg")).map(gigabytes);
        let best = best.fold(0.0, f64::max);
        writeln!(
            out,
            "{threads} threads: weights read at up to {best:.2} GB/s; the memory delivers {:.2} GB/s ({:.0} %)",
            memory / 1e9,
            best / memory * 1e11,
        )?;
    }
    Ok(())
}

fn failed(e: crate::model::Error) -> Failure {
    Failure::new(e.to_string())
}

/// Some tokens, the same in every run; which ones decides which experts are read.
fn tokens(first: usize, count: usize, vocabulary: usize) -> Vec<u32> {
    (first..first + count).map(|i| (i as u64 * 2_654_435_761 % vocabulary as u64) as u32).collect()
}

fn read(runner: &mut Runner<'_>, state: &mut State, count: usize) -> Result<usize, Failure> {
    let tokens = tokens(state.tokens(), count, runner.forward.model().config().vocabulary);
    let passes = tokens.len().div_ceil(PASS);
    for (i, tokens) in tokens.chunks(PASS).enumerate() {
        let logits = if i + 1 == passes { Logits::Last } else { Logits::None };
        runner.pass(&mut [Chunk { tokens, state: &mut *state, logits }])?;
    }
    Ok(count)
}

/// All tokens that so many sessions generate, each `count`; they start alike and go on with different ones.
fn generate(
    runner: &mut Runner<'_>,
    state: &mut State,
    count: usize,
    sessions: usize,
) -> Result<usize, Failure> {
    let vocabulary = runner.forward.model().config().vocabulary;
    let mut states = vec![state.clone(); sessions];
    let texts: Vec<_> =
        (0..sessions).map(|i| tokens(state.tokens() + 1 + i * count, count, vocabulary)).collect();
    for at in 0..count {
        let mut chunks: Vec<_> = states
            .iter_mut()
            .zip(&texts)
            .map(|(state, text)| Chunk { tokens: &text[at..at + 1], state, logits: Logits::Last })
            .collect();
        runner.pass(&mut chunks)?;
    }
    Ok(count * sessions)
}
