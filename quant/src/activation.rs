//! Activations in the two forms that products want: f32 as it is, and 14-bit integers with a scale for every 256.
//!
//! Others round activations to 8 bits. With AVX2 that is faster for prompts (measured: an 8-bit inner loop would do
//! 1.8 times the products of this one), but not for decoding, and it costs what makes the results worth having: 14 bits
//! have 64 times finer steps, and a product is as good as one with f32 activations. Why 14 bits and not 16: a code
//! times its sub-block's integer scale is 4096 at most in any format (Q6_K), and 64 such products of 14-bit numbers
//! still fit 32-bit sums.

/// Elements that share a scale.
pub const BLOCK: usize = 256;

/// Elements of which the sum is kept, and the unit of lengths: every block of a quantized format is a multiple of it.
pub const SUM: usize = 16;

/// Every quantized row is a multiple of this.
pub const UNIT: usize = 32;

/// The largest integer.
pub const LARGEST: f32 = 8191.0;

/// One activation vector of `n` elements, borrowed in the forms that a product may read.
///
/// For float formats only `f32` is read; for all others only `q`, `scale` and `sums`.
#[derive(Clone, Copy, Default)]
pub struct Vector<'a> {
    /// `n` elements.
    pub f32: &'a [f32],
    /// `n` integers, |q| <= 8191: element i is about `scale[i / 256] * q[place(i)]`, see [`place`].
    pub q: &'a [i16],
    /// A scale for every 256 elements, the last of which may be fewer.
    pub scale: &'a [f32],
    /// `n / 16` sums: `scale * (q_0 + … + q_15)` of 16 neighbours.
    pub sums: &'a [f32],
}

/// 32 integers in a cache line of their own: products are slow on those that cross lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Line([i16; UNIT]);

impl Line {
    /// Zeros.
    pub const ZERO: Line = Line([0; UNIT]);

    /// The integers of some lines.
    pub fn integers(lines: &[Line]) -> &[i16] {
        // SAFETY: a line is 32 integers and nothing else: its alignment is its size.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * UNIT)
        }
    }

    /// The integers of some lines, to be written.
    pub fn integers_mut(lines: &mut [Line]) -> &mut [i16] {
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * UNIT)
        }
    }
}

/// Where the integer of element i is: of every 32, first those of the even elements, then those of the odd ones.
/// Packed weights come apart in this order with shifts and masks alone.
pub const fn place(i: usize) -> usize {
    i / UNIT * UNIT + i % UNIT / 2 + i % 2 * SUM
}

/// Lengths of the quantized parts of a vector of `n` elements: integers, scales, sums. None if `n` isn't a multiple of
/// [`UNIT`]; then no quantized format has such rows either.
pub fn lengths(n: usize) -> [usize; 3] {
    if n.is_multiple_of(UNIT) { [n, n.div_ceil(BLOCK), n / SUM] } else { [0; 3] }
}

/// Quantizes `x`, whose length is a multiple of [`UNIT`], to parts of the [`lengths`] that go with it. The scale is
/// max|x| / 8191; integers are the nearest, of two equally near the even one. A block with an element that isn't
/// finite has a scale that isn't, so that products with it aren't numbers either.
pub fn quantize(x: &[f32], q: &mut [i16], scale: &mut [f32], sums: &mut [f32]) {
    assert_eq!([q.len(), scale.len(), sums.len()], lengths(x.len()));
    // What the compiler makes of the portable path has two and three times as many instructions.
    #[cfg(target_arch = "x86_64")]
    if crate::simd::has_avx2() {
        // SAFETY: the processor has what the function needs.
        #[allow(unsafe_code)]
        return unsafe { crate::avx2::activation::quantize(x, q, scale, sums) };
    }
    #[cfg(not(target_arch = "aarch64"))]
    quantize_portable(x, q, scale, sums);
    // SAFETY: every processor that this build is for has NEON.
    #[cfg(target_arch = "aarch64")]
    #[allow(unsafe_code)]
    unsafe {
        crate::neon::quantize(x, q, scale, sums);
    }
}

