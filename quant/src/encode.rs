//! f32 to blocks.
//!
//! Each block is a small least-squares problem: which codes, and which scale (and minimum), lose least. The codes
//! that a scale implies are found by rounding, the scale that given codes imply by solving for it; a few starts
//! around the plain one, each refined this way, find a better pair than rounding once. There is no importance
//! matrix: a model's own weights are all that is known here.

use half::{bf16, f16};

use crate::Format;
use crate::decode::{E2M1_DOUBLED, e8m0_half};

/// Whether [`encode`] knows the format.
pub fn can_encode(format: Format) -> bool {
    use Format::*;
    matches!(format, F32 | F16 | BF16 | Q8_0 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q4_K | Q5_K | Q6_K | MXFP4)
}

/// Encodes `src` to blocks in `dst`. Elements that aren't finite count as 0 in formats with scales, and a scale
/// that half precision can't hold is taken for the largest that it can.
///
/// # Panics
/// If `dst` isn't exactly the blocks of `src.len()` elements, or [`can_encode`] says no.
pub fn encode(format: Format, src: &[f32], dst: &mut [u8]) {
    assert_eq!(format.bytes(src.len()), Some(dst.len()), "{} elements of {format}", src.len());
    match format {
        Format::F32 => each(src, dst, f32::to_le_bytes),
        Format::F16 => each(src, dst, |x| f16::from_f32(x).to_le_bytes()),
        Format::BF16 => each(src, dst, |x| bf16::from_f32(x).to_le_bytes()),
        Format::Q8_0 => blocks::<32, 34>(src, dst, q8_0),
        Format::Q4_0 => blocks::<32, 18>(src, dst, |x, b| {
            let (d, q) = symmetric(x, -8, 7);
            put_half(b, 0, d);
            nibbles(&q.map(|q| (q + 8) as u8), &mut b[2..]);
        }),
        Format::Q5_0 => blocks::<32, 22>(src, dst, |x, b| {
            let (d, q) = symmetric(x, -16, 15);
            put_half(b, 0, d);
            five_bits(&q.map(|q| (q + 16) as u8), &mut b[2..]);
        }),
        Format::Q4_1 => blocks::<32, 20>(src, dst, |x, b| {
            let Affine { scale, min, q } = affine(x, 15, round_half);
            put_half(b, 0, scale);
            put_half(b, 2, min);
            nibbles(&q, &mut b[4..]);
        }),
        Format::Q5_1 => blocks::<32, 24>(src, dst, |x, b| {
            let Affine { scale, min, q } = affine(x, 31, round_half);
            put_half(b, 0, scale);
            put_half(b, 2, min);
            five_bits(&q, &mut b[4..]);
        }),
        Format::MXFP4 => blocks::<32, 17>(src, dst, mxfp4),
        Format::Q4_K => blocks::<256, 144>(src, dst, |x, b| {
            for (i, q) in affine_super(x, 15, b).as_chunks::<64>().0.iter().enumerate() {
                (0..32).for_each(|l| b[16 + 32 * i + l] = q[l] | q[l + 32] << 4);
            }
        }),
        Format::Q5_K => blocks::<256, 176>(src, dst, |x, b| {
            b[16..48].fill(0);
            for (i, q) in affine_super(x, 31, b).as_chunks::<64>().0.iter().enumerate() {
                for l in 0..32 {
                    b[48 + 32 * i + l] = q[l] & 15 | (q[l + 32] & 15) << 4;
                    b[16 + l] |= (q[l] >> 4) << (2 * i) | (q[l + 32] >> 4) << (2 * i + 1);
                }
            }
        }),
        Format::Q6_K => blocks::<256, 210>(src, dst, q6_k),
        other => panic!("{other} can't be encoded"),
    }
}

fn each<const N: usize>(src: &[f32], dst: &mut [u8], f: impl Fn(f32) -> [u8; N]) {
    src.iter().zip(dst.as_chunks_mut().0).for_each(|(&x, b)| *b = f(x));
}

