//! Blocks to integers: what a product needs of a weight row, in a form that is the same for all formats.
//!
//! `w[i] = scale · code[i] − min`: in super-blocks, `code` is the stored code times the integer scale of its
//! sub-block, so that 256 elements share one `scale`; in the formats of smaller blocks it is the code itself, with a
//! scale every 32 elements. Minima are given for every 16 elements. `|code| <= 4096` in every format.
//!
//! `shared/spec/k3.md`, section 11, has the layouts. Where plain Rust stands below, the compiler vectorises it or the
//! format is rare; what the weights of large models are usually stored in has its own instructions.

use std::arch::x86_64::*;

use crate::Format;
use crate::activation::{BLOCK, Vector};
use crate::decode::{
    E2M1_DOUBLED, IQ4, e8m0_half, even_signs, iq1_m_scale, iq4_xs_scales, q3_k_scales, trit, u16_at, u32_at,
};
use crate::grids;

/// Elements of a super-block.
pub(super) const SUPER: usize = 256;
/// Elements that share a scale in the other formats.
pub(super) const SMALL: usize = 32;

/// Where a row is unfolded to.
pub(super) struct Unfolded<'a> {
    /// One an element.
    pub(super) codes: &'a mut [i16],
    /// One for every [`SUPER`] or [`SMALL`] elements.
    pub(super) scales: &'a mut [f32],
    /// One for every 16 elements, if the format has minima.
    pub(super) mins: &'a mut [f32],
}

/// Elements that share a scale; none for formats that aren't unfolded.
pub(super) fn group(format: Format) -> Option<usize> {
    use Format::*;
    match format {
        Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | IQ4_NL | MXFP4 | Q1_0 | Q2_0 => Some(SMALL),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M
        | IQ4_XS | TQ1_0 | TQ2_0 => Some(SUPER),
        F32 | F16 | BF16 | NVFP4 => None,
    }
}

/// Whether rows of the format have minima.
pub(super) fn has_mins(format: Format) -> bool {
    use Format::*;
    matches!(format, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
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
            Format::IQ2_XXS => $do!(large 66, iq2_xxs),
            Format::IQ2_XS => $do!(large 74, iq2_xs),
            Format::IQ2_S => $do!(large 82, iq2_s),
            Format::IQ3_XXS => $do!(large 98, iq3_xxs),
            Format::IQ3_S => $do!(large 110, iq3_s),
            Format::IQ1_S => $do!(large 50, iq1_s),
            Format::IQ1_M => $do!(large 56, iq1_m),
            Format::IQ4_XS => $do!(large 136, iq4_xs),
            Format::TQ1_0 => $do!(large 54, tq1_0),
            Format::TQ2_0 => $do!(large 66, tq2_0),
            Format::F32 | Format::F16 | Format::BF16 | Format::NVFP4 => unreachable!("no integer form"),
        }
    };
}

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
                let [low, high] = $codes(b);
                put(q, 0, low);
                put(q, 16, high);
            }
        }};
        (wide $bytes:literal, $smalls:literal, $codes:ident) => {{
            let blocks =
                row.as_chunks::<$bytes>().0.iter().zip(codes.as_chunks_mut::<{ $smalls * SMALL }>().0);
            for ((b, q), s) in blocks.zip(scales.chunks_exact_mut($smalls)) {
                s.fill(half(b, 0));
                *q = $codes(b);
            }
        }};
        (large $bytes:literal, $codes:ident) => {{
            let mut mins = mins.as_chunks_mut::<16>().0.iter_mut();
            let mut none = [0.0; 16];
            let blocks = row.as_chunks::<$bytes>().0.iter().zip(codes.as_chunks_mut::<SUPER>().0).zip(scales);
            for ((b, q), s) in blocks {
                *s = $codes(b, mins.next().unwrap_or(&mut none), |k, codes| put(q, 16 * k, codes));
            }
        }};
    }
    by_format!(format, store);
}

