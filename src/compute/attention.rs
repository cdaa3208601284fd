//! MLA attention in its absorbed form: every head looks back at the same latent rows.
//!
//! Per row τ and head h: `s = q̃_h · row_τ`, `p = softmax(s)`, `ō_h = Σ p row_τ[..latent]`
//! (`shared/spec/k3.md`, 4.4). Because the rows are the same for all heads, a tile of rows is decoded to f32 once
//! and serves a block of queries (some heads of some tokens) as two small matrix products, with the softmax
//! carried along row tile by row tile. Sums are f32. Long rows with few queries, the case when decoding, are
//! split over the threads; [`Attended::merge`] puts such splits together.

use std::ops::Range;

use super::disjoint::Disjoint;
use super::gemm;
use super::math;
use super::pool::Pool;

/// Rows decoded at a time: 32 x 576 x 4 bytes stay in the second-level cache.
const ROW_TILE: usize = 32;
/// Queries (tokens x heads) of a part: their vectors and their sums stay in the second-level cache too.
const QUERY_BLOCK: usize = 48;
/// Rows below which splitting them isn't worth a part.
const SPLIT_ROWS: usize = 128;

/// Where the rows that a session looks back at come from.
pub trait RowSource: Sync {
    /// Decodes the rows of `range` to `out`, one after the other.
    fn decode(&self, range: Range<usize>, out: &mut [f32]);
}

/// The queries of some of one session's new tokens.
pub struct Sequence<R> {
    /// The rows, these tokens' among them.
    pub rows: R,
    /// Rows that may be looked at, ascending and without overlap; the last one ends with the last of these tokens.
    pub visible: Vec<Range<usize>>,
    /// Position of the first of them.
    pub position: usize,
    /// Their places among the queries.
    pub tokens: Range<usize>,
}

/// Sizes of a query.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Heads.
    pub heads: usize,
    /// Elements of a row (latent and shared key part).
    pub width: usize,
    /// Leading elements of a row that are summed up.
    pub latent: usize,
}

/// The outcome for every query, a token and a head, as unnormalised sums over one or more splits of the rows.
#[derive(Default)]
pub struct Attended {
    latent: usize,
    heads: usize,
    /// Per token: index of its first cell; its splits are `heads` cells each.
    first_cell: Vec<usize>,
    splits: Vec<usize>,
    /// `latent` sums a cell.
    sums: Vec<f32>,
    /// Largest score and sum of weights a cell.
    stats: Vec<[f32; 2]>,
}

impl Attended {
    fn reset(&mut self, shape: Shape, plan: &[(Range<usize>, usize)]) {
        (self.latent, self.heads) = (shape.latent, shape.heads);
        self.first_cell.clear();
        self.splits.clear();
        let mut cells = 0;
        for (tokens, splits) in plan {
            for _ in tokens.clone() {
                self.first_cell.push(cells);
                self.splits.push(*splits);
                cells += splits * shape.heads;
            }
        }
        self.sums.resize(cells * shape.latent, 0.0);
        self.stats.resize(cells, [0.0; 2]);
    }

    /// ō of one token and head: `latent` elements.
    pub fn merge(&self, token: usize, head: usize, out: &mut [f32]) {
        let cell = |split: usize| self.first_cell[token] + split * self.heads + head;
        let splits = self.splits[token];
        let max = (0..splits).map(|s| self.stats[cell(s)][0]).fold(f32::NEG_INFINITY, f32::max);
        out.fill(0.0);
        let mut total = 0.0;
        for split in 0..splits {
            let [m, sum] = self.stats[cell(split)];
            if sum > 0.0 {
                let factor = (m - max).exp();
                total += factor * sum;
                math::axpy(out, factor, &self.sums[cell(split) * self.latent..][..self.latent]);
            }
        }
        math::scale(out, 1.0 / total);
    }
}

/// A block of queries against a range of the rows.
struct Part {
    sequence: usize,
    tokens: Range<usize>,
    heads: Range<usize>,
    split: usize,
    /// Of the visible rows, counted one after the other.
    rows: Range<usize>,
}

