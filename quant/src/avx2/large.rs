//! Super-blocks of 256 elements to integers: each function emits the codes times their scales, and returns the scale that is
//! left. The usual formats emit 32 elements at a time, the even ones and the odd ones, as activations lie too
//! ([`crate::activation`]); those with grids emit 16 in their order.

use std::arch::x86_64::*;

use super::lanes::{bytes16, bytes32, half, putf, split_bytes, split_unsigned, take};
use super::small::table;
use super::unfold::SUPER;
use crate::decode::{
    IQ4, iq1_m_scale, iq4_xs_scales, pair, q3_k_scales, q45_k_scales, trit, two_signs, u16_at, u32_at,
};
use crate::grids;

/// Sixteen scales, each of 16 neighbouring elements, so that [`scales_of`] finds them: those of even index in the lower
/// half, those of odd index in the upper one.
#[inline]
#[target_feature(enable = "avx2")]
fn sixteen_scales(scales: __m128i) -> __m256i {
    let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, order))
}

/// Eight scales, each of 32 elements, likewise.
#[inline]
#[target_feature(enable = "avx2")]
fn eight_scales(scales: u64) -> __m256i {
    _mm256_cvtepi8_epi16(_mm_set1_epi64x(scales as i64))
}

/// The scales of the elements `32 * c..`: one in each half of the register.
#[inline]
#[target_feature(enable = "avx2")]
fn scales_of(scales: __m256i, c: usize) -> __m256i {
    _mm256_shuffle_epi8(scales, _mm256_set1_epi16((0x100 * (2 * c + 1) + 2 * c) as i16))
}

/// Multiplies the elements `32 * c..`, even and odd ones, with their scales, and emits them.
#[inline]
#[target_feature(enable = "avx2")]
fn emit_scaled(c: usize, codes: [__m256i; 2], scales: __m256i, emit: &mut impl FnMut(usize, [__m256i; 2])) {
    let scale = scales_of(scales, c);
    emit(c, [_mm256_mullo_epi16(codes[0], scale), _mm256_mullo_epi16(codes[1], scale)]);
}

