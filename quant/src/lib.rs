//! Number formats of GGUF files: what a block is, how it is decoded and encoded, and products of rows of blocks
//! with activation vectors. Knows nothing of models.
//!
//! - [`format`]: the formats and their sizes.
//! - [`decode()`], `encode`: blocks to f32 and back.
//! - [`activation`]: activations, and their quantized form.
//! - [`product`]: the portable products, the reference for every other path.
//! - `x86`: the same products for AVX2 and FMA.
//! - `dispatch`: which path this processor runs, decided once.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod activation;
mod decode;
pub mod format;
pub mod product;

pub use decode::decode;
pub use format::Format;
