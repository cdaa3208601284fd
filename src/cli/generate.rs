//! `kadence generate`: a prompt in, text out.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::engine::{Generation, Generator, Request, Sampling};
use crate::gguf::Gguf;
use crate::text::{Chat, Decoder, Event, Markers, Message, Parser, Role, Special, Template, Tokenizer};

use super::{Failure, memory, open};

/// Generate text from a prompt
#[derive(clap::Args)]
pub struct Args {
    /// Model file (GGUF; any file of a split model); without it, the model in the box
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// What to answer; `-` reads it from the standard input
    #[arg(short, long, value_name = "TEXT")]
    prompt: String,
    /// Most tokens to generate
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    number: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Continue the text as it is, without making it a turn of a conversation
    #[arg(long)]
    raw: bool,
    /// With --raw, take the names of special tokens in the text for these tokens
    #[arg(long, requires = "raw")]
    special: bool,
    /// Threads [default: as many as the process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object when done, instead of text as it comes
    #[arg(long)]
    json: bool,
}

/// How tokens are chosen.
#[derive(clap::Args)]
struct SamplingArgs {
    /// 0 always takes the most likely token; higher is more varied
    #[arg(long, value_name = "X", default_value_t = Sampling::default().temperature)]
    temp: f32,
    /// Choose among the K most likely tokens (0: all)
    #[arg(long, value_name = "K", default_value_t = Sampling::default().top_k)]
    top_k: usize,
    /// Choose among the most likely tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = Sampling::default().top_p)]
    top_p: f32,
    /// Choose among tokens at least this likely, compared with the most likely
    #[arg(long, value_name = "P", default_value_t = Sampling::default().min_p)]
    min_p: f32,
    /// Make the last 64 tokens less likely (1: don't)
    #[arg(long, value_name = "X", default_value_t = Sampling::default().repeat_penalty)]
    repeat_penalty: f32,
    /// The same seed gives the same text [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    fn sampling(&self) -> Result<Sampling, Failure> {
        let checks = [
            ("--temp", self.temp, self.temp >= 0.0),
            ("--top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0),
            ("--min-p", self.min_p, (0.0..=1.0).contains(&self.min_p)),
            ("--repeat-penalty", self.repeat_penalty, self.repeat_penalty > 0.0),
        ];
        if let Some((flag, value, _)) = checks.iter().find(|c| !c.2 || !c.1.is_finite()) {
            return Err(Failure::usage(format!("{flag} can't be {value}; see kadence generate --help")));
        }
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            // Small enough to be read and typed again.
            seed: self.seed.unwrap_or_else(|| clock.map_or(0, |t| u64::from(t.subsec_nanos()))),
        })
    }
}

/// Turns tokens into what is shown.
enum Shown {
    Raw(Decoder),
    Answer(Box<Parser>),
}

impl Shown {
    fn push(&mut self, token: u32) -> String {
        match self {
            Shown::Raw(decoder) => decoder.push(token),
            Shown::Answer(parser) => content(parser.push(token)),
        }
    }

    fn finish(&mut self) -> String {
        match self {
            Shown::Raw(decoder) => decoder.finish(),
            Shown::Answer(parser) => content(parser.finish()),
        }
    }
}

fn content(events: Vec<Event>) -> String {
    events.into_iter().filter_map(|e| if let Event::Content(text) = e { Some(text) } else { None }).collect()
}

/// The tokens of the prompt, and how the answer is shown.
fn prompt(args: &Args, file: &Gguf, text: &str) -> Result<(Vec<u32>, Shown, Arc<Tokenizer>), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(e.to_string());
    let tokenizer = Arc::new(Tokenizer::from_gguf(file).map_err(|e| fail(&e))?);
    let (tokens, shown) = if args.raw {
        let special = if args.special { Special::Allow } else { Special::Forbid };
        let tokens = tokenizer.encode(text, special);
        (tokens, Shown::Raw(Decoder::new(tokenizer.clone(), Markers::Hide)))
    } else {
        let template = Template::from_gguf(file, &tokenizer).map_err(|e| fail(&e))?;
        let chat =
            Chat { messages: vec![Message::new(Role::User, text)], thinking: false, ..Chat::default() };
        let tokens = template.render(&chat).and_then(|p| p.tokens(&tokenizer)).map_err(|e| fail(&e))?;
        (tokens.tokens, Shown::Answer(Box::new(Parser::new(tokenizer.clone(), &template, false))))
    };
    if tokens.is_empty() {
        return Err(Failure::usage("the prompt is empty: say something with -p TEXT"));
    }
    Ok((tokens, shown, tokenizer))
}

/// Runs the command.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let sampling = args.sampling.sampling()?;
    let text =
        if args.prompt == "-" { std::io::read_to_string(std::io::stdin())? } else { args.prompt.clone() };
    let path = open::path(args.model.as_deref())?;
    let forward = open::forward(&path, args.threads.map(usize::from))?;
    let (tokens, mut shown, tokenizer) = prompt(args, forward.model().file(), &text)?;
    let cancel = cancelled_by_interrupt()?;
    let mut state = open::state(&forward);
    let mut generator = Generator::new(forward);
    let request = Request { prompt: &tokens, limit: args.number, sampling, stops: tokenizer.stops() };
    let mut answer = String::new();
    let mut written = Ok(());
    let mut show = |text: String, out: &mut dyn Write| {
        answer.push_str(&text);
        if !args.json && written.is_ok() && !text.is_empty() {
            written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            if written.is_err() {
                cancel.store(true, Ordering::Relaxed); // nobody reads any more
            }
        }
    };
    let done = generator.generate(&request, &mut state, &cancel, |token| show(shown.push(token), out));
    let done = done.map_err(|e| Failure::in_file(&path, &e))?;
    show(shown.finish(), out);
    written?;
    if args.json {
        writeln!(out, "{}", report(&answer, &done, sampling.seed))?;
    } else {
        if std::io::stdout().is_terminal() || !answer.ends_with('\n') {
            writeln!(out)?;
        }
        eprintln!("{}", summary(&done, sampling.seed));
    }
    Ok(())
}

/// A flag that Ctrl-C (or a polite kill) raises; a second one ends the process at once.
fn cancelled_by_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

fn rate(tokens: usize, time: std::time::Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(1e-9)
}

fn summary(done: &Generation, seed: u64) -> String {
    format!(
        "{} tokens read ({:.1}/s), {} generated ({:.1}/s), {:.0} MB of memory, seed {seed}, ended by {}",
        done.prompt_tokens,
        rate(done.prompt_tokens, done.prompt_time),
        done.tokens,
        rate(done.tokens, done.time),
        memory::anonymous().unwrap_or(0) as f64 / 1e6,
        done.finish.name(),
    )
}

fn report(answer: &str, done: &Generation, seed: u64) -> serde_json::Value {
    json!({
        "text": answer,
        "finish": done.finish.name(),
        "prompt_tokens": done.prompt_tokens,
        "prompt_tokens_per_second": rate(done.prompt_tokens, done.prompt_time),
        "tokens": done.tokens,
        "tokens_per_second": rate(done.tokens, done.time),
        "memory_bytes": memory::anonymous(),
        "seed": seed,
    })
}
