//! Blocks to f32: the byte layouts of the specification's section 11, written to be read beside it.

use half::{bf16, f16, slice::HalfFloatSliceExt};

use crate::{Format, grids};

/// Elements of a super-block.
const SUPER: usize = 256;

/// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the 4-bit floats of MXFP4 and NVFP4 (E2M1), so that they are whole.
pub(crate) const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// δ of the IQ1 formats: what is added to, or with the block's bit set subtracted from, an entry of the grid.
pub(crate) const IQ1_DELTA: f32 = 0.125;

/// Decodes the blocks in `src` to `dst`. Any bytes are valid blocks; scales that aren't numbers give elements that
/// aren't.
///
/// # Panics
/// If `src` isn't exactly the blocks of `dst.len()` elements.
pub fn decode(format: Format, src: &[u8], dst: &mut [f32]) {
    assert_eq!(format.bytes(dst.len()), Some(src.len()), "{} elements of {format}", dst.len());
    match format {
        Format::F32 => src.as_chunks().0.iter().zip(dst).for_each(|(b, y)| *y = f32::from_le_bytes(*b)),
        Format::F16 => f16_row(src, dst),
        Format::BF16 => {
            src.as_chunks().0.iter().zip(dst).for_each(|(b, y)| *y = bf16::from_le_bytes(*b).to_f32())
        }
        Format::I8 => src.iter().zip(dst).for_each(|(b, y)| *y = f32::from(b.cast_signed())),
        Format::Q8_0 => blocks::<34, 32>(src, dst, q8_0),
        Format::Q4_0 => {
            blocks::<18, 32>(src, dst, |b, y| split(&b[2..], y, |n| half(b, 0) * (f32::from(n) - 8.0)))
        }
        Format::Q4_1 => blocks::<20, 32>(src, dst, |b, y| {
            split(&b[4..], y, |n| half(b, 0) * f32::from(n) + half(b, 2));
        }),
        Format::Q5_0 => blocks::<22, 32>(src, dst, |b, y| {
            five_bits(&b[2..6], &b[6..], y, |n| half(b, 0) * (f32::from(n) - 16.0));
        }),
        Format::Q5_1 => blocks::<24, 32>(src, dst, |b, y| {
            five_bits(&b[4..8], &b[8..], y, |n| half(b, 0) * f32::from(n) + half(b, 2));
        }),
        Format::IQ4_NL => blocks::<18, 32>(src, dst, |b, y| {
            split(&b[2..], y, |n| half(b, 0) * f32::from(IQ4[usize::from(n)]));
        }),
        Format::MXFP4 => blocks::<17, 32>(src, dst, |b, y| {
            let d = e8m0_half(b[0]);
            split(&b[1..], y, |n| d * f32::from(E2M1_DOUBLED[usize::from(n)]));
        }),
        Format::NVFP4 => blocks::<36, 64>(src, dst, nvfp4),
        Format::Q1_0 => blocks::<18, 128>(src, dst, |b, y| {
            let d = half(b, 0);
            y.iter_mut()
                .enumerate()
                .for_each(|(i, y)| *y = if b[2 + i / 8] >> (i % 8) & 1 == 1 { d } else { -d });
        }),
        Format::Q2_0 => blocks::<18, 64>(src, dst, |b, y| {
            let d = half(b, 0);
            let code = |i: usize| b[2 + i / 4] >> (2 * (i % 4)) & 3;
            y.iter_mut().enumerate().for_each(|(i, y)| *y = d * (f32::from(code(i)) - 1.0));
        }),
        Format::Q2_K => blocks::<84, SUPER>(src, dst, q2_k),
        Format::Q3_K => blocks::<110, SUPER>(src, dst, q3_k),
        Format::Q4_K => blocks::<144, SUPER>(src, dst, |b, y| q45_k(b, None, &b[16..], y)),
        Format::Q5_K => blocks::<176, SUPER>(src, dst, |b, y| q45_k(b, Some(&b[16..48]), &b[48..], y)),
        Format::Q6_K => blocks::<210, SUPER>(src, dst, q6_k),
        Format::IQ2_XXS => blocks::<66, SUPER>(src, dst, iq2_xxs),
        Format::IQ2_XS => blocks::<74, SUPER>(src, dst, iq2_xs),
        Format::IQ2_S => blocks::<82, SUPER>(src, dst, iq2_s),
        Format::IQ3_XXS => blocks::<98, SUPER>(src, dst, iq3_xxs),
        Format::IQ3_S => blocks::<110, SUPER>(src, dst, iq3_s),
        Format::IQ1_S => blocks::<50, SUPER>(src, dst, iq1_s),
        Format::IQ1_M => blocks::<56, SUPER>(src, dst, iq1_m),
        Format::IQ4_XS => blocks::<136, SUPER>(src, dst, iq4_xs),
        Format::TQ1_0 => blocks::<54, SUPER>(src, dst, tq1_0),
        Format::TQ2_0 => blocks::<66, SUPER>(src, dst, tq2_0),
    }
}