#[cfg(any(test, not(target_arch = "aarch64")))]
fn quantize_portable(x: &[f32], q: &mut [i16], scale: &mut [f32], sums: &mut [f32]) {
    let blocks = x.chunks(BLOCK).zip(q.chunks_mut(BLOCK)).zip(sums.chunks_mut(BLOCK / SUM));
    for (((x, q), sums), scale) in blocks.zip(scale) {
        // Without their signs, floats sort as their bits do, and NaN above all: one in the block can't get lost.
        let mut tops = [0u32; SUM];
        for lanes in x.as_chunks::<SUM>().0 {
            for i in 0..SUM {
                tops[i] = tops[i].max(lanes[i].abs().to_bits());
            }
        }
        let inverse;
        [*scale, inverse] = scale_and_inverse(f32::from_bits(tops.into_iter().fold(0, u32::max)));
        let parts = x.as_chunks::<UNIT>().0.iter().zip(q.as_chunks_mut::<UNIT>().0);
        for ((x, q), sums) in parts.zip(sums.as_chunks_mut::<{ UNIT / SUM }>().0) {
            for (half, sum) in sums.iter_mut().enumerate() {
                let mut rounded = [0i32; SUM];
                for i in 0..SUM {
                    rounded[i] = round(x[half * SUM + i] * inverse);
                }
                *sum = *scale * rounded.iter().sum::<i32>() as f32;
                for i in 0..SUM / 2 {
                    q[half * SUM / 2 + i] = rounded[2 * i] as i16;
                    q[SUM + half * SUM / 2 + i] = rounded[2 * i + 1] as i16;
                }
            }
        }
    }
}

/// The scale of a block whose largest magnitude is `max`, and what its elements are multiplied with to become integers.
#[inline(always)]
pub(crate) fn scale_and_inverse(max: f32) -> [f32; 2] {
    // The scale of a block of tiny numbers can be subnormal and its inverse infinite; such a block is as good as 0.
    let inverse = if max >= 1e-30 && max.is_finite() { LARGEST / max } else { 0.0 };
    [max / LARGEST, inverse]
}

/// The nearest integer of a number between −2^22 and 2^22, of two equally near the even one.
#[inline(always)]
pub(crate) fn round(x: f32) -> i32 {
    /// 1.5 * 2^23: adding it leaves the integer in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantized(x: &[f32]) -> (Vec<i16>, Vec<f32>, Vec<f32>) {
        let [q, scale, sums] = lengths(x.len());
        let (mut q, mut scale, mut sums) = (vec![0; q], vec![0.0; scale], vec![0.0; sums]);
        quantize(x, &mut q, &mut scale, &mut sums);
        (q, scale, sums)
    }

    #[test]
    fn both_builds_agree_and_err_by_half_a_step() {
        for n in [32, 256, 288, 1024] {
            for magnitude in [1e-20f32, 1e-3, 1.0, 1e20] {
                let x: Vec<f32> =
                    (0..n).map(|i| magnitude * ((i * 7919 % 1009) as f32 / 504.0 - 1.0)).collect();
                let (q, scale, sums) = quantized(&x);
                let (mut q2, mut scale2, mut sums2) = (q.clone(), scale.clone(), sums.clone());
                quantize_portable(&x, &mut q2, &mut scale2, &mut sums2);
                assert_eq!((&q, &scale, &sums), (&q2, &scale2, &sums2));
                for (i, x) in x.iter().enumerate() {
                    let error = (x - scale[i / BLOCK] * f32::from(q[place(i)])).abs();
                    assert!(error <= scale[i / BLOCK] * 0.501, "{n} {magnitude}: {error}");
                    assert!(q[i].abs() <= 8191);
                }
                for (s, sum) in sums.iter().enumerate() {
                    let total: i32 = (s * SUM..(s + 1) * SUM).map(|i| i32::from(q[place(i)])).sum();
                    assert_eq!(*sum, scale[s * SUM / BLOCK] * total as f32);
                }
            }
        }
    }

    #[test]
    fn lines_are_their_integers() {
        let mut lines = [Line::ZERO; 3];
        Line::integers_mut(&mut lines).copy_from_slice(&std::array::from_fn::<i16, 96, _>(|i| i as i16));
        assert!(Line::integers(&lines).iter().zip(0..96).all(|(q, i)| *q == i));
        assert_eq!((lines[2].0[0], Line::integers(&lines[1..2]).len(), size_of::<Line>()), (64, 32, 64));
    }

    #[test]
    fn extremes_stay_in_bounds() {
        let zeros = quantized(&[0.0; 32]);
        assert_eq!((zeros.0, zeros.1[0]), (vec![0; 32], 0.0));
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 256];
            x[100] = odd;
            assert!(!quantized(&x).1[0].is_finite());
        }
        let tiny = quantized(&[f32::MIN_POSITIVE / 8.0; 32]);
        assert!(tiny.0.iter().all(|&q| q == 0));
        let huge = quantized(&[f32::MAX; 32]);
        assert!(huge.0.iter().all(|&q| q == 8191));
    }
}
