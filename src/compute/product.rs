//! Products of weight matrices with batches of activations: the part of a pass that costs the most.
//!
//! A region takes several jobs, because products that read the same input, or that don't depend on each other,
//! are best started together: there is one barrier for all of them, and the small ones fill the gaps of the
//! large. Work is split into parts of about the same number of weight bytes, since a decoding pass is as long
//! as its weights take to read.
//!
//! Two kinds of jobs exist. A [`Sum`] adds up products into rows of an output: one term for an ordinary
//! product, one a routed expert for the down-projection of a mixture, each over just the tokens that chose it.
//! A [`GateUp`] makes the hidden activations of a feed-forward part: both products and the activation function
//! block by block, so that the two halves never travel through memory.

use std::cell::RefCell;

use kadence_quant::{Format, activation::Vector, product::Product};

use super::disjoint::Disjoint;
use super::math;
use super::operand::{Operand, Writer};
use super::pool::Pool;

/// Weight rows that are multiplied before the next vectors: few enough to stay in the first-level cache.
const TILE_ROWS: usize = 32;
/// Vectors that share a tile of weight rows: many, since the rows are unfolded once for all of them.
const TILE_VECTORS: usize = 128;
/// Vectors up to which rows are multiplied one by one.
const FEW_VECTORS: usize = 4;
/// Weight bytes of a part: long against the 50 ns that taking a part costs, short against a region.
const PART_BYTES: usize = 64 << 10;

/// The products of a tile, as [`Product`] leaves them.
type Tile = [f32; TILE_ROWS * TILE_VECTORS];

/// Calls `f` with room for the products of a tile with two matrices, whatever it holds: each thread keeps its own,
/// because clearing 16 KiB for every tile would be work for nothing.
fn with_products(f: impl FnOnce(&mut [Tile; 2])) {
    thread_local! {
        static PRODUCTS: RefCell<[Tile; 2]> = const { RefCell::new([[0.0; TILE_ROWS * TILE_VECTORS]; 2]) };
    }
    PRODUCTS.with_borrow_mut(f);
}

/// A weight matrix, in place: `n_out` rows of `n_in` elements.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    /// The format of the rows.
    pub format: Format,
    /// Elements of a row.
    pub n_in: usize,
    /// Rows.
    pub n_out: usize,
    /// The rows, one after the other.
    pub bytes: &'a [u8],
    /// Multiplies every product (NVFP4's companion scale; 1 elsewhere).
    pub scale: f32,
}

impl<'a> Weights<'a> {
    fn row_bytes(&self) -> usize {
        self.bytes.len() / self.n_out.max(1)
    }

    /// The rows `first..first + count`.
    pub fn rows(&self, first: usize, count: usize) -> Weights<'a> {
        let size = self.row_bytes();
        Weights { n_out: count, bytes: &self.bytes[first * size..][..count * size], ..*self }
    }

    /// `y[t * rows + r] = row r · x[t]` for all rows and a few vectors, on the calling thread.
    pub fn multiply(&self, x: &[Vector<'_>], y: &mut [f32]) {
        self.multiply_with(kadence_quant::product(self.format), x, y);
    }

    fn multiply_with(&self, product: Product, x: &[Vector<'_>], y: &mut [f32]) {
        debug_assert_eq!(y.len(), self.n_out * x.len());
        product(self.bytes, x, y);
        if self.scale != 1.0 {
            math::scale(y, self.scale);
        }
    }
}

/// Which vectors a job multiplies, and which tokens they belong to.
#[derive(Clone, Copy)]
pub enum Pick<'a> {
    /// Vector t of the input belongs to token t, for all of them.
    All,
    /// The i-th of these tokens.
    Tokens(&'a [u32]),
}

impl Pick<'_> {
    fn len(&self, all: usize) -> usize {
        match self {
            Pick::All => all,
            Pick::Tokens(tokens) => tokens.len(),
        }
    }

    fn token(&self, i: usize) -> usize {
        match self {
            Pick::All => i,
            Pick::Tokens(tokens) => tokens[i] as usize,
        }
    }
}

/// One product of a [`Sum`].
pub struct Term<'a> {
    /// The matrix.
    pub weights: Weights<'a>,
    /// Vectors `first..` of this operand are multiplied, one for each token of `pick`.
    pub input: &'a Operand,
    /// See `input`.
    pub first: usize,
    /// The tokens to whose rows of the output the products are added.
    pub pick: Pick<'a>,
    /// A factor for each token of `pick`; empty for ones.
    pub factors: &'a [f32],
}

