//! Blocks to integers: what a product needs of a weight row, in a form that is the same for all formats.
//!
//! `w[i] = scale · code[i] − min`: in super-blocks, `code` is the stored code times the integer scale of its
//! sub-block, so that 256 elements share one `scale`; in the formats of smaller blocks it is the code itself, with a
//! scale every 32 elements. Minima are given for every 16 elements. `|code| <= 4096` in every format.
//!
//! The functions are plain Rust that the compiler vectorises; `shared/spec/k3.md`, section 11, has the layouts.

use crate::Format;
use crate::decode::{
    E2M1_DOUBLED, IQ4, e8m0_half, even_signs, half, iq1_m_scale, iq4_xs_scales, q3_k_scales, q45_k_scales,
    trit, u16_at, u32_at,
};
use crate::grids;

/// Elements of a super-block.
pub(crate) const SUPER: usize = 256;
/// Elements that share a scale in the other formats.
pub(crate) const SMALL: usize = 32;

/// Where a row is unfolded to.
pub(crate) struct Unfolded<'a> {
    /// One an element.
    pub(crate) codes: &'a mut [i16],
    /// One for every [`SUPER`] or [`SMALL`] elements.
    pub(crate) scales: &'a mut [f32],
    /// One for every 16 elements, if the format has minima.
    pub(crate) mins: &'a mut [f32],
}

/// Elements that share a scale; none for formats that aren't unfolded.
pub(crate) fn group(format: Format) -> Option<usize> {
    use Format::*;
    match format {
        Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | IQ4_NL | MXFP4 | Q1_0 | Q2_0 => Some(SMALL),
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S | IQ1_M
        | IQ4_XS | TQ1_0 | TQ2_0 => Some(SUPER),
        F32 | F16 | BF16 | NVFP4 => None,
    }
}

/// Whether rows of the format have minima.
pub(crate) fn has_mins(format: Format) -> bool {
    use Format::*;
    matches!(format, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K)
}

/// Unfolds one row.
#[inline(always)]
pub(crate) fn unfold(format: Format, row: &[u8], to: Unfolded<'_>) {
    use Format::*;
    match format {
        Q8_0 => small::<34>(row, to, half_scale, |b, q| {
            q.iter_mut().zip(&b[2..]).for_each(|(q, &b)| *q = i16::from(b as i8));
        }),
        Q4_0 => small::<18>(row, to, half_scale, |b, q| split(&b[2..], q, |n| n as i16 - 8)),
        Q4_1 => {
            small_mins::<20>(row, to.mins);
            small::<20>(row, to, half_scale, |b, q| split(&b[4..], q, i16::from));
        }
        Q5_0 => small::<22>(row, to, half_scale, |b, q| five_bits(&b[2..6], &b[6..], q, -16)),
        Q5_1 => {
            small_mins::<24>(row, to.mins);
            small::<24>(row, to, half_scale, |b, q| five_bits(&b[4..8], &b[8..], q, 0));
        }
        IQ4_NL => {
            small::<18>(row, to, half_scale, |b, q| split(&b[2..], q, |n| i16::from(IQ4[usize::from(n)])))
        }
        MXFP4 => small::<17>(
            row,
            to,
            |b| e8m0_half(b[0]),
            |b, q| {
                split(&b[1..], q, |n| i16::from(E2M1_DOUBLED[usize::from(n)]));
            },
        ),
        Q1_0 => wide::<18, 128>(row, to, |b, q| {
            for (q, b) in q.as_chunks_mut::<8>().0.iter_mut().zip(&b[2..]) {
                (0..8).for_each(|j| q[j] = i16::from(b >> j & 1) * 2 - 1);
            }
        }),
        Q2_0 => wide::<18, 64>(row, to, |b, q| {
            for (q, b) in q.as_chunks_mut::<4>().0.iter_mut().zip(&b[2..]) {
                (0..4).for_each(|j| q[j] = i16::from(b >> (2 * j) & 3) - 1);
            }
        }),
        Q2_K => large::<84>(row, to, q2_k),
        Q3_K => large::<110>(row, to, q3_k),
        Q4_K => large::<144>(row, to, |b, q, m| q45_k(b, None, &b[16..], q, m)),
        Q5_K => large::<176>(row, to, |b, q, m| q45_k(b, Some(&b[16..48]), &b[48..], q, m)),
        Q6_K => large::<210>(row, to, |b, q, _| q6_k(b, q)),
        IQ2_XXS => large::<66>(row, to, |b, q, _| iq2_xxs(b, q)),
        IQ2_XS => large::<74>(row, to, |b, q, _| iq2_xs(b, q)),
        IQ2_S => large::<82>(row, to, |b, q, _| iq2_s(b, q)),
        IQ3_XXS => large::<98>(row, to, |b, q, _| iq3_xxs(b, q)),
        IQ3_S => large::<110>(row, to, |b, q, _| iq3_s(b, q)),
        IQ1_S => large::<50>(row, to, |b, q, _| iq1_s(b, q)),
        IQ1_M => large::<56>(row, to, |b, q, _| iq1_m(b, q)),
        IQ4_XS => large::<136>(row, to, |b, q, _| iq4_xs(b, q)),
        TQ1_0 => large::<54>(row, to, |b, q, _| tq1_0(b, q)),
        TQ2_0 => large::<66>(row, to, |b, q, _| tq2_0(b, q)),
        F32 | F16 | BF16 | NVFP4 => unreachable!("{format} has no integer form"),
    }
}

