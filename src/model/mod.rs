//! The mathematics of Kimi K3 and Kimi-Linear, once: configuration, weights, state and the forward pass. What is
//! computed is written here; who computes it is [`crate::compute`].

mod config;
mod error;
mod forward;
mod parts;
mod route;
mod rows;
mod state;
mod weights;

pub use config::{Architecture, Config, Decay, Experts, Mixer, Situ};
pub use error::Error;
pub use forward::{Chunk, Forward, Logits, Model, Observer};
pub use parts::{Part, Parts, Share, Work};
pub use rows::{ROW_BLOCK, Rows, StoredRows, Window};
pub use state::{KdaState, State};
