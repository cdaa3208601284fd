//! 256 elements of each format as unsigned bytes, with what makes numbers of them.

// Blocks are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use crate::decode::u16_at;

/// 256 elements: element i is `factor · scale · code − offset`.
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

/// 64 bytes of anything.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn line(b: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_loadu_si512(b.as_ptr().cast())
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bytes16(b: &[u8], at: usize) -> __m128i {
    let b = &b[at..at + 16];
    // SAFETY: 16 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm_loadu_si128(b.as_ptr().cast())
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bytes32(b: &[u8], at: usize) -> __m256i {
    let b = &b[at..at + 32];
    // SAFETY: 32 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_si256(b.as_ptr().cast())
    }
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

/// What the sums of Q4_K are multiplied with: its upper nibbles stay where they are, so that they count sixteenfold.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn upper_sixteenth() -> __m512 {
    let s = 0.0625;
    _mm512_setr_ps(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, s, s, s, s, s, s, s, s)
}

/// The scales of the elements `64 * c..` of eight, each of 32 elements.
#[inline]
#[target_feature(enable = "avx512f")]
fn eighths(scales: __m512) -> [__m512; 4] {
    let first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let mut out = [_mm512_setzero_ps(); 4];
    for c in 0..4 {
        out[c] = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2 * c as i32)), scales);
    }
    out
}

/// Two of each of eight numbers from `first` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn doubled(x: __m512, first: i32) -> __m512 {
    let places = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    _mm512_permutexvar_ps(_mm512_add_epi32(places, _mm512_set1_epi32(first)), x)
}

/// Q4_K and Q5_K: eight scales, then eight minima, as numbers; and the factors of both.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
fn q45_k_scales(b: &[u8]) -> (__m512, __m512, __m512) {
    let head = bytes16(b, 0);
    // Low bits: of the first four scales, the last four scales, the first four minima, the last four.
    let low = _mm_srlv_epi32(_mm_shuffle_epi32::<0b11_10_11_01>(head), _mm_setr_epi32(0, 0, 0, 4));
    let high = _mm_srli_epi32::<2>(_mm_shuffle_epi32::<0b10_10_01_01>(head));
    let from_low = _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f);
    // low where the mask is set, high elsewhere.
    let both = _mm_ternarylogic_epi32::<0xca>(from_low, low, high);
    let both = _mm_and_si128(both, _mm_set1_epi8(0x3f));
    let factors = _mm_cvtph_ps(head);
    (
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(both)),
        _mm512_broadcastss_ps(factors),
        _mm512_broadcastss_ps(_mm_movehdup_ps(factors)),
    )
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q4_k(b: &[u8; 144]) -> Block {
    let (scales, factor, min) = q45_k_scales(b);
    let (nibble, mut codes) = (_mm256_set1_epi8(15), [_mm512_setzero_si512(); 4]);
    let mask = halves(nibble, _mm256_set1_epi8(-16));
    for c in 0..4 {
        codes[c] = _mm512_and_si512(twice(b, 16 + 32 * c), mask);
    }
    Block { codes, scales: eighths(scales), factor, offset: _mm512_mul_ps(doubled(scales, 8), min) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q5_k(b: &[u8; 176]) -> Block {
    let (scales, factor, min) = q45_k_scales(b);
    let fifth = twice(b, 16);
    let mut codes = [_mm512_setzero_si512(); 4];
    for c in 0..4 {
        let bit = halves(_mm256_set1_epi8(1 << (2 * c)), _mm256_set1_epi8((2u8 << (2 * c)) as i8));
        let set = _mm512_test_epi8_mask(fifth, bit);
        let low = nibbles(twice(b, 48 + 32 * c), [0, 0, 4, 4]);
        codes[c] = _mm512_mask_add_epi8(low, set, low, _mm512_set1_epi8(16));
    }
    Block { codes, scales: eighths(scales), factor, offset: _mm512_mul_ps(doubled(scales, 8), min) }
}

/// The nibbles at `shifts` of the quarters of a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(packed: __m512i, shifts: [i64; 4]) -> __m512i {
    let [a, b, c, d] = shifts;
    let shifted = _mm512_srlv_epi64(packed, _mm512_setr_epi64(a, a, b, b, c, c, d, d));
    _mm512_and_si512(shifted, _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,f16c")]
pub(super) fn q6_k(b: &[u8; 210]) -> Block {
    let integers = _mm512_cvtepi8_epi32(bytes16(b, 192));
    let numbers = _mm512_cvtepi32_ps(integers);
    let factor = _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16_at(b, 208)))));
    let first = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    let (mut codes, mut scales) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_ps(); 4]);
    let nibble = _mm512_set1_epi8(15);
    for n in 0..2 {
        let low = line(b[64 * n..].first_chunk().expect("64 bytes"));
        let high = twice(b, 128 + 32 * n);
        let upper = [
            _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2)),
            _mm512_srlv_epi64(high, _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2)),
        ];
        let lower = [low, _mm512_srli_epi16::<4>(low)];
        for half in 0..2 {
            let c = 2 * n + half;
            let both = _mm512_ternarylogic_epi32::<0xca>(nibble, lower[half], upper[half]);
            codes[c] = _mm512_and_si512(both, _mm512_set1_epi8(0x3f));
            let places = _mm512_add_epi32(first, _mm512_set1_epi32(4 * c as i32));
            scales[c] = _mm512_permutexvar_ps(places, numbers);
        }
    }
    let offset = _mm512_mul_ps(numbers, _mm512_mul_ps(factor, _mm512_set1_ps(32.0)));
    Block { codes, scales, factor, offset }
}
