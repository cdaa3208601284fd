//! Kadence keeps a long-lived assistant's memory on your own machine.
//!
//! # The map of the house
//!
//! One paragraph a room, in the order in which data flows. A room may use the rooms above it in this list and
//! none below; `tests/house_imports.rs` checks it.
//!
//! - `quant` (its own crate, [`kadence_quant`]): number formats. Knows nothing of models.
//! - [`gguf`]: the container: mapped files, shards, typed metadata, the tensor table, the writer.
//! - [`compute`]: who executes the mathematics: the thread pool and the CPU operators.
//! - [`model`]: the mathematics, once: configuration, weights, KDA, MLA, MoE, Attention Residuals, forward.
//! - [`session`]: what a conversation remembers: live state, checkpoints, files, the store.
//! - [`text`]: bytes <-> tokens <-> messages: BPE, chat rendering, the streaming parser of what a model says.
//! - [`engine`]: turns requests into tokens: the queue, passes for many at once, sampling, stopping, cancellation.
//! - [`api`]: how others reach it: OpenAI's HTTP interface over a Unix socket.
//! - [`daemon`]: being a good service: configuration, the socket, readiness, watchdog, signals, logging.
//! - [`cli`]: the client and the tools.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
pub mod cli;
pub mod compute;
pub mod daemon;
pub mod engine;
pub mod gguf;
pub mod model;
pub mod session;
pub mod text;