/// The product of one row with one vector, without the way through memory.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn multiply(format: Format, row: &[u8], x: &Vector<'_>) -> f32 {
    let mut sum = _mm256_setzero_ps();
    let mut offset = _mm256_setzero_ps();
    macro_rules! multiply {
        (small $bytes:literal, $scale:ident, $min:ident, $codes:ident) => {{
            let blocks =
                row.as_chunks::<$bytes>().0.chunks(BLOCK / SMALL).zip(x.q.chunks(BLOCK)).zip(x.scale);
            for ((blocks, q), scale) in blocks {
                let mut part = _mm256_setzero_ps();
                for (b, q) in blocks.iter().zip(q.as_chunks::<SMALL>().0) {
                    let [low, high] = $codes(b);
                    let dot = _mm256_add_epi32(
                        _mm256_madd_epi16(low, take(q, 0)),
                        _mm256_madd_epi16(high, take(q, 16)),
                    );
                    part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps($scale(b)), part);
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
                for at in (0..size).step_by(16) {
                    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(take(&codes, at), take(q, at)));
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
                let d = $codes(b, &mut mins, |k, codes| {
                    dots[k % 2] = _mm256_add_epi32(dots[k % 2], _mm256_madd_epi16(codes, take(q, 16 * k)));
                });
                let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[0], dots[1]));
                sum = _mm256_fmadd_ps(dot, _mm256_set1_ps(d * scale), sum);
                if has_mins(format) {
                    offset = _mm256_fmadd_ps(takef(&mins, 0), takef(sums, 0), offset);
                    offset = _mm256_fmadd_ps(takef(&mins, 8), takef(sums, 8), offset);
                }
            }
        }};
    }
    by_format!(format, multiply);
    horizontal(_mm256_sub_ps(sum, offset))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half(b: &[u8], at: usize) -> f32 {
    let bits = i32::from(u16_at(b, at));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

/// 16 bytes of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes16(b: &[u8], at: usize) -> __m128i {
    let b = &b[at..at + 16];
    // SAFETY: 16 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm_loadu_si128(b.as_ptr().cast())
    }
}

/// 32 bytes of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes32(b: &[u8], at: usize) -> __m256i {
    let b = &b[at..at + 32];
    // SAFETY: 32 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_si256(b.as_ptr().cast())
    }
}

/// Writes 16 codes.
#[inline]
#[target_feature(enable = "avx2")]
fn put(q: &mut [i16], at: usize, codes: __m256i) {
    let q = &mut q[at..at + 16];
    // SAFETY: 16 writable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_si256(q.as_mut_ptr().cast(), codes);
    }
}

/// Writes 8 numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn putf(x: &mut [f32], at: usize, numbers: __m256) {
    let x = &mut x[at..at + 8];
    // SAFETY: 8 writable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_ps(x.as_mut_ptr(), numbers);
    }
}

/// 16 integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn take(q: &[i16], at: usize) -> __m256i {
    let q = &q[at..at + 16];
    // SAFETY: 16 readable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_si256(q.as_ptr().cast())
    }
}

/// 8 numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn takef(x: &[f32], at: usize) -> __m256 {
    let x = &x[at..at + 8];
    // SAFETY: 8 readable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_ps(x.as_ptr())
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn horizontal(x: __m256) -> f32 {
    let half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half_scale<const N: usize>(b: &[u8; N]) -> f32 {
    half(b, 0)
}

#[inline]
fn power_scale(b: &[u8; 17]) -> f32 {
    e8m0_half(b[0])
}

#[inline]
fn no_min<const N: usize>(_: &[u8; N]) -> f32 {
    0.0
}

/// The minimum of Q4_1 and Q5_1, which is added there and subtracted here.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn half_min<const N: usize>(b: &[u8; N]) -> f32 {
    -half(b, 2)
}

const OFFSET_8: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