/// Fields of two bits, at `shift`, of 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn two_bits(bytes: __m256i, shift: usize) -> __m256i {
    let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
    _mm256_and_si256(shifted, _mm256_set1_epi8(3))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q2_k(b: &[u8; 84], mins: &mut [f32; 16], mut emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    let dmin = half(b, 82);
    mins.iter_mut().zip(&b[..16]).for_each(|(m, b)| *m = dmin * f32::from(b >> 4));
    let scales = sixteen_scales(_mm_and_si128(bytes16(b, 0), _mm_set1_epi8(15)));
    for n in 0..2 {
        let bytes = bytes32(b, 16 + 32 * n);
        for j in 0..4 {
            emit_scaled(4 * n + j, split_unsigned(two_bits(bytes, 2 * j)), scales, &mut emit);
        }
    }
    half(b, 80)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q3_k(b: &[u8; 110], _: &mut [f32; 16], mut emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    let scales = sixteen_scales(bytes16(&q3_k_scales(&b[96..108]).map(|s| s as u8), 0));
    let high = bytes32(b, 0);
    for n in 0..2 {
        let bytes = bytes32(b, 32 + 32 * n);
        for j in 0..4 {
            // The third bit is kept inverted: without it, 4 is taken off.
            let bit = _mm256_set1_epi8((1u8 << (4 * n + j)) as i8);
            let clear = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), _mm256_setzero_si256());
            let code = _mm256_sub_epi8(two_bits(bytes, 2 * j), _mm256_and_si256(clear, _mm256_set1_epi8(4)));
            emit_scaled(4 * n + j, split_bytes(code), scales, &mut emit);
        }
    }
    half(b, 108)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q4_k(b: &[u8; 144], mins: &mut [f32; 16], emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    q45_k(b, None, &b[16..], mins, emit)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q5_k(b: &[u8; 176], mins: &mut [f32; 16], emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    q45_k(b, Some(bytes32(b, 16)), &b[48..], mins, emit)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q45_k(
    b: &[u8],
    fifth: Option<__m256i>,
    nibbles: &[u8],
    mins: &mut [f32; 16],
    mut emit: impl FnMut(usize, [__m256i; 2]),
) -> f32 {
    let [scales, m] = q45_k_scales(b);
    let m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(m as i64)));
    let m = _mm256_mul_ps(m, _mm256_set1_ps(half(b, 2)));
    // Each minimum stands for 32 elements, and so for two of the sums.
    putf(mins, 0, _mm256_permutevar8x32_ps(m, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
    putf(mins, 8, _mm256_permutevar8x32_ps(m, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
    let (scales, mask) = (eight_scales(scales), _mm256_set1_epi8(15));
    for i in 0..4 {
        let bytes = bytes32(nibbles, 32 * i);
        let mut low = _mm256_and_si256(bytes, mask);
        let mut high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
        if let Some(bits) = fifth {
            for (codes, bit) in [(&mut low, 2 * i), (&mut high, 2 * i + 1)] {
                let bit = _mm256_set1_epi8((1u8 << bit) as i8);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, bit), bit);
                *codes = _mm256_or_si256(*codes, _mm256_and_si256(set, _mm256_set1_epi8(16)));
            }
        }
        emit_scaled(2 * i, split_unsigned(low), scales, &mut emit);
        emit_scaled(2 * i + 1, split_unsigned(high), scales, &mut emit);
    }
    half(b, 0)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn q6_k(b: &[u8; 210], _: &mut [f32; 16], mut emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    let scales = sixteen_scales(bytes16(b, 192));
    let mask = _mm256_set1_epi8(15);
    for n in 0..2 {
        let (low, high) = ([bytes32(b, 64 * n), bytes32(b, 64 * n + 32)], bytes32(b, 128 + 32 * n));
        for quarter in 0..4 {
            let nibbles = if quarter < 2 { low[quarter] } else { _mm256_srli_epi16::<4>(low[quarter - 2]) };
            let upper = _mm256_slli_epi16::<4>(two_bits(high, 2 * quarter));
            let code = _mm256_or_si256(_mm256_and_si256(nibbles, mask), upper);
            let code = _mm256_sub_epi8(code, _mm256_set1_epi8(32));
            emit_scaled(4 * n + quarter, split_bytes(code), scales, &mut emit);
        }
    }
    half(b, 208)
}

/// 16 entries of grids, with a minus where `signs` has a bit, times an integer scale.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn signed(grids: [u64; 2], signs: u16, scale: i16) -> __m256i {
    let own =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, i16::MIN);
    let minus = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(signs as i16), own), own);
    let grid = _mm256_cvtepu8_epi16(_mm_set_epi64x(grids[1] as i64, grids[0] as i64));
    let code = _mm256_mullo_epi16(grid, _mm256_set1_epi16(scale));
    _mm256_sub_epi16(_mm256_xor_si256(code, minus), minus)
}

// The 2-bit formats have scales (0.5 + n) / 4 = (2n + 1) / 8, IQ3_XXS has (0.5 + n) / 2 = (2n + 1) / 4.

#[inline]
pub(super) fn odd(n: u8) -> i16 {
    2 * i16::from(n & 15) + 1
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_xxs(b: &[u8; 66], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let at = 2 + 8 * (k / 2);
        let (word, first) = (u32_at(b, at + 4), 2 * (k % 2));
        let grid = |l: usize| grids::IQ2_XXS[usize::from(b[at + l])];
        let signs = two_signs(word >> (7 * first), word >> (7 * first + 7));
        emit(k, signed([grid(first), grid(first + 1)], signs, odd((word >> 28) as u8)));
    }
    half(b, 0) * 0.125
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_xs(b: &[u8; 74], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let codes = [u16_at(b, 2 + 4 * k), u16_at(b, 4 + 4 * k)];
        let grids = codes.map(|c| grids::IQ2_XS[usize::from(c & 511)]);
        let signs = two_signs(u32::from(codes[0] >> 9), u32::from(codes[1] >> 9));
        emit(k, signed(grids, signs, odd(b[66 + k / 2] >> (4 * (k % 2)))));
    }
    half(b, 0) * 0.125
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq2_s(b: &[u8; 82], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let grid = |g: usize| {
            let high = usize::from(b[66 + g / 4] >> (2 * (g % 4)) & 3);
            grids::IQ2_S[usize::from(b[2 + g]) | high << 8]
        };
        emit(
            k,
            signed(
                [grid(2 * k), grid(2 * k + 1)],
                u16_at(b, 34 + 2 * k),
                odd(b[74 + k / 2] >> (4 * (k % 2))),
            ),
        );
    }
    half(b, 0) * 0.125
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq3_xxs(b: &[u8; 98], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let (word, first) = (u32_at(b, 66 + 4 * (k / 2)), 2 * (k % 2));
        let grid = |i: usize| grids::IQ3_XXS[usize::from(b[2 + 4 * k + i])];
        let signs = two_signs(word >> (7 * first), word >> (7 * first + 7));
        let grids = [pair(grid(0), grid(1)), pair(grid(2), grid(3))];
        emit(k, signed(grids, signs, odd((word >> 28) as u8)));
    }
    half(b, 0) * 0.25
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq3_s(b: &[u8; 110], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let grid = |i: usize| {
            let high = usize::from(b[66 + k / 2] >> (4 * (k % 2) + i) & 1);
            grids::IQ3_S[usize::from(b[2 + 4 * k + i]) | high << 8]
        };
        let grids = [pair(grid(0), grid(1)), pair(grid(2), grid(3))];
        emit(k, signed(grids, u16_at(b, 74 + 2 * k), odd(b[106 + k / 4] >> (4 * (k / 2 % 2)))));
    }
    half(b, 0)
}

