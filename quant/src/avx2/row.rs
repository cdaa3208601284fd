//! The products of weight rows with a few vectors, one row after the other: what decoding is made of. A row's integers stay
//! in registers.

use std::arch::x86_64::*;

use super::lanes::{bytes16, bytes32, half, horizontal, putf, split, take, takef};
use super::large::*;
use super::small::*;
use super::unfold::{SMALL, SUPER, by_format};
use super::{AHEAD, prefetch};
use crate::Format;
use crate::activation::{BLOCK, Vector};

/// The products of rows of `bytes` with `N` vectors, without the way through memory: blocks come apart once for all. What
/// depends on the format is decided once for all rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply<const N: usize>(
    format: Format,
    w: &[u8],
    bytes: usize,
    x: &[Vector<'_>],
    y: &mut [f32],
) {
    let rows = y.len() / N;
    macro_rules! rows {
        (|$row:ident, $sum:ident, $offset:ident| $product:block) => {
            for (r, $row) in w.chunks_exact(bytes.max(1)).enumerate() {
                prefetch($row, AHEAD.max(bytes));
                let mut $sum = [_mm256_setzero_ps(); N];
                #[allow(unused_mut)] // most formats have no minima
                let mut $offset = [_mm256_setzero_ps(); N];
                $product
                for t in 0..N {
                    y[t * rows + r] = horizontal(_mm256_sub_ps($sum[t], $offset[t]));
                }
            }
        };
    }
    if format == Format::Q4_K {
        return rows!(|row, sum, offset| { multiply_q4_k(row, x, &mut sum, &mut offset) });
    }
    macro_rules! multiply {
        (small $bytes:literal, $scale:ident, $min:ident, $codes:ident) => {{
            rows!(|row, sum, offset| {
                let blocks = row.as_chunks::<$bytes>().0;
                let (whole, rest) = blocks.as_chunks::<{ BLOCK / SMALL }>();
                let mut q: [&[[[i16; SMALL]; BLOCK / SMALL]]; N] = [&[]; N];
                for t in 0..N {
                    q[t] = &x[t].q.as_chunks().0.as_chunks().0[..whole.len()];
                }
                macro_rules! add {
                    ($part:ident[$i:literal], $b:expr, $k:expr, $q:ident) => {{
                        let [even, odd] = $codes($b);
                        let scale = _mm256_set1_ps($scale($b));
                        for t in 0..N {
                            let q = &$q[t][$k];
                            let dot = _mm256_add_epi32(
                                _mm256_madd_epi16(even, take(q, 0)),
                                _mm256_madd_epi16(odd, take(q, 16)),
                            );
                            // Two sums each, so that none has to wait for the one before.
                            let part = &mut $part[t][$i];
                            *part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, *part);
                        }
                    }};
                }
                for (i, blocks) in whole.iter().enumerate() {
                    let mut part = [[_mm256_setzero_ps(); 2]; N];
                    let mut own = [&[[0; SMALL]; BLOCK / SMALL]; N];
                    for t in 0..N {
                        own[t] = &q[t][i];
                    }
                    for k in (0..BLOCK / SMALL).step_by(2) {
                        add!(part[0], &blocks[k], k, own);
                        add!(part[1], &blocks[k + 1], k + 1, own);
                    }
                    for t in 0..N {
                        let part = _mm256_add_ps(part[t][0], part[t][1]);
                        sum[t] = _mm256_fmadd_ps(part, _mm256_set1_ps(x[t].scale[i]), sum[t]);
                    }
                }
                if !rest.is_empty() {
                    let mut part = [[_mm256_setzero_ps(); 2]; N];
                    let mut own: [&[[i16; SMALL]]; N] = [&[]; N];
                    for t in 0..N {
                        own[t] = &x[t].q.as_chunks().0[BLOCK / SMALL * whole.len()..];
                    }
                    for (k, b) in rest.iter().enumerate() {
                        add!(part[0], b, k, own);
                    }
                    for t in 0..N {
                        let scale = _mm256_set1_ps(x[t].scale[whole.len()]);
                        sum[t] = _mm256_fmadd_ps(_mm256_add_ps(part[t][0], part[t][1]), scale, sum[t]);
                    }
                }
                if format.has_mins() {
                    for t in 0..N {
                        let mut total = 0.0;
                        for (b, [low, high]) in blocks.iter().zip(x[t].sums.as_chunks::<2>().0) {
                            total += $min(b) * (low + high);
                        }
                        offset[t] = _mm256_setr_ps(total, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
                    }
                }
            });
        }};
        (wide $bytes:literal, $smalls:literal, $codes:ident) => {{
            rows!(|row, sum, offset| {
                let size = $smalls * SMALL;
                for (i, b) in row.as_chunks::<$bytes>().0.iter().enumerate() {
                    let codes = $codes(b);
                    let mut dot = [_mm256_setzero_si256(); N];
                    for at in (0..size).step_by(32) {
                        let codes = split([take(&codes, at), take(&codes, at + 16)]);
                        for t in 0..N {
                            dot[t] = add_products(dot[t], codes, &x[t].q[i * size + at..]);
                        }
                    }
                    for t in 0..N {
                        let scale = half(b, 0) * x[t].scale[i * size / BLOCK];
                        sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t]), _mm256_set1_ps(scale), sum[t]);
                    }
                }
            });
        }};
        (large $bytes:literal, $codes:ident) => {{
            rows!(|row, sum, offset| {
                let mut mins = [0.0; 16];
                let blocks = row.as_chunks::<$bytes>().0;
                let q = blocks_of::<N>(x, blocks.len());
                for (i, b) in blocks.iter().enumerate() {
                    let mut dot = [_mm256_setzero_si256(); N];
                    let d = $codes(b, &mut mins, |c, codes| {
                        for t in 0..N {
                            dot[t] = add_products(dot[t], codes, &q[t][i][32 * c..]);
                        }
                    });
                    for t in 0..N {
                        let scale = _mm256_set1_ps(d * x[t].scale[i]);
                        sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t]), scale, sum[t]);
                        if format.has_mins() {
                            let sums = &x[t].sums[16 * i..][..16];
                            offset[t] = _mm256_fmadd_ps(takef(&mins, 0), takef(sums, 0), offset[t]);
                            offset[t] = _mm256_fmadd_ps(takef(&mins, 8), takef(sums, 8), offset[t]);
                        }
                    }
                }
            });
        }};
        (grid $bytes:literal, $codes:ident) => {{
            rows!(|row, sum, offset| {
                let blocks = row.as_chunks::<$bytes>().0;
                let q = blocks_of::<N>(x, blocks.len());
                for (i, b) in blocks.iter().enumerate() {
                    let mut dot = [_mm256_setzero_si256(); N];
                    let mut before = _mm256_setzero_si256();
                    let d = $codes(b, &mut [0.0; 16], |k, codes| {
                        if k % 2 == 1 {
                            let codes = split([before, codes]);
                            for t in 0..N {
                                dot[t] = add_products(dot[t], codes, &q[t][i][16 * (k - 1)..]);
                            }
                        }
                        before = codes;
                    });
                    for t in 0..N {
                        let scale = _mm256_set1_ps(d * x[t].scale[i]);
                        sum[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[t]), scale, sum[t]);
                    }
                }
            });
        }};
    }
    by_format!(format, multiply);
}