/// The 32 nibbles of 16 bytes, the low ones first, as bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(packed: __m128i) -> [__m128i; 2] {
    let mask = _mm_set1_epi8(15);
    [_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16::<4>(packed), mask)]
}

/// The values that a table gives to 32 nibbles.
#[inline]
#[target_feature(enable = "avx2")]
fn table(packed: __m128i, values: &[i8; 16]) -> [__m256i; 2] {
    // SAFETY: 16 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    let values = unsafe { _mm_loadu_si128(values.as_ptr().cast()) };
    let [low, high] = nibbles(packed);
    [
        _mm256_cvtepi8_epi16(_mm_shuffle_epi8(values, low)),
        _mm256_cvtepi8_epi16(_mm_shuffle_epi8(values, high)),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn five_bits(packed: __m128i, bits: u32, offset: i16) -> [__m256i; 2] {
    // Each lane looks at its own bit: 16 where it is set.
    let own =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, i16::MIN);
    let half = |nibbles: __m128i, bits: u32| {
        let set = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(bits as i16), own), own);
        let fifth = _mm256_and_si256(set, _mm256_set1_epi16(16));
        _mm256_add_epi16(_mm256_add_epi16(_mm256_cvtepu8_epi16(nibbles), fifth), _mm256_set1_epi16(offset))
    };
    let [low, high] = nibbles(packed);
    [half(low, bits), half(high, bits >> 16)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn q8_0(b: &[u8; 34]) -> [__m256i; 2] {
    [_mm256_cvtepi8_epi16(bytes16(b, 2)), _mm256_cvtepi8_epi16(bytes16(b, 18))]
}

#[inline]
#[target_feature(enable = "avx2")]
fn q4_0(b: &[u8; 18]) -> [__m256i; 2] {
    table(bytes16(b, 2), &OFFSET_8)
}

#[inline]
#[target_feature(enable = "avx2")]
fn q4_1(b: &[u8; 20]) -> [__m256i; 2] {
    nibbles(bytes16(b, 4)).map(|n| _mm256_cvtepu8_epi16(n))
}

#[inline]
#[target_feature(enable = "avx2")]
fn q5_0(b: &[u8; 22]) -> [__m256i; 2] {
    five_bits(bytes16(b, 6), u32_at(b, 2), -16)
}

#[inline]
#[target_feature(enable = "avx2")]
fn q5_1(b: &[u8; 24]) -> [__m256i; 2] {
    five_bits(bytes16(b, 8), u32_at(b, 4), 0)
}

#[inline]
#[target_feature(enable = "avx2")]
fn iq4_nl(b: &[u8; 18]) -> [__m256i; 2] {
    table(bytes16(b, 2), &IQ4)
}

#[inline]
#[target_feature(enable = "avx2")]
fn mxfp4(b: &[u8; 17]) -> [__m256i; 2] {
    table(bytes16(b, 1), &E2M1_DOUBLED)
}

#[inline]
fn q1_0(b: &[u8; 18]) -> [i16; 128] {
    let mut q = [0; 128];
    for (q, b) in q.as_chunks_mut::<8>().0.iter_mut().zip(&b[2..]) {
        (0..8).for_each(|j| q[j] = i16::from(b >> j & 1) * 2 - 1);
    }
    q
}

#[inline]
fn q2_0(b: &[u8; 18]) -> [i16; 64] {
    let mut q = [0; 64];
    for (q, b) in q.as_chunks_mut::<4>().0.iter_mut().zip(&b[2..]) {
        (0..4).for_each(|j| q[j] = i16::from(b >> (2 * j) & 3) - 1);
    }
    q
}

/// Widens 32 signed bytes, multiplies each half of them with a scale, and emits both.
#[inline]
#[target_feature(enable = "avx2")]
fn emit_scaled(k: usize, codes: __m256i, scales: [i16; 2], emit: &mut impl FnMut(usize, __m256i)) {
    let low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes));
    let high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(codes));
    emit(k, _mm256_mullo_epi16(low, _mm256_set1_epi16(scales[0])));
    emit(k + 1, _mm256_mullo_epi16(high, _mm256_set1_epi16(scales[1])));
}

