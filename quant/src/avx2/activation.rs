//! Activations to integers.

use std::arch::x86_64::*;

use super::lanes::{put, takef};
use crate::activation::{BLOCK, SUM, UNIT, scale_and_inverse};

/// [`crate::activation::quantize`], of slices whose lengths it has checked.
#[target_feature(enable = "avx2")]
pub(crate) fn quantize(x: &[f32], q: &mut [i16], scale: &mut [f32], sums: &mut [f32]) {
    let blocks = x.chunks(BLOCK).zip(q.chunks_mut(BLOCK)).zip(sums.chunks_mut(BLOCK / SUM));
    for (((x, q), sums), scale) in blocks.zip(scale) {
        let x = x.as_chunks::<UNIT>().0;
        let inverse;
        [*scale, inverse] = scale_and_inverse(largest(x));
        let inverse = _mm256_set1_ps(inverse);
        let parts = x.iter().zip(q.as_chunks_mut::<UNIT>().0).zip(sums.as_chunks_mut::<{ UNIT / SUM }>().0);
        for ((x, q), sums) in parts {
            let mut halves = [_mm256_setzero_si256(); 2];
            for (half, sum) in sums.iter_mut().enumerate() {
                // To the nearest, of two equally near to the even one.
                let rounded = |at| _mm256_cvtps_epi32(_mm256_mul_ps(takef(x, at), inverse));
                let (a, b) = (rounded(SUM * half), rounded(SUM * half + 8));
                *sum = *scale * total(_mm256_add_epi32(a, b)) as f32;
                halves[half] = evens_and_odds(a, b);
            }
            put(q, 0, _mm256_permute2x128_si256::<0x20>(halves[0], halves[1]));
            put(q, SUM, _mm256_permute2x128_si256::<0x31>(halves[0], halves[1]));
        }
    }
}

/// The largest magnitude, or NaN if there is one.
#[inline]
#[target_feature(enable = "avx2")]
fn largest(x: &[[f32; UNIT]]) -> f32 {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut tops = [_mm256_setzero_si256(); UNIT / 8];
    for x in x {
        for (i, top) in tops.iter_mut().enumerate() {
            // Without their signs, floats sort as their bits do, and NaN above all.
            let bits = _mm256_and_si256(_mm256_castps_si256(takef(x, 8 * i)), magnitude);
            *top = _mm256_max_epu32(*top, bits);
        }
    }
    let [a, b, c, d] = tops;
    let eight = _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, d));
    let four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    let two = _mm_max_epu32(four, _mm_shuffle_epi32::<0b1110>(four));
    let one = _mm_max_epu32(two, _mm_shuffle_epi32::<0b01>(two));
    f32::from_bits(_mm_cvtsi128_si32(one) as u32)
}

/// The sum of 8 integers.
#[inline]
#[target_feature(enable = "avx2")]
fn total(x: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b1110>(four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b01>(two)))
}

/// 16 integers of 32 bits as such of 16: first those of the even places, then those of the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn evens_and_odds(a: __m256i, b: __m256i) -> __m256i {
    let order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    // Of the elements 0 to 3 and 8 to 11, then of the others: two pairs of even ones, two of odd ones.
    let pairs = _mm256_shuffle_epi8(_mm256_packs_epi32(a, b), order);
    _mm256_permutevar8x32_epi32(pairs, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}
