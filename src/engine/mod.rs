//! Turns requests into tokens: reading prompts, sampling, stopping, cancellation.
//!
//! - [`Generator`]: one answer after the other, in the caller's thread.
//! - [`Engine`]: a thread that answers many at once. Prompts are read in pieces between the tokens of those who are
//!   being answered, users share fairly, and who doesn't read the answer holds up nobody else.

mod ask;
mod boxed;
mod constraint;
mod facts;
mod generate;
mod handle;
mod memory;
mod queue;
mod recall;
mod resident;
mod run;
mod sample;
mod serve;
mod shares;
mod speech;
mod stops;
mod transcript;

pub use ask::{Answer, Ask, Begun, Done, KeepOpen, ModelFile, Prompt, Refusal, Said, TokenChance};
pub use boxed::{BOXED_MODEL, boxed_model};
pub use facts::Facts;
pub use generate::{Conversation, Finish, Generation, Generator, Request, Unsaved};
pub use handle::{Counters, Engine, ModelState, Place, Settings};
pub use recall::{AUTOMATIC, Sessions};
pub use resident::Resident;
pub use sample::{Sampler, Sampling};

/// Tokens of a pass when a prompt is read: enough that each weight is read from memory once for many tokens, few enough
/// that the activations of a pass stay small.
pub const PASS: usize = 512;
