//! Products on processors with AVX2, FMA and F16C.
//!
//! A few weight rows at a time are unfolded (`unfold`) into the first-level cache, to integers or to f32, and then
//! multiplied with every vector of the batch, two rows by four vectors in registers: an element of a row is loaded once
//! for four vectors and one of a vector once for two rows. What unfolding costs is shared by all vectors; with one
//! vector it is hidden behind the memory that the weights come from.
//!
//! A super-block of 256 costs 16 `madd` and 16 additions a row and vector, and one conversion; with small blocks there
//! is a conversion every 32 elements.

// Tiles are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

mod lanes;
mod large;
mod small;
mod unfold;

use std::arch::x86_64::*;
use std::cell::RefCell;

use crate::Format;
use crate::activation::{BLOCK, SUM, Vector};
use crate::product::Product;

use lanes::{horizontal, take, takef};
use unfold::{SMALL, SUPER, Unfolded, group, has_mins, multiply, unfold};

/// Covers `y` with tiles of one or two rows and one, two or four vectors.
macro_rules! tiles {
    ($y:expr, $x:expr, $rows:expr, $tile:ident) => {{
        let (y, x) = ($y, $x);
        let (vectors, rows) = (x.len(), y.len() / x.len());
        let mut t = 0;
        while t < vectors {
            let width = match vectors - t {
                4.. => 4,
                2 | 3 => 2,
                _ => 1,
            };
            let mut r = 0;
            while r + 2 <= rows {
                let y = &mut y[r * vectors + t..];
                match width {
                    4 => put(y, vectors, $tile::<2, 4>(&$rows, r, &x[t..])),
                    2 => put(y, vectors, $tile::<2, 2>(&$rows, r, &x[t..])),
                    _ => put(y, vectors, $tile::<2, 1>(&$rows, r, &x[t..])),
                }
                r += 2;
            }
            if r < rows {
                let y = &mut y[r * vectors + t..];
                match width {
                    4 => put(y, vectors, $tile::<1, 4>(&$rows, r, &x[t..])),
                    2 => put(y, vectors, $tile::<1, 2>(&$rows, r, &x[t..])),
                    _ => put(y, vectors, $tile::<1, 1>(&$rows, r, &x[t..])),
                }
            }
            t += width;
        }
    }};
}
/// Integers that unfolded rows may take: half of the first-level cache.
const UNFOLDED: usize = 8192;
/// How far ahead of a row its successors are asked for when each is used once: what a core reads in about 200 ns.
const AHEAD: usize = 2048;
/// Most rows that are unfolded together.
const ROWS: usize = 8;

/// The product of a format, if it has one here. To be called only on processors with AVX2, FMA and F16C.
pub(crate) fn product(format: Format) -> Option<Product> {
    macro_rules! of {
        ($($name:ident => $f:ident),* $(,)?) => {
            match format {
                $(Format::$name => {
                    // SAFETY: `crate::product` hands this out after it has found the features.
                    #[allow(unsafe_code)]
                    let product: Product = |w, x, y| unsafe { $f(Format::$name, w, x, y) };
                    Some(product)
                })*
                _ => None,
            }
        };
    }
    of!(F32 => floats, F16 => floats, BF16 => floats,
        Q8_0 => integers, Q4_0 => integers, Q4_1 => integers, Q5_0 => integers, Q5_1 => integers, IQ4_NL => integers,
        MXFP4 => integers, Q1_0 => integers, Q2_0 => integers, Q2_K => integers, Q3_K => integers, Q4_K => integers,
        Q5_K => integers, Q6_K => integers, IQ2_XXS => integers, IQ2_XS => integers, IQ2_S => integers,
        IQ3_XXS => integers, IQ3_S => integers, IQ1_S => integers, IQ1_M => integers, IQ4_XS => integers,
        TQ1_0 => integers, TQ2_0 => integers)
}

/// Unfolded rows; kept by each thread from one product to the next.
#[derive(Default)]
struct Buffers {
    codes: Vec<i16>,
    scales: Vec<f32>,
    mins: Vec<f32>,
    floats: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Rows to unfold together.
fn rows_together(n: usize, rows: usize) -> usize {
    (UNFOLDED / n.max(1)).clamp(1, ROWS).min(rows)
}

/// Inlined into each format's product, so that `unfold` is resolved at compile time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn integers(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    let Some(first) = x.first() else { return };
    let n = first.q.len();
    let bytes = format.bytes(n).expect("vectors are whole blocks");
    let rows = y.len() / x.len();
    assert!(w.len() == bytes * rows && x.iter().all(|x| x.q.len() == n), "rows of {n} elements");
    if let [x] = x {
        for (w, y) in w.chunks_exact(bytes.max(1)).zip(y) {
            prefetch(w, AHEAD.max(bytes));
            *y = multiply(format, w, x);
        }
        return;
    }
    let group = group(format).expect("an unfolded format");
    let (scales, mins) = (n.div_ceil(group), if has_mins(format) { n / SUM } else { 0 });
    let together = rows_together(n, rows);
    BUFFERS.with_borrow_mut(|b| {
        b.codes.resize(together * n, 0);
        b.scales.resize(together * scales, 0.0);
        b.mins.resize(together * mins, 0.0);
        for (w, y) in w.chunks(together * bytes.max(1)).zip(y.chunks_mut(together * x.len())) {
            for (r, row) in w.chunks_exact(bytes.max(1)).enumerate() {
                let to = Unfolded {
                    codes: &mut b.codes[r * n..][..n],
                    scales: &mut b.scales[r * scales..][..scales],
                    mins: &mut b.mins[r * mins..][..mins],
                };
                prefetch(row, together * bytes);
                unfold(format, row, to);
            }
            let rows = Rows { n, codes: &b.codes, scales: &b.scales, mins: &b.mins };
            if group == SUPER {
                tiles!(y, x, rows, super_tile);
            } else {
                tiles!(y, x, rows, small_tile);
            }
        }
    });
}

