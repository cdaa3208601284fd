//! Blocks to integers: what a product needs of a weight row, in a form that is the same for all formats.
//!
//! `w[i] = scale · code[i] − min`: in super-blocks, `code` is the stored code times the integer scale of its
//! sub-block, so that 256 elements share one `scale`; in the formats of smaller blocks it is the code itself, with a
//! scale every 32 elements. Of 32 elements come first the even ones, then the odd ones, as in activations. Minima are
//! given for every 16 elements. `|code| <= 4096` in every format.
//!
//! `shared/spec/k3.md`, section 11, has the layouts. Where plain Rust stands below, the compiler vectorises it or the
//! format is rare; what the weights of large models are usually stored in has its own instructions.

use std::arch::x86_64::*;

use super::lanes::{half, put, split, take};
use super::large::*;
use super::small::*;
use crate::Format;

/// Elements of a super-block.
pub(crate) const SUPER: usize = 256;
/// Elements that share a scale in the other formats.
pub(crate) const SMALL: usize = 32;

/// Where a row is unfolded to.
pub(super) struct Unfolded<'a> {
    /// One an element.
    pub(super) codes: &'a mut [i16],
    /// One for every [`SUPER`] or [`SMALL`] elements.
    pub(super) scales: &'a mut [f32],
    /// One for every 16 elements, if the format has minima.
    pub(super) mins: &'a mut [f32],
}

/// Elements that share a scale, and how many of those are multiplied and added as integers: as many as fit 32 bits with
/// the largest codes of the format and of activations. None for formats that aren't unfolded.
pub(super) fn groups(format: Format) -> Option<[usize; 2]> {
    use Format::*;
    match format {
        Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | IQ4_NL | MXFP4 | Q1_0 | Q2_0 => Some([SMALL, SMALL]),
        // 15 * 63, 3 * 15, 4 * 32
        Q4_K | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Some([SUPER, SUPER]),
        Q5_K | Q6_K | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M | IQ4_XS => {
            Some([SUPER, 64])
        }
        F32 | F16 | BF16 | I8 | NVFP4 => None,
    }
}

/// The formats: bytes of a block, and the functions that take a block apart. `$do` is what is done with them: a macro
/// that takes a small format (its scale, its minimum, its codes) or a large one, or one of those in between.
macro_rules! by_format {
    ($format:expr, $do:ident) => {
        match $format {
            Format::Q8_0 => $do!(small 34, half_scale, no_min, q8_0),
            Format::Q4_0 => $do!(small 18, half_scale, no_min, q4_0),
            Format::Q4_1 => $do!(small 20, half_scale, half_min, q4_1),
            Format::Q5_0 => $do!(small 22, half_scale, no_min, q5_0),
            Format::Q5_1 => $do!(small 24, half_scale, half_min, q5_1),
            Format::IQ4_NL => $do!(small 18, half_scale, no_min, iq4_nl),
            Format::MXFP4 => $do!(small 17, power_scale, no_min, mxfp4),
            Format::Q1_0 => $do!(wide 18, 4, q1_0),
            Format::Q2_0 => $do!(wide 18, 2, q2_0),
            Format::Q2_K => $do!(large 84, q2_k),
            Format::Q3_K => $do!(large 110, q3_k),
            Format::Q4_K => $do!(large 144, q4_k),
            Format::Q5_K => $do!(large 176, q5_k),
            Format::Q6_K => $do!(large 210, q6_k),
            Format::IQ2_XXS => $do!(grid 66, iq2_xxs),
            Format::IQ2_XS => $do!(grid 74, iq2_xs),
            Format::IQ2_S => $do!(grid 82, iq2_s),
            Format::IQ3_XXS => $do!(grid 98, iq3_xxs),
            Format::IQ3_S => $do!(grid 110, iq3_s),
            Format::IQ1_S => $do!(grid 50, iq1_s),
            Format::IQ1_M => $do!(grid 56, iq1_m),
            Format::IQ4_XS => $do!(large 136, iq4_xs),
            Format::TQ1_0 => $do!(grid 54, tq1_0),
            Format::TQ2_0 => $do!(large 66, tq2_0),
            Format::F32 | Format::F16 | Format::BF16 | Format::I8 | Format::NVFP4 => unreachable!("no integer form"),
        }
    };
}

pub(super) use by_format;

/// Unfolds one row.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unfold(format: Format, row: &[u8], to: Unfolded<'_>) {
    let Unfolded { codes, scales, mins } = to;
    macro_rules! store {
        (small $bytes:literal, $scale:ident, $min:ident, $codes:ident) => {{
            let mut mins = mins.as_chunks_mut::<2>().0.iter_mut();
            let blocks = row.as_chunks::<$bytes>().0.iter().zip(codes.as_chunks_mut::<SMALL>().0).zip(scales);
            for ((b, q), s) in blocks {
                *s = $scale(b);
                if let Some(m) = mins.next() {
                    *m = [$min(b); 2];
                }
                let [even, odd] = $codes(b);
                put(q, 0, even);
                put(q, 16, odd);
            }
        }};
        (wide $bytes:literal, $smalls:literal, $codes:ident) => {{
            let blocks =
                row.as_chunks::<$bytes>().0.iter().zip(codes.as_chunks_mut::<{ $smalls * SMALL }>().0);
            for ((b, q), s) in blocks.zip(scales.chunks_exact_mut($smalls)) {
                s.fill(half(b, 0));
                let codes = $codes(b);
                for at in (0..q.len()).step_by(32) {
                    let [even, odd] = split([take(&codes, at), take(&codes, at + 16)]);
                    put(q, at, even);
                    put(q, at + 16, odd);
                }
            }
        }};
        (large $bytes:literal, $codes:ident) => {{
            let mut mins = mins.as_chunks_mut::<16>().0.iter_mut();
            let mut none = [0.0; 16];
            let blocks = row.as_chunks::<$bytes>().0.iter().zip(codes.as_chunks_mut::<SUPER>().0).zip(scales);
            for ((b, q), s) in blocks {
                *s = $codes(b, mins.next().unwrap_or(&mut none), |c, [even, odd]| {
                    put(q, 32 * c, even);
                    put(q, 32 * c + 16, odd);
                });
            }
        }};
        (grid $bytes:literal, $codes:ident) => {{
            let blocks = row.as_chunks::<$bytes>().0.iter().zip(codes.as_chunks_mut::<SUPER>().0).zip(scales);
            for ((b, q), s) in blocks {
                let mut before = _mm256_setzero_si256();
                *s = $codes(b, &mut [0.0; 16], |k, codes| {
                    if k % 2 == 1 {
                        let [even, odd] = split([before, codes]);
                        put(q, 16 * (k - 1), even);
                        put(q, 16 * k, odd);
                    }
                    before = codes;
                });
            }
        }};
    }
    by_format!(format, store);
}
