//! Super-blocks of 256 elements: scale and minimum of a sub-block are small integers, in units that the whole has.

use super::{
    half_above, half_scale, put_codes, put_half,
    search::{self, Codes, Residual, inverse},
    split_nibbles, within_reach,
};

/// How often the integers of the sub-blocks and the units of the whole take turns in getting better.
const TURNS: usize = 3;

/// How far around the first integers better ones are looked for.
const REACH: i32 = 2;

/// The integers that minima may be, and those that scales with a minimum may be.
const SIX_BITS: Codes = Codes { lo: 0.0, hi: 63.0 };

/// Element x of sub-block j is about `d · scales[j] · q - dmin · mins[j]`, with q of `codes` and scales of `range`.
struct SuperBlock<const SUBS: usize> {
    codes: Codes,
    range: Codes,
    d: f32,
    dmin: f32,
    scales: [f32; SUBS],
    mins: [f32; SUBS],
}

impl<const SUBS: usize> SuperBlock<SUBS> {
    /// Starts from the best scale and minimum of each sub-block, and searches.
    fn new(x: &[f32; 256], codes: Codes, range: Codes, fit: impl Fn(&[f32]) -> (f32, f32)) -> Self {
        let mut fits = [(0.0, 0.0); SUBS];
        for (fitted, x) in fits.iter_mut().zip(subs::<SUBS>(x)) {
            *fitted = fit(x);
        }
        let (scales, mins) = (fits.map(|f| f.0), fits.map(|f| -f.1));
        let farthest = if range.lo < -range.hi { range.lo } else { range.hi };
        let d = half_above(search::extreme(&scales) / farthest);
        let dmin = half_above(search::extreme(&mins) / SIX_BITS.hi);
        let mut block = SuperBlock {
            codes,
            range,
            d,
            dmin,
            scales: scales.map(|v| range.nearest(v * inverse(d))),
            mins: mins.map(|v| SIX_BITS.nearest(v * inverse(dmin))),
        };
        for _ in 0..TURNS {
            for (j, x) in subs::<SUBS>(x).enumerate() {
                (block.scales[j], block.mins[j]) = block.better_integers(j, x);
            }
            (block.d, block.dmin) = block.better_units(x);
        }
        block
    }

    /// What is lost of sub-block `x` with these integers.
    fn residual(&self, x: &[f32], scale: f32, min: f32) -> Residual {
        Residual::new(x, self.d * scale, -self.dmin * min, self.codes)
    }

    /// The best scale and minimum of sub-block `j` in reach of those that it has.
    fn better_integers(&self, j: usize, x: &[f32]) -> (f32, f32) {
        let around = |v: f32, range: Codes, reach: i32| {
            (-reach..=reach).map(move |step| range.nearest(v + step as f32))
        };
        let reach = if self.dmin == 0.0 { 0 } else { REACH };
        let mut best = (self.scales[j], self.mins[j]);
        let mut least = self.residual(x, best.0, best.1).ee;
        for scale in around(best.0, self.range, REACH) {
            for min in around(self.mins[j], SIX_BITS, reach) {
                let error = self.residual(x, scale, min).ee;
                if error < least {
                    (best, least) = ((scale, min), error);
                }
            }
        }
        best
    }

    /// The units that fit integers and codes best, unless rounding them to halves makes it worse.
    fn better_units(&self, x: &[f32; 256]) -> (f32, f32) {
        // The least squares of e = u · change of d + v · change of dmin, with u = scale · q and v = -min.
        let [mut error, mut uu, mut uv, mut vv, mut eu, mut ev] = [0f32; 6];
        for ((x, s), m) in subs::<SUBS>(x).zip(self.scales).zip(self.mins) {
            let r = self.residual(x, s, m);
            error += r.ee;
            uu += s * s * r.qq;
            uv -= s * m * r.q;
            vv += m * m * x.len() as f32;
            eu += s * r.eq;
            ev -= m * r.e;
        }
        let det = uu * vv - uv * uv;
        let (d, dmin) = if det > 0.0 {
            ((eu * vv - ev * uv) / det, (ev * uu - eu * uv) / det)
        } else {
            (if uu > 0.0 { eu / uu } else { 0.0 }, 0.0)
        };
        let (d, dmin) = (half_scale(self.d + d), half_scale(self.dmin + dmin));
        let sub = |((x, s), m): ((&[f32], f32), f32)| Residual::new(x, d * s, -dmin * m, self.codes).ee;
        let better = subs::<SUBS>(x).zip(self.scales).zip(self.mins).map(sub).sum::<f32>() < error;
        if better { (d, dmin) } else { (self.d, self.dmin) }
    }