/// Asks for the bytes that lie `distance` behind `row`: those of the next rows to be unfolded, which then arrive while
/// these are multiplied.
#[inline]
#[target_feature(enable = "avx2")]
fn prefetch(row: &[u8], distance: usize) {
    const LINE: usize = 64;
    let start = row.as_ptr().wrapping_add(distance);
    for line in (0..row.len()).step_by(LINE) {
        // Reads nothing that the program sees and doesn't fault, whatever the address.
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast());
    }
}

/// Writes a tile to the first columns of rows of `stride` elements.
#[inline(always)]
fn put<const R: usize, const N: usize>(y: &mut [f32], stride: usize, tile: [[f32; N]; R]) {
    for (i, row) in tile.iter().enumerate() {
        for (t, value) in row.iter().enumerate() {
            y[i * stride + t] = *value;
        }
    }
}

/// Unfolded rows of `n` elements.
struct Rows<'a> {
    n: usize,
    codes: &'a [i16],
    scales: &'a [f32],
    mins: &'a [f32],
}

impl<'a> Rows<'a> {
    fn codes(&self, row: usize) -> &'a [i16] {
        &self.codes[row * self.n..][..self.n]
    }

    fn scales(&self, row: usize, group: usize) -> &'a [f32] {
        let count = self.n.div_ceil(group);
        &self.scales[row * count..][..count]
    }

    /// Empty for a format without minima.
    fn mins(&self, row: usize) -> &'a [f32] {
        let count = if self.mins.is_empty() { 0 } else { self.n / SUM };
        &self.mins[row * count..][..count]
    }
}

/// Unfolded rows of `n` elements in f32.
struct FloatRows<'a> {
    n: usize,
    values: &'a [f32],
}

/// Codes and scales of the rows `r..r + R`, and integers of the first N vectors, in groups of `G` elements, all as
/// many. (Loops, because closures in a function with features of its own aren't inlined.)
#[inline(always)]
#[allow(clippy::type_complexity)]
fn sides<'a, const G: usize, const R: usize, const N: usize>(
    rows: &Rows<'a>,
    r: usize,
    x: &[Vector<'a>],
) -> ([&'a [[i16; G]]; R], [&'a [f32]; R], [&'a [[i16; G]]; N]) {
    let groups = rows.n / G;
    let (mut codes, mut scales, mut q) = ([&[][..]; R], [&[][..]; R], [&[][..]; N]);
    for i in 0..R {
        codes[i] = &rows.codes(r + i).as_chunks().0[..groups];
        scales[i] = &rows.scales(r + i, G)[..groups];
    }
    for t in 0..N {
        q[t] = &x[t].q.as_chunks().0[..groups];
    }
    (codes, scales, q)
}

/// Rows `r..r + R` of super-blocks by the first N vectors of `x`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn super_tile<const R: usize, const N: usize>(rows: &Rows<'_>, r: usize, x: &[Vector<'_>]) -> [[f32; N]; R] {
    let (codes, scales, q) = sides::<SUPER, R, N>(rows, r, x);
    let mut sums = [[_mm256_setzero_ps(); N]; R];
    for b in 0..codes[0].len() {
        let mut dots = [[_mm256_setzero_si256(); N]; R];
        for k in 0..SUPER / 16 {
            let mut w = [_mm256_setzero_si256(); R];
            for i in 0..R {
                w[i] = take(&codes[i][b], 16 * k);
            }
            for t in 0..N {
                let q = take(&q[t][b], 16 * k);
                for i in 0..R {
                    dots[i][t] = _mm256_add_epi32(dots[i][t], _mm256_madd_epi16(w[i], q));
                }
            }
        }
        for i in 0..R {
            for t in 0..N {
                let scale = _mm256_set1_ps(scales[i][b] * x[t].scale[b]);
                sums[i][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[i][t]), scale, sums[i][t]);
            }
        }
    }
    finish(rows, r, x, sums)
}

