//! What goes to a terminal, and what doesn't.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Text without what a terminal would take for a command, or would show in another order than it is written.
pub fn clean(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| match c {
        '\n' | '\t' => true,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        c => !c.is_control(),
    };
    if text.chars().all(harmless) {
        return text.into();
    }
    text.chars().filter(|&c| harmless(c)).collect::<String>().into()
}

/// Whether colours are wanted on a terminal.
pub fn colours() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// A line that says what takes so long, where somebody sees it. It goes when it is dropped.
#[derive(Default)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Says what is being done, and for how long.
    pub fn show(&mut self, what: &str, time: Duration) {
        let mut stderr = std::io::stderr().lock();
        if stderr.is_terminal() {
            self.shown = true;
            let _ = write!(stderr, "\r\x1b[K{} \u{2026} {} s", clean(what), time.as_secs());
            let _ = stderr.flush(); // who doesn't see it misses nothing
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn what_a_terminal_would_obey_is_left_out() {
        assert_eq!(clean("a\u{1b}[31mb\u{9b}2Jc\rd\u{7f}\u{202e}\n\te\u{e4}"), "a[31mb2Jcd\n\te\u{e4}");
        assert_eq!(clean("plain"), "plain");
    }
}