#[inline(always)]
fn half_scale<const BYTES: usize>(b: &[u8; BYTES]) -> f32 {
    half(b, 0)
}

/// Blocks of 32.
#[inline(always)]
fn small<const BYTES: usize>(
    row: &[u8],
    to: Unfolded<'_>,
    scale: impl Fn(&[u8; BYTES]) -> f32,
    codes: impl Fn(&[u8; BYTES], &mut [i16; SMALL]),
) {
    let blocks = row.as_chunks().0.iter().zip(to.codes.as_chunks_mut().0).zip(to.scales);
    for ((b, q), s) in blocks {
        *s = scale(b);
        codes(b, q);
    }
}

/// The minima of Q4_1 and Q5_1, which are added there and subtracted here.
#[inline(always)]
fn small_mins<const BYTES: usize>(row: &[u8], mins: &mut [f32]) {
    for (b, m) in row.as_chunks::<BYTES>().0.iter().zip(mins.as_chunks_mut::<2>().0) {
        *m = [-half(b, 2); 2];
    }
}

/// Blocks of 64 and 128, whose scale stands for every 32 of them.
#[inline(always)]
fn wide<const BYTES: usize, const LEN: usize>(
    row: &[u8],
    to: Unfolded<'_>,
    codes: impl Fn(&[u8; BYTES], &mut [i16; LEN]),
) {
    let blocks =
        row.as_chunks().0.iter().zip(to.codes.as_chunks_mut().0).zip(to.scales.chunks_exact_mut(LEN / SMALL));
    for ((b, q), s) in blocks {
        s.fill(half(b, 0));
        codes(b, q);
    }
}

/// Super-blocks: `f` gives the scale, and the minima where there are some.
#[inline(always)]
fn large<const BYTES: usize>(
    row: &[u8],
    to: Unfolded<'_>,
    f: impl Fn(&[u8; BYTES], &mut [i16; SUPER], &mut [f32; 16]) -> f32,
) {
    let blocks = row.as_chunks().0.iter().zip(to.codes.as_chunks_mut().0).zip(to.scales);
    let mut mins = to.mins.as_chunks_mut::<16>().0.iter_mut();
    let mut none = [0.0; 16];
    for ((b, q), s) in blocks {
        *s = f(b, q, mins.next().unwrap_or(&mut none));
    }
}

/// Low nibbles are the first half of the codes, high nibbles the second.
#[inline(always)]
fn split(nibbles: &[u8], q: &mut [i16], value: impl Fn(u8) -> i16) {
    let (low, high) = q.split_at_mut(16);
    for ((n, low), high) in nibbles[..16].iter().zip(low).zip(high) {
        *low = value(n & 15);
        *high = value(n >> 4);
    }
}

#[inline(always)]
fn five_bits(high: &[u8], nibbles: &[u8], q: &mut [i16; SMALL], offset: i16) {
    let bits = u32_at(high, 0);
    split(nibbles, q, i16::from);
    for (i, q) in q.iter_mut().enumerate() {
        *q += (bits >> i & 1) as i16 * 16 + offset;
    }
}

/// Sub-blocks of 16 of Q2_K and Q3_K: (number, first element, first byte, shift).
#[inline(always)]
fn quarters() -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..16).map(|b| {
        (b, 128 * (b / 8) + 32 * (b / 2 % 4) + 16 * (b % 2), 32 * (b / 8) + 16 * (b % 2), 2 * (b / 2 % 4))
    })
}

