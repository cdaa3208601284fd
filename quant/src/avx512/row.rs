//! The products of weight rows with a few vectors, one row after the other: what decoding is made of.
//!
//! `dpbusd` adds up products of unsigned and signed bytes, four a lane. The codes of these formats are stored unsigned and
//! stay bytes in their order: 64 of them come apart with one mask (Q4_K) or a few instructions, where 16-bit integers take
//! seven. Activations have 14 bits, and so are two bytes: `128 · high + low`. What the second product costs is less than
//! what taking codes apart did, and sums are as exact as before.

// Blocks are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::block::{Block, q4_k, q4_k_total, q5_k, q6_k};
use super::{line, numbers};
use crate::Format;
use crate::activation::{BLOCK, UNIT, Vector};
use crate::avx2::{AHEAD, lanes, prefetch, row_bytes};

/// Activations of 64 elements in their order, as bytes: `128 · high + low`, both between −64 and 64.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bytes {
    high: [u8; 64],
    low: [u8; 64],
}

/// What a vector has for each 256 elements: bytes, a scale, and sums of every 16.
type Blocks<'a> = (&'a [[Bytes; 4]], &'a [f32], &'a [[f32; 16]]);

thread_local! {
    static BYTES: RefCell<Vec<[Bytes; 4]>> = const { RefCell::new(Vec::new()) };
}

/// Whether rows of the format are multiplied here.
pub(super) fn has(format: Format) -> bool {
    matches!(format, Format::Q4_K | Format::Q5_K | Format::Q6_K)
}

/// The products of rows of a format that [`has`] says yes of, with one to four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn rows(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    let bytes = row_bytes(format, w, x, y);
    BYTES.with_borrow_mut(|q| {
        q.clear();
        x.iter().for_each(|x| split(x.q, q));
        match x.len() {
            1 => multiply::<1>(format, w, bytes, x, q, y),
            2 => multiply::<2>(format, w, bytes, x, q, y),
            3 => multiply::<3>(format, w, bytes, x, q, y),
            4 => multiply::<4>(format, w, bytes, x, q, y),
            more => unreachable!("{more} vectors"),
        }
    });
}

/// Appends the bytes of a vector.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn split(q: &[i16], to: &mut Vec<[Bytes; 4]>) {
    to.extend(q.as_chunks::<BLOCK>().0.iter().map(|q| {
        let mut bytes = [Bytes { high: [0; 64], low: [0; 64] }; 4];
        for (i, q) in q.as_chunks::<UNIT>().0.iter().enumerate() {
            let Bytes { high, low } = &mut bytes[i / 2];
            for k in 0..UNIT / 2 {
                let (even, odd) = (q[k], q[UNIT / 2 + k]);
                for (q, at) in [(even, 2 * k), (odd, 2 * k + 1)] {
                    let upper = (q + 64) >> 7;
                    high[UNIT * (i % 2) + at] = upper as u8;
                    low[UNIT * (i % 2) + at] = (q - (upper << 7)) as u8;
                }
            }
        }
        bytes
    }));
}

/// The products of rows with `N` vectors, whose bytes are `q`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn multiply<const N: usize>(
    format: Format,
    w: &[u8],
    bytes: usize,
    x: &[Vector<'_>],
    q: &[[Bytes; 4]],
    y: &mut [f32],
) {
    let (blocks, rows) = (x[0].scale.len(), y.len() / N);
    let mut own: [Blocks<'_>; N] = [(&[], &[], &[]); N];
    for t in 0..N {
        own[t] = (&q[t * blocks..][..blocks], &x[t].scale[..blocks], &x[t].sums.as_chunks().0[..blocks]);
    }
    macro_rules! rows {
        ($bytes:literal, $take:ident, $total:ident) => {
            for (r, row) in w.chunks_exact(bytes.max(1)).enumerate() {
                prefetch(row, AHEAD.max(bytes));
                let mut sums = [_mm512_setzero_ps(); N];
                let mut offsets = [_mm512_setzero_ps(); N];
                for (i, b) in row.as_chunks::<$bytes>().0[..blocks].iter().enumerate() {
                    let Block { codes, scales, factor, offset } = $take(b);
                    for t in 0..N {
                        let (q, scale, sums16) = own[t];
                        let mut part = _mm512_setzero_ps();
                        for c in 0..4 {
                            let q = &q[i][c];
                            let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[c], line(&q.high));
                            let dot =
                                _mm512_dpbusd_epi32(_mm512_slli_epi32::<7>(high), codes[c], line(&q.low));
                            part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scales[c], part);
                        }
                        let factor = _mm512_mul_ps(factor, _mm512_set1_ps(scale[i]));
                        sums[t] = _mm512_fmadd_ps(part, factor, sums[t]);
                        offsets[t] = _mm512_fmadd_ps(offset, numbers(&sums16[i]), offsets[t]);
                    }
                }
                for t in 0..N {
                    y[t * rows + r] = horizontal($total(sums[t], offsets[t]));
                }
            }
        };
    }
    match format {
        Format::Q4_K => rows!(144, q4_k, q4_k_total),
        Format::Q5_K => rows!(176, q5_k, _mm512_sub_ps),
        Format::Q6_K => rows!(210, q6_k, _mm512_sub_ps),
        _ => unreachable!("`has` says no"),
    }
}

/// The sum of all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn horizontal(x: __m512) -> f32 {
    let upper = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b1110>(x, x));
    lanes::horizontal(_mm256_add_ps(_mm512_castps512_ps256(x), upper))
}
