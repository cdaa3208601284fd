//! A few tokens of the delta rule; the formulas are in [`super`].

use super::super::math::dot_body;
use super::super::simd::{LANES, Lanes};

/// Tokens taken at a time. More would save little of writing S, and cost more between the tokens: D = 64 is as fast
/// with 8.
pub(super) const CHUNK: usize = 16;

/// Eight neighbouring numbers of a row.
type Eight = [f32; LANES];

/// Eight channels of a token's key and query.
#[derive(Clone, Copy, Default)]
struct Channels {
    /// Γ(t,0) k_t
    key: Eight,
    /// Γ(t,0) q_t
    query: Eight,
    /// Γ(n,t) k_t
    last_key: Eight,
}

/// Room for what lies between the two sweeps over S: 330 D bytes.
#[derive(Default)]
pub struct Scratch {
    /// Eight channels after the other, those of all tokens.
    channels: Vec<Channels>,
    /// Γ(n,0); Γ(t,s) k_s while t grows; a_t, later u_t, tile after tile, those of all tokens; b_t likewise.
    rows: [Vec<Eight>; 4],
    /// A_ts and P_ts.
    mixed: [[[f32; 2]; CHUNK]; CHUNK],
}

/// The tokens of a chunk; `N` vectors make a tile of columns.
pub(super) struct Chunk<'a, const N: usize> {
    tokens: usize,
    /// Vectors of a row of S.
    width: usize,
    channels: &'a mut [Channels],
    decay: &'a mut [Eight],
    key: &'a mut [[Eight; N]],
    u: &'a mut [[Eight; N]],
    b: &'a mut [[Eight; N]],
    mixed: &'a mut [[[f32; 2]; CHUNK]; CHUNK],
}

