//! f32 to blocks. Formats with scales search for those that lose least, in the sense of squared error.

mod search;
mod superblock;

use crate::{
    Format::{self, *},
    decode::E2M1_DOUBLED,
};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use search::{Codes, Residual};

/// True for the formats that [`encode`] can write: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K and
/// MXFP4.
pub fn can_encode(format: Format) -> bool {
    matches!(format, F32 | F16 | BF16 | Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q4_K | Q5_K | Q6_K | MXFP4)
}

/// Encodes `src` to the blocks in `dst`, so that the squared error of what decodes from them is small.
///
/// Every element counts the same; there is no importance matrix. The squared error as a share of that of ggml's
/// encoder (also without one; llama.cpp as in llama-cpp-sys-2 0.1.161), each over 256 rows of 1024 random weights:
///
/// | | gaussian | uniform | Laplace | Student t, 3 | 0.5% outliers | mean 1.5 σ |
/// |---|---|---|---|---|---|---|
/// | Q8_0 | 0.862 | 0.831 | 0.899 | 0.932 | 0.965 | 0.842 |
/// | Q4_0 | 0.888 | 0.829 | 0.913 | 0.936 | 0.958 | 0.855 |
/// | Q4_1 | 0.787 | 0.773 | 0.799 | 0.784 | 0.792 | 0.788 |
/// | Q5_0 | 0.880 | 0.814 | 0.916 | 0.947 | 0.971 | 0.861 |
/// | Q5_1 | 0.800 | 0.787 | 0.808 | 0.813 | 0.813 | 0.801 |
/// | Q4_K | 0.953 | 0.959 | 0.948 | 0.940 | 0.940 | 0.961 |
/// | Q5_K | 0.900 | 0.909 | 0.897 | 0.900 | 0.909 | 0.922 |
/// | Q6_K | 0.899 | 0.903 | 0.908 | 0.923 | 0.953 | 0.905 |
/// | MXFP4 | 0.955 | 1.000 | 0.942 | 0.944 | 0.947 | 0.929 |
///
/// Outliers are 15 times as large as the gaussian rest. F16 and BF16 round to the nearest, as ggml does. The bytes are
/// the same on every machine.
///
/// Finite values stay finite: what a format can't reach becomes the farthest that it can, and what is too small for
/// its smallest scale becomes zero. NaN and infinities stay what they are in the float formats; in all others the
/// whole block (of 32 or 256) becomes NaN, because zeros or large numbers in their place would hide the damage.
///
/// # Panics
///
/// If [`can_encode`] says no, if `src` isn't a whole number of blocks, or if `dst` isn't as long as they are.
pub fn encode(format: Format, src: &[f32], dst: &mut [u8]) {
    assert!(can_encode(format), "{format} can't be encoded");
    assert_eq!(format.bytes(src.len()), Some(dst.len()), "{format}: bytes for {} elements", src.len());
    match format {
        F32 => floats(src, dst, f32::to_le_bytes),
        F16 => f16_row(src, dst),
        BF16 => floats(src, dst, |v| bf16::from_f32(saturated(v, bf16::MAX.to_f32())).to_le_bytes()),
        Q8_0 => blocks(src, dst, 0, q8_0),
        Q4_0 => blocks(src, dst, 0, q4_0),
        Q4_1 => blocks(src, dst, 0, q4_1),
        Q5_0 => blocks(src, dst, 0, q5_0),
        Q5_1 => blocks(src, dst, 0, q5_1),
        Q4_K => blocks(src, dst, 0, superblock::q4_k),
        Q5_K => blocks(src, dst, 0, superblock::q5_k),
        Q6_K => blocks(src, dst, 208, superblock::q6_k),
        MXFP4 => blocks(src, dst, 0, mxfp4),
        _ => unreachable!("can_encode has it"),
    }
}

fn floats<const B: usize>(src: &[f32], dst: &mut [u8], one: impl Fn(f32) -> [u8; B]) {
    for (v, b) in src.iter().zip(dst.as_chunks_mut().0) {
        *b = one(*v);
    }
}

/// Half-precision values, converted many at a time where the processor can.
fn f16_row(src: &[f32], dst: &mut [u8]) {
    const TILE: usize = 64;
    let (mut tile, mut halves) = ([0.0; TILE], [f16::ZERO; TILE]);
    for (src, dst) in src.chunks(TILE).zip(dst.chunks_mut(2 * TILE)) {
        let (tile, halves) = (&mut tile[..src.len()], &mut halves[..src.len()]);
        src.iter().zip(&mut *tile).for_each(|(v, t)| *t = saturated(*v, f16::MAX.to_f32()));
        halves.convert_from_f32_slice(tile);
        halves.iter().zip(dst.as_chunks_mut().0).for_each(|(h, b)| *b = h.to_le_bytes());
    }
}

