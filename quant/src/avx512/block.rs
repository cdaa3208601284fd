//! 256 elements of each format as unsigned bytes, with what makes numbers of them.

// Blocks are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::line;
use crate::avx2::lanes::{bytes16, bytes32, half};
use crate::avx2::small::power;
use crate::decode::u16_at;

/// 256 elements: element i is `factor · scale · code − offset`. Where codes are signed, 128 is added to them and there is
/// no offset.
pub(super) struct Block {
    /// 64 codes each, in their order.
    pub(super) codes: [__m512i; 4],
    /// For the codes in the same place, a scale for every four.
    pub(super) scales: [__m512; 4],
    /// In every lane.
    pub(super) factor: __m512,
    /// For every 16 elements.
    pub(super) offset: __m512,
}

/// 32 bytes twice.
#[inline]
#[target_feature(enable = "avx512f")]
fn twice(b: &[u8], at: usize) -> __m512i {
    _mm512_broadcast_i64x4(bytes32(b, at))
}

/// The halves of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves(low: __m256i, high: __m256i) -> __m512i {
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// What `sums` and `offsets` of rows in Q4_K come to: its upper nibbles stay where they are, and count sixteenfold.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn q4_k_total(sums: __m512, offsets: __m512) -> __m512 {
    let s = 0.0625;
    let upper = _mm512_setr_ps(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, s, s, s, s, s, s, s, s);
    _mm512_fmsub_ps(sums, upper, offsets)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q4_k(b: &[u8; 144]) -> Block {
    let mask = halves(_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0xf0u8 as i8));
    let mut codes = [_mm512_setzero_si512(); 4];
    for c in 0..4 {
        codes[c] = _mm512_and_si512(twice(b, 16 + 32 * c), mask);
    }
    q45_k(b, codes)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q5_k(b: &[u8; 176]) -> Block {
    let (fifth, shifts) = (twice(b, 16), _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4));
    let mut codes = [_mm512_setzero_si512(); 4];
    for c in 0..4 {
        let bit = halves(_mm256_set1_epi8(1 << (2 * c)), _mm256_set1_epi8((2u8 << (2 * c)) as i8));
        let set = _mm512_test_epi8_mask(fifth, bit);
        let nibbles = _mm512_srlv_epi64(twice(b, 48 + 32 * c), shifts);
        let low = _mm512_and_si512(nibbles, _mm512_set1_epi8(0x0f));
        codes[c] = _mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(16));
    }
    q45_k(b, codes)
}

/// What Q4_K and Q5_K begin with, beside their codes. [`crate::decode::q45_k_scales`] is the same in plain Rust.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
fn q45_k(b: &[u8], codes: [__m512i; 4]) -> Block {
    let head = bytes16(b, 0);
    // Low bits: of the first four scales, the last four scales, the first four minima, the last four.
    let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_setr_epi32(0, 0, 0, 4));
    let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
    let from_low = _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f);
    // `low` where the mask is set, `high` elsewhere.
    let six_bits = _mm_ternarylogic_epi32::<0xca>(from_low, low, high);
    let six_bits = _mm_and_si128(six_bits, _mm_set1_epi8(0x3f));
    let numbers = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six_bits));
    let first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let mins = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
    let factors = _mm_cvtph_ps(head);
    let min = _mm512_broadcastss_ps(_mm_movehdup_ps(factors));
    Block {
        codes,
        scales: spread(numbers, first, 2),
        factor: _mm512_broadcastss_ps(factors),
        offset: _mm512_mul_ps(_mm512_permutexvar_ps(mins, numbers), min),
    }
}

