//! Super-blocks whose codes are entries of grids, to bytes.

use std::arch::aarch64::*;

use super::lanes::half;
use super::unfold::{Row, bits_of};
use crate::decode::{iq1_m_scale, pair, two_signs, u16_at, u32_at};
use crate::grids;

/// 16 entries of grids, with a minus where `signs` has a bit.
#[inline]
#[target_feature(enable = "neon")]
fn signed(grids: [u64; 2], signs: u16) -> uint8x16_t {
    let (grid, minus) = (vcombine_u8(vcreate_u8(grids[0]), vcreate_u8(grids[1])), bits_of(signs));
    vsubq_u8(veorq_u8(grid, minus), minus)
}

/// `2n + 1` of the low four bits: scales are those times a power of two.
#[inline]
fn odd(n: u8) -> f32 {
    f32::from(2 * (n & 15) + 1)
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq2_xxs(b: &[u8; 66], to: &mut Row) {
    let d = half(b, 0) * 0.125;
    for k in 0..16 {
        let at = 2 + 8 * (k / 2);
        let (word, first) = (u32_at(b, at + 4), 2 * (k % 2));
        let grid = |l: usize| grids::IQ2_XXS[usize::from(b[at + l])];
        to.scales[k / 2] = d * odd((word >> 28) as u8);
        to.put(
            k,
            signed([grid(first), grid(first + 1)], two_signs(word >> (7 * first), word >> (7 * first + 7))),
        );
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq2_xs(b: &[u8; 74], to: &mut Row) {
    let d = half(b, 0) * 0.125;
    for k in 0..16 {
        let codes = [u16_at(b, 2 + 4 * k), u16_at(b, 4 + 4 * k)];
        let signs = two_signs(u32::from(codes[0] >> 9), u32::from(codes[1] >> 9));
        to.scales[k] = d * odd(b[66 + k / 2] >> (4 * (k % 2)));
        to.put(k, signed(codes.map(|c| grids::IQ2_XS[usize::from(c & 511)]), signs));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq2_s(b: &[u8; 82], to: &mut Row) {
    let d = half(b, 0) * 0.125;
    for k in 0..16 {
        let grid = |g: usize| {
            let high = usize::from(b[66 + g / 4] >> (2 * (g % 4)) & 3);
            grids::IQ2_S[usize::from(b[2 + g]) | high << 8]
        };
        to.scales[k] = d * odd(b[74 + k / 2] >> (4 * (k % 2)));
        to.put(k, signed([grid(2 * k), grid(2 * k + 1)], u16_at(b, 34 + 2 * k)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq3_xxs(b: &[u8; 98], to: &mut Row) {
    let d = half(b, 0) * 0.25;
    for k in 0..16 {
        let (word, first) = (u32_at(b, 66 + 4 * (k / 2)), 2 * (k % 2));
        let grid = |i: usize| grids::IQ3_XXS[usize::from(b[2 + 4 * k + i])];
        let grids = [pair(grid(0), grid(1)), pair(grid(2), grid(3))];
        to.scales[k / 2] = d * odd((word >> 28) as u8);
        to.put(k, signed(grids, two_signs(word >> (7 * first), word >> (7 * first + 7))));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq3_s(b: &[u8; 110], to: &mut Row) {
    let d = half(b, 0);
    for k in 0..16 {
        let grid = |i: usize| {
            let high = usize::from(b[66 + k / 2] >> (4 * (k % 2) + i) & 1);
            grids::IQ3_S[usize::from(b[2 + 4 * k + i]) | high << 8]
        };
        let grids = [pair(grid(0), grid(1)), pair(grid(2), grid(3))];
        to.scales[k / 2] = d * odd(b[106 + k / 4] >> (4 * (k / 2 % 2)));
        to.put(k, signed(grids, u16_at(b, 74 + 2 * k)));
    }
}

/// 16 elements of an IQ1 grid in eighths, so that δ = 1/8 is whole.
#[inline]
#[target_feature(enable = "neon")]
fn eighths(indices: [usize; 2], minus: [bool; 2]) -> uint8x16_t {
    let [first, second] = indices.map(|i| vcreate_u8(grids::IQ1[i]));
    let delta = minus.map(|m| vdup_n_u8(if m { u8::MAX } else { 1 }));
    vaddq_u8(vshlq_n_u8::<3>(vcombine_u8(first, second)), vcombine_u8(delta[0], delta[1]))
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq1_s(b: &[u8; 50], to: &mut Row) {
    let d = half(b, 0) * 0.125;
    for k in 0..16 {
        let high = u16_at(b, 34 + 2 * (k / 2));
        let index = |l: usize| usize::from(b[2 + 4 * (k / 2) + l]) | usize::from(high >> (3 * l) & 7) << 8;
        let first = 2 * (k % 2);
        to.scales[k / 2] = d * odd((high >> 12 & 7) as u8);
        to.put(k, eighths([index(first), index(first + 1)], [high >> 15 == 1; 2]));
    }
}

#[inline]
#[target_feature(enable = "neon")]
pub(super) fn iq1_m(b: &[u8; 56], to: &mut Row) {
    let d = iq1_m_scale(&b[48..]) * 0.125;
    for k in 0..16 {
        let scale = u16_at(b, 48 + 2 * (k / 4)) >> (3 * (k % 4)) & 7;
        let nibbles = [b[32 + k] & 15, b[32 + k] >> 4];
        let index = |i: usize| usize::from(b[2 * k + i]) | usize::from(nibbles[i] & 7) << 8;
        to.scales[k] = d * odd(scale as u8);
        to.put(k, eighths([index(0), index(1)], nibbles.map(|n| n & 8 != 0)));
    }
}