/// Calls `f` for every block, with what isn't finite set to 0.
fn blocks<const LEN: usize, const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    f: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    for (x, b) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        f(&x.map(|x: f32| if x.is_finite() { x } else { 0.0 }), b);
    }
}

fn round_half(x: f32) -> f32 {
    f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f32()
}

fn put_half(b: &mut [u8], at: usize, x: f32) {
    b[at..at + 2].copy_from_slice(&f16::from_f32(x.clamp(-65504.0, 65504.0)).to_le_bytes());
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { (1.0 / x).clamp(f32::MIN, f32::MAX) }
}

/// Low nibbles are the first half of the codes, high nibbles the second.
fn nibbles(q: &[u8; 32], b: &mut [u8]) {
    (0..16).for_each(|j| b[j] = q[j] & 15 | q[j + 16] << 4);
}

fn five_bits(q: &[u8; 32], b: &mut [u8]) {
    let high = q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
    b[..4].copy_from_slice(&high.to_le_bytes());
    nibbles(q, &mut b[4..]);
}

fn q8_0(x: &[f32; 32], b: &mut [u8; 34]) {
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    // Rounded against the scale that will be read back, not the exact one.
    let d = round_half(largest / 127.0);
    put_half(b, 0, d);
    let factor = inverse(d);
    b[2..]
        .iter_mut()
        .zip(x)
        .for_each(|(b, x)| *b = (x * factor).round_ties_even().clamp(-127.0, 127.0) as i8 as u8);
}

/// Σ (x − scale q)² as far as it depends on the scale, negated: larger is better.
fn gain(x: &[f32], q: &[i32], scale: f32) -> f64 {
    let (xq, qq) = moments(x, q);
    f64::from(scale) * (2.0 * xq - f64::from(scale) * qq)
}

fn moments(x: &[f32], q: &[i32]) -> (f64, f64) {
    x.iter().zip(q).fold((0.0, 0.0), |(xq, qq), (&x, &q)| {
        (xq + f64::from(x) * f64::from(q), qq + f64::from(q) * f64::from(q))
    })
}

/// Codes from `low` to `high` and a half-precision scale.
fn symmetric<const N: usize>(x: &[f32; N], low: i32, high: i32) -> (f32, [i32; N]) {
    symmetric_with(x, low, high, round_half)
}

/// Codes and a scale that `representable` leaves as it is. The largest element takes the lowest code, which has no
/// positive twin, or a little less or more.
fn symmetric_with<const N: usize>(
    x: &[f32; N],
    low: i32,
    high: i32,
    representable: impl Fn(f32) -> f32,
) -> (f32, [i32; N]) {
    let largest = x.iter().copied().fold(0f32, |m, x| if x.abs() > m.abs() { x } else { m });
    let codes = |scale: f32| {
        let factor = inverse(scale);
        x.map(|x| ((x * factor).round_ties_even() as i32).clamp(low, high))
    };
    let mut best = (0.0, [0; N]);
    let mut best_gain = 0.0;
    for step in -12..=12 {
        let mut scale = representable(largest / (low as f32 + 0.1 * step as f32));
        // Solve for the scale with these codes, and round again: converges in a step or two.
        for _ in 0..3 {
            let q = codes(scale);
            let (xq, qq) = moments(x, &q);
            if qq == 0.0 {
                break;
            }
            let q_gain = gain(x, &q, scale);
            if q_gain > best_gain {
                (best, best_gain) = ((scale, q), q_gain);
            }
            let solved = representable((xq / qq) as f32);
            if solved == scale {
                break;
            }
            scale = solved;
            let q_gain = gain(x, &q, scale);
            if q_gain > best_gain {
                (best, best_gain) = ((scale, q), q_gain);
            }
        }
    }
    best
}

/// Codes, scale and minimum: x ≈ scale q + min.
struct Affine<const N: usize> {
    scale: f32,
    min: f32,
    q: [u8; N],
}

fn affine_codes<const N: usize>(x: &[f32; N], scale: f32, min: f32, top: u8) -> [u8; N] {
    let factor = inverse(scale);
    x.map(|x| ((x - min) * factor).round_ties_even().clamp(0.0, f32::from(top)) as u8)
}

