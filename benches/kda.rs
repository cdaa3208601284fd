//! What a head of a KDA layer costs: `cargo bench --bench kda`.
//!
//! Nanoseconds per token and head on one thread, for the tokens one at a time (the recurrence) and all at once (the
//! chunkwise form); the best of several rounds. The states of a round, as many as K3 has heads, don't fit the
//! second-level cache, as in use.

use std::hint::black_box;
use std::time::Instant;

use kadence::compute::kda::{HeadInput, Scratch, delta_rule};

const HEADS: usize = 96;
const ROUNDS: usize = 20;

fn main() {
    println!("{:>4} {:>6} {:>12} {:>12} {:>6}", "D", "tokens", "one by one", "at once", "ratio");
    for size in [128, 64, 32] {
        for tokens in [1, 2, 4, 8, 16, 64, 256] {
            let [single, whole] = [1, tokens].map(|step| nanoseconds(size, tokens, step));
            println!("{size:>4} {tokens:>6} {single:>12.0} {whole:>12.0} {:>6.2}", single / whole);
        }
    }
}

fn nanoseconds(size: usize, tokens: usize, step: usize) -> f64 {
    let wave = |factor: f32| (0..tokens * size).map(|i| (i as f32 * factor).sin()).collect::<Vec<f32>>();
    let unit = |mut x: Vec<f32>| {
        x.chunks_exact_mut(size).for_each(|x| kadence::compute::math::l2_norm(x, 1e-5));
        x
    };
    let (q, k, v) = (unit(wave(0.37)), unit(wave(0.71)), wave(1.3));
    let decay: Vec<f32> = wave(0.53).iter().map(|x| (-0.5 - 0.4 * x).exp()).collect();
    let beta = vec![0.5; tokens];
    let mut states = vec![vec![0f32; size * size]; HEADS];
    let (mut y, mut scratch) = (vec![0f32; tokens * size], Scratch::default());
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for s in &mut states {
            for (i, y) in y.chunks_mut(step * size).enumerate() {
                let at = i * step * size..i * step * size + y.len();
                let input = HeadInput {
                    q: &q[at.clone()],
                    k: &k[at.clone()],
                    v: &v[at.clone()],
                    decay: &decay[at],
                    beta: &beta[i * step..][..y.len() / size],
                };
                delta_rule(black_box(input), size, s, &mut scratch, y);
            }
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    best * 1e9 / (HEADS * tokens) as f64
}
