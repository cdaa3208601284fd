//! Q8 and Q4: a row is a step and small integers, and an element is their product.
//!
//! Steps have few significant bits, so that a code times a step is exact in f32. A row that was decoded is therefore
//! the very multiples of its step, and is found to be when it is encoded again.

use super::{
    Damaged, WRONG_SIZE,
    section::{Reader, Writer},
};
use crate::activation::round;

/// The largest code.
const LARGEST: f32 = 127.0;

/// The step of Q4 as a share of the row's mean |x|, before it is rounded up: with it, gaussian rows of 128 take as
/// many bytes as 4-bit codes and a 16-bit scale would.
const Q4_STEP: f64 = 0.292;

/// Elements of Q4 whose codes are compressed together, more if a row has more: what zstd takes as one block.
const TILE: usize = 128 << 10;

/// Half the least step, 2^−143.
const LEAST_HALF: f32 = f32::from_bits(1 << 6);

/// The number that is kept of a step: 0 for a row of zeros or next to them, [`NOT_FINITE`], or which of the possible steps it is.
type Index = u16;

/// The step of rows with elements that aren't finite: NaN.
const NOT_FINITE: Index = Index::MAX;

/// The steps that a codec has: floats with a few bits of mantissa.
#[derive(Clone, Copy)]
struct Steps {
    /// Bits of the mantissa after the leading one.
    mantissa: u32,
}

const Q8: Steps = Steps { mantissa: 7 };
const Q4: Steps = Steps { mantissa: 2 };

impl Steps {
    /// The least step, as the bits of an f64: 2^−142, the least that has 8 bits as a subnormal f32.
    const LEAST: u64 = (1023 - 142) << 52;

    /// Where the mantissa ends in an f64.
    fn shift(self) -> u32 {
        52 - self.mantissa
    }

    fn index(self, bits: u64) -> Index {
        // In f32's range, 2^−142 to 2^128, this is 34560 at most.
        ((bits.max(Self::LEAST) - Self::LEAST) >> self.shift()) as Index + 1
    }

    /// The step next to `size`, which is above zero.
    fn nearest(self, size: f64) -> Index {
        self.index(size.to_bits() + (1 << (self.shift() - 1)))
    }

    /// The least step that isn't less than `size`, which is above zero.
    fn at_least(self, size: f64) -> Index {
        self.index(size.to_bits() + (1 << self.shift()) - 1)
    }

    /// The largest step that f32 has room for.
    fn largest(self) -> Index {
        self.index(f64::from(f32::MAX).to_bits())
    }

    fn step(self, index: Index) -> Option<f32> {
        match index {
            0 => Some(0.0),
            NOT_FINITE => Some(f32::NAN),
            _ if index > self.largest() => None,
            _ => Some(f64::from_bits((u64::from(index - 1) << self.shift()) + Self::LEAST) as f32),
        }
    }
}

pub(super) fn encode_q8(row: usize, values: &[f32], out: &mut Vec<u8>) {
    let mut steps = vec![0; values.len() / row];
    let at = out.len() + 2 * steps.len();
    out.resize(at + values.len(), 0);
    quantize_q8(row, values, &mut steps, &mut out[at..]);
    let (b, _) = out[at - 2 * steps.len()..at].as_chunks_mut();
    b.iter_mut().zip(&steps).for_each(|(b, step)| *b = step.to_le_bytes());
}