/// Calls `f` for every block; arrays, so that the compiler knows every index to be inside.
fn blocks<const BYTES: usize, const LEN: usize>(
    src: &[u8],
    dst: &mut [f32],
    f: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    src.as_chunks().0.iter().zip(dst.as_chunks_mut().0).for_each(|(b, y)| f(b, y));
}

/// Half-precision values, converted many at a time where the processor can.
fn f16_row(src: &[u8], dst: &mut [f32]) {
    const TILE: usize = 64;
    let mut tile = [f16::ZERO; TILE];
    for (src, dst) in src.chunks(2 * TILE).zip(dst.chunks_mut(TILE)) {
        let tile = &mut tile[..dst.len()];
        src.as_chunks().0.iter().zip(&mut *tile).for_each(|(b, h)| *h = f16::from_le_bytes(*b));
        tile.convert_to_f32_slice(dst);
    }
}

/// The half-precision number at a place, without a branch or a call: products meet one every few nanoseconds.
#[inline(always)]
fn half(b: &[u8], at: usize) -> f32 {
    half_bits(u16::from_le_bytes([b[at], b[at + 1]]))
}

#[inline(always)]
fn half_bits(bits: u16) -> f32 {
    let (sign, magnitude) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    // Exponents of half precision count from 15, those of f32 from 127; subnormal numbers become normal by this.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let value = if magnitude >= 0x7c00 << 13 { magnitude | 0x7f80_0000 } else { finite.to_bits() };
    f32::from_bits(sign | value)
}

#[inline(always)]
pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline(always)]
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Half of the power of two that the exponent byte of MXFP4 stands for: 2^(e − 128), subnormal for e of 0 and 1. The
/// largest is none: it says that the block isn't numbers, as the OCP's specification has it.
#[inline(always)]
pub(crate) const fn e8m0_half(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        u8::MAX => f32::NAN,
        _ => f32::from_bits((e as u32 - 1) << 23),
    }
}

/// Half of the value of an unsigned 8-bit float with 4 bits of exponent (bias 7) and 3 of mantissa.
pub(crate) fn ue4m3_half(code: u8) -> f32 {
    if code & 0x7f == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let value = if exponent == 0 {
        mantissa / 8.0 * 2f32.powi(-6)
    } else {
        (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
    };
    value * 0.5
}

/// Low nibbles are the first half of the elements, high nibbles the second.
fn split(codes: &[u8], y: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = y.split_at_mut(codes.len());
    for ((code, low), high) in codes.iter().zip(low).zip(high) {
        *low = value(code & 15);
        *high = value(code >> 4);
    }
}

fn five_bits(high: &[u8], codes: &[u8], y: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let bits = u32_at(high, 0);
    let bit = |i: usize| (bits >> i & 1) as u8 * 16;
    for (j, code) in codes.iter().enumerate() {
        y[j] = value(code & 15 | bit(j));
        y[j + 16] = value(code >> 4 | bit(j + 16));
    }
}

fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = half(b, 0);
    y.iter_mut().zip(&b[2..]).for_each(|(y, &q)| *y = d * f32::from(q as i8));
}

