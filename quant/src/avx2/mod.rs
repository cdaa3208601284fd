//! Products on processors with AVX2, FMA and F16C.
//!
//! With up to four vectors a row comes apart in registers and is multiplied there (`row`); with more, sixteen rows are
//! unfolded (`unfold`) into the first-level cache and turned into a panel (`panel`), so that what taking blocks apart
//! costs is shared by all vectors. Rows of floats are unfolded to f32 and multiplied two rows by four vectors.

// Tiles are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

pub(crate) mod activation;
pub(crate) mod lanes;
mod large;
pub(crate) mod panel;
mod row;
pub(crate) mod small;
pub(crate) mod unfold;

use std::arch::x86_64::*;
use std::cell::RefCell;

use crate::Format;
use crate::activation::Vector;
use crate::product::Product;

use lanes::{horizontal, takef};
use panel::{Panel, Step, Sums};
use row::multiply;
use unfold::{SUPER, groups, unfold};

/// Writes the products of rows that are together with all vectors, in tiles of one or two rows and one, two or four
/// vectors, to the rows of `y` from `first` on.
macro_rules! tiles {
    ($y:expr, $x:expr, $rows:expr, $first:expr, $count:expr, $tile:ident) => {{
        let (y, x) = ($y, $x);
        let stride = y.len() / x.len();
        let mut t = 0;
        while t < x.len() {
            let width = match x.len() - t {
                4.. => 4,
                2 | 3 => 2,
                _ => 1,
            };
            let mut r = 0;
            while r < $count {
                let y = &mut y[t * stride + $first + r..];
                let x = &x[t..];
                let height = if r + 2 <= $count { 2 } else { 1 };
                match (height, width) {
                    (2, 4) => put(y, stride, $tile::<2, 4>(&$rows, r, x)),
                    (2, 2) => put(y, stride, $tile::<2, 2>(&$rows, r, x)),
                    (2, _) => put(y, stride, $tile::<2, 1>(&$rows, r, x)),
                    (_, 4) => put(y, stride, $tile::<1, 4>(&$rows, r, x)),
                    (_, 2) => put(y, stride, $tile::<1, 2>(&$rows, r, x)),
                    _ => put(y, stride, $tile::<1, 1>(&$rows, r, x)),
                }
                r += height;
            }
            t += width;
        }
    }};
}
/// Integers that unfolded rows may take: half of the first-level cache.
const UNFOLDED: usize = 8192;
/// Vectors up to which rows come apart in registers, and not in panels: turning those would cost more than it saves.
pub(crate) const FEW: usize = 4;
/// How far ahead of a row its successors are asked for when each is used once: what a core reads in about 1 µs.
pub(crate) const AHEAD: usize = 16384;
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
    panel: Option<Box<Panel>>,
    sums: Vec<Sums>,
    floats: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Rows to unfold together.
fn rows_together(n: usize, rows: usize) -> usize {
    (UNFOLDED / n.max(1)).clamp(1, ROWS).min(rows)
}

/// Products with up to [`FEW`] vectors: each row comes apart in registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    let bytes = row_bytes(format, w, x, y);
    match x.len() {
        1 => multiply::<1>(format, w, bytes, x, y),
        2 => multiply::<2>(format, w, bytes, x, y),
        3 => multiply::<3>(format, w, bytes, x, y),
        4 => multiply::<4>(format, w, bytes, x, y),
        more => unreachable!("{more} vectors"),
    }
}

/// Checks the lengths of a product, and returns that of a row.
pub(crate) fn row_bytes(format: Format, w: &[u8], x: &[Vector<'_>], y: &[f32]) -> usize {
    let n = x[0].q.len();
    let bytes = format.bytes(n).expect("vectors are whole blocks");
    let fits = w.len() == bytes * (y.len() / x.len()) && x.iter().all(|x| x.q.len() == n);
    assert!(fits, "rows of {n} elements");
    bytes
}

/// Inlined into each format's product, so that `unfold` is resolved at compile time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn integers(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    multiply_integers::<{ panel::TILE }>(
        format,
        w,
        x,
        y,
        |panel, rows, step| fill(format, panel, rows, step),
        |panel, step, x, sums| panel.add(step, x, sums),
    );
}

/// Fills a panel with the elements of a step of up to [`panel::ROWS`] rows, whatever the format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn fill(format: Format, panel: &mut Panel, rows: &[&[u8]], Step { len, mins, .. }: Step) {
    let [group, _] = groups(format).expect("an unfolded format");
    for (r, row) in rows.iter().enumerate() {
        unfold(format, row, panel.row(r, len, group, mins));
    }
    panel.turn(len, group, mins);
}

