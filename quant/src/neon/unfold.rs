//! Blocks to bytes: what a product needs of a weight row, in a form that is the same for all formats.
//!
//! `w[i] = scale · code[i] − min`: a code is a signed byte; each 16 or 32 elements have a scale, and each 16 a minimum.
//!
//! `shared/spec/k3.md`, section 11, has the layouts.

use std::arch::aarch64::*;

use super::grids::*;
use super::lanes::{bytes, half, put};
use crate::Format;
use crate::decode::{E2M1_DOUBLED, IQ4, e8m0_half, iq4_xs_scales, q3_k_scales, q45_k_scales, u32_at};

/// Elements that are unfolded together: a super-block, or eight blocks of 32.
pub(super) const SUPER: usize = 256;

/// [`SUPER`] elements of a row, or fewer.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Row {
    /// In their order, 16 in a register.
    pub(super) codes: [int8x16_t; SUPER / 16],
    /// For every 16 elements, or for every 32.
    pub(super) scales: [f32; SUPER / 16],
    /// For every 16 elements, if the format has minima.
    pub(super) mins: [f32; SUPER / 16],
}

impl Row {
    #[target_feature(enable = "neon")]
    pub(super) fn new() -> Row {
        Row { codes: [vdupq_n_s8(0); 16], scales: [0.0; 16], mins: [0.0; 16] }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    pub(super) fn put(&mut self, k: usize, codes: uint8x16_t) {
        self.codes[k] = vreinterpretq_s8_u8(codes);
    }
}

/// Whether every 16 elements have a scale of their own, and not every 32.
pub(super) fn has_sixteen(format: Format) -> bool {
    use Format::*;
    matches!(format, Q2_K | Q3_K | Q6_K | IQ2_XS | IQ2_S | IQ1_M)
}

/// Unfolds up to [`SUPER`] elements, given as whole blocks. Not inlined: the compiler would work out in the caller's loop
/// what each of the formats might need.
#[inline(never)]
#[target_feature(enable = "neon")]
pub(super) fn unfold(format: Format, w: &[u8], to: &mut Row) {
    use Format::*;
    match format {
        Q8_0 => small(w, to, |b: &[u8; 34]| (half(b, 0), 0.0, [bytes(b, 2), bytes(b, 18)])),
        Q4_0 => small(w, to, |b: &[u8; 18]| (half(b, 0), 0.0, less(nibbles(bytes(b, 2)), 8))),
        Q4_1 => small(w, to, |b: &[u8; 20]| (half(b, 0), -half(b, 2), nibbles(bytes(b, 4)))),
        Q5_0 => {
            small(w, to, |b: &[u8; 22]| (half(b, 0), 0.0, less(five_bits(bytes(b, 6), u32_at(b, 2)), 16)))
        }
        Q5_1 => small(w, to, |b: &[u8; 24]| (half(b, 0), -half(b, 2), five_bits(bytes(b, 8), u32_at(b, 4)))),
        IQ4_NL => small(w, to, |b: &[u8; 18]| (half(b, 0), 0.0, table(bytes(b, 2), &IQ4))),
        MXFP4 => small(w, to, |b: &[u8; 17]| (e8m0_half(b[0]), 0.0, table(bytes(b, 1), &E2M1_DOUBLED))),
        Q2_K => q2_k(block(w), to),
        Q3_K => q3_k(block(w), to),
        Q4_K => q4_k(block(w), to),
        Q5_K => q5_k(block(w), to),
        Q6_K => q6_k(block(w), to),
        IQ4_XS => iq4_xs(block(w), to),
        IQ2_XXS => iq2_xxs(block(w), to),
        IQ2_XS => iq2_xs(block(w), to),
        IQ2_S => iq2_s(block(w), to),
        IQ3_XXS => iq3_xxs(block(w), to),
        IQ3_S => iq3_s(block(w), to),
        IQ1_S => iq1_s(block(w), to),
        IQ1_M => iq1_m(block(w), to),
        _ => unreachable!("no such product"),
    }
}

fn block<const BYTES: usize>(w: &[u8]) -> &[u8; BYTES] {
    w.try_into().expect("a super-block")
}

/// Blocks of 32 elements; `f` gives the scale, the minimum and the codes of one.
#[inline]
#[target_feature(enable = "neon")]
fn small<const BYTES: usize>(
    w: &[u8],
    to: &mut Row,
    f: impl Fn(&[u8; BYTES]) -> (f32, f32, [uint8x16_t; 2]),
) {
    let blocks = w.as_chunks().0;
    // What a shorter last part leaves out is multiplied with zeros, and so must be numbers.
    to.mins[2 * blocks.len()..].fill(0.0);
    for (i, b) in blocks.iter().enumerate() {
        let (scale, min, codes) = f(b);
        to.scales[i] = scale;
        (to.mins[2 * i], to.mins[2 * i + 1]) = (min, min);
        to.put(2 * i, codes[0]);
        to.put(2 * i + 1, codes[1]);
    }
}

/// The 32 nibbles of 16 bytes, the low ones first.
#[inline]
#[target_feature(enable = "neon")]
fn nibbles(packed: uint8x16_t) -> [uint8x16_t; 2] {
    [vandq_u8(packed, vdupq_n_u8(15)), vshrq_n_u8::<4>(packed)]
}

#[inline]
#[target_feature(enable = "neon")]
fn less(codes: [uint8x16_t; 2], offset: u8) -> [uint8x16_t; 2] {
    codes.map(|c| vsubq_u8(c, vdupq_n_u8(offset)))
}

/// The values that a table gives to 32 nibbles.
#[inline]
#[target_feature(enable = "neon")]
fn table(packed: uint8x16_t, values: &[i8; 16]) -> [uint8x16_t; 2] {
    let values = bytes(&values.map(|v| v as u8), 0);
    nibbles(packed).map(|n| vqtbl1q_u8(values, n))
}

/// All ones in the lanes whose bit is set.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn bits_of(bits: u16) -> uint8x16_t {
    const OWN: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    let [low, high] = bits.to_le_bytes();
    vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), bytes(&OWN, 0))
}

