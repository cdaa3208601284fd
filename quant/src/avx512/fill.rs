//! Panels made without unfolding rows one by one: 16 bytes of sixteen rows at a time are turned as they are stored, four
//! bytes of each row side by side, and come apart for all rows together.
//!
//! Codes of 4 bits take a quarter of the shuffles that turning integers of 16 bits takes, and scales of sub-blocks cost a
//! few instructions for sixteen rows instead of for one. A panel of Q4_K is made in a third of the time.

// Blocks are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use super::{numbers, put_line, put_numbers};
use crate::Format;
use crate::avx2::lanes::{bytes16, take};
use crate::avx2::panel::{Panel, ROWS, Step};
use crate::avx2::small::{OFFSET_8, power};
use crate::avx2::unfold::{SMALL, SUPER};
use crate::decode::{E2M1_DOUBLED, IQ4, u16_at};

/// What a step has of each of the panel's rows.
type Blocks<'a, const BYTES: usize> = [&'a [u8; BYTES]; ROWS];

/// Fills a panel with the elements of a step of up to [`ROWS`] rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn fill(format: Format, panel: &mut Panel, rows: &[&[u8]], step: Step) {
    if step.len == SUPER {
        match format {
            Format::Q4_K => return q45_k::<144>(panel, &blocks(rows)),
            Format::Q5_K => return q45_k::<176>(panel, &blocks(rows)),
            Format::Q6_K => return q6_k(panel, &blocks(rows)),
            Format::Q8_0 => return q8_0(panel, &blocks(rows)),
            Format::Q4_0 => return nibbles::<144>(panel, &blocks(rows), &OFFSET_8),
            Format::IQ4_NL => return nibbles::<144>(panel, &blocks(rows), &IQ4),
            Format::MXFP4 => return nibbles::<136>(panel, &blocks(rows), &E2M1_DOUBLED),
            _ => {}
        }
    }
    crate::avx2::fill(format, panel, rows, step);
}

/// The bytes of sixteen rows; where there are fewer, the last one again, whose sums nobody looks at.
fn blocks<'a, const BYTES: usize>(rows: &[&'a [u8]]) -> Blocks<'a, BYTES> {
    std::array::from_fn(|r| rows[r.min(rows.len() - 1)].first_chunk().expect("a step of a row"))
}

/// 16 bytes of each row, from `at` on: register j has bytes 4j to 4j + 3 of all rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned<const BYTES: usize>(rows: &Blocks<'_, BYTES>, at: usize) -> [__m512i; 4] {
    let mut x = [_mm512_setzero_si512(); 4];
    for k in 0..4 {
        let low = _mm256_set_m128i(bytes16(rows[4 + k], at), bytes16(rows[k], at));
        let high = _mm256_set_m128i(bytes16(rows[12 + k], at), bytes16(rows[8 + k], at));
        x[k] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    }
    let first = [_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3])];
    let last = [_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3])];
    [
        _mm512_unpacklo_epi64(first[0], first[1]),
        _mm512_unpackhi_epi64(first[0], first[1]),
        _mm512_unpacklo_epi64(last[0], last[1]),
        _mm512_unpackhi_epi64(last[0], last[1]),
    ]
}

/// The f16 at `at` of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,f16c")]
fn halves<const BYTES: usize>(rows: &Blocks<'_, BYTES>, at: usize) -> __m512 {
    let mut bits = [0; ROWS];
    for r in 0..ROWS {
        bits[r] = u16_at(rows[r], at) as i16;
    }
    _mm512_cvtph_ps(take(&bits, 0))
}

/// The scale of MXFP4 at `at` of each row.
#[inline]
#[target_feature(enable = "avx512f")]
fn powers<const BYTES: usize>(rows: &Blocks<'_, BYTES>, at: usize) -> __m512 {
    let mut scales = [0.0; ROWS];
    for r in 0..ROWS {
        scales[r] = power(rows[r][at]);
    }
    numbers(&scales)
}

/// Writes the elements `32 * group + 16 * half + 4 * j..` of each row: the two even ones, and the two odd ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn put(panel: &mut Panel, group: usize, half: usize, j: usize, [even, odd]: [__m512i; 2]) {
    let pair = SMALL / 2 * group + 4 * half + j;
    put_line(&mut panel.pairs[pair], even);
    put_line(&mut panel.pairs[pair + SMALL / 4], odd);
}

/// Four unsigned bytes of each row as integers: the even ones, and the odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split_unsigned(bytes: __m512i) -> [__m512i; 2] {
    [_mm512_and_si512(bytes, _mm512_set1_epi16(255)), _mm512_srli_epi16::<8>(bytes)]
}

/// The same for signed bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn split_signed(bytes: __m512i) -> [__m512i; 2] {
    [_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes)), _mm512_srai_epi16::<8>(bytes)]
}

/// Codes times the scale of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn scaled([even, odd]: [__m512i; 2], scale: __m512i) -> [__m512i; 2] {
    [_mm512_mullo_epi16(even, scale), _mm512_mullo_epi16(odd, scale)]
}

