//! Number formats of GGUF files: what a block is, how it is decoded and encoded, and products of rows of blocks
//! with activation vectors. Knows nothing of models.
//!
//! - [`mod@format`]: the formats and their sizes.
//! - [`decode()`], [`encode()`]: blocks to f32 and back.
//! - [`activation`]: activations, and their quantized form.
//! - [`mod@product`]: what a product is, and the portable products, the reference for every other path.
//! - `avx2`, `neon`: the fast products: rows are unfolded to integers, and those multiplied. `avx512` widens the part for
//!   many vectors, and multiplies single rows of the usual formats as bytes.
//! - [`peak`]: what the processor could do at most.
//! - [`state`]: codecs of stored session states, which are no GGUF formats.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod decode;
mod encode;
pub mod format;
mod grids;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod peak;
pub mod product;
mod simd;
pub mod state;

pub use decode::decode;
pub use encode::{can_encode, encode};
pub use format::Format;

/// The product of a format on this processor.
pub fn product(format: Format) -> product::Product {
    products(format).next().expect("the portable one").1
}

/// All products of a format that this processor can run, the fastest first, with the names of what they are built for.
/// The last is the portable one.
pub fn products(format: Format) -> impl Iterator<Item = (&'static str, product::Product)> {
    #[cfg(target_arch = "x86_64")]
    let fast = [
        simd::has_avx512().then(|| avx512::product(format)).flatten().map(|f| ("avx512", f)),
        simd::has_avx2().then(|| avx2::product(format)).flatten().map(|f| ("avx2", f)),
    ];
    #[cfg(target_arch = "aarch64")]
    let fast = neon::products(format).map(Some);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let fast = [];
    fast.into_iter().flatten().chain([("portable", product::portable(format))])
}

/// What the products on this processor are built for.
pub fn kernels() -> &'static str {
    products(Format::Q4_K).next().expect("the portable one").0
}
