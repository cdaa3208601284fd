//! The search for the scale, or the scale and the minimum, that lose least: least squares around many guesses.
//!
//! With the codes fixed, the best scale and minimum are a small linear problem; with scale and minimum fixed, the
//! best code is the nearest one. A guess (how much of the range the codes cover) fixes codes, the fit improves on
//! it, and the best of all guesses is improved by turns until it stands still.

/// Scales and ranges below this are zero in a half: the smallest positive one is 2^-24.
const NEGLIGIBLE: f32 = 1.0 / (1 << 26) as f32;

/// How many steps more than the codes have the range is divided in, for scales without minimum. Less than zero
/// leaves codes unused, more cuts the extreme off.
const STEPS: [f32; 12] = [0.0, -1.2, -0.6, 0.4, 0.8, 1.3, 1.8, 2.3, 2.9, 3.5, 4.2, 5.0];

/// How many steps of the plain scale are cut off at either end, for scales with a minimum.
const CUTS: [f32; 4] = [0.0, -0.2, 0.5, 1.1];

/// How often fitting and rounding take turns.
const TURNS: usize = 4;

/// The integers that codes may be.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    pub lo: f32,
    pub hi: f32,
}

impl Codes {
    /// The code nearest to `v`, which is `(x - min) / scale`.
    #[inline(always)]
    pub fn nearest(self, v: f32) -> f32 {
        // Adding 1.5 · 2^23 leaves no bits for a fraction: that rounds to even without the call that
        // `round_ties_even` is on processors whose baseline has no such instruction.
        const ROUND: f32 = 12_582_912.0;
        (v.max(self.lo).min(self.hi) + ROUND) - ROUND
    }
}

/// `1 / scale`, or 0 (all codes zero) for a scale of 0.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// What the nearest codes q leave of x: sums over e = x - min - scale · q.
#[derive(Clone, Copy)]
pub(super) struct Residual {
    pub ee: f32,
    pub eq: f32,
    pub qq: f32,
    pub e: f32,
    pub q: f32,
}

impl Residual {
    /// `x` is a whole number of eights.
    #[inline(always)]
    pub fn new(x: &[f32], scale: f32, min: f32, codes: Codes) -> Residual {
        let inverse = inverse(scale);
        let [mut ee, mut eq, mut qq, mut es, mut qs] = [[0f32; 8]; 5];
        for x in x.as_chunks::<8>().0 {
            for i in 0..8 {
                let q = codes.nearest((x[i] - min) * inverse);
                let e = x[i] - min - scale * q;
                ee[i] += e * e;
                eq[i] += e * q;
                qq[i] += q * q;
                es[i] += e;
                qs[i] += q;
            }
        }
        let sum = |lanes: [f32; 8]| lanes.iter().sum();
        Residual { ee: sum(ee), eq: sum(eq), qq: sum(qq), e: sum(es), q: sum(qs) }
    }

    /// The change of the scale that fits these codes best, and the squared error then.
    pub fn fit_scale(&self) -> (f32, f32) {
        if self.qq == 0.0 {
            return (0.0, self.ee);
        }
        let change = self.eq / self.qq;
        (change, self.ee - change * self.eq)
    }

    /// The changes of scale and minimum that fit these codes of `n` elements best, the minimum's being at most
    /// `limit`, and the squared error then.
    fn fit_both(&self, n: f32, limit: f32) -> (f32, f32, f32) {
        let det = n * self.qq - self.q * self.q;
        let free = if det > 0.0 { (self.e * self.qq - self.eq * self.q) / det } else { self.e / n };
        let min = free.min(limit);
        let scale = if self.qq > 0.0 { (self.eq - min * self.q) / self.qq } else { 0.0 };
        let gain = 2.0 * (min * self.e + scale * self.eq - min * scale * self.q)
            - n * min * min
            - scale * scale * self.qq;
        (scale, min, self.ee - gain)
    }
}

/// The element farthest from zero.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m })
}

/// The best of all fits, then improved by turns.
fn best_fit<T: Copy>(guesses: impl Iterator<Item = T>, fitted: impl Fn(T) -> (T, f32)) -> T {
    let mut best = guesses.map(&fitted).min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are guesses");
    for _ in 0..TURNS {
        let next = fitted(best.0);
        if next.1 >= best.1 {
            break;
        }
        best = next;
    }
    best.0
}

/// The scale with which `codes` are closest to `x`. It may be negative, as codes can reach farther below zero.
pub(super) fn scale(x: &[f32], codes: Codes) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let guesses = STEPS.iter().flat_map(|step| [extreme / (codes.lo - step), extreme / (codes.hi + step)]);
    best_fit(guesses, |scale| {
        let (change, error) = Residual::new(x, scale, 0.0, codes).fit_scale();
        (scale + change, error)
    })
}

/// Lowest and highest element.
pub(super) fn span(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

/// The scale and the minimum, at most `limit`, with which `codes` (from 0 on) are closest to `x`.
pub(super) fn scale_and_min(x: &[f32], codes: Codes, limit: f32) -> (f32, f32) {
    let (lowest, highest) = span(x);
    let lowest = lowest.min(limit);
    if highest - lowest < NEGLIGIBLE {
        return (0.0, lowest);
    }
    let step = (highest - lowest) / codes.hi;
    let guesses = CUTS.iter().flat_map(|below| {
        let min = (lowest + below * step).min(limit);
        CUTS.iter().map(move |above| ((highest - above * step - min) / codes.hi, min))
    });
    best_fit(guesses, |(scale, min)| {
        let (scale_change, min_change, error) =
            Residual::new(x, scale, min, codes).fit_both(x.len() as f32, limit - min);
        ((scale + scale_change, min + min_change), error)
    })
}
