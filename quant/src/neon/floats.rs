//! Products of rows of floats: two rows by up to four vectors, widened to f32 on the way.

use std::arch::aarch64::*;

use super::lanes::{bytes, numbers};
use crate::activation::Vector;
use crate::{Format, decode};

/// Eight floats of a format to f32.
#[inline]
#[target_feature(enable = "neon")]
fn f32_eight(b: &[u8; 32]) -> [float32x4_t; 2] {
    [vreinterpretq_f32_u8(bytes(b, 0)), vreinterpretq_f32_u8(bytes(b, 16))]
}

#[inline]
#[target_feature(enable = "neon")]
fn f16_eight(b: &[u8; 16]) -> [float32x4_t; 2] {
    let halves = vreinterpretq_u16_u8(bytes(b, 0));
    [vget_low_u16(halves), vget_high_u16(halves)].map(|h| vcvt_f32_f16(vreinterpret_f16_u16(h)))
}

#[inline]
#[target_feature(enable = "neon")]
fn bf16_eight(b: &[u8; 16]) -> [float32x4_t; 2] {
    let halves = vreinterpretq_u16_u8(bytes(b, 0));
    [vshll_n_u16::<16>(vget_low_u16(halves)), vshll_high_n_u16::<16>(halves)]
        .map(|h| vreinterpretq_f32_u32(h))
}

/// The products of two rows, which may be the same, with `N` vectors.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn tile<const N: usize>(format: Format, rows: [&[u8]; 2], x: &[Vector<'_>]) -> [[f32; N]; 2] {
    let n = x[0].f32.len();
    let mut sums = [[[vdupq_n_f32(0.0); 2]; N]; 2];
    let mut v: [&[[f32; 8]]; N] = [&[]; N];
    for t in 0..N {
        v[t] = &x[t].f32.as_chunks::<8>().0[..n / 8];
    }
    macro_rules! add {
        ($bytes:literal, $eight:ident) => {{
            let w = rows.map(|row| &row.as_chunks::<$bytes>().0[..n / 8]);
            for k in 0..n / 8 {
                let w = [$eight(&w[0][k]), $eight(&w[1][k])];
                for t in 0..N {
                    for half in 0..2 {
                        let x = numbers(&v[t][k], 4 * half);
                        for r in 0..2 {
                            sums[r][t][half] = vfmaq_f32(sums[r][t][half], w[r][half], x);
                        }
                    }
                }
            }
        }};
    }
    match format {
        Format::F32 => add!(32, f32_eight),
        Format::F16 => add!(16, f16_eight),
        _ => add!(16, bf16_eight),
    }
    let rest = n / 8 * 8;
    let mut totals = [[0.0; N]; 2];
    for r in 0..2 {
        let mut tail = [0.0; 8];
        let tail = &mut tail[..n - rest];
        decode(format, &rows[r][rest * format.block_bytes()..], tail);
        for t in 0..N {
            let rest: f32 = tail.iter().zip(&x[t].f32[rest..]).map(|(w, x)| w * x).sum();
            totals[r][t] = vaddvq_f32(vaddq_f32(sums[r][t][0], sums[r][t][1])) + rest;
        }
    }
    totals
}
