//! Activations of a batch, in the forms that products read: f32, and quantized where a weight wants that.

use kadence_quant::activation::{self, BLOCK, Vector};

use super::disjoint::Disjoint;

/// `rows` activation vectors of `n` elements.
#[derive(Default)]
pub struct Operand {
    n: usize,
    rows: usize,
    f32: Vec<f32>,
    q: Vec<i8>,
    scale: Vec<f32>,
    sums: Vec<i16>,
}

impl Operand {
    /// Makes room for `rows` vectors of `n` elements; what was in it is gone. Memory is kept for the next use.
    pub fn reset(&mut self, rows: usize, n: usize) {
        (self.n, self.rows) = (n, rows);
        let blocks = n / BLOCK;
        self.f32.resize(rows * n, 0.0);
        self.q.resize(rows * blocks * BLOCK, 0);
        self.scale.resize(rows * blocks, 0.0);
        self.sums.resize(rows * blocks * 2, 0);
    }

    /// Vectors in the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a vector.
    pub fn n(&self) -> usize {
        self.n
    }

    /// All vectors as f32, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.f32
    }

    /// Vector `row` in every form. The quantized form is empty if `n` isn't a whole number of blocks: then no
    /// quantized format can have such rows either.
    pub fn vector(&self, row: usize) -> Vector<'_> {
        let (n, blocks) = (self.n, self.n / BLOCK);
        Vector {
            f32: &self.f32[row * n..][..n],
            q: &self.q[row * blocks * BLOCK..][..blocks * BLOCK],
            scale: &self.scale[row * blocks..][..blocks],
            sums: &self.sums[row * blocks * 2..][..blocks * 2],
        }
    }

    /// A view that several threads fill in parts.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        Writer {
            n: self.n,
            rows: self.rows,
            f32: Disjoint::new(&mut self.f32),
            q: Disjoint::new(&mut self.q),
            scale: Disjoint::new(&mut self.scale),
            sums: Disjoint::new(&mut self.sums),
        }
    }
}

/// Fills an [`Operand`] from several threads.
pub(super) struct Writer<'a> {
    n: usize,
    rows: usize,
    f32: Disjoint<'a, f32>,
    q: Disjoint<'a, i8>,
    scale: Disjoint<'a, f32>,
    sums: Disjoint<'a, i16>,
}

impl Writer<'_> {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Lets `fill` write the `len` elements of vector `row` from element `start` on, then quantizes them. Both
    /// are multiples of a block, except that `start = 0, len = n` is allowed for any `n`.
    ///
    /// # Safety
    /// No two calls that run at the same time may touch the same elements.
    #[allow(unsafe_code)]
    pub(super) unsafe fn fill<R>(
        &self,
        row: usize,
        start: usize,
        len: usize,
        fill: impl FnOnce(&mut [f32]) -> R,
    ) -> R {
        assert!(row < self.rows && start + len <= self.n);
        // SAFETY: the caller's promise covers the elements, and blocks and sums lie within them.
        let x = unsafe { self.f32.slice(row * self.n + start..row * self.n + start + len) };
        let result = fill(x);
        let blocks = self.n / BLOCK;
        if !self.n.is_multiple_of(BLOCK) {
            return result;
        }
        assert!(start.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
        let first = row * blocks + start / BLOCK;
        let range = first..first + len / BLOCK;
        // SAFETY: as above.
        let (q, scale, sums) = unsafe {
            (
                self.q.slice(range.start * BLOCK..range.end * BLOCK),
                self.scale.slice(range.clone()),
                self.sums.slice(range.start * 2..range.end * 2),
            )
        };
        activation::quantize(x, q, scale, sums);
        result
    }
}