#[inline]
#[target_feature(enable = "neon")]
fn five_bits(packed: uint8x16_t, bits: u32) -> [uint8x16_t; 2] {
    let [low, high] = nibbles(packed);
    let fifth = |bits| vandq_u8(bits_of(bits), vdupq_n_u8(16));
    [vorrq_u8(low, fifth(bits as u16)), vorrq_u8(high, fifth((bits >> 16) as u16))]
}

/// Eight signed bytes times a number.
#[inline]
#[target_feature(enable = "neon")]
fn times(scales: int8x8_t, d: f32) -> [float32x4_t; 2] {
    let wide = vmovl_s8(scales);
    let [low, high] = [vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)];
    [vmulq_n_f32(vcvtq_f32_s32(low), d), vmulq_n_f32(vcvtq_f32_s32(high), d)]
}

#[inline]
#[target_feature(enable = "neon")]
fn put_eight(to: &mut [f32; 16], at: usize, scales: int8x8_t, d: f32) {
    let [low, high] = times(scales, d);
    put(to, at, low);
    put(to, at + 4, high);
}

#[inline]
#[target_feature(enable = "neon")]
fn put_sixteen(to: &mut [f32; 16], scales: int8x16_t, d: f32) {
    put_eight(to, 0, vget_low_s8(scales), d);
    put_eight(to, 8, vget_high_s8(scales), d);
}

/// Fields of two bits, at `2 * field`, of 16 bytes.
#[inline]
#[target_feature(enable = "neon")]
fn two_bits(packed: uint8x16_t, field: usize) -> uint8x16_t {
    vandq_u8(vshlq_u8(packed, vdupq_n_s8(-2 * field as i8)), vdupq_n_u8(3))
}