/// Q4_K and Q5_K, which has 32 bytes of fifth bits more.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn q45_k<const BYTES: usize>(panel: &mut Panel, rows: &Blocks<'_, BYTES>) {
    let [factors, packed, packed_mins, last] = turned(rows, 0);
    let scale = |factors| _mm512_cvtph_ps(_mm512_cvtepi32_epi16(factors));
    put_numbers(&mut panel.scales[0], scale(factors));
    let min_scale = scale(_mm512_srli_epi32::<16>(factors));
    let mut scales = [_mm512_setzero_si512(); 8];
    for j in 0..8 {
        let field = |x: __m512i, shift: usize, bits: i32| {
            let x = _mm512_srlv_epi32(x, _mm512_set1_epi32(shift as i32));
            _mm512_and_si512(x, _mm512_set1_epi32((1 << bits) - 1))
        };
        let at = 8 * (j % 4);
        let [scale, min] = if j < 4 {
            [field(packed, at, 6), field(packed_mins, at, 6)]
        } else {
            let wide = |high, low| _mm512_or_si512(low, _mm512_slli_epi32::<4>(field(high, at + 6, 2)));
            [wide(packed, field(last, at, 4)), wide(packed_mins, field(last, at + 4, 4))]
        };
        scales[j] = _mm512_or_si512(scale, _mm512_slli_epi32::<16>(scale));
        let min = _mm512_mul_ps(_mm512_cvtepi32_ps(min), min_scale);
        // Each stands for 32 elements, and so for two of the sums.
        put_numbers(&mut panel.mins[2 * j], min);
        put_numbers(&mut panel.mins[2 * j + 1], min);
    }
    let nibble = _mm512_set1_epi8(15);
    for half in 0..2 {
        let fifth = if BYTES == 176 { turned(rows, 16 + 16 * half) } else { [_mm512_setzero_si512(); 4] };
        for c in 0..4 {
            let bytes = turned(rows, BYTES - 128 + 32 * c + 16 * half);
            for j in 0..4 {
                let nibbles = [bytes[j], _mm512_srli_epi16::<4>(bytes[j])];
                for (upper, nibbles) in nibbles.into_iter().enumerate() {
                    let group = 2 * c + upper;
                    let mut codes = _mm512_and_si512(nibbles, nibble);
                    if BYTES == 176 {
                        let set = _mm512_test_epi8_mask(fifth[j], _mm512_set1_epi8((1u8 << group) as i8));
                        codes = _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16));
                    }
                    put(panel, group, half, j, scaled(split_unsigned(codes), scales[group]));
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn q6_k(panel: &mut Panel, rows: &Blocks<'_, 210>) {
    put_numbers(&mut panel.scales[0], halves(rows, 208));
    let scales = turned(rows, 192);
    // Moves byte i of every four to the upper halves of both integers.
    let first = _mm512_broadcast_i32x4(_mm_setr_epi32(0x0080_0080, 0x0480_0480, 0x0880_0880, 0x0c80_0c80));
    let scale_of = |part: usize| {
        let order = _mm512_add_epi32(first, _mm512_set1_epi32(0x0100_0100 * (part % 4) as i32));
        _mm512_srai_epi16::<8>(_mm512_shuffle_epi8(scales[part / 4], order))
    };
    for n in 0..2 {
        for half in 0..2 {
            let first = 64 * n + 16 * half;
            let low = [turned(rows, first), turned(rows, first + 32)];
            let high = turned(rows, 128 + 32 * n + 16 * half);
            for quarter in 0..4 {
                let group = 4 * n + quarter;
                let scale = scale_of(2 * group + half);
                for j in 0..4 {
                    let nibbles = low[quarter % 2][j];
                    let nibbles = if quarter < 2 { nibbles } else { _mm512_srli_epi16::<4>(nibbles) };
                    let bits = match quarter {
                        0 => _mm512_slli_epi16::<4>(high[j]),
                        1 => _mm512_slli_epi16::<2>(high[j]),
                        2 => high[j],
                        _ => _mm512_srli_epi16::<2>(high[j]),
                    };
                    // `nibbles` where the mask is set, `bits` elsewhere.
                    let codes = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi8(15), nibbles, bits);
                    let codes = _mm512_and_si512(codes, _mm512_set1_epi8(0x3f));
                    let codes = split_signed(_mm512_sub_epi8(codes, _mm512_set1_epi8(32)));
                    put(panel, group, half, j, scaled(codes, scale));
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn q8_0(panel: &mut Panel, rows: &Blocks<'_, 272>) {
    for group in 0..SUPER / SMALL {
        let block = 34 * group;
        put_numbers(&mut panel.scales[group], halves(rows, block));
        for half in 0..2 {
            for (j, codes) in turned(rows, block + 2 + 16 * half).into_iter().enumerate() {
                put(panel, group, half, j, split_signed(codes));
            }
        }
    }
}

/// Formats of 32 nibbles in 16 bytes behind a scale, which a table gives values to: eight blocks, whose scales are f16, or
/// those of MXFP4.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
fn nibbles<const BYTES: usize>(panel: &mut Panel, rows: &Blocks<'_, BYTES>, values: &[i8; 16]) {
    // Twice, since the bit above a nibble counts too.
    let values = _mm256_cvtepi8_epi16(bytes16(&values.map(|v| v as u8), 0));
    let values = _mm512_broadcast_i64x4(values);
    let block = BYTES / (SUPER / SMALL);
    for group in 0..SUPER / SMALL {
        let scales = if BYTES == 136 { powers(rows, block * group) } else { halves(rows, block * group) };
        put_numbers(&mut panel.scales[group], scales);
        for (j, bytes) in turned(rows, block * (group + 1) - 16).into_iter().enumerate() {
            let value = |nibbles| _mm512_permutexvar_epi16(nibbles, values);
            put(panel, group, 0, j, [value(bytes), value(_mm512_srli_epi16::<8>(bytes))]);
            let upper = [value(_mm512_srli_epi16::<4>(bytes)), value(_mm512_srli_epi16::<12>(bytes))];
            put(panel, group, 1, j, upper);
        }
    }
}
