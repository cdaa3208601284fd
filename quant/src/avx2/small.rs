//! Blocks of 32 elements, and those of 64 and 128, to integers.

use std::arch::x86_64::*;

use super::lanes::{bytes16, bytes32, half, split, split_bytes, split_unsigned};
use crate::decode::{E2M1_DOUBLED, IQ4, e8m0_half, u32_at};

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_scale<const N: usize>(b: &[u8; N]) -> f32 {
    half(b, 0)
}

#[inline]
pub(super) fn power_scale(b: &[u8; 17]) -> f32 {
    power(b[0])
}

/// The scale of MXFP4 that a byte stands for, halved, as its codes are doubled.
#[inline]
pub(crate) fn power(e: u8) -> f32 {
    /// A load is all that a product has time for.
    static POWERS: [f32; 256] = {
        let (mut powers, mut e) = ([0.0; 256], 0);
        while e < 256 {
            powers[e] = e8m0_half(e as u8);
            e += 1;
        }
        powers
    };
    POWERS[usize::from(e)]
}

#[inline]
pub(super) fn no_min<const N: usize>(_: &[u8; N]) -> f32 {
    0.0
}

/// The minimum of Q4_1 and Q5_1, which is added there and subtracted here.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half_min<const N: usize>(b: &[u8; N]) -> f32 {
    -half(b, 2)
}

pub(crate) const OFFSET_8: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

/// The 32 nibbles of 16 bytes, the low ones first, as bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn nibbles(packed: __m128i) -> [__m128i; 2] {
    let mask = _mm_set1_epi8(15);
    [_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16::<4>(packed), mask)]
}

/// 32 nibbles of 16 bytes in one register.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles_together(packed: __m128i) -> __m256i {
    _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed), _mm256_set1_epi8(15))
}

/// The values that a table gives to 32 nibbles.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn table(packed: __m128i, values: &[i8; 16]) -> [__m256i; 2] {
    // SAFETY: 16 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    let values = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) };
    split_bytes(_mm256_shuffle_epi8(values, nibbles_together(packed)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn five_bits(packed: __m128i, bits: u32, offset: i16) -> [__m256i; 2] {
    // Each lane looks at its own bit: 16 where it is set.
    let own =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, i16::MIN);
    let half = |nibbles: __m128i, bits: u32| {
        let set = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(bits as i16), own), own);
        let fifth = _mm256_and_si256(set, _mm256_set1_epi16(16));
        _mm256_add_epi16(_mm256_add_epi16(_mm256_cvtepu8_epi16(nibbles), fifth), _mm256_set1_epi16(offset))
    };
    let [low, high] = nibbles(packed);
    split([half(low, bits), half(high, bits >> 16)])
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q8_0(b: &[u8; 34]) -> [__m256i; 2] {
    split_bytes(bytes32(b, 2))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q4_0(b: &[u8; 18]) -> [__m256i; 2] {
    table(bytes16(b, 2), &OFFSET_8)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q4_1(b: &[u8; 20]) -> [__m256i; 2] {
    split_unsigned(nibbles_together(bytes16(b, 4)))
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q5_0(b: &[u8; 22]) -> [__m256i; 2] {
    five_bits(bytes16(b, 6), u32_at(b, 2), -16)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn q5_1(b: &[u8; 24]) -> [__m256i; 2] {
    five_bits(bytes16(b, 8), u32_at(b, 4), 0)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq4_nl(b: &[u8; 18]) -> [__m256i; 2] {
    table(bytes16(b, 2), &IQ4)
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn mxfp4(b: &[u8; 17]) -> [__m256i; 2] {
    table(bytes16(b, 1), &E2M1_DOUBLED)
}

#[inline]
pub(super) fn q1_0(b: &[u8; 18]) -> [i16; 128] {
    let mut q = [0; 128];
    for (q, b) in q.as_chunks_mut::<8>().0.iter_mut().zip(&b[2..]) {
        (0..8).for_each(|j| q[j] = i16::from(b >> j & 1) * 2 - 1);
    }
    q
}

#[inline]
pub(super) fn q2_0(b: &[u8; 18]) -> [i16; 64] {
    let mut q = [0; 64];
    for (q, b) in q.as_chunks_mut::<4>().0.iter_mut().zip(&b[2..]) {
        (0..4).for_each(|j| q[j] = i16::from(b >> (2 * j) & 3) - 1);
    }
    q
}
