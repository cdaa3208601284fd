//! Where messages go: to the journal with fields, where it listens, else to the standard error output.

use std::io::Write;

use log::{LevelFilter, Log, Metadata, Record};
use systemd_journal_logger::{JournalLog, connected_to_journal};

/// Starts logging what is at least this important.
pub(super) fn start(level: LevelFilter) -> Result<(), String> {
    let fields = [("KADENCE_VERSION", env!("CARGO_PKG_VERSION"))];
    // Journals may be unreachable in spite of JOURNAL_STREAM, within a sandbox say: then stderr serves.
    let journal = connected_to_journal().then(|| JournalLog::new().ok()).flatten();
    let started = match journal {
        Some(journal) => journal.with_extra_fields(fields).install(),
        None => log::set_boxed_logger(Box::new(Stderr)),
    };
    started.map_err(|e| format!("can't log: {e}"))?;
    log::set_max_level(level);
    Ok(())
}

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true // `log` itself looks at the level
    }

    fn log(&self, record: &Record<'_>) {
        let level = record.level().as_str().to_lowercase();
        // In one piece: others write there too.
        let line = format!("kadenced: {level}: {}\n", record.args());
        let _ = std::io::stderr().write_all(line.as_bytes()); // nowhere is left to complain
    }

    fn flush(&self) {}
}