pub(super) fn decode_q8(row: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Damaged> {
    let rows = out.len() / row;
    let (steps, codes) = bytes.split_at_checked(2 * rows).ok_or(WRONG_SIZE)?;
    if codes.len() != out.len() {
        return Err(WRONG_SIZE);
    }
    let steps: Vec<Index> = steps.as_chunks().0.iter().map(|b| Index::from_le_bytes(*b)).collect();
    dequantize(Q8, row, &steps, codes, out)
}

/// Elements of a tile: whole rows.
fn tile(row: usize) -> usize {
    (TILE / row).max(1) * row
}

/// A tile is three sections: the lower bytes of the steps, the upper ones, which hardly differ, and the codes.
pub(super) fn encode_q4(row: usize, values: &[f32], out: &mut Vec<u8>) {
    let mut writer = Writer::new();
    let (mut steps, mut codes) = (Vec::new(), Vec::new());
    for values in values.chunks(tile(row)) {
        steps.resize(values.len() / row, 0);
        codes.resize(values.len(), 0);
        quantize_q4(row, values, &mut steps, &mut codes);
        for byte in [0, 1] {
            let plane: Vec<u8> = steps.iter().map(|step| step.to_le_bytes()[byte]).collect();
            writer.put(&plane, out);
        }
        writer.put(&codes, out);
    }
}

pub(super) fn decode_q4(row: usize, bytes: &[u8], out: &mut [f32]) -> Result<(), Damaged> {
    let mut reader = Reader::new(bytes);
    let (mut low, mut high, mut codes) = (Vec::new(), Vec::new(), Vec::new());
    for out in out.chunks_mut(tile(row)) {
        low.resize(out.len() / row, 0);
        high.resize(out.len() / row, 0);
        codes.resize(out.len(), 0);
        reader.take(&mut low)?;
        reader.take(&mut high)?;
        reader.take(&mut codes)?;
        let steps: Vec<Index> = low.iter().zip(&high).map(|(&l, &h)| Index::from_le_bytes([l, h])).collect();
        dequantize(Q4, row, &steps, &codes, out)?;
    }
    reader.end()
}

fn dequantize(
    steps: Steps,
    row: usize,
    index: &[Index],
    codes: &[u8],
    out: &mut [f32],
) -> Result<(), Damaged> {
    let steps: Option<Vec<f32>> = index.iter().map(|&index| steps.step(index)).collect();
    scale(row, &steps.ok_or(Damaged("a step is larger than any"))?, codes, out);
    Ok(())
}

crate::simd::dispatch! {
    /// The steps of rows and their codes, two's complement.
    fn quantize_q8(row: usize, values: &[f32], steps: &mut [Index], codes: &mut [u8]) = quantize_q8_body;
    /// The same for Q4.
    fn quantize_q4(row: usize, values: &[f32], steps: &mut [Index], codes: &mut [u8]) = quantize_q4_body;
    /// Codes times the steps of their rows.
    fn scale(row: usize, steps: &[f32], codes: &[u8], out: &mut [f32]) = scale_body;
}

#[inline(always)]
fn scale_body<const FMA: bool>(row: usize, steps: &[f32], codes: &[u8], out: &mut [f32]) {
    for ((codes, out), step) in codes.chunks_exact(row).zip(out.chunks_exact_mut(row)).zip(steps) {
        for (y, code) in out.iter_mut().zip(codes) {
            *y = f32::from(*code as i8) * step;
        }
    }
}

#[inline(always)]
fn quantize_q8_body<const FMA: bool>(row: usize, values: &[f32], steps: &mut [Index], codes: &mut [u8]) {
    quantize(row, values, steps, codes, Q8, |_, largest| {
        // Rounded to 8 bits, a 127th of the largest still makes its code 127, and so finds itself again.
        Q8.nearest(f64::from(largest) / f64::from(LARGEST))
    });
}

#[inline(always)]
fn quantize_q4_body<const FMA: bool>(row: usize, values: &[f32], steps: &mut [Index], codes: &mut [u8]) {
    quantize(row, values, steps, codes, Q4, |x, largest| {
        let index = Q4.at_least((Q4_STEP * mean(x)).max(f64::from(largest) / f64::from(LARGEST)));
        // What is decoded has a mean |x| that differs by half a step at most, which leads to a step next to this one or
        // the one after.
        let near = [index - 1, index + 1, index.saturating_sub(2), index + 2];
        let decoded = few_bits(x).then(|| near.into_iter().find(|&index| is_multiple(x, Q4.step(index))));
        decoded.flatten().unwrap_or(index)
    });
}

/// Quantizes rows with the steps that `choose` takes for their elements, of which the largest |x| is given and above 0.
#[inline(always)]
fn quantize(
    row: usize,
    values: &[f32],
    index: &mut [Index],
    codes: &mut [u8],
    steps: Steps,
    choose: impl Fn(&[f32], f32) -> Index,
) {
    for ((x, codes), index) in values.chunks_exact(row).zip(codes.chunks_exact_mut(row)).zip(index) {
        let largest = largest(x);
        *index = match largest {
            // With the least step too it would be zeros.
            0.0..=LEAST_HALF => 0,
            _ if !largest.is_finite() => NOT_FINITE,
            _ => choose(x, largest),
        };
        match steps.step(*index) {
            Some(step) if step > 0.0 => {
                // Next to the largest number, rounding up must not be beyond it.
                let most = LARGEST.min((f32::MAX / step).trunc());
                for (x, code) in x.iter().zip(codes) {
                    *code = round((x / step).clamp(-most, most)) as u8;
                }
            }
            _ => codes.fill(0),
        }
    }
}

/// The largest |x|; not finite if an element isn't.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    // Without their signs, floats sort as their bits do, and NaN above all: one in the row can't get lost.
    let mut tops = [0u32; 16];
    let (lanes, rest) = x.as_chunks::<16>();
    for lanes in lanes {
        for i in 0..16 {
            tops[i] = tops[i].max(lanes[i].abs().to_bits());
        }
    }
    let rest = rest.iter().map(|v| v.abs().to_bits());
    f32::from_bits(tops.into_iter().chain(rest).fold(0, u32::max))
}

