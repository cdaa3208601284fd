//! The two ends of MLA attention, head by head: queries into the latent, and values out of it
//! (`shared/spec/k3.md`, 4.4).

use std::ops::Range;

use kadence_quant::activation::Vector;

use super::attention::Attended;
use super::disjoint::Disjoint;
use super::math;
use super::operand::Operand;
use super::pool::Pool;
use super::product::Weights;

/// Tokens that share a head's weights.
const TOKENS: usize = 64;

/// Sizes of a head.
#[derive(Clone, Copy)]
pub struct HeadShape {
    /// Heads.
    pub heads: usize,
    /// Elements of a query's own part.
    pub own: usize,
    /// Elements of the part that goes with the shared key.
    pub shared: usize,
    /// Elements of the latent.
    pub latent: usize,
    /// Elements of a value.
    pub value: usize,
}

/// `out[i][head] = scale [key_h · q_own | q_shared]` with `q = query · input[token]`, for the i-th of `tokens` and all
/// heads.
pub fn queries<'a>(
    pool: &Pool,
    shape: HeadShape,
    query: Weights<'_>,
    key: impl Fn(usize) -> Weights<'a> + Sync,
    input: &Operand,
    tokens: Range<usize>,
    out: &mut [f32],
) {
    let HeadShape { heads, own, shared, latent, .. } = shape;
    let (full, width) = (own + shared, latent + shared);
    let scale = 1.0 / (full as f32).sqrt();
    let out = Disjoint::new(out);
    for_heads(pool, heads, tokens.len(), |head, first, count| {
        let vectors: Vec<Vector<'_>> =
            (first..first + count).map(|t| input.vector(tokens.start + t)).collect();
        let mut q = vec![0f32; full * count];
        query.rows(head * full, full).multiply(&vectors, &mut q);
        let mut own_parts = Operand::default();
        own_parts.reset(count, own);
        for (t, x) in own_parts.values_mut().chunks_exact_mut(own).enumerate() {
            x.copy_from_slice(&q[t * full..][..own]);
        }
        own_parts.quantize_here();
        let vectors: Vec<Vector<'_>> = (0..count).map(|t| own_parts.vector(t)).collect();
        let mut absorbed = vec![0f32; latent * count];
        key(head).multiply(&vectors, &mut absorbed);
        for t in 0..count {
            let start = ((first + t) * heads + head) * width;
            // SAFETY: a head of a token belongs to one part of the region.
            #[allow(unsafe_code)]
            let out = unsafe { out.slice(start..start + width) };
            out[..latent].copy_from_slice(&absorbed[t * latent..][..latent]);
            out[latent..].copy_from_slice(&q[t * full + own..(t + 1) * full]);
            math::scale(out, scale);
        }
    });
}

/// `out[token] = concat_h(value_h · ō_h)`; ō of the i-th of `tokens` is the i-th of `attended`. `out` has its size, and is
/// yet to be quantized.
pub fn values<'a>(
    pool: &Pool,
    shape: HeadShape,
    value: impl Fn(usize) -> Weights<'a> + Sync,
    tokens: Range<usize>,
    attended: &Attended,
    out: &mut Operand,
) {
    let HeadShape { heads, latent, value: n, .. } = shape;
    let writer = out.writer();
    for_heads(pool, heads, tokens.len(), |head, first, count| {
        let mut merged = Operand::default();
        merged.reset(count, latent);
        for (t, x) in merged.values_mut().chunks_exact_mut(latent).enumerate() {
            attended.merge(first + t, head, x);
        }
        merged.quantize_here();
        let vectors: Vec<Vector<'_>> = (0..count).map(|t| merged.vector(t)).collect();
        let mut y = vec![0f32; n * count];
        value(head).multiply(&vectors, &mut y);
        for t in 0..count {
            // SAFETY: a head of a token belongs to one part of the region.
            #[allow(unsafe_code)]
            let x = unsafe { writer.part(tokens.start + first + t, head * n, n) };
            x.copy_from_slice(&y[t * n..][..n]);
        }
    });
}

/// Calls `f(head, first token, tokens)` for every head and every few tokens.
fn for_heads(pool: &Pool, heads: usize, tokens: usize, f: impl Fn(usize, usize, usize) + Sync) {
    let tiles = tokens.div_ceil(TOKENS);
    pool.for_each(heads * tiles, |part| {
        let (head, first) = (part / tiles, part % tiles * TOKENS);
        f(head, first, TOKENS.min(tokens - first));
    });
}