/// Finite values stay finite.
fn saturated(v: f32, max: f32) -> f32 {
    if v.is_finite() { v.clamp(-max, max) } else { v }
}

/// Encodes block after block of `N` elements and `B` bytes; one with elements that aren't finite becomes NaN by the
/// scale that lies at `scale_at`.
fn blocks<const N: usize, const B: usize>(
    src: &[f32],
    dst: &mut [u8],
    scale_at: usize,
    one: impl Fn(&[f32; N]) -> [u8; B],
) {
    for (x, b) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        if x.iter().all(|v| v.is_finite()) {
            *b = one(x);
        } else {
            *b = [0; B];
            b[scale_at..scale_at + 2].fill(0xff); // NaN as a half, and its first byte is NaN in MXFP4
        }
    }
}

/// A half near `v`, finite.
fn half(v: f32) -> f32 {
    f16::from_f32(saturated(v, f16::MAX.to_f32())).to_f32()
}

/// A half near a scale: finite, and zero for zero only, because the smallest scale still serves the largest elements.
fn half_scale(v: f32) -> f32 {
    let least = f16::MIN_POSITIVE_SUBNORMAL.to_f32();
    if v == 0.0 { 0.0 } else { half(v.abs().max(least)).copysign(v) }
}

/// The half next to a scale and not nearer to zero: with it, codes reach as far as with the scale itself.
fn half_above(v: f32) -> f32 {
    let near = f16::from_f32(half_scale(v));
    let above = if near.to_f32().abs() < v.abs() { f16::from_bits(near.to_bits() + 1) } else { near };
    if above.is_finite() { above.to_f32() } else { near.to_f32() }
}

fn put_half(b: &mut [u8], at: usize, v: f32) {
    b[at..at + 2].copy_from_slice(&f16::from_f32(v).to_le_bytes());
}

/// Beyond every format with halves as scales: what is larger saturates anyway, and squares of this stay finite.
const HUGE: f32 = 1e9;

fn within_reach<const N: usize>(x: &[f32; N]) -> [f32; N] {
    x.map(|v| v.clamp(-HUGE, HUGE))
}

/// The scale, a half, with which `codes` are closest to `x`.
fn block_scale(x: &[f32], codes: Codes) -> f32 {
    let (extreme, best) = (search::extreme(x), search::scale(x, codes));
    let candidates = [half_scale(best), half_scale(extreme / codes.lo), half_above(extreme / codes.hi)];
    least(candidates.map(|scale| (scale, 0.0)), x, codes).0
}

/// The scale and the minimum, halves, with which `codes` are closest to `x`.
fn block_scale_and_min(x: &[f32], codes: Codes) -> (f32, f32) {
    let (lowest, highest) = search::span(x);
    let (step, lowest) = ((highest - lowest) / codes.hi, half(lowest));
    let (scale, min) = search::scale_and_min(x, codes, f32::INFINITY);
    let min = half(min);
    let (change, _) = Residual::new(x, scale, min, codes).fit_scale();
    let candidates = [
        (half_scale(scale + change), min),
        (half_scale(scale), min),
        (half_scale(step), lowest),
        (half_above(step), lowest),
    ];
    least(candidates, x, codes)
}

/// The candidate (scale and minimum) that loses least.
fn least<const K: usize>(candidates: [(f32, f32); K], x: &[f32], codes: Codes) -> (f32, f32) {
    let error = |&(scale, min): &(f32, f32)| Residual::new(x, scale, min, codes).ee;
    candidates.into_iter().min_by(|a, b| error(a).total_cmp(&error(b))).expect("there are candidates")
}

/// The codes of `x`, counted from `codes.lo`.
fn put_codes(x: &[f32], scale: f32, min: f32, codes: Codes, out: &mut [u8]) {
    let inverse = search::inverse(scale);
    for (x, out) in x.iter().zip(out) {
        *out = (codes.nearest((x - min) * inverse) - codes.lo) as u8;
    }
}

fn coded(x: &[f32; 32], scale: f32, min: f32, codes: Codes) -> [u8; 32] {
    let mut q = [0; 32];
    put_codes(x, scale, min, codes, &mut q);
    q
}

