//! What a conversation remembers, and how it survives: live state, checkpoints, files, the store.
//!
//! A [`Session`] has all tokens of a conversation and the model's [`State`](crate::model::State) at one of them. Tokens
//! are [pushed](Session::push), read by the model [chunk by chunk](Session::next_chunk), and [saved](Session::save)
//! when a turn ends. On disk a session is a folder:
//!
//! ```text
//! sessions/<uid>/<name>/
//!   head.json                      what is current; replaced atomically, last. What it doesn't name doesn't exist
//!   tokens-<serial>.log            every token, append-only, checksummed
//!   rows-<token>-<serial>.log      MLA rows in blocks, append-only, checksummed block by block, mapped
//!   state-<tokens>-<serial>.gguf   KDA states and convolution windows at a token, checksummed, never rewritten
//! ```
//!
//! Write order: rows and tokens, fsync; states, fsync; names, fsync of the folder; the head by rename, fsync of the
//! folder. New content always goes to a new name (hence the serial numbers), or behind the bytes that the head counts.
//! So whatever interrupts it, the head before still stands with all that it names. Several sessions may share a file: it
//! is then only ever appended to by one of them, behind what the others count.
//!
//! A piece that isn't in every bit what it was is put aside (`bad-…`) and never looked at again: the next older
//! checkpoint serves, then the tokens are read again. Whoever resumed is told so: [`Resumed`].

mod archive;
mod digest;
mod disk;
mod head;
mod live;
mod open;
mod row_log;
mod save;
mod snapshot;
mod store;
mod token_log;
mod unsaved;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub use digest::{Chain, Digest, Fingerprint};
pub use disk::{Disk, RealDisk};
pub use kadence_quant::state::Codec;
pub use live::Session;
pub use snapshot::sleep_and_wake;
pub use store::{Bound, Limits, Settings, Store, Summary, Turn};
pub use unsaved::Unsaved;

/// Version of the files of a session. Newer ones are refused.
pub const FORMAT_VERSION: u32 = 1;

/// How much of what a session has read before could be used again, and why not more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Why.
    pub reason: Reason,
    /// Tokens that needn't be read.
    pub reused: usize,
    /// Tokens that were read before and have to be read again.
    pub reread: usize,
}

/// Why a session starts from where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It has nothing to start from.
    New,
    /// It is in memory.
    Live,
    /// It woke exactly where it was.
    Resumed,
    /// Another conversation had begun with the same tokens.
    Prefix,
    /// It went back to a checkpoint, on request.
    Checkpoint,
    /// Its state is of another model, or of other weights of the same.
    ModelChanged,
    /// Something on disk wasn't what it had been.
    Damaged,
    /// The checkpoint that would have served had been given up for space.
    Evicted,
}

impl Reason {
    const ALL: [Reason; 8] = [
        Reason::New,
        Reason::Live,
        Reason::Resumed,
        Reason::Prefix,
        Reason::Checkpoint,
        Reason::ModelChanged,
        Reason::Damaged,
        Reason::Evicted,
    ];

    /// The code for it in every interface.
    pub fn code(self) -> &'static str {
        match self {
            Reason::New => "new",
            Reason::Live => "live",
            Reason::Resumed => "resumed",
            Reason::Prefix => "prefix",
            Reason::Checkpoint => "checkpoint",
            Reason::ModelChanged => "reread:model-changed",
            Reason::Damaged => "reread:damaged",
            Reason::Evicted => "reread:evicted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// How often each reason was given.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; Reason::ALL.len()]);

impl Counts {
    pub(crate) fn count(&self, session: &str, resumed: Resumed) {
        let place = Reason::ALL.iter().position(|r| *r == resumed.reason).unwrap_or(0);
        self.0[place].fetch_add(1, Ordering::Relaxed);
        let Resumed { reason, reused, reread } = resumed;
        log::info!("session {session}: {reason}, {reused} tokens reused, {reread} to be read again");
    }

    /// All reasons and how often they were given.
    pub fn all(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.0.iter().map(|n| n.load(Ordering::Relaxed)))
    }
}

/// Why something can't be done with a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused.
    #[error("{path}: can't {action}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done, as a verb.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The model refused.
    #[error(transparent)]
    Model(#[from] crate::model::Error),
    /// Not a name.
    #[error("{0:?} can't be the name of a session: use 1 to 64 letters, digits, and . _ - behind the first")]
    Name(String),
    /// There is none of this name.
    #[error("there is no session {0:?}: `kadence session list` shows those there are")]
    Missing(String),
    /// There is one of this name.
    #[error("there is a session {0:?} already: choose another name, or delete it")]
    Exists(String),
    /// Another process, or another request, has it open.
    #[error("session {0:?} is in use: wait until the other program has finished")]
    InUse(String),
    /// Its tokens can't all be read any more.
    #[error(
        "session {session:?} is damaged: of its {of} tokens {readable} can be read; `kadence session rewind {session} \
         --tokens {readable}` goes on from there, and nothing behind that will be remembered; or delete it"
    )]
    TokensDamaged {
        /// The session.
        session: String,
        /// Tokens that can be read.
        readable: usize,
        /// Tokens that there were.
        of: usize,
    },
    /// Its tokens mean something else to this model.
    #[error("session {0:?} was held with a model that has another vocabulary: open it with that one")]
    Vocabulary(String),
    /// Written by a newer Kadence.
    #[error("session {session:?} was written by a newer Kadence (format {version}): update this one")]
    Newer {
        /// The session.
        session: String,
        /// The version of its files.
        version: u64,
    },
    /// Not a token count that the session has.
    #[error("session {session:?} has {tokens} tokens: it can't go back to {wanted}")]
    Position {
        /// The session.
        session: String,
        /// Its tokens.
        tokens: usize,
        /// Where it was to go.
        wanted: usize,
    },
    /// A limit for each user.
    #[error("not more than {limit} {what} a user: delete sessions that are no longer needed")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many.
        limit: u64,
    },
    /// The disk has less free space than is to stay free.
    #[error("{path}: only {free} MB are free, and {reserve} MB are to stay free: make room")]
    Full {
        /// Where.
        path: PathBuf,
        /// Megabytes that are free.
        free: u64,
        /// Megabytes that are to stay free.
        reserve: u64,
    },
    /// A file that can't be imported.
    #[error("{path} isn't an exported session: {why}")]
    Archive {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Error {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { path: path.into(), action, source }
    }
}
