//! The streams of a batch: one vector a token that the layers add to, and the banks of Attention Residuals
//! (`shared/spec/k3.md`, 4.2). Nothing of them outlives the pass.

use super::disjoint::Disjoint;
use super::math;
use super::operand::Operand;
use super::pool::Pool;

/// A stream that was put aside at the start of a block of layers.
#[derive(Default)]
struct Bank {
    values: Vec<f32>,
    /// `1 / sqrt(mean(v²) + ε)` of each token's vector: computed once, used by every later mix.
    factors: Vec<f32>,
}

/// The streams of a batch of tokens.
#[derive(Default)]
pub struct Streams {
    width: usize,
    tokens: usize,
    current: Vec<f32>,
    banks: Vec<Bank>,
    /// Banks in use; those behind are kept for their memory.
    used: usize,
    /// Mixing weights of the last mix, `used + 1` a token.
    weights: Vec<f32>,
    mixed: Vec<f32>,
}

impl Streams {
    /// Starts a batch; the streams have to be written before they are used.
    pub fn reset(&mut self, tokens: usize, width: usize) {
        (self.tokens, self.width, self.used) = (tokens, width, 0);
        self.current.resize(tokens * width, 0.0);
        self.mixed.resize(tokens * width, 0.0);
    }

    /// The streams, one token after the other.
    pub fn current(&self) -> &[f32] {
        &self.current
    }

    /// The streams, to be written.
    pub fn current_mut(&mut self) -> &mut [f32] {
        &mut self.current
    }

    /// The weights of the last mix: one for each bank and one for the stream, token by token. Empty if there was
    /// nothing to mix.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Puts the streams aside as a new bank; they go on from zero.
    pub fn push_bank(&mut self, epsilon: f32) {
        if self.used == self.banks.len() {
            self.banks.push(Bank::default());
        }
        let bank = &mut self.banks[self.used];
        bank.values.resize(self.current.len(), 0.0);
        std::mem::swap(&mut bank.values, &mut self.current);
        bank.factors.clear();
        bank.factors.extend(bank.values.chunks_exact(self.width).map(|v| math::rms_factor(v, epsilon)));
        self.used += 1;
        self.current.fill(0.0);
    }

    /// `out[t] = rms(mix(banks, stream)) ⊙ norm`: the input of the next part for the tokens in `pick`. Without a
    /// `score` (plain residuals) or without banks the mix is the stream.
    pub fn mix_and_norm(
        &mut self,
        pool: &Pool,
        score: Option<&[f32]>,
        norm: &[f32],
        epsilon: f32,
        pick: &[u32],
        out: &mut Operand,
    ) {
        let (width, banks) = (self.width, &self.banks[..self.used]);
        let candidates = banks.len() + 1;
        let score = score.filter(|_| !banks.is_empty());
        self.weights.clear();
        self.weights.resize(if score.is_some() { pick.len() * candidates } else { 0 }, 0.0);
        out.reset(pick.len(), width);
        let (current, weights, mixed) =
            (&self.current, Disjoint::new(&mut self.weights), Disjoint::new(&mut self.mixed));
        out.fill(pool, |i, out| {
            let token = pick[i] as usize;
            let row = token * width..(token + 1) * width;
            let stream = &current[row.clone()];
            let Some(score) = score else { return math::rms_norm(stream, norm, epsilon, out) };
            // SAFETY: each token is one part of the region.
            #[allow(unsafe_code)]
            let (p, mixed) = unsafe {
                (weights.slice(i * candidates..(i + 1) * candidates), mixed.slice(i * width..(i + 1) * width))
            };
            for (p, bank) in p.iter_mut().zip(banks) {
                *p = math::dot(score, &bank.values[row.clone()]) * bank.factors[token];
            }
            p[banks.len()] = math::dot(score, stream) * math::rms_factor(stream, epsilon);
            math::softmax(p);
            mixed.fill(0.0);
            for (&p, bank) in p.iter().zip(banks) {
                math::axpy(mixed, p, &bank.values[row.clone()]);
            }
            math::axpy(mixed, p[banks.len()], stream);
            math::rms_norm(mixed, norm, epsilon, out);
        });
    }
}

/// `out[t] = rms(x[t]) ⊙ norm`.
pub fn norm_rows(pool: &Pool, x: &[f32], norm: &[f32], epsilon: f32, out: &mut Operand) {
    let n = norm.len();
    out.reset(x.len() / n, n);
    out.fill(pool, |i, y| math::rms_norm(&x[i * n..][..n], norm, epsilon, y));
}

/// `out[t] = x[t]`.
pub fn copy_rows(pool: &Pool, x: &[f32], n: usize, out: &mut Operand) {
    out.reset(x.len() / n, n);
    out.fill(pool, |i, y| y.copy_from_slice(&x[i * n..][..n]));
}

/// `x[t] *= σ(gate[t])`, for vectors that are yet to be quantized.
pub fn gate_rows(pool: &Pool, gate: &[f32], x: &mut Operand) {
    x.fill(pool, |i, x| math::mul_sigmoid(x, &gate[i * x.len()..][..x.len()]));
}