/// Fields of two bits, at `shift`, of 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn two_bits(bytes: __m256i, shift: usize) -> __m256i {
    let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
    _mm256_and_si256(shifted, _mm256_set1_epi8(3))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q2_k(b: &[u8; 84], mins: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    let dmin = half(b, 82);
    mins.iter_mut().zip(&b[..16]).for_each(|(m, b)| *m = dmin * f32::from(b >> 4));
    for n in 0..2 {
        let bytes = bytes32(b, 16 + 32 * n);
        for j in 0..4 {
            let sub = 8 * n + 2 * j;
            let scales = [i16::from(b[sub] & 15), i16::from(b[sub + 1] & 15)];
            emit_scaled(sub, two_bits(bytes, 2 * j), scales, &mut emit);
        }
    }
    half(b, 80)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q3_k(b: &[u8; 110], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    let scales = q3_k_scales(&b[96..108]);
    let high = bytes32(b, 0);
    for n in 0..2 {
        let bytes = bytes32(b, 32 + 32 * n);
        for j in 0..4 {
            // The third bit is kept inverted: without it, 4 is taken off.
            let bit = _mm256_set1_epi8((1u8 << (4 * n + j)) as i8);
            let clear = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), _mm256_setzero_si256());
            let code = _mm256_sub_epi8(two_bits(bytes, 2 * j), _mm256_and_si256(clear, _mm256_set1_epi8(4)));
            let sub = 8 * n + 2 * j;
            emit_scaled(sub, code, [i16::from(scales[sub]), i16::from(scales[sub + 1])], &mut emit);
        }
    }
    half(b, 108)
}

/// Scales and minima of Q4_K and Q5_K: eight of each, a byte each.
#[inline]
fn q45_k_scales(b: &[u8]) -> [u64; 2] {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let (x, y, z) = (u32_at(b, 4), u32_at(b, 8), u32_at(b, 12));
    let high_scales = z & FOUR | (x >> 6 & TWO) << 4;
    let high_mins = z >> 4 & FOUR | (y >> 6 & TWO) << 4;
    [u64::from(x & SIX) | u64::from(high_scales) << 32, u64::from(y & SIX) | u64::from(high_mins) << 32]
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q4_k(b: &[u8; 144], mins: &mut [f32; 16], emit: impl FnMut(usize, __m256i)) -> f32 {
    q45_k(b, None, &b[16..], mins, emit)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q5_k(b: &[u8; 176], mins: &mut [f32; 16], emit: impl FnMut(usize, __m256i)) -> f32 {
    q45_k(b, Some(bytes32(b, 16)), &b[48..], mins, emit)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q45_k(
    b: &[u8],
    fifth: Option<__m256i>,
    nibbles: &[u8],
    mins: &mut [f32; 16],
    mut emit: impl FnMut(usize, __m256i),
) -> f32 {
    let [scales, m] = q45_k_scales(b);
    let m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(m as i64)));
    let m = _mm256_mul_ps(m, _mm256_set1_ps(half(b, 2)));
    // Each minimum stands for 32 elements, and so for two of the sums.
    putf(mins, 0, _mm256_permutevar8x32_ps(m, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)));
    putf(mins, 8, _mm256_permutevar8x32_ps(m, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
    let mask = _mm256_set1_epi8(15);
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
        let scale = |j: usize| [(scales >> (8 * j) & 63) as i16; 2];
        emit_scaled(4 * i, low, scale(2 * i), &mut emit);
        emit_scaled(4 * i + 2, high, scale(2 * i + 1), &mut emit);
    }
    half(b, 0)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q6_k(b: &[u8; 210], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    let mask = _mm256_set1_epi8(15);
    for n in 0..2 {
        let (low, high) = ([bytes32(b, 64 * n), bytes32(b, 64 * n + 32)], bytes32(b, 128 + 32 * n));
        for quarter in 0..4 {
            let nibbles = if quarter < 2 { low[quarter] } else { _mm256_srli_epi16::<4>(low[quarter - 2]) };
            let upper = _mm256_slli_epi16::<4>(two_bits(high, 2 * quarter));
            let code = _mm256_or_si256(_mm256_and_si256(nibbles, mask), upper);
            let code = _mm256_sub_epi8(code, _mm256_set1_epi8(32));
            let sub = 8 * n + 2 * quarter;
            let scales = [i16::from(b[192 + sub] as i8), i16::from(b[193 + sub] as i8)];
            emit_scaled(sub, code, scales, &mut emit);
        }
    }
    half(b, 208)
}

/// 16 entries of grids, with a minus where `signs` has a bit, times an integer scale.
#[inline]
#[target_feature(enable = "avx2")]
fn signed(grids: [u64; 2], signs: u16, scale: i16) -> __m256i {
    let own =
        _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, i16::MIN);
    let minus = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(signs as i16), own), own);
    let grid = _mm256_cvtepu8_epi16(_mm_set_epi64x(grids[1] as i64, grids[0] as i64));
    let code = _mm256_mullo_epi16(grid, _mm256_set1_epi16(scale));
    _mm256_sub_epi16(_mm256_xor_si256(code, minus), minus)
}