#[inline(always)]
fn q2_k(b: &[u8; 84], q: &mut [i16; SUPER], mins: &mut [f32; 16]) -> f32 {
    let dmin = half(b, 82);
    for (sub, first, byte, shift) in quarters() {
        let scale = i16::from(b[sub] & 15);
        mins[first / 16] = dmin * f32::from(b[sub] >> 4);
        for l in 0..16 {
            q[first + l] = scale * i16::from(b[16 + byte + l] >> shift & 3);
        }
    }
    half(b, 80)
}

#[inline(always)]
fn q3_k(b: &[u8; 110], q: &mut [i16; SUPER], _: &mut [f32; 16]) -> f32 {
    let scales = q3_k_scales(&b[96..108]);
    for (sub, first, byte, shift) in quarters() {
        let scale = i16::from(scales[sub]);
        for l in 0..16 {
            let high = i16::from(b[byte % 32 + l] >> (sub / 2) & 1) * 4;
            q[first + l] = scale * (i16::from(b[32 + byte + l] >> shift & 3) + high - 4);
        }
    }
    half(b, 108)
}

#[inline(always)]
fn q45_k(b: &[u8], fifth: Option<&[u8]>, nibbles: &[u8], q: &mut [i16; SUPER], mins: &mut [f32; 16]) -> f32 {
    let dmin = half(b, 2);
    let (scales, m) = q45_k_scales(&b[4..16]);
    for (i, q) in q.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let (low, high) = q.split_at_mut(32);
        let (s0, s1) = (i16::from(scales[2 * i]), i16::from(scales[2 * i + 1]));
        let nibbles = &nibbles[32 * i..32 * i + 32];
        for l in 0..32 {
            let bits = fifth.map_or(0, |f| f[l] >> (2 * i));
            low[l] = s0 * i16::from(nibbles[l] & 15 | (bits & 1) << 4);
            high[l] = s1 * i16::from(nibbles[l] >> 4 | (bits >> 1 & 1) << 4);
        }
        for (mins, m) in mins[4 * i..4 * i + 4].as_chunks_mut::<2>().0.iter_mut().zip(&m[2 * i..]) {
            *mins = [dmin * f32::from(*m); 2];
        }
    }
    half(b, 0)
}

#[inline(always)]
fn q6_k(b: &[u8; 210], q: &mut [i16; SUPER]) -> f32 {
    for n in 0..2 {
        for quarter in 0..4 {
            for half in 0..2 {
                let scale = i16::from(b[192 + 8 * n + 2 * quarter + half] as i8);
                let (low, high) = (64 * n + 32 * (quarter % 2) + 16 * half, 128 + 32 * n + 16 * half);
                let (low, high) = (&b[low..low + 16], &b[high..high + 16]);
                let q = &mut q[128 * n + 32 * quarter + 16 * half..][..16];
                for l in 0..16 {
                    let code = low[l] >> (4 * (quarter / 2)) & 15 | (high[l] >> (2 * quarter) & 3) << 4;
                    q[l] = scale * (i16::from(code) - 32);
                }
            }
        }
    }
    half(b, 208)
}

/// Up to 8 entries of a grid with signs, times an integer scale.
#[inline(always)]
fn signed(q: &mut [i16], grid: &[u8], signs: u8, scale: i16) {
    for (j, (q, &g)) in q.iter_mut().zip(grid).enumerate() {
        let minus = -i16::from(signs >> j & 1);
        *q = ((i16::from(g) * scale) ^ minus) - minus;
    }
}

// The 2-bit formats have scales (0.5 + n) / 4 = (2n + 1) / 8, IQ3_XXS has (0.5 + n) / 2 = (2n + 1) / 4.

#[inline(always)]
fn iq2_xxs(b: &[u8; 66], q: &mut [i16; SUPER]) -> f32 {
    for (i, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let word = u32_at(b, 2 + 8 * i + 4);
        let scale = 2 * (word >> 28) as i16 + 1;
        for (l, q) in q.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = grids::IQ2_XXS[usize::from(b[2 + 8 * i + l])].to_le_bytes();
            signed(q, &grid, even_signs(word >> (7 * l)), scale);
        }
    }
    half(b, 0) * 0.125
}

/// The odd scale of group `l` (of four) of 32 elements, from nibbles that serve two groups each.
#[inline(always)]
fn odd_scale(nibbles: u8, l: usize) -> i16 {
    2 * i16::from(nibbles >> (4 * (l / 2)) & 15) + 1
}

#[inline(always)]
fn iq2_xs(b: &[u8; 74], q: &mut [i16; SUPER]) -> f32 {
    for (g, q) in q.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let code = u16_at(b, 2 + 2 * g);
        let grid = grids::IQ2_XS[usize::from(code & 511)].to_le_bytes();
        signed(q, &grid, even_signs(u32::from(code >> 9)), odd_scale(b[66 + g / 4], g % 4));
    }
    half(b, 0) * 0.125
}