/// Lanes of `value` where the bytes have the bit, and zeros elsewhere.
#[inline]
#[target_feature(enable = "neon")]
fn where_bit(packed: uint8x16_t, bit: usize, value: u8) -> uint8x16_t {
    vandq_u8(vtstq_u8(packed, vdupq_n_u8(1 << bit)), vdupq_n_u8(value))
}

#[inline]
#[target_feature(enable = "neon")]
fn q2_k(b: &[u8; 84], to: &mut Row) {
    let [scales, mins] = nibbles(bytes(b, 0)).map(|n| vreinterpretq_s8_u8(n));
    put_sixteen(&mut to.scales, scales, half(b, 80));
    put_sixteen(&mut to.mins, mins, half(b, 82));
    for k in 0..16 {
        to.put(k, two_bits(bytes(b, 16 + 32 * (k / 8) + 16 * (k % 2)), k / 2 % 4));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn q3_k(b: &[u8; 110], to: &mut Row) {
    let scales = vreinterpretq_s8_u8(bytes(&q3_k_scales(&b[96..108]).map(|s| s as u8), 0));
    put_sixteen(&mut to.scales, scales, half(b, 108));
    for k in 0..16 {
        let low = two_bits(bytes(b, 32 + 32 * (k / 8) + 16 * (k % 2)), k / 2 % 4);
        // The third bit is kept inverted: without it, 4 is taken off.
        let third = where_bit(bytes(b, 16 * (k % 2)), k / 2, 4);
        to.put(k, vsubq_u8(vorrq_u8(low, third), vdupq_n_u8(4)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn q45_k(b: &[u8], to: &mut Row) {
    let [scales, mins] = q45_k_scales(b).map(|s| vcreate_s8(s));
    put_eight(&mut to.scales, 0, scales, half(b, 0));
    // Each minimum stands for 32 elements, and so for two of the sums.
    for (i, mins) in times(mins, half(b, 2)).into_iter().enumerate() {
        put(&mut to.mins, 8 * i, vzip1q_f32(mins, mins));
        put(&mut to.mins, 8 * i + 4, vzip2q_f32(mins, mins));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn q4_k(b: &[u8; 144], to: &mut Row) {
    q45_k(b, to);
    for i in 0..8 {
        let [low, high] = nibbles(bytes(b, 16 + 16 * i));
        let k = 4 * (i / 2) + i % 2;
        to.put(k, low);
        to.put(k + 2, high);
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn q5_k(b: &[u8; 176], to: &mut Row) {
    q45_k(b, to);
    for i in 0..8 {
        let [low, high] = nibbles(bytes(b, 48 + 16 * i));
        let (k, bits) = (4 * (i / 2) + i % 2, bytes(b, 16 + 16 * (i % 2)));
        to.put(k, vorrq_u8(low, where_bit(bits, k / 2, 16)));
        to.put(k + 2, vorrq_u8(high, where_bit(bits, k / 2 + 1, 16)));
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn q6_k(b: &[u8; 210], to: &mut Row) {
    put_sixteen(&mut to.scales, vreinterpretq_s8_u8(bytes(b, 192)), half(b, 208));
    for i in 0..8 {
        let low = nibbles(bytes(b, 16 * i));
        let (n, first) = (i / 4, i % 4);
        let high = bytes(b, 128 + 32 * n + 16 * (first % 2));
        for (upper, low) in low.into_iter().enumerate() {
            let quarter = first / 2 + 2 * upper;
            let code = vorrq_u8(low, vshlq_n_u8::<4>(two_bits(high, quarter)));
            to.put(8 * n + 2 * quarter + first % 2, vsubq_u8(code, vdupq_n_u8(32)));
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn iq4_xs(b: &[u8; 136], to: &mut Row) {
    let scales = vcreate_s8(u64::from_le_bytes(iq4_xs_scales(b).map(|s| s as u8)));
    put_eight(&mut to.scales, 0, scales, half(b, 0));
    for c in 0..8 {
        let [low, high] = table(bytes(b, 8 + 16 * c), &IQ4);
        to.put(2 * c, low);
        to.put(2 * c + 1, high);
    }
}
