//! Number formats of GGUF files: what a block is, how it is decoded and encoded, and products of rows of blocks
//! with activation vectors. Knows nothing of models.
//!
//! - [`mod@format`]: the formats and their sizes.
//! - [`decode()`], [`encode()`]: blocks to f32 and back.
//! - [`activation`]: activations, and their quantized form.
//! - [`mod@product`]: what a product is, and the portable products, the reference for every other path.
//! - `avx2`, `neon`: the fast products: rows are unfolded to integers, and those multiplied.
//! - [`state`]: codecs of stored session states, which are no GGUF formats.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod decode;
mod encode;
pub mod format;
mod grids;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod product;
mod simd;
pub mod state;

pub use decode::decode;
pub use encode::{can_encode, encode};
pub use format::Format;

/// The product of a format on this processor.
pub fn product(format: Format) -> product::Product {
    #[cfg(target_arch = "x86_64")]
    if simd::has_avx2()
        && let Some(fast) = avx2::product(format)
    {
        return fast;
    }
    #[cfg(target_arch = "aarch64")]
    if let Some(fast) = neon::product(format) {
        return fast;
    }
    product::portable(format)
}

/// What the products on this processor are built for.
pub fn kernels() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if simd::has_avx2() {
        return "avx2";
    }
    #[cfg(target_arch = "aarch64")]
    return neon::kernels();
    #[cfg(not(target_arch = "aarch64"))]
    "portable"
}
