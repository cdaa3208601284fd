//! The delta rule of one KDA head (`shared/spec/k3.md`, 4.3), token by token.
//!
//! S is `key x value`, row by row. The columns of S don't depend on each other once k, q and the decays are
//! known, so S is worked through in tiles of columns: a tile of 128 x 32 elements (16 KB) stays in the first-level
//! cache for all the tokens of a chunk, and S is read from memory once and written once however many tokens the
//! chunk has. With `d_c = exp(g_c)`, both sweeps over a tile need only this:
//!
//! ```text
//! a = Σ_c k_c d_c S_c        b = Σ_c q_c d_c S_c        first sweep, S as it was
//! u = β (v − a)              y = (b + (k·q) u) / √D
//! S_c ← d_c S_c + k_c u                                  second sweep
//! ```

use super::simd::{LANES, Lanes, dispatch, fma, fused, load};

/// Vectors of a column tile.
const TILE: usize = 4;

/// The inputs of one head for `tokens` tokens, all of them `tokens x D`.
#[derive(Clone, Copy)]
pub struct HeadInput<'a> {
    /// Queries, of length 1, times 1/√D.
    pub q: &'a [f32],
    /// Keys, of length 1.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Decays exp(g), between 0 and 1.
    pub decay: &'a [f32],
    /// Write strengths, one a token.
    pub beta: &'a [f32],
}

