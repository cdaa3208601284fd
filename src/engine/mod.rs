//! Turns requests into tokens: reading prompts, sampling, stopping, cancellation.

mod generate;
mod sample;

pub use generate::{Conversation, Finish, Generation, Generator, Request, Unsaved};
pub use sample::{Sampler, Sampling};

/// Tokens of a pass when a prompt is read: enough that each weight is read from memory once for many tokens, few enough
/// that the activations of a pass stay small.
pub const PASS: usize = 512;
