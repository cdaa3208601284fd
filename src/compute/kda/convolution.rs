//! The short convolutions in front of q, k and v (`shared/spec/k3.md`, 4.3).

use super::super::math::function::silu;
use super::super::simd::{Lanes, dispatch};

dispatch! {
    /// The short convolution of one of q, k, v: `out[t][c] = silu(Σ_j taps[j][c] x(t − taps + 1 + j)[c])` for a run of
    /// `out`'s columns, and for the tokens t from `start` on. `x` and `taps` hold rows of `stride` elements of which those
    /// from `first` on are meant; before the first row of `x` come those of `window`, oldest first.
    pub fn convolve(
        x: &[f32], start: usize, taps: &[f32], window: &[f32], stride: usize, first: usize, width: usize, out: &mut [f32],
    )
        = convolve_body;
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn convolve_body<L: Lanes>(
    x: &[f32],
    start: usize,
    taps: &[f32],
    window: &[f32],
    stride: usize,
    first: usize,
    width: usize,
    out: &mut [f32],
) {
    let (count, before) = (taps.len() / stride, window.len() / stride);
    for (t, out) in (start..).zip(out.chunks_exact_mut(width)) {
        out.fill(0.0);
        for j in 0..count {
            let row = match (t + j).checked_sub(before) {
                Some(token) => &x[token * stride + first..][..width],
                None => &window[(t + j) * stride + first..][..width],
            };
            let taps = &taps[j * stride + first..][..width];
            for ((o, x), w) in out.iter_mut().zip(row).zip(taps) {
                *o = L::fused(*x, *w, *o);
            }
        }
        for o in out {
            *o = silu::<L>(*o);
        }
    }
}

/// Moves the window of a short convolution on: it ends up with the last rows of what came before and `x`.
pub fn slide(window: &mut [f32], x: &[f32]) {
    let keep = window.len().saturating_sub(x.len());
    let from = window.len() - keep;
    window.copy_within(from.., 0);
    let fresh = window.len() - keep;
    window[keep..].copy_from_slice(&x[x.len() - fresh..]);
}

#[cfg(test)]
mod tests {
    use super::super::tests::random;
    use super::*;

    #[test]
    fn convolution_goes_on_where_it_stopped() {
        let (width, count, tokens) = (24, 4, 9);
        let (x, taps) = (random(width * tokens, 1), random(width * count, 2));
        let (first, some) = (8, 16);
        let mut whole = vec![0.0; tokens * some];
        convolve(&x, 0, &taps, &vec![0.0; 3 * width], width, first, some, &mut whole);
        for t in 0..tokens {
            for c in 0..some {
                let sum: f64 = (0..count)
                    .filter(|j| t + j >= 3)
                    .map(|j| {
                        f64::from(x[(t + j - 3) * width + first + c]) * f64::from(taps[j * width + first + c])
                    })
                    .sum();
                let want = sum / (1.0 + (-sum).exp());
                assert!((f64::from(whole[t * some + c]) - want).abs() < 1e-6);
            }
        }
        for step in [1, 2, 4, 5] {
            let (mut window, mut got) = (vec![0.0; 3 * width], Vec::new());
            for x in x.chunks(step * width) {
                let mut out = vec![0.0; x.len() / width * some];
                convolve(x, 0, &taps, &window, width, first, some, &mut out);
                slide(&mut window, x);
                got.extend(out);
            }
            assert_eq!(got, whole, "{step} tokens at a time");
            assert_eq!(window, x[(tokens - 3) * width..]);
            let mut rest = vec![0.0; (tokens - step) * some];
            convolve(&x, step, &taps, &vec![0.0; 3 * width], width, first, some, &mut rest);
            assert_eq!(rest, whole[step * some..], "from token {step} on");
        }
    }
}