impl<'a> Term<'a> {
    /// The plain product of a matrix with every vector of `input`.
    pub fn all(weights: Weights<'a>, input: &'a Operand) -> Term<'a> {
        Term { weights, input, first: 0, pick: Pick::All, factors: &[] }
    }

    fn len(&self) -> usize {
        self.pick.len(self.input.rows() - self.first)
    }
}

/// `out[token] = Σ over the terms`, or `+=`; rows of the output are as long as the matrices have rows.
pub struct Sum<'a> {
    /// The products to add up, in this order.
    pub terms: Vec<Term<'a>>,
    /// Rows of `n_out` elements, one a token.
    pub out: &'a mut [f32],
    /// Elements of a row of `out`.
    pub n_out: usize,
    /// Whether to add to what `out` holds.
    pub add: bool,
}

impl<'a> Sum<'a> {
    /// `out[t] = weights · input[t]`.
    pub fn product(weights: Weights<'a>, input: &'a Operand, out: &'a mut [f32]) -> Sum<'a> {
        Sum { n_out: weights.n_out, terms: vec![Term::all(weights, input)], out, add: false }
    }
}

/// The activation function of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) · up`.
    SwiGlu,
    /// `β·tanh(gate/β)·σ(gate) · β_lin·tanh(up/β_lin)`; the second factor is `up` for `β_lin <= 0`.
    Situ {
        /// β
        beta: f32,
        /// β_lin
        linear: f32,
    },
}

impl Activation {
    fn apply(self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        match self {
            Activation::SwiGlu => math::swiglu(gate, up, out),
            Activation::Situ { beta, linear } => math::situ(gate, up, beta, linear, out),
        }
    }
}

/// `out[first + i] = activation(gate · input[token i], up · input[token i])`.
pub struct GateUp<'a> {
    /// The gate's matrix.
    pub gate: Weights<'a>,
    /// The up-projection's matrix, of the same shape.
    pub up: Weights<'a>,
    /// The activations of all tokens.
    pub input: &'a Operand,
    /// The tokens that this part works for.
    pub pick: Pick<'a>,
    /// The row of the output that belongs to the first of them.
    pub first: usize,
    /// Which of the outputs handed to [`gate_up`] the rows are in.
    pub output: usize,
}

/// A range of a job's weight rows.
struct Part {
    job: usize,
    first: usize,
    count: usize,
}

/// Splits jobs, given as (rows, bytes a row), into parts of a multiple of `granule` rows.
fn split(jobs: impl Iterator<Item = (usize, usize)> + Clone, threads: usize, granule: usize) -> Vec<Part> {
    let total: usize = jobs.clone().map(|(rows, bytes)| rows * bytes).sum();
    // Small regions are cut finer, so that no thread waits long for the last part.
    let target = PART_BYTES.min(total / (threads * 4)).max(1);
    let mut parts = Vec::new();
    for (job, (rows, bytes)) in jobs.enumerate() {
        let step = (target / bytes.max(1)).next_multiple_of(granule).max(granule);
        for first in (0..rows).step_by(step) {
            parts.push(Part { job, first, count: step.min(rows - first) });
        }
    }
    parts
}

