//! `kadence generate`: a prompt in, text out.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::engine::{Generation, Generator, Request, Resident, Unsaved};
use crate::gguf::Gguf;
use crate::text::{Chat, Decoder, Event, Markers, Message, Parser, Role, Special, Template, Tokenizer};

use super::sampling::SamplingArgs;
use super::{Failure, interrupt, open};

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

/// What of the events is the answer itself.
pub fn content(events: Vec<Event>) -> String {
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
    let cancel = interrupt::cancel()?;
    let mut conversation = Unsaved::new(open::state(&forward));
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
    let done = generator.generate(&request, &mut conversation, &cancel, |token| show(shown.push(token), out));
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
        Resident::now().map_or(0, |r| r.own) as f64 / 1e6,
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
        "memory_bytes": Resident::now().map(|r| r.own),
        "seed": seed,
    })
}