impl<'a, const N: usize> Chunk<'a, N> {
    /// For up to [`CHUNK`] tokens and rows of `width` vectors, a multiple of `N`.
    #[inline(always)]
    pub(super) fn new(width: usize, tokens: usize, scratch: &'a mut Scratch) -> Chunk<'a, N> {
        let Scratch { channels, rows: [decay, key, u, b], mixed } = scratch;
        Chunk {
            tokens,
            width,
            channels: room(channels, width * tokens),
            decay: room(decay, width),
            key: room(key, width).as_chunks_mut().0,
            u: room(u, width * tokens).as_chunks_mut().0,
            b: room(b, width * tokens).as_chunks_mut().0,
            mixed,
        }
    }

    /// All that doesn't depend on S.
    #[inline(always)]
    pub(super) fn decay<L: Lanes>(&mut self, q: &[Eight], k: &[Eight], decay: &[Eight]) {
        let (tokens, width) = (self.tokens, self.width);
        for ((c, gamma), channels) in
            self.decay.iter_mut().enumerate().zip(self.channels.chunks_exact_mut(tokens))
        {
            let mut product = L::splat(1.0);
            for (t, channels) in channels.iter_mut().enumerate() {
                let at = t * width + c;
                product = product.mul(L::load(&decay[at]));
                product.mul(L::load(&k[at])).store(&mut channels.key);
                product.mul(L::load(&q[at])).store(&mut channels.query);
            }
            product.store(gamma);
        }
        let (q, k, decay) = (q.as_chunks().0, k.as_chunks().0, decay.as_chunks().0);
        let row = |t: usize| t * width / N..(t + 1) * width / N;
        for s in 0..tokens {
            self.key.copy_from_slice(&k[row(s)]);
            self.mixed[s][s][1] = dot_body::<L>(
                self.key.as_flattened().as_flattened(),
                q[row(s)].as_flattened().as_flattened(),
            );
            for t in s + 1..tokens {
                self.mixed[t][s] = decayed_dots::<L, N>(self.key, &decay[row(t)], &k[row(t)], &q[row(t)]);
            }
            for (channels, key) in self.channels.chunks_exact_mut(tokens).zip(self.key.as_flattened()) {
                channels[s].last_key = *key;
            }
        }
    }

    /// The sweep that reads S, for a_t and b_t.
    #[inline(always)]
    pub(super) fn read<L: Lanes>(&mut self, s: &[Eight]) {
        let (tokens, width) = (self.tokens, self.width);
        self.u.as_flattened_mut().fill([0.0; LANES]);
        self.b.as_flattened_mut().fill([0.0; LANES]);
        for (rows, channels) in s.chunks_exact(LANES * width).zip(self.channels.chunks_exact(tokens)) {
            let tiles = self.u.chunks_exact_mut(tokens).zip(self.b.chunks_exact_mut(tokens));
            for (tile, (a, b)) in tiles.enumerate() {
                let rows: [&[Eight; N]; LANES] = std::array::from_fn(|r| {
                    rows[r * width + tile * N..].first_chunk().expect("a tile is in a row")
                });
                for (channels, (a, b)) in channels.iter().zip(a.iter_mut().zip(b)) {
                    let (mut a_sum, mut b_sum): ([L; N], [L; N]) = (load(a), load(b));
                    for (row, (k, q)) in rows.iter().zip(channels.key.iter().zip(&channels.query)) {
                        let (k, q, s) = (L::splat(*k), L::splat(*q), load::<L, N>(row));
                        for i in 0..N {
                            a_sum[i] = k.mul_add(s[i], a_sum[i]);
                            b_sum[i] = q.mul_add(s[i], b_sum[i]);
                        }
                    }
                    store(a_sum, a);
                    store(b_sum, b);
                }
            }
        }
    }

    /// What each token writes, u_t, and reads, y_t, given what the tokens before it write.
    #[inline(always)]
    pub(super) fn solve<L: Lanes>(&mut self, v: &[Eight], beta: &[f32], y: &mut [Eight]) {
        let (tokens, width) = (self.tokens, self.width);
        let tiles = self.u.chunks_exact_mut(tokens).zip(self.b.chunks_exact(tokens));
        for (tile, (u, b)) in tiles.enumerate() {
            for (t, b) in b.iter().enumerate() {
                let (before, u) = u.split_at_mut(t);
                let (mut a_sum, mut b_sum): ([L; N], [L; N]) = (load(&u[0]), load(b));
                for (u, [a, p]) in before.iter().zip(&self.mixed[t]) {
                    let (a, p, u) = (L::splat(*a), L::splat(*p), load::<L, N>(u));
                    for i in 0..N {
                        a_sum[i] = a.mul_add(u[i], a_sum[i]);
                        b_sum[i] = p.mul_add(u[i], b_sum[i]);
                    }
                }
                let at = t * width + tile * N;
                let v = v[at..].first_chunk().expect("a tile is in a row");
                let (beta, p, v) = (L::splat(beta[t]), L::splat(self.mixed[t][t][1]), load::<L, N>(v));
                for i in 0..N {
                    a_sum[i] = beta.mul(a_sum[i].mul_add(L::splat(-1.0), v[i]));
                    b_sum[i] = p.mul_add(a_sum[i], b_sum[i]);
                }
                store(a_sum, &mut u[0]);
                store(b_sum, y[at..].first_chunk_mut().expect("a tile is in a row"));
            }
        }
    }

    /// The sweep that writes S.
    #[inline(always)]
    pub(super) fn write<L: Lanes>(&self, s: &mut [Eight]) {
        let (tokens, width) = (self.tokens, self.width);
        let channels = self.channels.chunks_exact(tokens).zip(self.decay.iter());
        for (rows, (channels, decay)) in s.chunks_exact_mut(LANES * width).zip(channels) {
            for (pair, rows) in rows.chunks_exact_mut(2 * width).enumerate() {
                let [r0, r1] = [2 * pair, 2 * pair + 1];
                let (upper, lower) = rows.split_at_mut(width);
                let tiles = upper.as_chunks_mut::<N>().0.iter_mut().zip(lower.as_chunks_mut::<N>().0);
                for ((upper, lower), u) in tiles.zip(self.u.chunks_exact(tokens)) {
                    let (mut first, mut second): ([L; N], [L; N]) = (load(upper), load(lower));
                    let (d0, d1) = (L::splat(decay[r0]), L::splat(decay[r1]));
                    for i in 0..N {
                        (first[i], second[i]) = (first[i].mul(d0), second[i].mul(d1));
                    }
                    for (channels, u) in channels.iter().zip(u) {
                        let key = &channels.last_key;
                        let (k0, k1, u) = (L::splat(key[r0]), L::splat(key[r1]), load::<L, N>(u));
                        for i in 0..N {
                            first[i] = k0.mul_add(u[i], first[i]);
                            second[i] = k1.mul_add(u[i], second[i]);
                        }
                    }
                    store(first, upper);
                    store(second, lower);
                }
            }
        }
    }
}

/// The first `count` elements, made if there aren't as many.
#[inline(always)]
fn room<T: Copy + Default>(room: &mut Vec<T>, count: usize) -> &mut [T] {
    if room.len() < count {
        room.resize(count, T::default());
    }
    &mut room[..count]
}

/// `key *= decay`; returns the products of the new key with `k` and `q`.
#[inline(always)]
fn decayed_dots<L: Lanes, const N: usize>(
    key: &mut [[Eight; N]],
    decay: &[[Eight; N]],
    k: &[[Eight; N]],
    q: &[[Eight; N]],
) -> [f32; 2] {
    let mut sums = [[L::splat(0.0); N]; 2];
    for (key, ((decay, k), q)) in key.iter_mut().zip(decay.iter().zip(k).zip(q)) {
        for i in 0..N {
            let x = L::load(&key[i]).mul(L::load(&decay[i]));
            x.store(&mut key[i]);
            sums[0][i] = x.mul_add(L::load(&k[i]), sums[0][i]);
            sums[1][i] = x.mul_add(L::load(&q[i]), sums[1][i]);
        }
    }
    [total(sums[0]), total(sums[1])]
}

#[inline(always)]
fn load<L: Lanes, const N: usize>(tile: &[Eight; N]) -> [L; N] {
    let mut vectors = [L::splat(0.0); N];
    for i in 0..N {
        vectors[i] = L::load(&tile[i]);
    }
    vectors
}

#[inline(always)]
fn store<L: Lanes, const N: usize>(vectors: [L; N], tile: &mut [Eight; N]) {
    for i in 0..N {
        vectors[i].store(&mut tile[i]);
    }
}

/// The sum of all numbers.
#[inline(always)]
fn total<L: Lanes, const N: usize>(vectors: [L; N]) -> f32 {
    let mut sum = vectors[0];
    for vector in &vectors[1..] {
        sum = sum.add(*vector);
    }
    sum.sum()
}
