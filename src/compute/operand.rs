//! Activations of a batch, in the forms that products read: f32, and quantized where a weight wants that.

use kadence_quant::activation::{self, Line, UNIT, Vector, lengths};

use super::disjoint::Disjoint;
use super::pool::Pool;

/// Elements below which quantizing isn't worth a region.
const SERIAL: usize = 8192;

/// `rows` activation vectors of `n` elements.
#[derive(Default)]
pub struct Operand {
    n: usize,
    rows: usize,
    f32: Vec<f32>,
    q: Vec<Line>,
    scale: Vec<f32>,
    sums: Vec<f32>,
}

impl Operand {
    /// Makes room for `rows` vectors of `n` elements, whatever they are; to be written, then quantized. Memory is kept
    /// for the next use.
    pub fn reset(&mut self, rows: usize, n: usize) {
        (self.n, self.rows) = (n, rows);
        let [q, scale, sums] = lengths(n);
        self.f32.resize(rows * n, 0.0);
        self.q.resize(rows * q / UNIT, Line::ZERO);
        self.scale.resize(rows * scale, 0.0);
        self.sums.resize(rows * sums, 0.0);
    }

    /// Vectors in the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// All vectors as f32, one after the other, to be written.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.f32
    }

    /// Brings the quantized form up to date with the f32 one.
    pub fn quantize(&mut self, pool: &Pool) {
        if self.rows * self.n <= SERIAL {
            return self.quantize_here();
        }
        let mut rows: Vec<_> = self.parts().collect();
        pool.for_each_mut(&mut rows, |_, (((x, q), scale), sums)| activation::quantize(x, q, scale, sums));
    }

    /// [`Operand::quantize`] on the calling thread.
    pub fn quantize_here(&mut self) {
        self.parts().for_each(|(((x, q), scale), sums)| activation::quantize(x, q, scale, sums));
    }

    /// The parts of each vector, if it has a quantized form.
    #[allow(clippy::type_complexity)]
    fn parts(&mut self) -> impl Iterator<Item = (((&[f32], &mut [i16]), &mut [f32]), &mut [f32])> {
        let [q, scale, sums] = lengths(self.n).map(|n| n.max(1));
        let rows =
            self.f32.chunks_exact(self.n.max(1)).zip(Line::integers_mut(&mut self.q).chunks_exact_mut(q));
        rows.zip(self.scale.chunks_exact_mut(scale)).zip(self.sums.chunks_exact_mut(sums))
    }

    /// Vector `row` in every form. The quantized form is empty if no quantized format can have rows of `n` elements.
    pub fn vector(&self, row: usize) -> Vector<'_> {
        let [q, scale, sums] = lengths(self.n);
        Vector {
            f32: &self.f32[row * self.n..][..self.n],
            q: &Line::integers(&self.q)[row * q..][..q],
            scale: &self.scale[row * scale..][..scale],
            sums: &self.sums[row * sums..][..sums],
        }
    }

    /// The f32 form, for several threads to write.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        Writer { n: self.n, values: Disjoint::new(&mut self.f32) }
    }
}

/// Writes an [`Operand`] from several threads.
pub(super) struct Writer<'a> {
    n: usize,
    values: Disjoint<'a, f32>,
}

impl Writer<'_> {
    /// Elements `start..start + len` of vector `row`.
    ///
    /// # Safety
    /// While the part lives, nobody else may hold a part that overlaps it.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, row: usize, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.n);
        // SAFETY: by the caller's promise.
        unsafe { self.values.slice(row * self.n + start..row * self.n + start + len) }
    }
}
