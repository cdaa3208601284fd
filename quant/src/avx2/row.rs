//! The product of one weight row with one vector: what decoding is made of. The row's integers stay in registers.

use std::arch::x86_64::*;

use super::lanes::{bytes16, bytes32, half, horizontal, putf, split, take, takef};
use super::large::*;
use super::small::*;
use super::unfold::{SMALL, SUPER, by_format, has_mins};
use crate::Format;
use crate::activation::{BLOCK, Vector};

/// The product of one row with one vector, without the way through memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply(format: Format, row: &[u8], x: &Vector<'_>) -> f32 {
    if format == Format::Q4_K {
        return multiply_q4_k(row, x);
    }
    let mut sum = _mm256_setzero_ps();
    let mut offset = _mm256_setzero_ps();
    macro_rules! multiply {
        (small $bytes:literal, $scale:ident, $min:ident, $codes:ident) => {{
            let (blocks, q) = (row.as_chunks::<$bytes>().0, x.q.as_chunks::<SMALL>().0);
            let (whole, rest) = blocks.as_chunks::<{ BLOCK / SMALL }>();
            let (whole_q, rest_q) = q.as_chunks::<{ BLOCK / SMALL }>();
            macro_rules! add {
                ($part:expr, $b:expr, $q:expr) => {{
                    let [even, odd] = $codes($b);
                    let dot = _mm256_add_epi32(
                        _mm256_madd_epi16(even, take($q, 0)),
                        _mm256_madd_epi16(odd, take($q, 16)),
                    );
                    $part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps($scale($b)), $part);
                }};
            }
            for ((blocks, q), scale) in whole.iter().zip(whole_q).zip(x.scale) {
                let mut parts = [_mm256_setzero_ps(); 2];
                for i in 0..BLOCK / SMALL {
                    add!(parts[i % 2], &blocks[i], &q[i]);
                }
                let part = _mm256_add_ps(parts[0], parts[1]);
                sum = _mm256_fmadd_ps(part, _mm256_set1_ps(*scale), sum);
            }
            if let (false, Some(scale)) = (rest.is_empty(), x.scale.last()) {
                let mut part = _mm256_setzero_ps();
                for (b, q) in rest.iter().zip(rest_q) {
                    add!(part, b, q);
                }
                sum = _mm256_fmadd_ps(part, _mm256_set1_ps(*scale), sum);
            }
            if has_mins(format) {
                let mut total = 0.0;
                for (b, [low, high]) in row.as_chunks::<$bytes>().0.iter().zip(x.sums.as_chunks::<2>().0) {
                    total += $min(b) * (low + high);
                }
                offset = _mm256_setr_ps(total, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
            }
        }};
        (wide $bytes:literal, $smalls:literal, $codes:ident) => {{
            let size = $smalls * SMALL;
            for (i, (b, q)) in row.as_chunks::<$bytes>().0.iter().zip(x.q.chunks_exact(size)).enumerate() {
                let codes = $codes(b);
                let mut dot = _mm256_setzero_si256();
                for at in (0..size).step_by(32) {
                    let [even, odd] = split([take(&codes, at), take(&codes, at + 16)]);
                    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(even, take(q, at)));
                    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(odd, take(q, at + 16)));
                }
                let scale = half(b, 0) * x.scale[i * size / BLOCK];
                sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(scale), sum);
            }
        }};
        (large $bytes:literal, $codes:ident) => {{
            let mut mins = [0.0; 16];
            let blocks = row.as_chunks::<$bytes>().0.iter().zip(x.q.as_chunks::<SUPER>().0).zip(x.scale);
            for (((b, q), scale), sums) in blocks.zip(x.sums.as_chunks::<16>().0) {
                let mut dots = [_mm256_setzero_si256(); 2];
                let d = $codes(b, &mut mins, |c, [even, odd]| {
                    dots[0] = _mm256_add_epi32(dots[0], _mm256_madd_epi16(even, take(q, 32 * c)));
                    dots[1] = _mm256_add_epi32(dots[1], _mm256_madd_epi16(odd, take(q, 32 * c + 16)));
                });
                let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[0], dots[1]));
                sum = _mm256_fmadd_ps(dot, _mm256_set1_ps(d * scale), sum);
                if has_mins(format) {
                    offset = _mm256_fmadd_ps(takef(&mins, 0), takef(sums, 0), offset);
                    offset = _mm256_fmadd_ps(takef(&mins, 8), takef(sums, 8), offset);
                }
            }
        }};
        (grid $bytes:literal, $codes:ident) => {{
            let blocks = row.as_chunks::<$bytes>().0.iter().zip(x.q.as_chunks::<SUPER>().0).zip(x.scale);
            for ((b, q), scale) in blocks {
                let mut dot = _mm256_setzero_si256();
                let mut before = _mm256_setzero_si256();
                let d = $codes(b, &mut [0.0; 16], |k, codes| {
                    if k % 2 == 1 {
                        let [even, odd] = split([before, codes]);
                        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(even, take(q, 16 * (k - 1))));
                        dot = _mm256_add_epi32(dot, _mm256_madd_epi16(odd, take(q, 16 * k)));
                    }
                    before = codes;
                });
                sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(d * scale), sum);
            }
        }};
    }
    by_format!(format, multiply);
    horizontal(_mm256_sub_ps(sum, offset))
}