/// Rows `r..r + R` of small blocks by the first N vectors of `x`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn small_tile<const R: usize, const N: usize>(rows: &Rows<'_>, r: usize, x: &[Vector<'_>]) -> [[f32; N]; R] {
    let (codes, scales, q) = sides::<SMALL, R, N>(rows, r, x);
    let mut sums = [[_mm256_setzero_ps(); N]; R];
    let blocks = codes[0].len();
    for (b, first) in (0..blocks).step_by(BLOCK / SMALL).enumerate() {
        let mut part = [[_mm256_setzero_ps(); N]; R];
        for k in first..(first + BLOCK / SMALL).min(blocks) {
            for i in 0..R {
                let (w0, w1) = (take(&codes[i][k], 0), take(&codes[i][k], 16));
                let scale = _mm256_set1_ps(scales[i][k]);
                for t in 0..N {
                    let dot = _mm256_add_epi32(
                        _mm256_madd_epi16(w0, take(&q[t][k], 0)),
                        _mm256_madd_epi16(w1, take(&q[t][k], 16)),
                    );
                    part[i][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, part[i][t]);
                }
            }
        }
        for i in 0..R {
            for t in 0..N {
                sums[i][t] = _mm256_fmadd_ps(part[i][t], _mm256_set1_ps(x[t].scale[b]), sums[i][t]);
            }
        }
    }
    finish(rows, r, x, sums)
}

/// Takes the minima off and adds the lanes up.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn finish<const R: usize, const N: usize>(
    rows: &Rows<'_>,
    r: usize,
    x: &[Vector<'_>],
    mut sums: [[__m256; N]; R],
) -> [[f32; N]; R] {
    let mut totals = [[0.0; N]; R];
    let count = rows.mins(r).len();
    let whole = count / 8 * 8;
    for k in (0..whole).step_by(8) {
        let mut mins = [_mm256_setzero_ps(); R];
        for i in 0..R {
            mins[i] = takef(rows.mins(r + i), k);
        }
        for t in 0..N {
            let x = takef(x[t].sums, k);
            for i in 0..R {
                sums[i][t] = _mm256_fnmadd_ps(mins[i], x, sums[i][t]);
            }
        }
    }
    for i in 0..R {
        for t in 0..N {
            let mut tail = 0.0;
            for k in whole..count {
                tail += rows.mins(r + i)[k] * x[t].sums[k];
            }
            totals[i][t] = horizontal(sums[i][t]) - tail;
        }
    }
    totals
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    let Some(first) = x.first() else { return };
    let n = first.f32.len();
    let bytes = format.bytes(n).expect("any length");
    let rows = y.len() / x.len();
    assert!(w.len() == bytes * rows && x.iter().all(|x| x.f32.len() == n), "rows of {n} elements");
    let together = rows_together(n, rows);
    BUFFERS.with_borrow_mut(|b| {
        b.floats.resize(together * n, 0.0);
        for (w, y) in w.chunks(together * bytes.max(1)).zip(y.chunks_mut(together * x.len())) {
            for (w, out) in w.chunks_exact(bytes.max(1)).zip(b.floats.chunks_exact_mut(n.max(1))) {
                prefetch(w, together * bytes);
                unfold_floats(format, w, out);
            }
            let rows = FloatRows { n, values: &b.floats };
            tiles!(y, x, rows, float_tile);
        }
    });
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn unfold_floats(format: Format, w: &[u8], out: &mut [f32]) {
    match format {
        Format::F16 => {
            let (whole, rest) = w.as_chunks::<16>();
            let (out, out_rest) = out.as_chunks_mut::<8>();
            for (w, out) in whole.iter().zip(out) {
                // SAFETY: 16 readable bytes and 8 writable f32; unaligned access is what these are for.
                #[allow(unsafe_code)]
                unsafe {
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(w.as_ptr().cast())));
                }
            }
            crate::decode(format, rest, out_rest);
        }
        _ => crate::decode(format, w, out),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn float_tile<const R: usize, const N: usize>(
    rows: &FloatRows<'_>,
    r: usize,
    x: &[Vector<'_>],
) -> [[f32; N]; R] {
    let (mut w, mut v) = ([(&[][..], &[][..]); R], [(&[][..], &[][..]); N]);
    for i in 0..R {
        w[i] = rows.values[(r + i) * rows.n..][..rows.n].as_chunks::<8>();
    }
    for t in 0..N {
        v[t] = x[t].f32[..rows.n].as_chunks::<8>();
    }
    let mut sums = [[_mm256_setzero_ps(); N]; R];
    for k in 0..w[0].0.len() {
        let mut row = [_mm256_setzero_ps(); R];
        for i in 0..R {
            row[i] = takef(&w[i].0[k], 0);
        }
        for t in 0..N {
            let x = takef(&v[t].0[k], 0);
            for i in 0..R {
                sums[i][t] = _mm256_fmadd_ps(row[i], x, sums[i][t]);
            }
        }
    }
    let mut totals = [[0.0; N]; R];
    for i in 0..R {
        for t in 0..N {
            let tail: f32 = w[i].1.iter().zip(v[t].1).map(|(w, x)| w * x).sum();
            totals[i][t] = horizontal(sums[i][t]) + tail;
        }
    }
    totals
}