/// The sign masks of two groups of 8 whose eighth sign isn't stored.
#[inline]
fn two_signs(first: u32, second: u32) -> u16 {
    u16::from(even_signs(first)) | u16::from(even_signs(second)) << 8
}

// The 2-bit formats have scales (0.5 + n) / 4 = (2n + 1) / 8, IQ3_XXS has (0.5 + n) / 2 = (2n + 1) / 4.

#[inline]
fn odd(n: u8) -> i16 {
    2 * i16::from(n & 15) + 1
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn iq2_xxs(b: &[u8; 66], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn iq2_xs(b: &[u8; 74], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn iq2_s(b: &[u8; 82], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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

/// Two entries of a grid of 4.
#[inline]
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn iq3_xxs(b: &[u8; 98], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn iq3_s(b: &[u8; 110], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn iq1_codes(indices: [usize; 2], minus: [bool; 2], scale: i16) -> __m256i {
    let [first, second] = indices.map(|i| grids::IQ1[i] as i64);
    let grid = _mm256_slli_epi16::<3>(_mm256_cvtepi8_epi16(_mm_set_epi64x(second, first)));
    let delta = minus.map(|m| _mm_set1_epi16(if m { -1 } else { 1 }));
    let code = _mm256_add_epi16(grid, _mm256_set_m128i(delta[1], delta[0]));
    _mm256_mullo_epi16(code, _mm256_set1_epi16(scale))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn iq1_s(b: &[u8; 50], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn iq1_m(b: &[u8; 56], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn iq4_xs(b: &[u8; 136], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    let scales = iq4_xs_scales(b);
    for (i, &scale) in scales.iter().enumerate() {
        let scale = _mm256_set1_epi16(i16::from(scale));
        let [low, high] = table(bytes16(b, 8 + 16 * i), &IQ4);
        emit(2 * i, _mm256_mullo_epi16(low, scale));
        emit(2 * i + 1, _mm256_mullo_epi16(high, scale));
    }
    half(b, 0)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn tq1_0(b: &[u8; 54], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
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
fn tq2_0(b: &[u8; 66], _: &mut [f32; 16], mut emit: impl FnMut(usize, __m256i)) -> f32 {
    for i in 0..8 {
        let code = _mm256_sub_epi8(two_bits(bytes32(b, 32 * (i / 4)), 2 * (i % 4)), _mm256_set1_epi8(1));
        emit(2 * i, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(code)));
        emit(2 * i + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(code)));
    }
    half(b, 64)
}
