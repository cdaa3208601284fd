//! What a request's tokens are read into: a session that is kept, or a state that isn't.

use kadence_quant::Format;

use crate::model::{Config, State};
use crate::session::{Error, Resumed, Session};

use super::generate::{Conversation, Unsaved};

/// What a request's tokens are read into.
pub(super) enum Memory {
    /// Forgotten when the answer ends.
    Passing(Unsaved),
    /// Saved when the answer ends, or breaks off.
    Kept(Box<Session>),
}

impl Memory {
    /// A memory that isn't kept, which is to read these tokens.
    pub(super) fn passing(config: &Config, tokens: &[u32]) -> Memory {
        let mut memory = Unsaved::new(State::new(config, Format::F16));
        memory.push(tokens);
        Memory::Passing(memory)
    }

    fn conversation(&mut self) -> &mut dyn Conversation {
        match self {
            Memory::Passing(memory) => memory,
            Memory::Kept(session) => &mut **session,
        }
    }

    fn state(&self) -> &State {
        match self {
            Memory::Passing(memory) => memory.state(),
            Memory::Kept(session) => session.state(),
        }
    }

    /// Appends tokens to be read.
    pub(super) fn push(&mut self, tokens: &[u32]) {
        self.conversation().push(tokens);
    }

    /// Tokens that were read.
    pub(super) fn read(&self) -> usize {
        self.state().tokens()
    }

    /// Tokens yet to be read.
    pub(super) fn unread(&self) -> usize {
        match self {
            Memory::Passing(memory) => memory.unread(),
            Memory::Kept(session) => session.unread(),
        }
    }

    /// The next tokens to be read, at most `max`, and the state to read them into. [`Memory::settle`] follows.
    pub(super) fn next_chunk(&mut self, max: usize) -> Option<(&[u32], &mut State)> {
        match self {
            Memory::Passing(memory) => memory.next_chunk(max),
            Memory::Kept(session) => session.next_chunk(max),
        }
    }

    /// The chunk was read. False if it has to be read again.
    pub(super) fn settle(&mut self) -> Result<bool, Error> {
        self.conversation().settle()
    }

    /// Bytes of the state.
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes()
    }

    /// Name and start of a session.
    pub(super) fn session(&self) -> Option<(&str, Resumed)> {
        match self {
            Memory::Passing(_) => None,
            Memory::Kept(session) => Some((session.name(), session.resumed())),
        }
    }
}
