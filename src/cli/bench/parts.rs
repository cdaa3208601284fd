//! Where the time of a pass goes, as a table: what each part took, and what it would take at the limits.

use std::io::Write;

use serde_json::{Value, json};

use crate::cli::Failure;
use crate::model::{Part, Share, Work};

use super::Measured;
use super::limits::Limits;

/// Characters of the longest bar.
const BAR: f64 = 20.0;

/// Prints a line a part. A bar is as long as the part's share of the time, and as much of it is full as the part would
/// take at the limit: what is left empty is what there is to win.
pub fn print(measured: &Measured, limits: &Limits, out: &mut dyn Write) -> Result<(), Failure> {
    let Measured { parts, passes, time } = measured;
    let count = (*passes).max(1) as f64;
    let (mut all, mut longest) = (Share::default(), 0f64);
    for (_, share) in parts.shares() {
        all.time += share.time;
        all.work += share.work;
        longest = longest.max(share.time.as_secs_f64());
    }
    writeln!(
        out,
        "{passes} passes of {:.2} ms; the limits: {:.1} GB/s, and {:.1} GMAC/s of integers or {:.1} of floats",
        time.as_secs_f64() * 1e3 / count,
        limits.memory / 1e9,
        limits.integers / 1e9,
        limits.floats / 1e9,
    )?;
    writeln!(
        out,
        "{:18} {:>8} {:>5} {:>10} {:>9} {:>8} {:>6} {:>6} {:>8}",
        "", "ms", "%", "weights MB", "state MB", "MMAC", "GB/s", "GMAC/s", "of limit"
    )?;
    let mut least = 0.0;
    let mut line = |name: &str, share: &Share, needed: f64, limit: &str, bar: bool| {
        let Share { time, work } = share;
        let (seconds, multiplications) = (time.as_secs_f64(), (work.integers + work.floats) as f64);
        let bytes = (work.weights + work.state) as f64;
        let text = format!(
            "{name:18} {:8.3} {:5.1} {:10.2} {:9.2} {:8.2} {:6.2} {:6.1} {:3.0} % {limit:4}",
            seconds * 1e3 / count,
            100.0 * seconds / all.time.as_secs_f64(),
            work.weights as f64 / 1e6 / count,
            work.state as f64 / 1e6 / count,
            multiplications / 1e6 / count,
            bytes / seconds / 1e9,
            multiplications / seconds / 1e9,
            100.0 * needed / seconds,
        );
        let (length, full) =
            if bar { (seconds / longest, needed.min(seconds) / longest) } else { (0.0, 0.0) };
        let (length, full) = ((BAR * length).round() as usize, (BAR * full).round() as usize);
        let bar = format!("{}{}", "█".repeat(full), "░".repeat(length - full));
        writeln!(out, "{}", format!("{text} {bar}").trim_end())
    };
    for (part, share) in parts.shares() {
        let [read, multiply] = limits.seconds(&share.work);
        let limit = if share.work == Work::default() {
            "-"
        } else if read > multiply {
            "read"
        } else {
            "MAC"
        };
        line(part.name(), &share, read.max(multiply), limit, true)?;
        least += read.max(multiply);
    }
    line("all", &all, least, "", false)?;
    writeln!(out)?;
    Ok(())
}

/// The same, for programs: sums over all passes of the run.
pub fn report(measured: &Measured, limits: &Limits) -> Value {
    let part = |(part, share): (Part, Share)| {
        let Work { weights, state, integers, floats } = share.work;
        let [read, multiply] = limits.seconds(&share.work);
        json!({
            "part": part.name(), "seconds": share.time.as_secs_f64(), "weight_bytes": weights, "state_bytes": state,
            "integer_macs": integers, "float_macs": floats,
            "seconds_to_read": read, "seconds_to_multiply": multiply,
        })
    };
    measured.parts.shares().map(part).collect()
}