/// The mean |x| of finite elements.
#[inline(always)]
fn mean(x: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    let (lanes, rest) = x.as_chunks::<8>();
    for lanes in lanes {
        for i in 0..8 {
            sums[i] += f64::from(lanes[i].abs());
        }
    }
    let rest = rest.iter().map(|v| f64::from(v.abs()));
    sums.into_iter().chain(rest).sum::<f64>() / x.len() as f64
}

/// Whether every element may be a code times a step of Q4: 10 bits, or of subnormals all but the last 5. Rows that were
/// never encoded end this at their first elements.
#[inline(always)]
fn few_bits(x: &[f32]) -> bool {
    x.iter().all(|x| x.to_bits() & 31 == 0)
}

/// Whether every element is a code times the step.
#[inline(always)]
fn is_multiple(x: &[f32], step: Option<f32>) -> bool {
    step.filter(|&step| step > 0.0).is_some_and(|step| {
        x.iter().all(|x| {
            let code = x / step;
            code.abs() <= LARGEST && round(code) as f32 == code
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_builds_agree() {
        for row in [1, 3, 16, 37, 128] {
            for magnitude in [1e-42f32, 1e-20, 1.0, 1e37] {
                let x: Vec<f32> =
                    (0..row * 50).map(|i| magnitude * ((i * 7919 % 1009) as f32 / 50.0 - 10.0)).collect();
                let (mut steps, mut codes) = (vec![0; 50], vec![0; x.len()]);
                let (mut steps2, mut codes2) = (vec![0; 50], vec![0; x.len()]);
                quantize_q8(row, &x, &mut steps, &mut codes);
                quantize_q8_body::<false>(row, &x, &mut steps2, &mut codes2);
                assert_eq!((&steps, &codes), (&steps2, &codes2));
                quantize_q4(row, &x, &mut steps, &mut codes);
                quantize_q4_body::<false>(row, &x, &mut steps2, &mut codes2);
                assert_eq!((&steps, &codes), (&steps2, &codes2));
                let steps: Vec<f32> = steps.iter().map(|&index| Q4.step(index).unwrap()).collect();
                let (mut y, mut z) = (vec![0.0; x.len()], vec![1.0; x.len()]);
                scale(row, &steps, &codes, &mut y);
                scale_body::<false>(row, &steps, &codes, &mut z);
                assert_eq!(y, z);
            }
        }
    }

    #[test]
    fn steps_are_found_again_and_reach_all_of_f32() {
        for steps in [Q8, Q4] {
            for index in 1..=steps.largest() {
                let step = f64::from(steps.step(index).unwrap());
                assert_eq!((steps.nearest(step), steps.at_least(step)), (index, index));
            }
            assert!(steps.step(steps.largest() + 1).is_none());
            assert!(steps.step(steps.largest()).unwrap() > f32::MAX / 2.0);
            assert_eq!(steps.step(1), Some(2.0 * LEAST_HALF));
            assert_eq!(f64::from(2.0 * LEAST_HALF).to_bits(), Steps::LEAST);
        }
    }
}