/// Low nibbles of `codes` to `q`: byte j gets those of elements j and j + `q.len()`.
fn split_nibbles(codes: &[u8], q: &mut [u8]) {
    let (low, high) = codes.split_at(q.len());
    for ((q, low), high) in q.iter_mut().zip(low).zip(high) {
        *q = low & 15 | high << 4;
    }
}

/// Bit i is the fifth bit of code i.
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    codes.iter().enumerate().fold(0, |bits, (i, &q)| bits | u32::from(q >> 4) << i).to_le_bytes()
}

fn q8_0(x: &[f32; 32]) -> [u8; 34] {
    // Without -128, so that products may negate a code.
    let (x, codes) = (within_reach(x), Codes { lo: -127.0, hi: 127.0 });
    let d = block_scale(&x, codes);
    let mut b = [0; 34];
    put_half(&mut b, 0, d);
    for (b, q) in b[2..].iter_mut().zip(coded(&x, d, 0.0, codes)) {
        *b = q.wrapping_sub(127);
    }
    b
}

fn q4_0(x: &[f32; 32]) -> [u8; 18] {
    let (x, codes) = (within_reach(x), Codes { lo: -8.0, hi: 7.0 });
    let d = block_scale(&x, codes);
    let mut b = [0; 18];
    put_half(&mut b, 0, d);
    split_nibbles(&coded(&x, d, 0.0, codes), &mut b[2..]);
    b
}

fn q4_1(x: &[f32; 32]) -> [u8; 20] {
    let (x, codes) = (within_reach(x), Codes { lo: 0.0, hi: 15.0 });
    let (d, m) = block_scale_and_min(&x, codes);
    let mut b = [0; 20];
    put_half(&mut b, 0, d);
    put_half(&mut b, 2, m);
    split_nibbles(&coded(&x, d, m, codes), &mut b[4..]);
    b
}

fn q5_0(x: &[f32; 32]) -> [u8; 22] {
    let (x, codes) = (within_reach(x), Codes { lo: -16.0, hi: 15.0 });
    let d = block_scale(&x, codes);
    let q = coded(&x, d, 0.0, codes);
    let mut b = [0; 22];
    put_half(&mut b, 0, d);
    b[2..6].copy_from_slice(&fifth_bits(&q));
    split_nibbles(&q, &mut b[6..]);
    b
}

fn q5_1(x: &[f32; 32]) -> [u8; 24] {
    let (x, codes) = (within_reach(x), Codes { lo: 0.0, hi: 31.0 });
    let (d, m) = block_scale_and_min(&x, codes);
    let q = coded(&x, d, m, codes);
    let mut b = [0; 24];
    put_half(&mut b, 0, d);
    put_half(&mut b, 2, m);
    b[4..8].copy_from_slice(&fifth_bits(&q));
    split_nibbles(&q, &mut b[8..]);
    b
}

/// The E2M1 code nearest to `v`, halves to the even code.
fn e2m1_code(v: f32) -> u8 {
    // Between codes i and i + 1; codes of even number win ties.
    const MIDDLES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let v_abs = v.abs();
    let above = |(i, &middle): (usize, &f32)| v_abs > middle || v_abs == middle && i % 2 == 1;
    let code = MIDDLES.iter().enumerate().filter(|&m| above(m)).count() as u8;
    if v < 0.0 && code > 0 { code | 8 } else { code }
}

fn mxfp4(x: &[f32; 32]) -> [u8; 17] {
    // The scales around the one that brings the extreme to 4..8; 6 is the largest code. 2^125 is the largest scale
    // that stays finite times 6.
    let exponent = i32::from((search::extreme(x).abs().to_bits() >> 23) as u8) - 2;
    let attempt = |e: i32| {
        let e = e.clamp(0, 252);
        let inverse = f32::from_bits((254 - e as u32) << 23);
        let codes = x.map(|v| e2m1_code(v * inverse));
        let lost = |(v, code): (&f32, &u8)| v * inverse - 0.5 * f32::from(E2M1_DOUBLED[usize::from(*code)]);
        let error: f32 = x.iter().zip(&codes).map(lost).map(|lost| lost * lost).sum();
        // In units of one and the same scale: squares of the elements themselves could vanish or overflow.
        (error * 4f32.powi(e - exponent), e, codes)
    };
    let attempts = [exponent, exponent + 1, exponent - 1].map(attempt);
    let (_, e, codes) = attempts.iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are attempts");
    let mut b = [0; 17];
    b[0] = *e as u8;
    split_nibbles(codes, &mut b[1..]);
    b
}
