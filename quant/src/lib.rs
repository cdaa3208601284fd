//! Number formats of GGUF files: what a block is, how it is decoded and encoded, and products of rows of blocks
//! with activation vectors. Knows nothing of models.
//!
//! - [`format`]: the formats and their sizes.
//! - [`decode()`], [`encode()`]: blocks to f32 and back.
//! - [`activation`]: activations, and their quantized form.
//! - [`product`]: the portable products, the reference for every other path.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod activation;
mod decode;
mod encode;
pub mod format;
mod grids;
pub mod product;

pub use decode::decode;
pub use encode::{can_encode, encode};
pub use format::Format;

/// The product of a format on this processor.
pub fn product(format: Format) -> product::Product {
    product::portable(format)
}
