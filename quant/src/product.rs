//! Products of weight rows with activation vectors.
//!
//! [`portable`] is the reference for every other path: a row is decoded to f32 once and serves every vector of the
//! batch. Sums are f32 in sixteen lanes, which the compiler vectorises on any processor and whose error grows with n/16
//! instead of n.

use std::cell::RefCell;

use crate::{
    Format,
    activation::{BLOCK, UNIT, Vector},
    decode,
};

/// `y[t * rows + r] = Σ_i w[r][i] · x[t][i]` for the `rows = y.len() / x.len()` rows that lie one after the other
/// in `w`. All vectors of `x` have the same length, a whole number of the format's blocks.
pub type Product = fn(w: &[u8], x: &[Vector<'_>], y: &mut [f32]);

const LANES: usize = 16;

/// The portable product of a format.
pub fn portable(format: Format) -> Product {
    macro_rules! of {
        ($($name:ident)*) => {
            match format {
                $(Format::$name => |w, x, y| multiply(Format::$name, w, x, y),)*
            }
        };
    }
    of!(F32 F16 BF16 I8 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4 NVFP4 Q1_0 Q2_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS
        IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M IQ4_XS TQ1_0 TQ2_0)
}

fn multiply(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    thread_local! {
        static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    let Some(first) = x.first() else { return };
    let n = if format.is_float() { first.f32.len() } else { first.q.len() };
    let bytes = format.bytes(n).expect("vectors are whole blocks");
    assert_eq!(w.len(), bytes * (y.len() / x.len()), "rows of {n} elements");
    let rows = y.len() / x.len();
    ROW.with_borrow_mut(|row| {
        row.resize(n, 0.0);
        for (r, w) in w.chunks_exact(bytes.max(1)).enumerate() {
            decode(format, w, row);
            for (y, x) in y.iter_mut().skip(r).step_by(rows).zip(x) {
                *y = if format.is_float() { dot(row, x.f32) } else { dot_quantized(row, x) };
            }
        }
    });
}

fn dot(w: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let ((w, w_rest), (x, x_rest)) = (w.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (w, x) in w.iter().zip(x) {
        for i in 0..LANES {
            sums[i] += w[i] * x[i];
        }
    }
    tree(sums) + w_rest.iter().zip(x_rest).map(|(w, x)| w * x).sum::<f32>()
}

fn dot_quantized(w: &[f32], x: &Vector<'_>) -> f32 {
    let mut total = 0.0;
    for ((w, q), &scale) in w.chunks(BLOCK).zip(x.q.chunks(BLOCK)).zip(x.scale) {
        let mut sums = [0f32; LANES];
        for (w, q) in w.as_chunks::<UNIT>().0.iter().zip(q.as_chunks::<UNIT>().0) {
            for i in 0..LANES {
                sums[i] += w[2 * i] * f32::from(q[i]);
                sums[i] += w[2 * i + 1] * f32::from(q[LANES + i]);
            }
        }
        total += scale * tree(sums);
    }
    total
}

fn tree(sums: [f32; LANES]) -> f32 {
    let mut width = LANES;
    let mut sums = sums;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            sums[i] += sums[i + width];
        }
    }
    sums[0]
}