/// The products of a format of integers. What differs between processors is how panels are made and multiplied: `fill`
/// makes one of the bytes that a step has of each row, `add` adds the products of a step with up to `TILE` vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn multiply_integers<const TILE: usize>(
    format: Format,
    w: &[u8],
    x: &[Vector<'_>],
    y: &mut [f32],
    fill: impl Fn(&mut Panel, &[&[u8]], Step),
    add: impl Fn(&Panel, Step, &[Vector<'_>], &mut [Sums]),
) {
    match x.len() {
        0 => {}
        1..=FEW => rows(format, w, x, y),
        _ => panels::<TILE>(format, w, x, y, fill, add),
    }
}

/// Products with many vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn panels<const TILE: usize>(
    format: Format,
    w: &[u8],
    x: &[Vector<'_>],
    y: &mut [f32],
    fill: impl Fn(&mut Panel, &[&[u8]], Step),
    add: impl Fn(&Panel, Step, &[Vector<'_>], &mut [Sums]),
) {
    let (bytes, n, rows) = (row_bytes(format, w, x, y), x[0].q.len(), y.len() / x.len());
    let [_, exact] = groups(format).expect("an unfolded format");
    let mins = format.has_mins();
    BUFFERS.with_borrow_mut(|b| {
        let panel = b.panel.get_or_insert_with(|| Box::new(Panel::new()));
        b.sums.resize(x.len(), [0.0; panel::ROWS]);
        let panels = w.chunks(panel::ROWS * bytes.max(1));
        for (first, w) in (0..rows).step_by(panel::ROWS).zip(panels) {
            let count = w.len() / bytes;
            b.sums.fill([0.0; panel::ROWS]);
            for (block, start) in (0..n).step_by(SUPER).enumerate() {
                let len = SUPER.min(n - start);
                let [from, to] = [start, start + len].map(|i| i / format.block_len() * format.block_bytes());
                let mut parts: [&[u8]; panel::ROWS] = [&[]; panel::ROWS];
                for (part, row) in parts.iter_mut().zip(w.chunks_exact(bytes)) {
                    *part = &row[from..to];
                }
                let step = Step { len, exact, block, mins };
                fill(panel, &parts[..count], step);
                // Together the steps of a panel ask for all of the next one, tile by tile: a processor waits for few lines
                // of memory at a time, and whatever else it is to load stands in line behind them.
                let share = &w[from * count..to * count];
                let ahead = |t| t * share.len() / x.len();
                let mut t = 0;
                while t < x.len() {
                    // As many tiles as are needed, and all of about the same width: a narrow one waits for its sums.
                    let rest = x.len() - t;
                    let next = t + rest.div_ceil(rest.div_ceil(TILE));
                    prefetch(&share[ahead(t)..ahead(next)], panel::ROWS * bytes);
                    add(panel, step, &x[t..next], &mut b.sums[t..next]);
                    t = next;
                }
            }
            for (y, sums) in y.chunks_exact_mut(rows).zip(&b.sums) {
                y[first..first + count].copy_from_slice(&sums[..count]);
            }
        }
    });
}

/// Asks for the bytes that lie `distance` behind `row`: those of rows to come, which arrive while this one is multiplied. They
/// are to go to the second-level cache: the first one waits for few lines at a time, and loads stand in line behind them.
/// On Zen 4 decoding is a tenth (Q4_K) to a fifth (MXFP4) faster than with the first-level cache, 4 KiB ahead.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn prefetch(row: &[u8], distance: usize) {
    const LINE: usize = 64;
    let start = row.as_ptr().wrapping_add(distance);
    for line in (0..row.len()).step_by(LINE) {
        // Reads nothing that the program sees and doesn't fault, whatever the address.
        _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(line).cast());
    }
}

/// Writes a tile: its rows to neighbours, its columns `stride` elements apart.
#[inline(always)]
fn put<const R: usize, const N: usize>(y: &mut [f32], stride: usize, tile: [[f32; N]; R]) {
    for (i, row) in tile.iter().enumerate() {
        for (t, value) in row.iter().enumerate() {
            y[t * stride + i] = *value;
        }
    }
}

/// Unfolded rows of `n` elements in f32.
struct FloatRows<'a> {
    n: usize,
    values: &'a [f32],
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
        for (first, w) in (0..rows).step_by(together.max(1)).zip(w.chunks((together * bytes).max(1))) {
            let count = w.len() / bytes.max(1);
            for (w, out) in w.chunks_exact(bytes.max(1)).zip(b.floats.chunks_exact_mut(n.max(1))) {
                prefetch(w, together * bytes);
                unfold_floats(format, w, out);
            }
            let together = FloatRows { n, values: &b.floats };
            tiles!(&mut *y, x, together, first, count, float_tile);
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
