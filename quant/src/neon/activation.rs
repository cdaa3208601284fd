//! Activations to integers.

use std::arch::aarch64::*;

use super::lanes::numbers;
use crate::activation::{BLOCK, SUM, UNIT, scale_and_inverse};

/// [`crate::activation::quantize`], of slices whose lengths it has checked.
#[target_feature(enable = "neon")]
pub(crate) fn quantize(x: &[f32], q: &mut [i16], scale: &mut [f32], sums: &mut [f32]) {
    let blocks = x.chunks(BLOCK).zip(q.chunks_mut(BLOCK)).zip(sums.chunks_mut(BLOCK / SUM));
    for (((x, q), sums), scale) in blocks.zip(scale) {
        let x = x.as_chunks::<UNIT>().0;
        let inverse;
        [*scale, inverse] = scale_and_inverse(largest(x));
        let parts = x.iter().zip(q.as_chunks_mut::<UNIT>().0).zip(sums.as_chunks_mut::<{ UNIT / SUM }>().0);
        for ((x, q), sums) in parts {
            for half in 0..2 {
                // To the nearest, of two equally near to the even one.
                let rounded = |at| vcvtnq_s32_f32(vmulq_n_f32(numbers(x, SUM * half + at), inverse));
                let [a, b, c, d] = [rounded(0), rounded(4), rounded(8), rounded(12)];
                let sum = vaddvq_s32(vaddq_s32(vaddq_s32(a, b), vaddq_s32(c, d)));
                sums[half] = *scale * sum as f32;
                // The low halves of 32-bit integers.
                let low = |a, b| vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
                let (first, second) = (low(a, b), low(c, d));
                put(q, SUM / 2 * half, vuzp1q_s16(first, second));
                put(q, SUM + SUM / 2 * half, vuzp2q_s16(first, second));
            }
        }
    }
}

/// The largest magnitude, or NaN if there is one.
#[inline]
#[target_feature(enable = "neon")]
fn largest(x: &[[f32; UNIT]]) -> f32 {
    let mut tops = [vdupq_n_u32(0); 4];
    for x in x {
        for i in 0..UNIT / 4 {
            // Without their signs, floats sort as their bits do, and NaN above all.
            let bits = vreinterpretq_u32_f32(vabsq_f32(numbers(x, 4 * i)));
            tops[i % 4] = vmaxq_u32(tops[i % 4], bits);
        }
    }
    let [a, b, c, d] = tops;
    f32::from_bits(vmaxvq_u32(vmaxq_u32(vmaxq_u32(a, b), vmaxq_u32(c, d))))
}

#[inline]
#[target_feature(enable = "neon")]
fn put(q: &mut [i16], at: usize, integers: int16x8_t) {
    let q = &mut q[at..at + 8];
    // SAFETY: 8 writable integers; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        vst1q_s16(q.as_mut_ptr(), integers);
    }
}
