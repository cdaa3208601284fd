//! Products on aarch64: NEON, and the instructions for bytes where the processor has them.
//!
//! A few rows are unfolded to bytes (`unfold`, `grids`), 256 elements at a time, into the first-level cache, and from
//! there multiplied with all vectors, two rows by up to four vectors (`tile`). Rows of floats are widened in registers
//! (`floats`).

// Tiles are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

mod activation;
mod floats;
mod grids;
mod lanes;
mod tile;
mod unfold;

use std::arch::aarch64::*;
use std::cell::RefCell;

use crate::Format;
use crate::activation::Vector;
use crate::product::Product;

pub(crate) use activation::quantize;
use lanes::numbers;
use tile::{ROWS, Sums, Unit, Way};
use unfold::{Row, SUPER, has_sixteen, unfold};

/// Vectors up to which rows are unfolded two at a time: each more is one more place in memory that is read from.
const FEW: usize = 4;

/// The products of a format that this processor can run, the fastest first, with their names.
pub(crate) fn products(format: Format) -> impl Iterator<Item = (&'static str, Product)> {
    macro_rules! of {
        ($($name:ident)*; $f:ident) => {
            match format {
                $(Format::$name => {
                    // SAFETY: every processor that this build is for has NEON, and ways are handed out where `Way::all`
                    // has them.
                    #[allow(unsafe_code)]
                    let product: Product = |w, x, y| unsafe { $f(Format::$name, w, x, y) };
                    Some(product)
                })*
                _ => None,
            }
        };
    }
    macro_rules! integers {
        ($f:ident) => {
            of!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S
                IQ1_M IQ4_XS; $f)
        };
    }
    let floats = of!(F32 F16 BF16; floats).map(|product| ("neon", product));
    let integers = Way::all().filter_map(move |way| {
        let product = match way {
            Way::Long => integers!(long),
            Way::Dot => integers!(dot),
            Way::Matrix => integers!(matrix),
        };
        Some((way.name(), product?))
    });
    floats.into_iter().chain(integers)
}

/// What each thread keeps from one product to the next.
#[derive(Default)]
struct Buffers {
    units: Vec<Unit>,
    rows: Vec<Row>,
    sums: Vec<Sums>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

#[target_feature(enable = "neon")]
fn long(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    multiply(Way::Long, format, w, x, y);
}

#[target_feature(enable = "neon")]
fn dot(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    multiply(Way::Dot, format, w, x, y);
}

#[target_feature(enable = "neon")]
fn matrix(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    multiply(Way::Matrix, format, w, x, y);
}

#[target_feature(enable = "neon")]
fn multiply(way: Way, format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    let Some(first) = x.first() else { return };
    let n = first.q.len();
    let bytes = format.bytes(n).expect("vectors are whole blocks");
    let rows = y.len() / x.len();
    assert!(w.len() == bytes * rows && x.iter().all(|x| x.q.len() == n), "rows of {n} elements");
    let step = format.bytes(SUPER).expect("whole blocks");
    let (sixteen, mins) = (has_sixteen(format), format.has_mins());
    let together = if x.len() <= FEW { 2 } else { ROWS };
    BUFFERS.with_borrow_mut(|Buffers { units, rows: unfolded, sums }| {
        units.resize(x.len() * n / 16, [vdupq_n_s8(0); 2]);
        for (x, units) in x.iter().zip(units.chunks_exact_mut((n / 16).max(1))) {
            way.spread(x.q, units);
        }
        unfolded.resize(ROWS, Row::new());
        sums.resize(x.len(), [vdupq_n_f32(0.0); ROWS]);
        for (first, w) in (0..rows).step_by(together).zip(w.chunks(together * bytes.max(1))) {
            let count = w.len() / bytes;
            sums.iter_mut().for_each(|sums| sums[..together].fill(vdupq_n_f32(0.0)));
            for block in 0..n.div_ceil(SUPER) {
                for (w, row) in w.chunks_exact(bytes.max(1)).zip(unfolded.iter_mut()) {
                    unfold(format, &w[block * step..bytes.min((block + 1) * step)], row);
                }
                // An odd last row comes with what was unfolded before: its sums are for nobody.
                let rows = &unfolded[..count.next_multiple_of(2)];
                let part = Part { x, units, n, block, mins };
                if sixteen {
                    part.add::<1>(way, rows, sums);
                } else {
                    part.add::<2>(way, rows, sums);
                }
            }
            for (t, sums) in sums.iter().enumerate() {
                for (y, sum) in y[t * rows + first..][..count].iter_mut().zip(sums) {
                    *y = vaddvq_f32(*sum);
                }
            }
        }
    });
}

/// Block `block` of all vectors, which have `n` elements.
struct Part<'a> {
    x: &'a [Vector<'a>],
    units: &'a [Unit],
    n: usize,
    block: usize,
    mins: bool,
}

