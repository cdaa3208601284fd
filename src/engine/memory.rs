//! What a request's tokens are read into: for now a state in memory, one a request.

use kadence_quant::Format;

use crate::model::{Config, State};

/// The tokens of a request, and the state that has read some of them.
pub(super) struct Memory {
    tokens: Vec<u32>,
    state: State,
}

impl Memory {
    /// A memory that has read nothing.
    pub(super) fn new(config: &Config) -> Memory {
        Memory { tokens: Vec::new(), state: State::new(config, Format::F16) }
    }

    /// Appends tokens to be read.
    pub(super) fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Tokens that were read.
    pub(super) fn read(&self) -> usize {
        self.state.tokens()
    }

    /// Tokens yet to be read.
    pub(super) fn unread(&self) -> usize {
        self.tokens.len() - self.read()
    }

    /// The next tokens to be read, at most `max`, and the state to read them into.
    pub(super) fn next_chunk(&mut self, max: usize) -> (&[u32], &mut State) {
        let from = self.state.tokens();
        let to = self.tokens.len().min(from + max);
        (&self.tokens[from..to], &mut self.state)
    }

    /// Bytes of the state.
    pub(super) fn bytes(&self) -> usize {
        self.state.bytes()
    }
}
