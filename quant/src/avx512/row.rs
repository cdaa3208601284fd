//! The products of weight rows with a few vectors, one row after the other: what decoding is made of.
//!
//! `dpbusd` adds up products of unsigned and signed bytes, four a lane. The codes of these formats are stored unsigned and
//! stay bytes in their order: 64 of them come apart with one mask (Q4_K) or a few instructions, where 16-bit integers take
//! seven. Activations have 14 bits, and so are two bytes: `128 · high + low`. What the second product costs is less than
//! what taking codes apart did, and sums are as exact as before. Signed codes are multiplied with 128 added, and the sums
//! begin with what that will come to, so that they too end up exact.

// Blocks are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::block::{Block, nibbles, q4_k, q4_k_total, q5_k, q6_k, q8_0, unsigned};
use super::{line, numbers};
use crate::Format;
use crate::activation::{BLOCK, UNIT, Vector};
use crate::avx2::lanes::{self, put, put_sums, take};
use crate::avx2::small::OFFSET_8;
use crate::avx2::{AHEAD, prefetch, row_bytes};
use crate::decode::{E2M1_DOUBLED, IQ4};

/// Activations of 64 elements in their order, as bytes, two in an integer: `128 · high + low`, both between −64 and 64.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bytes {
    high: [i16; 32],
    low: [i16; 32],
    /// The sum of every four, negative.
    minus: [i32; 16],
}

/// What a vector has for each 256 elements: bytes, a scale, and sums of every 16.
type Blocks<'a> = (&'a [[Bytes; 4]], &'a [f32], &'a [[f32; 16]]);

thread_local! {
    static BYTES: RefCell<Vec<[Bytes; 4]>> = const { RefCell::new(Vec::new()) };
}

/// Whether rows of `n` elements in the format are multiplied here.
pub(super) fn has(format: Format, n: usize) -> bool {
    use Format::{IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    matches!(format, Q4_K | Q5_K | Q6_K | Q8_0 | Q4_0 | IQ4_NL | MXFP4) && n.is_multiple_of(BLOCK)
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
        let mut bytes = [Bytes { high: [0; 32], low: [0; 32], minus: [0; 16] }; 4];
        for (i, q) in q.as_chunks::<UNIT>().0.iter().enumerate() {
            let Bytes { high, low, minus } = &mut bytes[i / 2];
            let (even, odd, half) = (take(q, 0), take(q, UNIT / 2), i % 2);
            let four = _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(-1));
            put_sums(minus, 8 * half, four);
            let upper = |q| _mm256_srai_epi16::<7>(_mm256_add_epi16(q, _mm256_set1_epi16(64)));
            let lower = |q, upper| _mm256_sub_epi16(q, _mm256_slli_epi16::<7>(upper));
            let uppers = [upper(even), upper(odd)];
            put(high, 16 * half, interleave(uppers));
            put(low, 16 * half, interleave([lower(even, uppers[0]), lower(odd, uppers[1])]));
        }
        bytes
    }));
}

/// The lower bytes of the even and of the odd elements, in their order.
#[inline]
#[target_feature(enable = "avx2")]
fn interleave([even, odd]: [__m256i; 2]) -> __m256i {
    _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(255)), _mm256_slli_epi16::<8>(odd))
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
        ($bytes:literal, $signed:literal, $take:expr, $total:ident) => {
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
                            let Bytes { high, low, minus } = &q[i][c];
                            // Times 128 this takes off what was added to the codes.
                            let start = if $signed { line(minus) } else { _mm512_setzero_si512() };
                            let upper = _mm512_dpbusd_epi32(start, codes[c], line(high));
                            let dot = _mm512_dpbusd_epi32(_mm512_slli_epi32::<7>(upper), codes[c], line(low));
                            part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scales[c], part);
                        }
                        let factor = _mm512_mul_ps(factor, _mm512_set1_ps(scale[i]));
                        sums[t] = _mm512_fmadd_ps(part, factor, sums[t]);
                        if !$signed {
                            offsets[t] = _mm512_fmadd_ps(offset, numbers(&sums16[i]), offsets[t]);
                        }
                    }
                }
                for t in 0..N {
                    y[t * rows + r] = horizontal($total(sums[t], offsets[t]));
                }
            }
        };
    }
    match format {
        Format::Q4_K => rows!(144, false, |b| q4_k(b), q4_k_total),
        Format::Q5_K => rows!(176, false, |b| q5_k(b), _mm512_sub_ps),
        Format::Q6_K => rows!(210, false, |b| q6_k(b), _mm512_sub_ps),
        Format::Q8_0 => rows!(272, true, |b| q8_0(b), _mm512_sub_ps),
        Format::Q4_0 => {
            rows!(144, true, |b| nibbles::<144>(b, &const { unsigned(&OFFSET_8) }), _mm512_sub_ps)
        }
        Format::IQ4_NL => rows!(144, true, |b| nibbles::<144>(b, &const { unsigned(&IQ4) }), _mm512_sub_ps),
        Format::MXFP4 => {
            rows!(136, true, |b| nibbles::<136>(b, &const { unsigned(&E2M1_DOUBLED) }), _mm512_sub_ps)
        }
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
