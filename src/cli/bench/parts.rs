//! Where the time of a pass goes, as a table: what each part took, and what it would take at the limits.

use std::io::Write;

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::model::{Share, Work};

use super::Measured;
use super::limits::Limits;

/// Characters of a bar that stands for all of the time.
const BAR: f64 = 60.0;

/// Prints a line a part. The bar is as long as the part's share of the time, and as much of it is full as the part would
/// take at the limit: what is left empty is what there is to win.
pub fn print(measured: &Measured, limits: &Limits, out: &mut dyn Write) -> Result<(), Failure> {
    let Measured { parts, passes, time } = measured;
    let passes = (*passes).max(1) as f64;
    let all: f64 = parts.shares().map(|(_, s)| s.time.as_secs_f64()).sum();
    writeln!(
        out,
        "limits: memory {:.1} GB/s, products of integers {:.1} G/s, of floats {:.1} G/s; {passes} passes of {:.2} ms, \
         of that {:.2} % outside of the parts",
        limits.memory / 1e9,
        limits.integers / 1e9,
        limits.floats / 1e9,
        time.as_secs_f64() * 1e3 / passes,
        100.0 - 100.0 * all / time.as_secs_f64(),
    )?;
    writeln!(
        out,
        "{:20} {:>8} {:>6} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9}",
        "part", "ms", "%", "weights", "memory", "products", "GB/s", "GMAC/s", "of limit"
    )?;
    let mut sum = Share::default();
    let mut least = 0.0;
    for (part, share) in parts.shares() {
        let seconds = share.time.as_secs_f64();
        let [read, multiply] = limits.seconds(&share.work);
        let needed = read.max(multiply);
        least += needed;
        sum.time += share.time;
        sum.work += share.work;
        line(part.name(), &share, all, passes, needed, if read > multiply { "read" } else { "mul" }, out)?;
        let (length, full) = (BAR * seconds / all, BAR * (needed / all).min(seconds / all));
        let (length, full) = (length.round() as usize, full.round() as usize);
        writeln!(out, "  {}{}", "█".repeat(full), "░".repeat(length - full))?;
    }
    line("all", &sum, all, passes, least, "", out)?;
    writeln!(out)?;
    Ok(())
}

fn line(
    name: &str,
    share: &Share,
    all: f64,
    passes: f64,
    needed: f64,
    by: &str,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let Share { time, work } = share;
    let seconds = time.as_secs_f64();
    let products = (work.integers + work.floats) as f64;
    write!(
        out,
        "{name:20} {:8.3} {:6.1} {:6.2} MB {:6.2} MB {:7.2} M {:7.2} {:7.1} {:>4.0} % {by:4}",
        seconds * 1e3 / passes,
        100.0 * seconds / all,
        work.weights as f64 / 1e6 / passes,
        work.memory as f64 / 1e6 / passes,
        products / 1e6 / passes,
        (work.weights + work.memory) as f64 / seconds / 1e9,
        products / seconds / 1e9,
        100.0 * needed / seconds,
    )?;
    Ok(())
}

/// The same, for programs: sums over all passes of the run.
pub fn report(measured: &Measured, limits: &Limits) -> Value {
    let part = |(part, share): (crate::model::Part, Share)| {
        let Work { weights, memory, integers, floats } = share.work;
        let [read, multiply] = limits.seconds(&share.work);
        json!({
            "part": part.name(), "seconds": share.time.as_secs_f64(), "weight_bytes": weights, "memory_bytes": memory,
            "integer_products": integers, "float_products": floats,
            "seconds_to_read": read, "seconds_to_multiply": multiply,
        })
    };
    measured.parts.shares().map(part).collect()
}