/// Attends for all sequences, which lie one behind the other, in one region. `queries` holds `heads x width` elements a
/// token, with the softmax scale already in them.
pub fn attend<R: RowSource>(
    pool: &Pool,
    shape: Shape,
    sequences: &[Sequence<R>],
    queries: &[f32],
    out: &mut Attended,
) {
    let head_block = shape.heads.min(QUERY_BLOCK);
    let token_block = (QUERY_BLOCK / shape.heads).max(1);
    let blocks = |s: &Sequence<R>| s.tokens.len().div_ceil(token_block) * shape.heads.div_ceil(head_block);
    let all: usize = sequences.iter().map(blocks).sum();
    let wanted = (pool.threads() * 4).div_ceil(all.max(1));
    let mut parts = Vec::new();
    let mut plan = Vec::new();
    for (sequence, s) in sequences.iter().enumerate() {
        let rows: usize = s.visible.iter().map(Range::len).sum();
        let splits = wanted.min(rows.div_ceil(SPLIT_ROWS)).max(1);
        let step = rows.div_ceil(splits).next_multiple_of(ROW_TILE);
        let splits = rows.div_ceil(step);
        plan.push((s.tokens.clone(), splits));
        for token in s.tokens.clone().step_by(token_block) {
            for head in (0..shape.heads).step_by(head_block) {
                for split in 0..splits {
                    parts.push(Part {
                        sequence,
                        tokens: token..(token + token_block).min(s.tokens.end),
                        heads: head..(head + head_block).min(shape.heads),
                        split,
                        rows: split * step..((split + 1) * step).min(rows),
                    });
                }
            }
        }
    }
    out.reset(shape, &plan);
    let (first_cell, heads) = (&out.first_cell, out.heads);
    let (sums, stats) = (Disjoint::new(&mut out.sums), Disjoint::new(&mut out.stats));
    pool.for_each(parts.len(), |i| {
        let part = &parts[i];
        let block = Block::run(part, shape, &sequences[part.sequence], queries);
        for (t, token) in part.tokens.clone().enumerate() {
            let count = part.heads.len();
            let cell = first_cell[token] + part.split * heads + part.heads.start;
            // SAFETY: a cell is a token, a split and a head, and each belongs to exactly one part.
            #[allow(unsafe_code)]
            let (sums, stats) = unsafe {
                (
                    sums.slice(cell * shape.latent..(cell + count) * shape.latent),
                    stats.slice(cell..cell + count),
                )
            };
            sums.copy_from_slice(&block.sums[t * count * shape.latent..][..count * shape.latent]);
            stats.copy_from_slice(&block.stats[t * count..][..count]);
        }
    });
}

/// The running outcome of a part, query by query (token-major, then head).
struct Block {
    sums: Vec<f32>,
    stats: Vec<[f32; 2]>,
}

impl Block {
    fn run<R: RowSource>(part: &Part, shape: Shape, sequence: &Sequence<R>, queries: &[f32]) -> Block {
        let Shape { heads, width, latent } = shape;
        let (tokens, count) = (part.tokens.len(), part.heads.len());
        let m = tokens * count;
        // The heads of one token lie together, but not those of several unless all heads are taken.
        let gathered: Vec<f32>;
        let query = |token: usize| &queries[(token * heads + part.heads.start) * width..][..count * width];
        let a = if tokens == 1 || count == heads {
            &queries[(part.tokens.start * heads + part.heads.start) * width..][..m * width]
        } else {
            gathered = part.tokens.clone().flat_map(|t| query(t).iter().copied()).collect();
            &gathered
        };
        let mut block = Block { sums: vec![0.0; m * latent], stats: vec![[f32::NEG_INFINITY, 0.0]; m] };
        let mut rows = vec![0f32; ROW_TILE * width];
        let mut scores = vec![0f32; m * ROW_TILE];
        let end = sequence.position + (part.tokens.end - sequence.tokens.start);
        let mut before = 0; // visible rows in the ranges before
        for visible in &sequence.visible {
            let place = |row: usize| visible.start + row.saturating_sub(before).min(visible.len());
            let range = place(part.rows.start)..place(part.rows.end).min(end);
            before += visible.len();
            for start in range.clone().step_by(ROW_TILE) {
                let n = ROW_TILE.min(range.end - start);
                let rows = &mut rows[..n * width];
                sequence.rows.decode(start..start + n, rows);
                let scores = &mut scores[..m * n];
                gemm::dots(a, rows, width, scores);
                for (i, scores) in scores.chunks_exact_mut(n).enumerate() {
                    let position = sequence.position + part.tokens.start - sequence.tokens.start + i / count;
                    let seen = (position + 1).saturating_sub(start).min(n);
                    block.weigh(i, latent, scores, seen);
                }
                gemm::add_weighted(scores, rows, width, latent, &mut block.sums);
            }
        }
        block
    }

    /// Turns the scores of query `i` into weights relative to the largest score so far, of which only the first
    /// `seen` count.
    fn weigh(&mut self, i: usize, latent: usize, scores: &mut [f32], seen: usize) {
        let [max, sum] = &mut self.stats[i];
        let (scores, hidden) = scores.split_at_mut(seen);
        hidden.fill(0.0);
        let top = math::max(scores);
        if top > *max {
            let factor = (*max - top).exp();
            if *sum > 0.0 {
                math::scale(&mut self.sums[i * latent..][..latent], factor);
                *sum *= factor;
            }
            *max = top;
        }
        if seen > 0 {
            *sum += math::exp_minus(scores, *max);
        }
    }
}
