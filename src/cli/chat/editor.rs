//! Lines typed at a terminal: editing, history, completion.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Helper};

use crate::cli::Failure;

use super::commands::COMMANDS;

/// Lines of history that are kept.
const KEPT: usize = 1000;

/// What was typed.
pub(super) enum Line {
    /// Something.
    Text(String),
    /// Nothing, or something that Ctrl-C took back.
    Nothing,
    /// Ctrl-D.
    End,
}

/// Reads lines from the terminal.
pub(super) struct Editor {
    editor: rustyline::Editor<Words, FileHistory>,
    history: Option<PathBuf>,
    prompt: (String, String),
}

impl Editor {
    /// With the history of a file, where there is one.
    pub(super) fn new(history: Option<PathBuf>, colours: bool) -> Result<Editor, Failure> {
        let failed = |e: ReadlineError| Failure::new(format!("the terminal can't be used: {e}"));
        let config = Config::builder().completion_type(CompletionType::List).history_ignore_space(true);
        let config = config.max_history_size(KEPT).map_err(failed)?.build();
        let mut editor = rustyline::Editor::with_config(config).map_err(failed)?;
        editor.set_helper(Some(Words::default()));
        if let Some(file) = &history {
            let _ = editor.load_history(file); // the first time there is none
        }
        let prompt = if colours { "\x1b[1m>\x1b[0m " } else { "> " };
        Ok(Editor { editor, history, prompt: ("> ".into(), prompt.into()) })
    }

    /// Tells the names that /resume completes.
    pub(super) fn sessions(&mut self, names: Vec<String>) {
        if let Some(words) = self.editor.helper_mut() {
            words.sessions = names;
        }
    }

    /// The next line; several, if all but the last end in a backslash.
    pub(super) fn read(&mut self) -> Result<Line, Failure> {
        let line = match self.editor.readline(&self.prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => return Ok(Line::Nothing),
            Err(ReadlineError::Eof) => return Ok(Line::End),
            Err(e) => return Err(Failure::new(format!("the terminal can't be read: {e}"))),
        };
        if line.trim().is_empty() {
            return Ok(Line::Nothing);
        }
        // A line that can't be kept can still be answered.
        let _ = self.editor.add_history_entry(&line);
        if let Some(file) = &self.history {
            let _ = self.editor.append_history(file);
        }
        Ok(Line::Text(line.replace("\\\n", "\n")))
    }
}

/// Knows the words that can be completed.
#[derive(Default)]
struct Words {
    sessions: Vec<String>,
}

impl Completer for Words {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let fitting = |all: &mut dyn Iterator<Item = &str>, start: &str| -> Vec<String> {
            all.filter(|word| word.starts_with(start)).map(str::to_owned).collect()
        };
        if let Some(name) = typed.strip_prefix("/resume ") {
            return Ok(("/resume ".len(), fitting(&mut self.sessions.iter().map(String::as_str), name)));
        }
        if typed.starts_with('/') {
            return Ok((0, fitting(&mut COMMANDS.iter().map(|c| c.0), typed)));
        }
        Ok((at, Vec::new()))
    }
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let more = context.input().ends_with('\\');
        Ok(if more { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Helper for Words {}

#[cfg(test)]
mod tests {
    use rustyline::completion::Completer;
    use rustyline::history::FileHistory;

    use super::{Context, Words};

    #[test]
    fn commands_and_sessions_are_completed() {
        let words = Words { sessions: vec!["work".into(), "walk".into(), "other".into()] };
        let history = FileHistory::new();
        let complete = |line: &str| words.complete(line, line.len(), &Context::new(&history)).unwrap();
        assert_eq!(complete("/re"), (0, vec!["/resume".into(), "/retry".into()]));
        assert_eq!(complete("/resume w"), (8, vec!["work".into(), "walk".into()]));
        assert_eq!(complete("re").1, Vec::<String>::new());
    }
}