fn affine_error<const N: usize>(x: &[f32; N], q: &[u8; N], scale: f32, min: f32) -> f64 {
    x.iter().zip(q).map(|(x, &q)| f64::from(x - (scale * f32::from(q) + min)).powi(2)).sum()
}

/// The scale and minimum that fit given codes best.
fn fit<const N: usize>(x: &[f32; N], q: &[u8; N]) -> Option<(f32, f32)> {
    let (mut sq, mut sqq, mut sx, mut sxq) = (0f64, 0f64, 0f64, 0f64);
    for (&x, &q) in x.iter().zip(q) {
        let (x, q) = (f64::from(x), f64::from(q));
        (sq, sqq, sx, sxq) = (sq + q, sqq + q * q, sx + x, sxq + x * q);
    }
    let n = N as f64;
    let determinant = n * sqq - sq * sq;
    (determinant > 0.0)
        .then(|| (((n * sxq - sq * sx) / determinant) as f32, ((sqq * sx - sq * sxq) / determinant) as f32))
}

/// Codes from 0 to `top`, with a scale and a minimum that `representable` leaves as they are.
fn affine<const N: usize>(x: &[f32; N], top: u8, representable: impl Fn(f32) -> f32) -> Affine<N> {
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let plain = Affine { scale: 0.0, min: representable(low), q: [0; N] };
    let mut best_error = affine_error(x, &plain.q, 0.0, plain.min);
    let mut best = plain;
    for step in 0..16 {
        let range = f32::from(top) - 1.0 + 0.125 * step as f32;
        let (mut scale, mut min) = (representable((high - low) / range), representable(low));
        for _ in 0..3 {
            let q = affine_codes(x, scale, min, top);
            let error = affine_error(x, &q, scale, min);
            if error < best_error {
                (best, best_error) = (Affine { scale, min, q }, error);
            }
            let Some((s, m)) = fit(x, &q) else { break };
            (scale, min) = (representable(s), representable(m));
        }
    }
    best
}

