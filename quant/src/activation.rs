//! Activations in the two forms that products want: f32 as it is, and blocks of 32 signed bytes with an f32
//! scale (the form of Q8_0, but with an unrounded scale and with the sums that offset formats need).
//!
//! One block size for every weight format, also for the 256-wide ones: a block of 32 has a smaller maximum than
//! one of 256, so its rounding error is smaller, and a product of any format can read any activation.

/// Elements in an activation block; every quantized weight format has blocks that are multiples of it.
pub const BLOCK: usize = 32;

/// One activation vector of `n` elements, borrowed in the forms that a product may read.
///
/// For float formats only `f32` is read; for all others only `q`, `scale` and `sums`.
#[derive(Clone, Copy, Default)]
pub struct Vector<'a> {
    /// `n` elements.
    pub f32: &'a [f32],
    /// `n` rounded values: element i is about `scale[i / 32] * q[i]`, with |q| <= 127.
    pub q: &'a [i8],
    /// `n / 32` scales.
    pub scale: &'a [f32],
    /// `n / 16` sums of 16 neighbouring `q`.
    pub sums: &'a [i16],
}

/// Quantizes `x` (a whole number of blocks) to `q` (as long as `x`), `scale` (`x.len() / 32`) and `sums`
/// (`x.len() / 16`): scale = max|x| / 127, q = x / scale to the nearest, ties to even.
pub fn quantize(x: &[f32], q: &mut [i8], scale: &mut [f32], sums: &mut [i16]) {
    let blocks = x.chunks_exact(BLOCK).zip(q.chunks_exact_mut(BLOCK));
    for (((x, q), scale), sums) in blocks.zip(scale).zip(sums.chunks_exact_mut(2)) {
        let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
        let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
        *scale = max / 127.0;
        for (q, x) in q.iter_mut().zip(x) {
            *q = (x * inverse).round_ties_even() as i8;
        }
        for (sum, half) in sums.iter_mut().zip(q.chunks_exact(BLOCK / 2)) {
            *sum = half.iter().map(|&q| i16::from(q)).sum();
        }
    }
}