/// The scales of each 64 elements: those at the places `first` for the first 64, `step` places on for each further.
#[inline]
#[target_feature(enable = "avx512f")]
fn spread(scales: __m512, first: __m512i, step: i32) -> [__m512; 4] {
    let mut out = [_mm512_setzero_ps(); 4];
    for c in 0..4 {
        let places = _mm512_add_epi32(first, _mm512_set1_epi32(step * c as i32));
        out[c] = _mm512_permutexvar_ps(places, scales);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q6_k(b: &[u8; 210]) -> Block {
    let numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes16(b, 192)));
    let first = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let mut codes = [_mm512_setzero_si512(); 4];
    for n in 0..2 {
        let low = line(b[64 * n..].first_chunk::<64>().expect("64 bytes"));
        let high = twice(b, 128 + 32 * n);
        let lower = [low, _mm512_srli_epi16::<4>(low)];
        let upper = [
            _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2)),
            _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2)),
        ];
        for half in 0..2 {
            // `lower` where the mask is set, `upper` elsewhere.
            let both = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(0x0f), lower[half], upper[half]);
            codes[2 * n + half] = _mm512_and_si512(both, _mm512_set1_epi8(0x3f));
        }
    }
    let factor = _mm512_set1_ps(half(b, 208));
    // Codes are stored with 32 added.
    let offset = _mm512_mul_ps(numbers, _mm512_mul_ps(factor, _mm512_set1_ps(32.0)));
    Block { codes, scales: spread(numbers, first, 4), factor, offset }
}

/// Values with 128 added.
pub(super) const fn unsigned(values: &[i8; 16]) -> [u8; 16] {
    let (mut codes, mut i) = ([0; 16], 0);
    while i < 16 {
        codes[i] = values[i] as u8 ^ 0x80;
        i += 1;
    }
    codes
}

/// Blocks of 32 elements, whose codes are signed.
#[inline]
#[target_feature(enable = "avx512f")]
fn signed(codes: [__m512i; 4], scales: [__m512; 4]) -> Block {
    Block { codes, scales, factor: _mm512_set1_ps(1.0), offset: _mm512_setzero_ps() }
}

/// The f16 at two places, for a half of the lanes each.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
fn two_halves(b: &[u8], at: [usize; 2]) -> __m512 {
    let low = _mm_set1_epi16(u16_at(b, at[0]) as i16);
    let high = _mm_set1_epi16(u16_at(b, at[1]) as i16);
    _mm512_cvtph_ps(_mm256_set_m128i(high, low))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q8_0(b: &[u8; 272]) -> Block {
    let (mut codes, mut scales) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_ps(); 4]);
    for c in 0..4 {
        let at = [68 * c, 68 * c + 34];
        let both = halves(bytes32(b, at[0] + 2), bytes32(b, at[1] + 2));
        codes[c] = _mm512_xor_si512(both, _mm512_set1_epi8(i8::MIN));
        scales[c] = two_halves(b, at);
    }
    signed(codes, scales)
}

/// Formats of 32 nibbles in 16 bytes behind a scale, which a table gives values to, 128 added: eight blocks, whose scales are
/// f16, or those of MXFP4.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn nibbles<const BYTES: usize>(b: &[u8; BYTES], values: &[u8; 16]) -> Block {
    let values = _mm512_broadcast_i32x4(bytes16(values, 0));
    // The first half of a block's elements are the lower nibbles.
    let shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    let block = BYTES / 8;
    let (mut codes, mut scales) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_ps(); 4]);
    for c in 0..4 {
        let at = [2 * c * block, (2 * c + 1) * block];
        let low = _mm512_broadcast_i32x4(bytes16(b, at[0] + block - 16));
        let high = _mm512_broadcast_i32x4(bytes16(b, at[1] + block - 16));
        let bytes = _mm512_mask_blend_epi64(0xf0, low, high);
        let nibbles = _mm512_and_si512(_mm512_srlv_epi64(bytes, shifts), _mm512_set1_epi8(15));
        codes[c] = _mm512_shuffle_epi8(values, nibbles);
        scales[c] = if BYTES == 136 {
            let (low, high) = (_mm512_set1_ps(power(b[at[0]])), _mm512_set1_ps(power(b[at[1]])));
            _mm512_mask_blend_ps(0xff00, low, high)
        } else {
            two_halves(b, at)
        };
    }
    signed(codes, scales)
}