/// The codes of Q4_K and Q5_K: eight sub-blocks whose scales and (never positive) minima are 6-bit multiples of
/// two half-precision numbers. Writes those to the first 16 bytes.
fn affine_super(x: &[f32; 256], top: u8, b: &mut [u8]) -> [u8; 256] {
    let subs = x.as_chunks::<32>().0;
    let exact: Vec<(f32, f32)> = subs
        .iter()
        .map(|x| {
            let Affine { scale, min, .. } = affine(x, top, |v| v);
            if min <= 0.0 {
                (scale, -min)
            } else {
                (x.iter().copied().fold(0f32, f32::max) / f32::from(top), 0.0)
            }
        })
        .collect();
    let largest = |f: fn(&(f32, f32)) -> f32| exact.iter().map(f).fold(0f32, f32::max);
    let (most_scale, most_min) = (largest(|e| e.0), largest(|e| e.1));
    let mut best_error = f64::INFINITY;
    let mut best = (0.0, 0.0, [0u8; 8], [0u8; 8], [0u8; 256]);
    for step in 0..4 {
        let d = round_half(most_scale / (63.0 - 2.0 * step as f32));
        let dmin = round_half(most_min / 63.0);
        let (mut scales, mut mins, mut q, mut error) = ([0u8; 8], [0u8; 8], [0u8; 256], 0.0);
        for (s, x) in subs.iter().enumerate() {
            let near =
                |exact: f32, unit: f32| (exact * inverse(unit)).round_ties_even().clamp(0.0, 63.0) as i32;
            let centre = (near(exact[s].0, d), near(exact[s].1, dmin));
            let mut best_sub = f64::INFINITY;
            for scale in (centre.0 - 1).max(0)..=(centre.0 + 1).min(63) {
                for min in (centre.1 - 1).max(0)..=(centre.1 + 1).min(63) {
                    let (sc, mn) = (d * scale as f32, dmin * min as f32);
                    let codes = affine_codes(x, sc, -mn, top);
                    let e = affine_error(x, &codes, sc, -mn);
                    if e < best_sub {
                        best_sub = e;
                        (scales[s], mins[s]) = (scale as u8, min as u8);
                        q[32 * s..32 * s + 32].copy_from_slice(&codes);
                    }
                }
            }
            error += best_sub;
        }
        if error < best_error {
            (best, best_error) = ((d, dmin, scales, mins, q), error);
        }
    }
    let (d, dmin, scales, mins, q) = best;
    put_half(b, 0, d);
    put_half(b, 2, dmin);
    for j in 0..4 {
        b[4 + j] = scales[j] | scales[j + 4] >> 4 << 6;
        b[8 + j] = mins[j] | mins[j + 4] >> 4 << 6;
        b[12 + j] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
    q
}

fn q6_k(x: &[f32; 256], b: &mut [u8; 210]) {
    let subs = x.as_chunks::<16>().0;
    let exact: Vec<f32> = subs.iter().map(|x| symmetric_with(x, -32, 31, |v| v).0).collect();
    let largest = exact.iter().copied().fold(0f32, |m, s| if s.abs() > m.abs() { s } else { m });
    let mut best_error = f64::INFINITY;
    let mut best = (0.0, [0i8; 16], [0u8; 256]);
    for step in 0..4 {
        let d = round_half(largest / (-128.0 + 2.0 * step as f32));
        let (mut scales, mut q, mut error) = ([0i8; 16], [0u8; 256], 0.0);
        for (s, x) in subs.iter().enumerate() {
            let centre = (exact[s] * inverse(d)).round_ties_even().clamp(-128.0, 127.0) as i32;
            let mut best_sub = f64::INFINITY;
            for scale in (centre - 1).max(-128)..=(centre + 1).min(127) {
                let step = d * scale as f32;
                let factor = inverse(step);
                let codes = x.map(|x| (x * factor).round_ties_even().clamp(-32.0, 31.0));
                let e = x.iter().zip(&codes).map(|(x, q)| f64::from(x - step * q).powi(2)).sum::<f64>();
                if e < best_sub {
                    best_sub = e;
                    scales[s] = scale as i8;
                    q[16 * s..16 * s + 16].copy_from_slice(&codes.map(|q| (q as i32 + 32) as u8));
                }
            }
            error += best_sub;
        }
        if error < best_error {
            (best, best_error) = ((d, scales, q), error);
        }
    }
    let (d, scales, q) = best;
    for n in 0..2 {
        for l in 0..32 {
            let code = |quarter: usize| q[128 * n + 32 * quarter + l];
            b[64 * n + l] = code(0) & 15 | (code(2) & 15) << 4;
            b[64 * n + 32 + l] = code(1) & 15 | (code(3) & 15) << 4;
            b[128 + 32 * n + l] =
                (0..4).fold(0, |bits, quarter| bits | (code(quarter) >> 4) << (2 * quarter));
        }
    }
    b[192..208].copy_from_slice(&scales.map(|s| s as u8));
    put_half(b, 208, d);
}

fn mxfp4(x: &[f32; 32], b: &mut [u8; 17]) {
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    // The largest element at the largest code, 6, and the powers of two around it.
    let centre = if largest > 0.0 { (largest / 6.0).log2().ceil() as i32 + 127 } else { 0 };
    let mut best_error = f64::INFINITY;
    for e in centre - 2..=centre + 1 {
        let e = e.clamp(0, 254) as u8;
        let d = e8m0_half(e);
        let q = x.map(|x| nearest_e2m1(x * 0.5 / d));
        let value = |q: u8| d * f32::from(E2M1_DOUBLED[usize::from(q)]);
        let error =
            x.iter().zip(&q).map(|(&x, &q)| (f64::from(x) - f64::from(value(q))).powi(2)).sum::<f64>();
        if error < best_error {
            best_error = error;
            b[0] = e;
            nibbles(&q, &mut b[1..]);
        }
    }
}

/// The 4-bit float nearest to x.
fn nearest_e2m1(x: f32) -> u8 {
    const BETWEEN: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = BETWEEN.iter().filter(|&&b| x.abs() > b).count() as u8;
    if x < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}
