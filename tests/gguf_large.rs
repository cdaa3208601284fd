//! Half a million tensors load at once and cost little.

use std::io::{BufWriter, Write};
use std::time::Instant;

use kadence::gguf::{Gguf, Writer};
use kadence_quant::Format;

#[path = "gguf/allocator.rs"]
mod allocator;
#[path = "gguf/scratch.rs"]
mod scratch;
use allocator::measure;
use scratch::Scratch;

const TENSORS: usize = 500_000;
const TOKENS: usize = 163_840;

fn name(i: usize) -> String {
    format!("blk.{}.ffn_down_exps.{}.weight", i / 1000, i % 1000)
}

/// Writes files of which each holds its share of the tensors.
fn write(scratch: &Scratch, files: usize) {
    for file in 0..files {
        let mut header = Writer::new();
        header.set("general.alignment", 8u32).unwrap();
        header.set("split.no", file as u16).unwrap();
        header.set("split.count", files as u16).unwrap();
        if file == 0 {
            header.set("tokens", (0..TOKENS).map(|i| format!("t{i}")).collect::<Vec<_>>()).unwrap();
        }
        let names: Vec<_> = (0..TENSORS).filter(|i| i % files == file).map(name).collect();
        names.iter().for_each(|n| header.tensor(n, Format::F32, &[2]).unwrap());
        let path = scratch.path(&format!("m-{:05}-of-{files:05}.gguf", file + 1));
        let mut out = header.start(BufWriter::new(std::fs::File::create(path).unwrap())).unwrap();
        names.iter().for_each(|n| out.write(n, &[0; 8]).unwrap());
        out.finish().unwrap().flush().unwrap();
    }
}

fn costs_at_most_120_bytes_a_tensor(test: &str, files: usize) {
    let scratch = Scratch::new(test);
    write(&scratch, files);
    let start = Instant::now();
    let path = scratch.path(&format!("m-00001-of-{files:05}.gguf"));
    let (gguf, held, peak) = measure(|| Gguf::open(path).unwrap());
    let opened = start.elapsed();
    let found = (0..TENSORS).filter(|i| gguf.tensor(&name(*i)).is_some()).count();
    let [held, peak] = [held, peak].map(|bytes| bytes as f64 / TENSORS as f64);
    println!("{files} files: opened in {opened:?}, {held:.1} bytes a tensor, {peak:.1} while opening");
    assert_eq!((found, gguf.tensors().len()), (TENSORS, TENSORS));
    assert!(held <= 120.0 && peak <= 120.0, "{held} bytes, at the peak {peak}");

    let (tokens, _, peak) = measure(|| gguf.metadata().array("tokens").unwrap().strings().unwrap().count());
    assert_eq!(tokens, TOKENS);
    assert_eq!(peak, 0, "strings are read in place");
}

#[test]
fn a_file_of_half_a_million_tensors() {
    costs_at_most_120_bytes_a_tensor("large", 1);
}

#[test]
fn forty_shards_of_half_a_million_tensors() {
    costs_at_most_120_bytes_a_tensor("large-split", 40);
}