fn nvfp4(b: &[u8; 36], y: &mut [f32; 64]) {
    for (s, y) in y.chunks_exact_mut(16).enumerate() {
        let d = ue4m3_half(b[s]);
        split(&b[4 + 8 * s..][..8], y, |n| d * f32::from(E2M1_DOUBLED[usize::from(n)]));
    }
}

/// Sub-blocks of 16 elements of Q2_K and Q3_K: (number, first element, first byte, shift).
fn quarters() -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..16).map(|b| {
        let (n, j, t) = (b / 8, b / 2 % 4, b % 2);
        (b, 128 * n + 32 * j + 16 * t, 32 * n + 16 * t, 2 * j)
    })
}

fn q2_k(b: &[u8; 84], y: &mut [f32; SUPER]) {
    let (d, min) = (half(b, 80), half(b, 82));
    for (sub, first, byte, shift) in quarters() {
        let (scale, offset) = (d * f32::from(b[sub] & 15), min * f32::from(b[sub] >> 4));
        for l in 0..16 {
            y[first + l] = scale * f32::from(b[16 + byte + l] >> shift & 3) - offset;
        }
    }
}

/// The sixteen 6-bit scales of Q3_K, offset by 32.
#[inline(always)]
pub(crate) fn q3_k_scales(b: &[u8]) -> [i8; 16] {
    std::array::from_fn(|i| {
        let low = if i < 8 { b[i] & 15 } else { b[i - 8] >> 4 };
        let high = b[8 + i % 4] >> (2 * (i / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

fn q3_k(b: &[u8; 110], y: &mut [f32; SUPER]) {
    let d = half(b, 108);
    let scales = q3_k_scales(&b[96..108]);
    for (sub, first, byte, shift) in quarters() {
        let scale = d * f32::from(scales[sub]);
        let bit = sub / 2;
        for l in 0..16 {
            let low = (b[32 + byte + l] >> shift & 3) as i8;
            let high = if b[byte % 32 + l] >> bit & 1 == 1 { 0 } else { 4 };
            y[first + l] = scale * f32::from(low - high);
        }
    }
}

/// The eight 6-bit scales and the eight minima of a block of Q4_K or Q5_K: a byte each.
#[inline(always)]
pub(crate) fn q45_k_scales(b: &[u8]) -> [u64; 2] {
    const SIX: u32 = 0x3f3f_3f3f;
    const FOUR: u32 = 0x0f0f_0f0f;
    const TWO: u32 = 0x0303_0303;
    let (x, y, z) = (u32_at(b, 4), u32_at(b, 8), u32_at(b, 12));
    let high_scales = z & FOUR | (x >> 6 & TWO) << 4;
    let high_mins = z >> 4 & FOUR | (y >> 6 & TWO) << 4;
    [u64::from(x & SIX) | u64::from(high_scales) << 32, u64::from(y & SIX) | u64::from(high_mins) << 32]
}

fn q45_k(b: &[u8], fifth: Option<&[u8]>, codes: &[u8], y: &mut [f32; SUPER]) {
    let (d, dmin) = (half(b, 0), half(b, 2));
    let [scales, mins] = q45_k_scales(b).map(u64::to_le_bytes);
    for (j, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = (d * f32::from(scales[j]), dmin * f32::from(mins[j]));
        for (l, y) in y.iter_mut().enumerate() {
            let low = codes[j / 2 * 32 + l] >> (4 * (j % 2)) & 15;
            let high = fifth.map_or(0, |bits| (bits[l] >> j & 1) * 16);
            *y = scale * f32::from(low | high) - min;
        }
    }
}

fn q6_k(b: &[u8; 210], y: &mut [f32; SUPER]) {
    let d = half(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        let (n, quarter, l) = (i / 128, i / 32 % 4, i % 32);
        let low = b[64 * n + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
        let high = b[128 + 32 * n + l] >> (2 * quarter) & 3;
        let scale = b[192 + i / 16] as i8;
        *y = d * f32::from(scale) * f32::from((low | high << 4) as i8 - 32);
    }
}

/// The sign masks of the 2- and 3-bit formats: seven bits, and an eighth that makes their number even.
#[inline(always)]
pub(crate) fn even_signs(code: u32) -> u8 {
    let code = (code & 127) as u8;
    code | (code.count_ones() as u8 & 1) << 7
}

/// The sign masks of two groups of 8.
#[inline(always)]
pub(crate) fn two_signs(first: u32, second: u32) -> u16 {
    u16::from_le_bytes([even_signs(first), even_signs(second)])
}

/// Two entries of a grid of 4.
#[inline(always)]
pub(crate) fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// Up to 8 entries of a grid, times `scale`, with a minus where `signs` has a bit.
fn signed(y: &mut [f32], grid: &[u8], signs: u8, scale: f32) {
    for (j, (y, &g)) in y.iter_mut().zip(grid).enumerate() {
        let magnitude = scale * f32::from(g);
        *y = if signs >> j & 1 == 1 { -magnitude } else { magnitude };
    }
}

fn iq2_xxs(b: &[u8; 66], y: &mut [f32; SUPER]) {
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let word = u32_at(b, 2 + 8 * i + 4);
        let scale = half(b, 0) * (0.5 + (word >> 28) as f32) * 0.25;
        for (l, y) in y.chunks_exact_mut(8).enumerate() {
            let grid = grids::IQ2_XXS[usize::from(b[2 + 8 * i + l])].to_le_bytes();
            signed(y, &grid, even_signs(word >> (7 * l)), scale);
        }
    }
}

/// The scale of group `l` (of four) of 32 elements, from nibbles that serve two groups each.
fn half_scale(b: &[u8], at: usize, l: usize) -> f32 {
    half(b, 0) * (0.5 + f32::from(b[at] >> (4 * (l / 2)) & 15)) * 0.25
}

fn iq2_xs(b: &[u8; 74], y: &mut [f32; SUPER]) {
    for (g, y) in y.chunks_exact_mut(8).enumerate() {
        let code = u16_at(b, 2 + 2 * g);
        let grid = grids::IQ2_XS[usize::from(code & 511)].to_le_bytes();
        signed(y, &grid, even_signs(u32::from(code >> 9)), half_scale(b, 66 + g / 4, g % 4));
    }
}

fn iq2_s(b: &[u8; 82], y: &mut [f32; SUPER]) {
    for (g, y) in y.chunks_exact_mut(8).enumerate() {
        let high = usize::from(b[66 + g / 4] >> (2 * (g % 4)) & 3);
        let grid = grids::IQ2_S[usize::from(b[2 + g]) | high << 8].to_le_bytes();
        signed(y, &grid, b[34 + g], half_scale(b, 74 + g / 4, g % 4));
    }
}

fn iq3_xxs(b: &[u8; 98], y: &mut [f32; SUPER]) {
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let word = u32_at(b, 66 + 4 * i);
        let scale = half(b, 0) * (0.5 + (word >> 28) as f32) * 0.5;
        for (k, y) in y.chunks_exact_mut(4).enumerate() {
            let grid = grids::IQ3_XXS[usize::from(b[2 + 8 * i + k])].to_le_bytes();
            signed(y, &grid, even_signs(word >> (7 * (k / 2))) >> (4 * (k % 2)), scale);
        }
    }
}

fn iq3_s(b: &[u8; 110], y: &mut [f32; SUPER]) {
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let nibble = b[106 + i / 2] >> (4 * (i % 2)) & 15;
        let scale = half(b, 0) * (1.0 + 2.0 * f32::from(nibble));
        for (k, y) in y.chunks_exact_mut(4).enumerate() {
            let high = usize::from(b[66 + i] >> k & 1);
            let grid = grids::IQ3_S[usize::from(b[2 + 8 * i + k]) | high << 8].to_le_bytes();
            signed(y, &grid, b[74 + 4 * i + k / 2] >> (4 * (k % 2)), scale);
        }
    }
}

/// Eight elements of an IQ1 grid.
fn iq1_group(y: &mut [f32], index: usize, scale: f32, delta: f32) {
    let grid = grids::IQ1[index].to_le_bytes();
    y.iter_mut().zip(grid).for_each(|(y, g)| *y = scale * (f32::from(g as i8) + delta));
}

fn iq1_s(b: &[u8; 50], y: &mut [f32; SUPER]) {
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let high = u16_at(b, 34 + 2 * i);
        let scale = half(b, 0) * f32::from(2 * (high >> 12 & 7) + 1);
        let delta = if high >> 15 == 1 { -IQ1_DELTA } else { IQ1_DELTA };
        for (l, y) in y.chunks_exact_mut(8).enumerate() {
            let index = usize::from(b[2 + 4 * i + l]) | usize::from(high >> (3 * l) & 7) << 8;
            iq1_group(y, index, scale, delta);
        }
    }
}

/// The scale of an IQ1_M block, kept in the top nibbles of its four scale words.
#[inline(always)]
pub(crate) fn iq1_m_scale(scales: &[u8]) -> f32 {
    let bits = (0..4).fold(0, |bits, w| bits | (u16_at(scales, 2 * w) >> 12) << (4 * w));
    half_bits(bits)
}

fn iq1_m(b: &[u8; 56], y: &mut [f32; SUPER]) {
    let d = iq1_m_scale(&b[48..]);
    for (g, y) in y.chunks_exact_mut(8).enumerate() {
        let sub = g / 2;
        let scale = u16_at(b, 48 + 2 * (sub / 4)) >> (3 * (sub % 4)) & 7;
        let nibble = b[32 + g / 2] >> (4 * (g % 2)) & 15;
        let delta = if nibble & 8 != 0 { -IQ1_DELTA } else { IQ1_DELTA };
        iq1_group(y, usize::from(b[g]) | usize::from(nibble & 7) << 8, d * f32::from(2 * scale + 1), delta);
    }
}

/// The eight 6-bit scales of IQ4_XS, offset by 32.
#[inline(always)]
pub(crate) fn iq4_xs_scales(b: &[u8]) -> [i8; 8] {
    let high = u16_at(b, 2);
    std::array::from_fn(|i| {
        let low = b[4 + i / 2] >> (4 * (i % 2)) & 15;
        (low | ((high >> (2 * i) & 3) << 4) as u8) as i8 - 32
    })
}

fn iq4_xs(b: &[u8; 136], y: &mut [f32; SUPER]) {
    let scales = iq4_xs_scales(b);
    for (i, y) in y.chunks_exact_mut(32).enumerate() {
        let scale = half(b, 0) * f32::from(scales[i]);
        split(&b[8 + 16 * i..][..16], y, |n| scale * f32::from(IQ4[usize::from(n)]));
    }
}

/// Digit `n` (0..5) of five base-3 digits in a byte.
#[inline(always)]
pub(crate) fn trit(byte: u8, n: usize) -> u8 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as u8
}

fn tq1_0(b: &[u8; 54], y: &mut [f32; SUPER]) {
    let d = half(b, 52);
    let mut y = y.iter_mut();
    for (first, count, digits) in [(0, 32, 5), (32, 16, 5), (48, 4, 4)] {
        for n in 0..digits {
            for (&byte, y) in b[first..first + count].iter().zip(&mut y) {
                *y = d * (f32::from(trit(byte, n)) - 1.0);
            }
        }
    }
}

fn tq2_0(b: &[u8; 66], y: &mut [f32; SUPER]) {
    let d = half(b, 64);
    for (i, y) in y.iter_mut().enumerate() {
        let (h, l, m) = (i / 128, i / 32 % 4, i % 32);
        *y = d * (f32::from(b[32 * h + m] >> (2 * l) & 3) - 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_exact() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half_bits(bits), f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#x}: {got} {want}"
            );
        }
    }
}