dispatch! {
    /// Reads the tokens of `input` into the state `s` (`D x D`, D = `size`, a multiple of 8) and writes what each of
    /// them reads back to `y` (`tokens x D`).
    pub fn recur(input: HeadInput<'_>, size: usize, s: &mut [f32], y: &mut [f32]) = recur_body;

    /// The short convolution of one of q, k, v: `out[t][c] = silu(Σ_j taps[j][c] x(t − taps + 1 + j)[c])` for a run of
    /// `out`'s columns. `x` and `taps` hold rows of `stride` elements of which those from `first` on are meant;
    /// before the first token come the rows of `window`, oldest first.
    pub fn convolve(x: &[f32], taps: &[f32], window: &[f32], stride: usize, first: usize, width: usize, out: &mut [f32])
        = convolve_body;
}

#[inline(always)]
fn recur_body<const FMA: bool>(input: HeadInput<'_>, size: usize, s: &mut [f32], y: &mut [f32]) {
    let tokens = input.beta.len();
    assert!(size.is_multiple_of(LANES) && s.len() == size * size && y.len() == tokens * size);
    assert!([input.q, input.k, input.v, input.decay].iter().all(|x| x.len() == tokens * size));
    let mut column = 0;
    while column + TILE * LANES <= size {
        recur_tile::<FMA, TILE>(&input, size, column, s, y);
        column += TILE * LANES;
    }
    while column < size {
        recur_tile::<FMA, 1>(&input, size, column, s, y);
        column += LANES;
    }
}

#[inline(always)]
fn recur_tile<const FMA: bool, const N: usize>(
    input: &HeadInput<'_>,
    size: usize,
    column: usize,
    s: &mut [f32],
    y: &mut [f32],
) {
    for (t, &beta) in input.beta.iter().enumerate() {
        let (q, k) = (&input.q[t * size..][..size], &input.k[t * size..][..size]);
        let (v, decay) = (&input.v[t * size + column..][..N * LANES], &input.decay[t * size..][..size]);
        let (mut a, mut b) = ([[0f32; LANES]; N], [[0f32; LANES]; N]);
        let mut kq = 0.0;
        for c in 0..size {
            let (kd, qd) = ([k[c] * decay[c]; LANES], [q[c] * decay[c]; LANES]);
            kq = fma::<FMA>(k[c], q[c], kq);
            let s = &s[c * size + column..][..N * LANES];
            for i in 0..N {
                let x = load(s, i * LANES);
                a[i] = fused::<FMA>(kd, x, a[i]);
                b[i] = fused::<FMA>(qd, x, b[i]);
            }
        }
        let y = &mut y[t * size + column..][..N * LANES];
        let mut u: [Lanes; N] = [[0.0; LANES]; N];
        for i in 0..N {
            let v = load(v, i * LANES);
            u[i] = std::array::from_fn(|l| beta * (v[l] - a[i][l]));
            y[i * LANES..][..LANES].copy_from_slice(&fused::<FMA>([kq; LANES], u[i], b[i]));
        }
        for c in 0..size {
            let s = &mut s[c * size + column..][..N * LANES];
            for (i, u) in u.iter().enumerate() {
                let x = load(s, i * LANES);
                let ku: Lanes = std::array::from_fn(|l| k[c] * u[l]);
                s[i * LANES..][..LANES].copy_from_slice(&fused::<FMA>([decay[c]; LANES], x, ku));
            }
        }
    }
}

#[inline(always)]
fn convolve_body<const FMA: bool>(
    x: &[f32],
    taps: &[f32],
    window: &[f32],
    stride: usize,
    first: usize,
    width: usize,
    out: &mut [f32],
) {
    let (count, before) = (taps.len() / stride, window.len() / stride);
    for (t, out) in out.chunks_exact_mut(width).enumerate() {
        out.fill(0.0);
        for j in 0..count {
            let row = match (t + j).checked_sub(before) {
                Some(token) => &x[token * stride + first..][..width],
                None => &window[(t + j) * stride + first..][..width],
            };
            let taps = &taps[j * stride + first..][..width];
            for ((o, x), w) in out.iter_mut().zip(row).zip(taps) {
                *o = fma::<FMA>(*x, *w, *o);
            }
        }
        super::math::silu(out);
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
    use super::*;

    fn random(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn unit(mut x: Vec<f32>, size: usize) -> Vec<f32> {
        x.chunks_exact_mut(size).for_each(|x| super::super::math::l2_norm(x, 0.0));
        x
    }

    /// The recurrence as the specification writes it, in f64.
    fn exact(input: HeadInput<'_>, size: usize, s: &mut [f64], y: &mut [f64]) {
        for (t, &beta) in input.beta.iter().enumerate() {
            let at = |x: &[f32], c: usize| f64::from(x[t * size + c]);
            for c in 0..size {
                s[c * size..][..size].iter_mut().for_each(|s| *s *= at(input.decay, c));
            }
            for j in 0..size {
                let read: f64 = (0..size).map(|c| at(input.k, c) * s[c * size + j]).sum();
                let u = f64::from(beta) * (at(input.v, j) - read);
                (0..size).for_each(|c| s[c * size + j] += at(input.k, c) * u);
                y[t * size + j] = (0..size).map(|c| at(input.q, c) * s[c * size + j]).sum();
            }
        }
    }

    #[test]
    fn the_recurrence_equals_f64() {
        // Logarithms of the decays: K3's usual ones, at its bound, and Kimi-Linear's without one.
        for (gate, strength) in [("usual", 2.5), ("bound", 5.0), ("extreme", 1e4)] {
            for (size, tokens) in [(8, 3), (32, 1), (40, 5), (128, 1), (128, 70)] {
                let n = size * tokens;
                let (q, k) = (unit(random(n, 1), size), unit(random(n, 2), size));
                let v = random(n, 3);
                let decay: Vec<f32> =
                    random(n, 4).iter().map(|x| (-(x + 1.0) / 2.0 * strength).exp()).collect();
                let beta: Vec<f32> = random(tokens, 5).iter().map(|x| (x + 1.0) / 2.0).collect();
                let start: Vec<f32> = random(size * size, 6).iter().map(|x| x * 0.1).collect();
                let input = HeadInput { q: &q, k: &k, v: &v, decay: &decay, beta: &beta };
                let (mut s, mut y) = (start.clone(), vec![0.0; n]);
                recur(input, size, &mut s, &mut y);
                let mut wide: Vec<f64> = start.iter().map(|&x| f64::from(x)).collect();
                let mut want = vec![0f64; n];
                exact(input, size, &mut wide, &mut want);
                let error = |got: &[f32], want: &[f64]| {
                    got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).abs()).fold(0.0, f64::max)
                };
                let (in_s, in_y) = (error(&s, &wide), error(&y, &want));
                assert!(in_s < 2e-6 && in_y < 2e-6, "{gate}, {tokens} tokens of {size}: {in_s:e} {in_y:e}");
            }
        }
    }

    #[test]
    fn convolution_goes_on_where_it_stopped() {
        let (width, count, tokens) = (24, 4, 9);
        let (x, taps) = (random(width * tokens, 1), random(width * count, 2));
        let (first, some) = (8, 16);
        let mut whole = vec![0.0; tokens * some];
        convolve(&x, &taps, &vec![0.0; 3 * width], width, first, some, &mut whole);
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
                convolve(x, &taps, &window, width, first, some, &mut out);
                slide(&mut window, x);
                got.extend(out);
            }
            assert_eq!(got, whole, "{step} tokens at a time");
            assert_eq!(window, x[(tokens - 3) * width..]);
        }
    }
}