/// The super-blocks of the first N vectors.
#[inline(always)]
fn blocks_of<'a, const N: usize>(x: &[Vector<'a>], count: usize) -> [&'a [[i16; SUPER]]; N] {
    let mut q: [&[[i16; SUPER]]; N] = [&[]; N];
    for t in 0..N {
        q[t] = &x[t].q.as_chunks().0[..count];
    }
    q
}

/// Adds the products of 32 elements.
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(dot: __m256i, [even, odd]: [__m256i; 2], q: &[i16]) -> __m256i {
    let products = _mm256_add_epi32(_mm256_madd_epi16(even, take(q, 0)), _mm256_madd_epi16(odd, take(q, 16)));
    _mm256_add_epi32(dot, products)
}

/// Q4_K, which most weights are stored in: scales and minima come apart in registers, and are applied in f32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn multiply_q4_k<const N: usize>(
    row: &[u8],
    x: &[Vector<'_>],
    sums: &mut [__m256; N],
    offsets: &mut [__m256; N],
) {
    let nibble = _mm256_set1_epi16(15);
    let blocks = row.as_chunks::<144>().0;
    let q = blocks_of::<N>(x, blocks.len());
    for (n, b) in blocks.iter().enumerate() {
        let packed = bytes16(b, 4);
        let upper = _mm_and_si128(_mm_srli_epi16::<2>(packed), _mm_set1_epi8(0x30));
        let last = _mm_srlv_epi32(_mm_shuffle_epi32::<0b10_10_10_10>(packed), _mm_setr_epi32(0, 4, 0, 4));
        let last = _mm_or_si128(_mm_and_si128(last, _mm_set1_epi8(15)), upper);
        // Eight scales, then eight minima.
        let bytes = _mm_unpacklo_epi32(_mm_and_si128(packed, _mm_set1_epi8(0x3f)), last);
        let mut scales = [0.0; 8];
        let d = _mm256_set1_ps(half(b, 0));
        putf(&mut scales, 0, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)), d));
        // `hadd` adds neighbours, but leaves the sums in this order.
        let order = _mm_setr_epi8(8, 9, 12, 13, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
        let mins = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(bytes, order)));
        let mins = _mm256_mul_ps(mins, _mm256_set1_ps(half(b, 2)));
        let mut parts = [[_mm256_setzero_ps(); 2]; N];
        for i in 0..4 {
            let codes = bytes32(b, 16 + 32 * i);
            let low =
                [_mm256_and_si256(codes, nibble), _mm256_and_si256(_mm256_srli_epi16::<8>(codes), nibble)];
            let high =
                [_mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble), _mm256_srli_epi16::<12>(codes)];
            let scales = [_mm256_set1_ps(scales[2 * i]), _mm256_set1_ps(scales[2 * i + 1])];
            for t in 0..N {
                let (q, zero) = (&q[t][n][64 * i..], _mm256_setzero_si256());
                let low = _mm256_cvtepi32_ps(add_products(zero, low, q));
                parts[t][0] = _mm256_fmadd_ps(low, scales[0], parts[t][0]);
                let high = _mm256_cvtepi32_ps(add_products(zero, high, &q[32..]));
                parts[t][1] = _mm256_fmadd_ps(high, scales[1], parts[t][1]);
            }
        }
        for t in 0..N {
            let minima = &x[t].sums[16 * n..][..16];
            let part = _mm256_add_ps(parts[t][0], parts[t][1]);
            sums[t] = _mm256_fmadd_ps(part, _mm256_set1_ps(x[t].scale[n]), sums[t]);
            let pairs = _mm256_hadd_ps(takef(minima, 0), takef(minima, 8));
            offsets[t] = _mm256_fmadd_ps(mins, pairs, offsets[t]);
        }
    }
}