/// Runs all sums in one region.
pub fn sums(pool: &Pool, jobs: &mut [Sum<'_>]) {
    let sizes = jobs.iter().map(|j| (j.n_out, j.terms.iter().map(|t| t.weights.row_bytes()).sum::<usize>()));
    // Many vectors are multiplied with panels of rows, which parts of a few rows would leave mostly empty: a row of all
    // experts has more bytes than a part should.
    let most = jobs.iter().flat_map(|j| &j.terms).map(Term::len).max().unwrap_or(0);
    let parts = split(sizes, pool.threads(), if most > FEW_VECTORS { TILE_ROWS } else { 4 });
    let jobs: Vec<(&[Term<'_>], Disjoint<'_, f32>, usize, bool)> =
        jobs.iter_mut().map(|j| (j.terms.as_slice(), Disjoint::new(&mut *j.out), j.n_out, j.add)).collect();
    pool.for_each(parts.len(), |i| {
        let Part { job, first, count } = parts[i];
        let (terms, out, n_out, add) = &jobs[job];
        sum_rows(terms, out, *n_out, *add, first, count);
    });
}

/// Rows `first..first + count` of every token's output; no other call may have them at the same time.
fn sum_rows(
    terms: &[Term<'_>],
    out: &Disjoint<'_, f32>,
    n_out: usize,
    add: bool,
    first: usize,
    count: usize,
) {
    let cell = |token: usize, row: usize, len: usize| {
        let start = token * n_out + row;
        // SAFETY: the parts of a region cover each row of the weights once, and only one thread has a part.
        #[allow(unsafe_code)]
        unsafe {
            out.slice(start..start + len)
        }
    };
    let plain = !add && matches!(terms, [Term { pick: Pick::All, factors: [], .. }]);
    if !add && !plain {
        (0..out.len() / n_out).for_each(|token| cell(token, first, count).fill(0.0));
    }
    for term in terms {
        let product = kadence_quant::product(term.weights.format);
        let vectors = term.len();
        if plain && vectors == 1 {
            let rows = term.weights.rows(first, count);
            rows.multiply_with(product, &[term.input.vector(term.first)], cell(0, first, count));
            continue;
        }
        for_vectors(
            vectors,
            |i| term.input.vector(term.first + i),
            |v, x| {
                for (row, rows) in row_tiles(first, count, x.len()) {
                    let weights = term.weights.rows(row, rows);
                    with_products(|[y, _]| {
                        let y = &mut y[..rows * x.len()];
                        weights.multiply_with(product, x, y);
                        for (t, y) in (v..).zip(y.chunks_exact(rows)) {
                            let out = cell(term.pick.token(t), row, rows);
                            if plain {
                                out.copy_from_slice(y);
                            } else {
                                math::axpy(out, term.factors.get(t).copied().unwrap_or(1.0), y);
                            }
                        }
                    });
                }
            },
        );
    }
}

/// Tiles of the rows `first..first + count`: the first row of each, and how many it has. They are the inner loop and
/// vectors the outer one, because unfolded vectors are larger than weights and a part's weights are used up sooner. With
/// few `vectors` rows are used once, one after the other, and a tile has as many as there is room for products of.
fn row_tiles(first: usize, count: usize, vectors: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = first + count;
    let tile = if vectors <= FEW_VECTORS { TILE_ROWS * TILE_VECTORS / FEW_VECTORS } else { TILE_ROWS };
    (first..end).step_by(tile).map(move |row| (row, tile.min(end - row)))
}

/// Calls `f(v, vectors v..)` for tiles of the vectors `0..count`.
fn for_vectors<'a>(
    count: usize,
    vector: impl Fn(usize) -> Vector<'a>,
    mut f: impl FnMut(usize, &[Vector<'a>]),
) {
    let mut tile = [Vector::default(); TILE_VECTORS];
    // Tiles of about the same size: what taking rows apart costs would be a waste for a few vectors that are left over.
    let tiles = count.div_ceil(TILE_VECTORS).max(1);
    let size = count.div_ceil(tiles).max(1);
    for first in (0..count).step_by(size) {
        let len = size.min(count - first);
        for (t, slot) in tile[..len].iter_mut().enumerate() {
            *slot = vector(first + t);
        }
        f(first, &tile[..len]);
    }
}

/// Runs all gate-and-up jobs in one region and quantizes the outputs, which must already have their sizes.
pub fn gate_up(pool: &Pool, jobs: &[GateUp<'_>], activation: Activation, operands: &mut [&mut Operand]) {
    let sizes = jobs.iter().map(|j| (j.gate.n_out, j.gate.row_bytes() + j.up.row_bytes()));
    let parts = split(sizes, pool.threads(), TILE_ROWS);
    let outputs: Vec<Writer<'_>> = operands.iter_mut().map(|o| o.writer()).collect();
    pool.for_each(parts.len(), |i| {
        let Part { job, first, count } = parts[i];
        let job = &jobs[job];
        let out = &outputs[job.output];
        gate_up_rows(job, activation, out, first, count);
    });
    operands.iter_mut().for_each(|o| o.quantize(pool));
}

fn gate_up_rows(job: &GateUp<'_>, activation: Activation, out: &Writer<'_>, first: usize, count: usize) {
    let products = [job.gate, job.up].map(|w| kadence_quant::product(w.format));
    for_vectors(
        job.pick.len(job.input.rows()),
        |i| job.input.vector(job.pick.token(i)),
        |v, x| {
            for (row, rows) in row_tiles(first, count, x.len()) {
                with_products(|[g, u]| {
                    let (g, u) = (&mut g[..rows * x.len()], &mut u[..rows * x.len()]);
                    job.gate.rows(row, rows).multiply_with(products[0], x, g);
                    job.up.rows(row, rows).multiply_with(products[1], x, u);
                    for (t, (g, u)) in (v..).zip(g.chunks_exact(rows).zip(u.chunks_exact(rows))) {
                        // SAFETY: a region's parts cover each row of a job once, and jobs have different rows of the output.
                        #[allow(unsafe_code)]
                        let out = unsafe { out.part(job.first + t, row, rows) };
                        activation.apply(g, u, out);
                    }
                });
            }
        },
    );
}
