//! Lossless: the exponents of a state are alike, its mantissas are noise, so each goes with its own.

use super::{
    Damaged,
    section::{Reader, Writer},
};

/// Values of which the planes are made and written at a time: few enough to stay in the cache, and a plane is what
/// zstd takes as one block.
const TILE: usize = 128 << 10;

/// The bytes of a value: the sign is moved to the lower end, so that the upper byte is the exponent and no more.
const PLANES: usize = 4;

pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
    let mut writer = Writer::new();
    let mut planes = vec![0; PLANES * TILE.min(values.len())];
    for values in values.chunks(TILE) {
        let planes = &mut planes[..PLANES * values.len()];
        split(values, planes);
        planes.chunks(values.len()).for_each(|plane| writer.put(plane, out));
    }
}

pub(super) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), Damaged> {
    let mut reader = Reader::new(bytes);
    let mut planes = vec![0; PLANES * TILE.min(out.len())];
    for out in out.chunks_mut(TILE) {
        let planes = &mut planes[..PLANES * out.len()];
        planes.chunks_mut(out.len()).try_for_each(|plane| reader.take(plane))?;
        join(planes, out);
    }
    reader.end()
}

crate::simd::dispatch! {
    /// Values to planes, one after the other.
    fn split(values: &[f32], planes: &mut [u8]) = split_body;
    /// Planes to values.
    fn join(planes: &[u8], values: &mut [f32]) = join_body;
}

#[inline(always)]
fn split_body<const FMA: bool>(values: &[f32], planes: &mut [u8]) {
    let (low, high) = planes.split_at_mut(2 * values.len());
    let (a, b) = low.split_at_mut(values.len());
    let (c, d) = high.split_at_mut(values.len());
    for (((v, a), b), (c, d)) in values.iter().zip(a).zip(b).zip(c.iter_mut().zip(d)) {
        [*a, *b, *c, *d] = v.to_bits().rotate_left(1).to_le_bytes();
    }
}

#[inline(always)]
fn join_body<const FMA: bool>(planes: &[u8], values: &mut [f32]) {
    let (low, high) = planes.split_at(2 * values.len());
    let (a, b) = low.split_at(values.len());
    let (c, d) = high.split_at(values.len());
    for (((v, a), b), (c, d)) in values.iter_mut().zip(a).zip(b).zip(c.iter().zip(d)) {
        *v = f32::from_bits(u32::from_le_bytes([*a, *b, *c, *d]).rotate_right(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_builds_agree() {
        for n in [0, 1, 7, 8, 33, 1000] {
            let x: Vec<f32> = (0..n).map(|i: u32| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
            let (mut fast, mut portable) = (vec![0; 4 * x.len()], vec![1; 4 * x.len()]);
            split(&x, &mut fast);
            split_body::<false>(&x, &mut portable);
            assert_eq!(fast, portable);
            let (mut y, mut z) = (vec![0.0; x.len()], vec![1.0; x.len()]);
            join(&fast, &mut y);
            join_body::<false>(&fast, &mut z);
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!((bits(&y), bits(&z)), (bits(&x), bits(&x)));
        }
    }
}
