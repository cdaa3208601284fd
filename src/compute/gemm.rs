//! The two small matrix products of MLA attention, in f32: queries by rows (both contiguous along the summed
//! dimension) and weights by rows (summed over the rows).
//!
//! Blocks of 6 x 2 vectors: twelve accumulators, more than the eight multiplications that are under way at a time, and two
//! loads or broadcasts for three multiplications, so that the multipliers and not the loads are the limit.

use super::simd::{LANES, Lanes, dispatch, load_all, store_all};

/// Queries of a block.
const M: usize = 6;
/// Rows, or vectors of a row, of a block.
const N: usize = 2;

dispatch! {
    /// `out[i * rows + j] = a_i · b_j` for the vectors of `width` elements in `a` and `b`.
    pub fn dots(a: &[f32], b: &[f32], width: usize, out: &mut [f32]) = dots_body;

    /// `out_i[..len] += Σ_j p[i * rows + j] b_j[..len]` for the rows of `width` elements in `b`; `out` holds `len`
    /// elements for each i.
    pub fn add_weighted(p: &[f32], b: &[f32], width: usize, len: usize, out: &mut [f32]) = add_weighted_body;
}

#[inline(always)]
fn dots_body<L: Lanes>(a: &[f32], b: &[f32], width: usize, out: &mut [f32]) {
    let (m, n) = (a.len() / width, b.len() / width);
    assert!(out.len() == m * n);
    let mut i = 0;
    while i < m {
        let (a, out) = (&a[i * width..], &mut out[i * n..]);
        i += match m - i {
            M.. => dots_rows::<L, M>(a, b, width, n, out),
            2.. => dots_rows::<L, 2>(a, b, width, n, out),
            _ => dots_rows::<L, 1>(a, b, width, n, out),
        };
    }
}

/// The products of the first `M` vectors of `a` with all of `b`; returns `M`.
#[inline(always)]
fn dots_rows<L: Lanes, const M: usize>(
    a: &[f32],
    b: &[f32],
    width: usize,
    n: usize,
    out: &mut [f32],
) -> usize {
    let whole = n / N * N;
    for j in (0..whole).step_by(N) {
        put(dots_block::<L, M, N>(a, &b[j * width..], width), n, &mut out[j..]);
    }
    for j in whole..n {
        put(dots_block::<L, M, 1>(a, &b[j * width..], width), n, &mut out[j..]);
    }
    M
}

/// Writes a block whose rows are `stride` apart.
#[inline(always)]
fn put<const M: usize, const N: usize>(block: [[f32; N]; M], stride: usize, out: &mut [f32]) {
    for (r, row) in block.iter().enumerate() {
        out[r * stride..][..N].copy_from_slice(row);
    }
}

#[inline(always)]
fn dots_block<L: Lanes, const M: usize, const N: usize>(a: &[f32], b: &[f32], width: usize) -> [[f32; N]; M] {
    let a: [&[f32]; M] = std::array::from_fn(|r| &a[r * width..][..width]);
    let b: [&[f32]; N] = std::array::from_fn(|c| &b[c * width..][..width]);
    let mut acc = [[L::splat(0.0); N]; M];
    let whole = width / LANES * LANES;
    let mut k = 0;
    while k < whole {
        let mut y = [L::splat(0.0); N];
        for c in 0..N {
            y[c] = L::load(&b[c][k..]);
        }
        for r in 0..M {
            let x = L::load(&a[r][k..]);
            for c in 0..N {
                acc[r][c] = x.mul_add(y[c], acc[r][c]);
            }
        }
        k += LANES;
    }
    let mut dots = [[0.0; N]; M];
    for r in 0..M {
        for c in 0..N {
            let tail: f32 = a[r][whole..].iter().zip(&b[c][whole..]).map(|(x, y)| x * y).sum();
            dots[r][c] = acc[r][c].sum() + tail;
        }
    }
    dots
}

#[inline(always)]
fn add_weighted_body<L: Lanes>(p: &[f32], b: &[f32], width: usize, len: usize, out: &mut [f32]) {
    let rows = b.len() / width;
    assert!(len <= width && out.len() / len * rows == p.len());
    let whole = len / (N * LANES) * (N * LANES);
    let m = out.len() / len;
    for k in (0..whole).step_by(N * LANES) {
        let mut i = 0;
        while i < m {
            let (p, out) = (&p[i * rows..], &mut out[i * len + k..]);
            i += match m - i {
                M.. => weighted_block::<L, M, N>(p, rows, &b[k..], width, len, out),
                2.. => weighted_block::<L, 2, N>(p, rows, &b[k..], width, len, out),
                _ => weighted_block::<L, 1, N>(p, rows, &b[k..], width, len, out),
            };
        }
    }
    for (p, out) in p.chunks_exact(rows).zip(out.chunks_exact_mut(len)) {
        for (p, b) in p.iter().zip(b.chunks_exact(width)) {
            out[whole..].iter_mut().zip(&b[whole..len]).for_each(|(o, b)| *o += p * b);
        }
    }
}

/// `M` rows of N vectors of the output, `stride` apart, starting at `out[0]`; returns `M`.
#[inline(always)]
fn weighted_block<L: Lanes, const M: usize, const N: usize>(
    p: &[f32],
    rows: usize,
    b: &[f32],
    width: usize,
    stride: usize,
    out: &mut [f32],
) -> usize {
    let p: [&[f32]; M] = std::array::from_fn(|r| &p[r * rows..][..rows]);
    let mut acc = [[L::splat(0.0); N]; M];
    for r in 0..M {
        acc[r] = load_all(&out[r * stride..]);
    }
    for j in 0..rows {
        let y: [L; N] = load_all(&b[j * width..]);
        for r in 0..M {
            let x = L::splat(p[r][j]);
            for c in 0..N {
                acc[r][c] = x.mul_add(y[c], acc[r][c]);
            }
        }
    }
    for r in 0..M {
        store_all(acc[r], &mut out[r * stride..]);
    }
    M
}

#[cfg(test)]
mod tests {

    fn random(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn products_equal_f64() {
        for (m, n, width, len) in
            [(1, 1, 8, 8), (3, 5, 48, 32), (8, 32, 576, 512), (9, 31, 80, 64), (5, 2, 19, 11)]
        {
            let (a, b, p) = (random(m * width, 1), random(n * width, 2), random(m * n, 3));
            let mut dots = vec![0.0; m * n];
            super::dots(&a, &b, width, &mut dots);
            let start = random(m * len, 4);
            let mut sums = start.clone();
            super::add_weighted(&p, &b, width, len, &mut sums);
            for i in 0..m {
                for j in 0..n {
                    let exact: f64 =
                        (0..width).map(|k| f64::from(a[i * width + k]) * f64::from(b[j * width + k])).sum();
                    assert!((f64::from(dots[i * n + j]) - exact).abs() < 1e-5, "{m}x{n}x{width}");
                }
                for k in 0..len {
                    let exact: f64 = f64::from(start[i * len + k])
                        + (0..n).map(|j| f64::from(p[i * n + j]) * f64::from(b[j * width + k])).sum::<f64>();
                    assert!((f64::from(sums[i * len + k]) - exact).abs() < 1e-5, "{m}x{n}x{width}");
                }
            }
        }
    }
}
