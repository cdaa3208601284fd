//! `kadence bench`: how fast a model reads and answers here, and how near that is to what the memory can deliver.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;

use crate::engine::PASS;
use crate::model::{Chunk, Forward, Logits, State};

use super::{Failure, open};

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
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let model = open::model(&args.model)?;
    let bytes = model.bytes_per_token();
    let default = [crate::compute::Pool::default_threads()];
    let threads = if args.threads.is_empty() { &default[..] } else { &args.threads };
    let mut runs = Vec::new();
    let mut bandwidth = Vec::new();
    for &threads in threads {
        let mut forward = Forward::new(model.clone(), threads).map_err(failed)?;
        bandwidth.push((threads, read_bandwidth(threads)));
        for &depth in &args.depth {
            let mut base = open::state(&forward);
            read(&mut forward, &mut base, depth)?;
            let mut measure =
                |name: String, f: &mut dyn FnMut(&mut Forward, &mut State) -> Result<usize, Failure>| {
                    let mut rates = Vec::new();
                    for _ in 0..args.runs.max(1) {
                        let mut state = base.clone();
                        let start = Instant::now();
                        let tokens = f(&mut forward, &mut state)?;
                        rates.push(tokens as f64 / start.elapsed().as_secs_f64());
                    }
                    rates.sort_by(f64::total_cmp);
                    let run = Run { test: name, depth, threads, tokens_per_second: rates[rates.len() / 2] };
                    if !args.json {
                        let Run { test, tokens_per_second, .. } = &run;
                        writeln!(
                            out,
                            "{test:>8}  depth {depth:>6}  {threads} threads  {tokens_per_second:9.2} tokens/s"
                        )?;
                    }
                    runs.push(run);
                    Ok::<(), Failure>(())
                };
            for &n in &args.pp {
                measure(format!("pp{n}"), &mut |forward, state| read(forward, state, n))?;
            }
            for &n in &args.tg {
                for &sessions in &args.sessions {
                    let name = if sessions == 1 { format!("tg{n}") } else { format!("{sessions} x tg{n}") };
                    measure(name, &mut |forward, state| generate(forward, state, n, sessions))?;
                }
            }
        }
    }
    report(args, out, bytes, &bandwidth, &runs)
}

fn report(
    args: &Args,
    out: &mut dyn Write,
    bytes: u64,
    bandwidth: &[(usize, f64)],
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
                run
            })
            .collect();
        let bandwidth: Vec<_> =
            bandwidth.iter().map(|(t, b)| json!({ "threads": t, "bytes_per_second": b })).collect();
        let report = json!({
            "model": args.model, "kernels": kadence_quant::kernels(), "weight_bytes_per_token": bytes,
            "read_bandwidth": bandwidth, "runs": runs,
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
    for (threads, bandwidth) in bandwidth {
        let best = runs.iter().filter(|r| r.threads == *threads && r.test.starts_with("tg")).map(gigabytes);
        let best = best.fold(0.0, f64::max);
        writeln!(
            out,
            "{threads} threads: weights read at up to {best:.2} GB/s; the memory delivers {:.2} GB/s ({:.0} %)",
            bandwidth / 1e9,
            best / bandwidth * 1e11,
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

fn read(forward: &mut Forward, state: &mut State, count: usize) -> Result<usize, Failure> {
    let tokens = tokens(state.tokens(), count, forward.model().config().vocabulary);
    let passes = tokens.len().div_ceil(PASS);
    for (i, tokens) in tokens.chunks(PASS).enumerate() {
        let logits = if i + 1 == passes { Logits::Last } else { Logits::None };
        forward.run(&mut [Chunk { tokens, state: &mut *state, logits }]).map_err(failed)?;
    }
    Ok(count)
}

/// All tokens that so many sessions generate, each `count`; they start alike and go on with different ones.
fn generate(
    forward: &mut Forward,
    state: &mut State,
    count: usize,
    sessions: usize,
) -> Result<usize, Failure> {
    let vocabulary = forward.model().config().vocabulary;
    let mut states = vec![state.clone(); sessions];
    let texts: Vec<_> =
        (0..sessions).map(|i| tokens(state.tokens() + 1 + i * count, count, vocabulary)).collect();
    for at in 0..count {
        let mut chunks: Vec<_> = states
            .iter_mut()
            .zip(&texts)
            .map(|(state, text)| Chunk { tokens: &text[at..at + 1], state, logits: Logits::Last })
            .collect();
        forward.run(&mut chunks).map_err(failed)?;
    }
    Ok(count * sessions)
}

/// Bytes a second that `threads` threads read from memory together, one after the other: the best of a few runs over
/// more than any cache holds.
fn read_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 512 << 20;
    let data = vec![1u64; BYTES / size_of::<u64>()];
    let once = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in data.chunks(data.len().div_ceil(threads)) {
                scope.spawn(|| {
                    let mut sums = [0u64; 16];
                    for lanes in part.as_chunks::<16>().0 {
                        for i in 0..16 {
                            sums[i] ^= lanes[i];
                        }
                    }
                    std::hint::black_box(sums);
                });
            }
        });
        BYTES as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(|_| once()).fold(0.0, f64::max)
}
