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

    /// All vectors as f32, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.f32
    }

    /// All vectors as f32, one after the other, to be written.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.f32
    }

    /// Writes or changes every vector with `f(row, values)` and quantizes it, in one region.
    pub fn fill(&mut self, pool: &Pool, f: impl Fn(usize, &mut [f32]) + Sync) {
        let serial = self.rows * self.n <= SERIAL;
        let one = |i: usize, row: &mut Row<'_>| {
            f(i, row.x);
            row.quantize();
        };
        if serial {
            self.rows_mut().enumerate().for_each(|(i, mut row)| one(i, &mut row));
        } else {
            pool.for_each_mut(&mut self.rows_mut().collect::<Vec<_>>(), one);
        }
    }

    /// Brings the quantized form up to date with the f32 one.
    pub fn quantize(&mut self, pool: &Pool) {
        self.fill(pool, |_, _| {});
    }

    /// [`Operand::quantize`] on the calling thread.
    pub fn quantize_here(&mut self) {
        self.rows_mut().for_each(|mut row| row.quantize());
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = Row<'_>> {
        let n = self.n;
        let [q, scale, sums] = lengths(n);
        let mut rest =
            (&mut self.f32[..], Line::integers_mut(&mut self.q), &mut self.scale[..], &mut self.sums[..]);
        (0..self.rows).map_while(move |_| {
            Some(Row {
                x: rest.0.split_off_mut(..n)?,
                q: rest.1.split_off_mut(..q)?,
                scale: rest.2.split_off_mut(..scale)?,
                sums: rest.3.split_off_mut(..sums)?,
            })
        })
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

/// One vector of an [`Operand`], in every form.
struct Row<'a> {
    x: &'a mut [f32],
    /// Empty, like `scale` and `sums`, if no quantized format can have rows of as many elements.
    q: &'a mut [i16],
    scale: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Row<'_> {
    fn quantize(&mut self) {
        if !self.q.is_empty() {
            activation::quantize(self.x, self.q, self.scale, self.sums);
        }
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
