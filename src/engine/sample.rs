//! Choosing the next token.
//!
//! In the usual order: repeats are made less likely, then the unlikely tokens are cut off (the best k; those that make
//! up p of the probability; those not too far below the best), then the temperature flattens or sharpens what is left,
//! and one is drawn. Each cut sees the probabilities that the one before it left, before the temperature.

/// How to choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; above 1 flattens.
    pub temperature: f32,
    /// Only the k most likely; 0 for all.
    pub top_k: usize,
    /// Only the most likely that together have this probability; 1 for all.
    pub top_p: f32,
    /// Only those at least this likely, compared with the most likely; 0 for all.
    pub min_p: f32,
    /// Divides the logits (multiplies negative ones) of tokens among the last 64; 1 for none.
    pub repeat_penalty: f32,
    /// The same seed and the same logits give the same tokens.
    pub seed: u64,
}

/// How far back a repeat counts.
pub const REPEAT_WINDOW: usize = 64;

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repeat_penalty: 1.0, seed: 0 }
    }
}

/// Draws tokens.
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix,
    recent: Vec<u32>,
    /// Candidates and their logits, later probabilities; kept for its memory.
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler at the start of its seed's sequence.
    pub fn new(sampling: Sampling) -> Sampler {
        Sampler { sampling, random: SplitMix(sampling.seed), recent: Vec::new(), candidates: Vec::new() }
    }

    /// Tells the sampler of a token of the prompt or of the answer.
    pub fn saw(&mut self, token: u32) {
        if self.recent.len() == REPEAT_WINDOW {
            self.recent.remove(0);
        }
        self.recent.push(token);
    }

    /// The next token. Logits that aren't numbers are never chosen, unless none is one: then it is token 0.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        self.next_of(logits, |_| true).unwrap_or(0)
    }

    /// The next token of those that are allowed. None if there is none whose logit is a number.
    pub fn next_of(&mut self, logits: &[f32], allowed: impl Fn(u32) -> bool) -> Option<u32> {
        let Sampling { temperature, top_k, top_p, min_p, repeat_penalty, .. } = self.sampling;
        let c = &mut self.candidates;
        c.clear();
        c.extend((0..).zip(logits.iter().copied()).filter(|&(token, l)| !l.is_nan() && allowed(token)));
        if repeat_penalty != 1.0 {
            for (_, logit) in c.iter_mut().filter(|(token, _)| self.recent.contains(token)) {
                *logit = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
            }
        }
        // Of equally likely tokens the lower number comes first, so that the outcome doesn't depend on the sort.
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if temperature <= 0.0 {
            return c.iter().min_by(|a, b| order(a, b)).map(|best| best.0);
        }
        if (1..c.len()).contains(&top_k) {
            c.select_nth_unstable_by(top_k - 1, order);
            c.truncate(top_k);
        }
        c.sort_unstable_by(order);
        let &(best, highest) = c.first()?;
        if highest == f32::INFINITY {
            return Some(best);
        }
        let weigh = |logit: f32| (logit - highest).exp();
        if top_p < 1.0 {
            let total: f32 = c.iter().map(|(_, l)| weigh(*l)).sum();
            let mut sum = 0.0;
            let enough = c.iter().position(|(_, l)| {
                sum += weigh(*l);
                sum >= top_p * total
            });
            c.truncate(enough.map_or(c.len(), |i| i + 1));
        }
        if min_p > 0.0 {
            let kept = c.iter().take_while(|(_, l)| weigh(*l) >= min_p).count();
            c.truncate(kept.max(1));
        }
        c.iter_mut().for_each(|(_, l)| *l = ((*l - highest) / temperature).exp());
        let total: f32 = c.iter().map(|(_, w)| w).sum();
        let mut left = self.random.unit() * total;
        for &(token, weight) in c.iter() {
            left -= weight;
            if left < 0.0 {
                return Some(token);
            }
        }
        Some(best)
    }
}

/// Steele, Lea and Flood's SplitMix64: a few lines that never change, so that a seed means the same text for ever.
struct SplitMix(u64);

impl SplitMix {
    /// From 0 up to, not including, 1.
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sampling =
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, seed: 7 };

    /// How often each token is drawn in 20,000 draws.
    fn shares(sampling: Sampling, logits: &[f32]) -> Vec<f32> {
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0.0; logits.len()];
        (0..20_000).for_each(|_| counts[sampler.next(logits) as usize] += 1.0 / 20_000.0);
        counts
    }

    fn near(got: &[f32], want: &[f32]) -> bool {
        got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.015)
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        assert!(near(&shares(ALL, &logits), &[0.5, 0.3, 0.15, 0.05]));
        assert!(near(&shares(Sampling { top_k: 2, ..ALL }, &logits), &[0.625, 0.375, 0.0, 0.0]));
        assert!(near(&shares(Sampling { top_p: 0.8, ..ALL }, &logits), &[0.625, 0.375, 0.0, 0.0]));
        assert!(near(&shares(Sampling { top_p: 0.81, ..ALL }, &logits), &[0.526, 0.316, 0.158, 0.0]));
        assert!(near(&shares(Sampling { min_p: 0.2, ..ALL }, &logits), &[0.526, 0.316, 0.158, 0.0]));
        let squared = [0.25f32, 0.09, 0.0225, 0.0025].map(|p| p / 0.365);
        assert!(near(&shares(Sampling { temperature: 0.5, ..ALL }, &logits), &squared));
        assert_eq!(shares(Sampling { temperature: 0.0, ..ALL }, &logits)[0].round(), 1.0);
    }

    #[test]
    fn repeats_become_less_likely() {
        let mut sampler = Sampler::new(Sampling { temperature: 0.0, repeat_penalty: 2.0, ..ALL });
        assert_eq!(sampler.next(&[3.0, 2.0, -1.0]), 0);
        sampler.saw(0);
        assert_eq!(sampler.next(&[3.0, 2.0, -1.0]), 1);
        (0..REPEAT_WINDOW).for_each(|_| sampler.saw(2));
        assert_eq!(sampler.next(&[3.0, 2.0, -1.0]), 0);
    }

    #[test]
    fn a_seed_is_a_sequence() {
        let logits = [0.0; 50];
        let run = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..ALL });
            (0..20).map(|_| sampler.next(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn odd_logits_are_borne() {
        for sampling in [ALL, Sampling { temperature: 0.0, ..ALL }, Sampling::default()] {
            let mut sampler = Sampler::new(sampling);
            assert_eq!(sampler.next(&[f32::NAN, 1.0, f32::NEG_INFINITY]), 1);
            assert_eq!(sampler.next(&[f32::NAN; 3]), 0);
            assert_eq!(sampler.next(&[]), 0);
            assert_eq!(sampler.next(&[0.0, f32::INFINITY, 0.0]), 1);
            assert!(sampler.next(&[f32::NEG_INFINITY; 3]) < 3);
        }
    }
}