impl Part<'_> {
    /// Adds the products of rows with all vectors, up to four at once, to `sums`.
    #[inline(never)]
    #[target_feature(enable = "neon")]
    fn add<const K: usize>(&self, way: Way, rows: &[Row], sums: &mut [Sums]) {
        let start = SUPER * self.block;
        let count = SUPER.min(self.n - start) / 16;
        let mut t = 0;
        while t < self.x.len() {
            macro_rules! some {
                ($n:literal) => {{
                    let x = &self.x[t..t + $n];
                    let sums = &mut sums[t..t + $n];
                    let units =
                        std::array::from_fn(|i| &self.units[((t + i) * self.n + start) / 16..][..count]);
                    way.add::<$n, K>(rows, units, std::array::from_fn(|i| x[i].scale[self.block]), sums);
                    if self.mins {
                        subtract_mins::<$n>(rows, std::array::from_fn(|i| self.sums_of(&x[i])), sums);
                    }
                    t += $n;
                }};
            }
            match way.width().min(self.x.len() - t) {
                4.. => some!(4),
                2 | 3 => some!(2),
                _ => some!(1),
            }
        }
    }

    /// What minima are multiplied with.
    fn sums_of(&self, x: &Vector<'_>) -> [f32; SUPER / 16] {
        let sums = &x.sums[SUPER / 16 * self.block..];
        sums.first_chunk().copied().unwrap_or_else(|| {
            let mut padded = [0.0; SUPER / 16];
            padded[..sums.len()].copy_from_slice(sums);
            padded
        })
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn subtract_mins<const N: usize>(rows: &[Row], x: [[f32; SUPER / 16]; N], sums: &mut [Sums]) {
    for (r, row) in rows.iter().enumerate() {
        for t in 0..N {
            let sum = &mut sums[t][r];
            for at in (0..SUPER / 16).step_by(4) {
                *sum = vfmsq_f32(*sum, numbers(&row.mins, at), numbers(&x[t], at));
            }
        }
    }
}

#[target_feature(enable = "neon")]
fn floats(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    let Some(first) = x.first() else { return };
    let n = first.f32.len();
    let bytes = format.bytes(n).expect("any length");
    let rows = y.len() / x.len();
    assert!(w.len() == bytes * rows && x.iter().all(|x| x.f32.len() == n), "rows of {n} elements");
    let mut t = 0;
    while t < x.len() {
        macro_rules! some {
            ($n:literal) => {{
                for (r, w) in (0..rows).step_by(2).zip(w.chunks(2 * bytes.max(1))) {
                    let count = w.len() / bytes;
                    let two = [&w[..bytes], &w[(count - 1) * bytes..]];
                    for (r, products) in (r..r + count).zip(floats::tile::<$n>(format, two, &x[t..])) {
                        for (t, product) in (t..).zip(products) {
                            y[t * rows + r] = product;
                        }
                    }
                }
                t += $n;
            }};
        }
        match x.len() - t {
            4.. => some!(4),
            2 | 3 => some!(2),
            _ => some!(1),
        }
    }
}