/// 16 elements of an IQ1 grid in eighths, so that δ = 1/8 is whole, times an integer scale.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq1_codes(indices: [usize; 2], minus: [bool; 2], scale: i16) -> __m256i {
    let [first, second] = indices.map(|i| grids::IQ1[i] as i64);
    let grid = _mm256_slli_epi16::<3>(_mm256_cvtepi8_epi16(_mm_set_epi64x(second, first)));
    let delta = minus.map(|m| _mm_set1_epi16(if m { -1 } else { 1 }));
    let code = _mm256_add_epi16(grid, _mm256_set_m128i(delta[1], delta[0]));
    _mm256_mullo_epi16(code, _mm256_set1_epi16(scale))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq1_s(b: &[u8; 50], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let high = u16_at(b, 34 + 2 * (k / 2));
        let index = |l: usize| usize::from(b[2 + 4 * (k / 2) + l]) | usize::from(high >> (3 * l) & 7) << 8;
        let first = 2 * (k % 2);
        let scale = 2 * (high >> 12 & 7) as i16 + 1;
        emit(k, iq1_codes([index(first), index(first + 1)], [high >> 15 == 1; 2], scale));
    }
    half(b, 0) * 0.125
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq1_m(b: &[u8; 56], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for k in 0..16 {
        let scale = 2 * (u16_at(b, 48 + 2 * (k / 4)) >> (3 * (k % 4)) & 7) as i16 + 1;
        let nibbles = [b[32 + k] & 15, b[32 + k] >> 4];
        let index = |i: usize| usize::from(b[2 * k + i]) | usize::from(nibbles[i] & 7) << 8;
        emit(k, iq1_codes([index(0), index(1)], nibbles.map(|n| n & 8 != 0), scale));
    }
    iq1_m_scale(&b[48..]) * 0.125
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn iq4_xs(b: &[u8; 136], _: &mut [f32; 16], mut emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    let scales = eight_scales(u64::from_le_bytes(iq4_xs_scales(b).map(|s| s as u8)));
    for c in 0..8 {
        emit_scaled(c, table(bytes16(b, 8 + 16 * c), &IQ4), scales, &mut emit);
    }
    half(b, 0)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn tq1_0(b: &[u8; 54], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    let mut q = [0i16; SUPER];
    let mut at = 0;
    for (first, count, digits) in [(0, 32, 5), (32, 16, 5), (48, 4, 4)] {
        for n in 0..digits {
            for (&byte, q) in b[first..first + count].iter().zip(&mut q[at..at + count]) {
                *q = i16::from(trit(byte, n)) - 1;
            }
            at += count;
        }
    }
    (0..16).for_each(|k| emit(k, take(&q, 16 * k)));
    half(b, 52)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn tq2_0(b: &[u8; 66], _: &mut [f32; 16], mut emit: impl FnMut(usize, [__m256i; 2])) -> f32 {
    for c in 0..8 {
        let code = two_bits(bytes32(b, 32 * (c / 4)), 2 * (c % 4));
        emit(c, split_bytes(_mm256_sub_epi8(code, _mm256_set1_epi8(1))));
    }
    half(b, 64)
}
