//! The delta rule of a KDA head, a few tokens at a time (`shared/spec/k3.md`, 4.3 and 6).
//!
//! S is `key x value`, row by row, and d = e^g are the decays. For n tokens, with Γ(t,s) = d_{s+1} … d_t (a number
//! a key channel, 1 for s = t) and Γ(t,0) = d_1 … d_t, the recurrence unrolls to products of matrices:
//!
//! ```text
//! a_t = Sᵀ (Γ(t,0) k_t)     b_t = Sᵀ (Γ(t,0) q_t)                   every row of S read once for all tokens
//! A_ts = k_t · (Γ(t,s) k_s)     P_ts = q_t · (Γ(t,s) k_s)
//! u_t = β_t (v_t − a_t − Σ_{s<t} A_ts u_s)     y_t = b_t + Σ_{s<=t} P_ts u_s
//! S ← Γ(n,0) S + Σ_s (Γ(n,s) k_s) u_sᵀ                              every row written once for all tokens
//! ```
//!
//! For n = 1 this is the recurrence itself, in two sweeps over S; for more tokens it is the chunkwise form, and needs
//! 3D² + O(nD) multiplications a token where the recurrence needs 4D². Γ is a running product of decays: it never
//! overflows whatever the gate, it underflows only where the exact value is nothing, and it costs no exponentials.
//!
//! Measured (`benches/kda.rs`, Zen 3, D = 128), in µs a token and head: 3.0 one by one; of 2, 4, 8, 16 and 256 tokens at
//! once 2.2, 1.8, 1.7, 1.6 and 1.6.

mod chunk;
mod convolution;

use super::simd::{LANES, Lanes, dispatch};
use chunk::{CHUNK, Chunk};

pub use chunk::Scratch;
pub use convolution::{convolve, slide};

/// Vectors of a row of S that are worked on together: for k and q, or for two rows, eight sums in registers.
const TILE: usize = 4;

/// The inputs of one head for some tokens, `tokens x D` each.
#[derive(Clone, Copy)]
pub struct HeadInput<'a> {
    /// Queries, of length 1, times 1/√D.
    pub q: &'a [f32],
    /// Keys, of length 1.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Decays exp(g), between 0 and 1.
    pub decay: &'a [f32],
    /// Write strengths, one a token.
    pub beta: &'a [f32],
}

dispatch! {
    /// Reads the tokens of `input` into the state `s` (`D x D`, D = `size`, a multiple of 8) and writes what each of
    /// them reads back to `y` (`tokens x D`).
    pub fn delta_rule(input: HeadInput<'_>, size: usize, s: &mut [f32], scratch: &mut Scratch, y: &mut [f32])
        = delta_rule_body;
}

#[inline(always)]
fn delta_rule_body<L: Lanes>(
    input: HeadInput<'_>,
    size: usize,
    s: &mut [f32],
    scratch: &mut Scratch,
    y: &mut [f32],
) {
    let tokens = input.beta.len();
    assert!(size.is_multiple_of(LANES) && s.len() == size * size && y.len() == tokens * size);
    assert!([input.q, input.k, input.v, input.decay].iter().all(|x| x.len() == tokens * size));
    if size.is_multiple_of(TILE * LANES) {
        in_chunks::<L, TILE>(input, size, s, scratch, y);
    } else {
        in_chunks::<L, 1>(input, size, s, scratch, y);
    }
}

#[inline(always)]
fn in_chunks<L: Lanes, const N: usize>(
    input: HeadInput<'_>,
    size: usize,
    s: &mut [f32],
    scratch: &mut Scratch,
    y: &mut [f32],
) {
    let (s, _) = s.as_chunks_mut();
    for (i, (beta, y)) in input.beta.chunks(CHUNK).zip(y.chunks_mut(CHUNK * size)).enumerate() {
        let [q, k, v, decay] =
            [input.q, input.k, input.v, input.decay].map(|x| x[i * CHUNK * size..][..y.len()].as_chunks().0);
        let mut chunk = Chunk::<N>::new(size / LANES, beta.len(), scratch);
        chunk.decay::<L>(q, k, decay);
        chunk.read::<L>(s);
        chunk.solve::<L>(v, beta, y.as_chunks_mut().0);
        chunk.write::<L>(s);
    }
}

#[cfg(test)]
mod tests;