#[inline(always)]
fn iq2_s(b: &[u8; 82], q: &mut [i16; SUPER]) -> f32 {
    for (g, q) in q.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = usize::from(b[66 + g / 4] >> (2 * (g % 4)) & 3);
        let grid = grids::IQ2_S[usize::from(b[2 + g]) | high << 8].to_le_bytes();
        signed(q, &grid, b[34 + g], odd_scale(b[74 + g / 4], g % 4));
    }
    half(b, 0) * 0.125
}

#[inline(always)]
fn iq3_xxs(b: &[u8; 98], q: &mut [i16; SUPER]) -> f32 {
    for (i, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let word = u32_at(b, 66 + 4 * i);
        let scale = 2 * (word >> 28) as i16 + 1;
        for (k, q) in q.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let grid = grids::IQ3_XXS[usize::from(b[2 + 8 * i + k])].to_le_bytes();
            signed(q, &grid, even_signs(word >> (7 * (k / 2))) >> (4 * (k % 2)), scale);
        }
    }
    half(b, 0) * 0.25
}

#[inline(always)]
fn iq3_s(b: &[u8; 110], q: &mut [i16; SUPER]) -> f32 {
    for (i, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = 2 * i16::from(b[106 + i / 2] >> (4 * (i % 2)) & 15) + 1;
        for (k, q) in q.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let high = usize::from(b[66 + i] >> k & 1);
            let grid = grids::IQ3_S[usize::from(b[2 + 8 * i + k]) | high << 8].to_le_bytes();
            signed(q, &grid, b[74 + 4 * i + k / 2] >> (4 * (k % 2)), scale);
        }
    }
    half(b, 0)
}

/// Eight elements of an IQ1 grid in eighths, so that δ = 1/8 is whole.
#[inline(always)]
fn iq1_group(q: &mut [i16; 8], index: usize, scale: i16, minus: bool) {
    let delta = if minus { -1 } else { 1 };
    let grid = grids::IQ1[index].to_le_bytes();
    q.iter_mut().zip(grid).for_each(|(q, g)| *q = scale * (8 * i16::from(g as i8) + delta));
}

#[inline(always)]
fn iq1_s(b: &[u8; 50], q: &mut [i16; SUPER]) -> f32 {
    for (i, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let high = u16_at(b, 34 + 2 * i);
        let scale = 2 * (high >> 12 & 7) as i16 + 1;
        for (l, q) in q.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(b[2 + 4 * i + l]) | usize::from(high >> (3 * l) & 7) << 8;
            iq1_group(q, index, scale, high >> 15 == 1);
        }
    }
    half(b, 0) * 0.125
}

#[inline(always)]
fn iq1_m(b: &[u8; 56], q: &mut [i16; SUPER]) -> f32 {
    for (g, q) in q.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let sub = g / 2;
        let scale = 2 * (u16_at(b, 48 + 2 * (sub / 4)) >> (3 * (sub % 4)) & 7) as i16 + 1;
        let nibble = b[32 + g / 2] >> (4 * (g % 2)) & 15;
        iq1_group(q, usize::from(b[g]) | usize::from(nibble & 7) << 8, scale, nibble & 8 != 0);
    }
    iq1_m_scale(&b[48..]) * 0.125
}

#[inline(always)]
fn iq4_xs(b: &[u8; 136], q: &mut [i16; SUPER]) -> f32 {
    let scales = iq4_xs_scales(b);
    for (i, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = i16::from(scales[i]);
        split(&b[8 + 16 * i..][..16], q, |n| scale * i16::from(IQ4[usize::from(n)]));
    }
    half(b, 0)
}

#[inline(always)]
fn tq1_0(b: &[u8; 54], q: &mut [i16; SUPER]) -> f32 {
    let mut at = 0;
    for (first, count, digits) in [(0, 32, 5), (32, 16, 5), (48, 4, 4)] {
        for n in 0..digits {
            for (&byte, q) in b[first..first + count].iter().zip(&mut q[at..at + count]) {
                *q = i16::from(trit(byte, n)) - 1;
            }
            at += count;
        }
    }
    half(b, 52)
}

#[inline(always)]
fn tq2_0(b: &[u8; 66], q: &mut [i16; SUPER]) -> f32 {
    for (i, q) in q.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (q, &byte) in q.iter_mut().zip(&b[i / 4 * 32..i / 4 * 32 + 32]) {
            *q = i16::from(byte >> (2 * (i % 4)) & 3) - 1;
        }
    }
    half(b, 64)
}