/// Q4_K, which most weights are stored in: scales and minima come apart in registers, and are applied in f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_q4_k(row: &[u8], x: &Vector<'_>) -> f32 {
    let mut sums = [_mm256_setzero_ps(); 2];
    let mut offset = _mm256_setzero_ps();
    let nibble = _mm256_set1_epi16(15);
    let blocks = row.as_chunks::<144>().0.iter().zip(x.q.as_chunks::<SUPER>().0).zip(x.scale);
    for (((b, q), scale), minima) in blocks.zip(x.sums.as_chunks::<16>().0) {
        let packed = bytes16(b, 4);
        let upper = _mm_and_si128(_mm_srli_epi16::<2>(packed), _mm_set1_epi8(0x30));
        let last = _mm_srlv_epi32(_mm_shuffle_epi32::<0b10_10_10_10>(packed), _mm_setr_epi32(0, 4, 0, 4));
        let last = _mm_or_si128(_mm_and_si128(last, _mm_set1_epi8(15)), upper);
        // Eight scales, then eight minima.
        let bytes = _mm_unpacklo_epi32(_mm_and_si128(packed, _mm_set1_epi8(0x3f)), last);
        let d = _mm256_set1_ps(half(b, 0) * scale);
        let mut scales = [0.0; 8];
        putf(&mut scales, 0, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), d));
        // `hadd` adds neighbours, but leaves the sums in this order.
        let order = _mm_setr_epi8(8, 9, 12, 13, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
        let mins = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(bytes, order)));
        let mins = _mm256_mul_ps(mins, _mm256_set1_ps(half(b, 2)));
        offset = _mm256_fmadd_ps(mins, _mm256_hadd_ps(takef(minima, 0), takef(minima, 8)), offset);
        for i in 0..4 {
            let codes = bytes32(b, 16 + 32 * i);
            let low =
                [_mm256_and_si256(codes, nibble), _mm256_and_si256(_mm256_srli_epi16::<8>(codes), nibble)];
            let high =
                [_mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble), _mm256_srli_epi16::<12>(codes)];
            for (j, [even, odd]) in [low, high].into_iter().enumerate() {
                let at = 64 * i + 32 * j;
                let dot = _mm256_add_epi32(
                    _mm256_madd_epi16(even, take(q, at)),
                    _mm256_madd_epi16(odd, take(q, at + 16)),
                );
                let scale = _mm256_set1_ps(scales[2 * i + j]);
                sums[j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[j]);
            }
        }
    }
    horizontal(_mm256_sub_ps(_mm256_add_ps(sums[0], sums[1]), offset))
}
