//! How fast text becomes tokens: `cargo bench --bench tokenize -- MODEL.gguf TEXT`.
//!
//! Without arguments, it takes the test vocabulary, in which almost every word has to be merged from bytes,
//! and the source of the tokenizer. Each text is repeated to 4 MB; the best of five runs counts.

use std::error::Error;
use std::time::Instant;

use kadence::gguf::Gguf;
use kadence::text::{Special, Tokenizer, pieces};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let here = |path| concat!(env!("CARGO_MANIFEST_DIR"), "/").to_owned() + path;
    let model = arguments.next().unwrap_or_else(|| here("tests/data/tok-cross.gguf"));
    let text = arguments.next().unwrap_or_else(|| here("src/text/tokenizer.rs"));

    let gguf = Gguf::open(model)?;
    let start = Instant::now();
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    println!("{} tokens loaded in {:?}", tokenizer.vocabulary_size(), start.elapsed());

    let text = std::fs::read_to_string(text)?;
    let text = text.repeat(4_000_000 / text.len().max(1) + 1);
    let megabytes = text.len() as f64 / 1e6;
    for (what, count) in [
        ("cut into pieces", &(|text: &str| pieces(text).count()) as &dyn Fn(&str) -> usize),
        ("encoded", &|text| tokenizer.encode(text, Special::Forbid).len()),
        ("encoded, special tokens allowed", &|text| tokenizer.encode(text, Special::Allow).len()),
    ] {
        let runs = (0..5).map(|_| {
            let start = Instant::now();
            let n = count(&text);
            (start.elapsed(), n)
        });
        let (best, n) = runs.min().unwrap_or_default();
        println!("{what}: {:.1} ms/MB ({n} from {megabytes:.1} MB)", best.as_secs_f64() * 1e3 / megabytes);
    }
    Ok(())
}