    fn codes(&self, x: &[f32; 256]) -> [u8; 256] {
        let mut q = [0; 256];
        let outs = q.chunks_exact_mut(256 / SUBS);
        for (((x, s), m), q) in subs::<SUBS>(x).zip(self.scales).zip(self.mins).zip(outs) {
            put_codes(x, self.d * s, -self.dmin * m, self.codes, q);
        }
        q
    }
}

fn subs<const SUBS: usize>(x: &[f32; 256]) -> impl Iterator<Item = &[f32]> {
    x.chunks_exact(256 / SUBS)
}

/// Scales and minima of Q4_K and Q5_K. Minima can't be above zero, so a block that lies more above zero than below
/// is encoded upside down: the negative of it, with the signs of both units turned.
fn with_minima(x: &[f32; 256], codes: Codes) -> (SuperBlock<8>, [u8; 256]) {
    let x = within_reach(x);
    let beside_zero = subs::<8>(&x).map(search::span).map(|(lo, hi)| lo.max(0.0) + hi.min(0.0)).sum::<f32>();
    let sign = if beside_zero > 0.0 { -1.0 } else { 1.0 };
    let x = x.map(|v| v * sign);
    let mut block = SuperBlock::new(&x, codes, SIX_BITS, |x| search::scale_and_min(x, codes, 0.0));
    let q = block.codes(&x);
    block.d *= sign;
    block.dmin *= sign;
    (block, q)
}

/// The first 16 bytes of Q4_K and Q5_K: both units, then 8 scales and 8 minima of six bits.
fn put_scales(block: &SuperBlock<8>, b: &mut [u8]) {
    put_half(b, 0, block.d);
    put_half(b, 2, block.dmin);
    let (s, m) = (block.scales.map(|v| v as u8), block.mins.map(|v| v as u8));
    for j in 0..4 {
        b[4 + j] = s[j] | s[j + 4] >> 4 << 6;
        b[8 + j] = m[j] | m[j + 4] >> 4 << 6;
        b[12 + j] = s[j + 4] & 15 | m[j + 4] << 4;
    }
}

pub(super) fn q4_k(x: &[f32; 256]) -> [u8; 144] {
    let (block, q) = with_minima(x, Codes { lo: 0.0, hi: 15.0 });
    let mut b = [0; 144];
    put_scales(&block, &mut b);
    for (q, b) in q.chunks_exact(64).zip(b[16..].chunks_exact_mut(32)) {
        split_nibbles(q, b);
    }
    b
}

pub(super) fn q5_k(x: &[f32; 256]) -> [u8; 176] {
    let (block, q) = with_minima(x, Codes { lo: 0.0, hi: 31.0 });
    let mut b = [0; 176];
    put_scales(&block, &mut b);
    for (j, q) in q.chunks_exact(32).enumerate() {
        for (b, q) in b[16..48].iter_mut().zip(q) {
            *b |= q >> 4 << j;
        }
    }
    for (q, b) in q.chunks_exact(64).zip(b[48..].chunks_exact_mut(32)) {
        split_nibbles(q, b);
    }
    b
}

pub(super) fn q6_k(x: &[f32; 256]) -> [u8; 210] {
    let (x, codes) = (within_reach(x), Codes { lo: -32.0, hi: 31.0 });
    let eight_bits = Codes { lo: -128.0, hi: 127.0 };
    let block = SuperBlock::<16>::new(&x, codes, eight_bits, |x| (search::scale(x, codes), 0.0));
    let mut b = [0; 210];
    let (low, rest) = b.split_at_mut(128);
    let q = block.codes(&x);
    for ((q, low), high) in q.chunks_exact(128).zip(low.chunks_exact_mut(64)).zip(rest.chunks_exact_mut(32)) {
        split_nibbles(q, low);
        for (quarter, q) in q.chunks_exact(32).enumerate() {
            for (high, q) in high.iter_mut().zip(q) {
                *high |= q >> 4 << (2 * quarter);
            }
        }
    }
    for (b, scale) in rest[64..].iter_mut().zip(block.scales) {
        *b = scale as i8 as u8;
    }
    put_half(&mut b, 208, block.d);
    b
}
