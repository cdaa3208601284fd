//! Which experts a token goes to (`shared/spec/k3.md`, 4.5), and the tokens of a batch by expert.

use super::config::Experts;

/// Sums of routing weights below this are taken for this: half precision's smallest normal number, as in the
/// models' own code.
const SMALLEST_SUM: f32 = 6.103_515_6e-5;

/// The experts of a batch of tokens.
#[derive(Default)]
pub struct Routes {
    /// Per token, `used` experts by falling score.
    pub chosen: Vec<u32>,
    /// Tokens in the order of the experts they go to; a token's experts are in rising order.
    pub tokens: Vec<u32>,
    /// Their weights, in the same order.
    pub factors: Vec<f32>,
    /// Experts that have tokens, and where their tokens are in `tokens`.
    pub experts: Vec<(usize, std::ops::Range<usize>)>,
}

impl Routes {
    /// Routes tokens by `probabilities` (σ of the router's logits, `count` a token).
    pub fn route(&mut self, experts: &Experts, bias: &[f32], probabilities: &[f32]) {
        self.chosen.clear();
        let mut slots: Vec<(u32, u32, f32)> = Vec::new();
        for (token, p) in probabilities.chunks_exact(experts.count).enumerate() {
            let score = scores(experts, bias, p);
            let mut order: Vec<u32> = (0..experts.count as u32).collect();
            // By falling score, of equal ones the lower index first; NaN last.
            let key = |e: &u32| (std::cmp::Reverse(ordered(score[*e as usize])), *e);
            if experts.used < experts.count {
                order.select_nth_unstable_by_key(experts.used, key);
            }
            order.truncate(experts.used);
            order.sort_unstable_by_key(key);
            let sum: f32 = order.iter().map(|&e| p[e as usize]).sum();
            let factor =
                if experts.normalise { experts.scale / sum.max(SMALLEST_SUM) } else { experts.scale };
            slots.extend(order.iter().map(|&e| (e, token as u32, p[e as usize] * factor)));
            self.chosen.extend(order);
        }
        slots.sort_unstable_by_key(|&(expert, token, _)| (expert, token));
        self.experts.clear();
        for (i, &(expert, ..)) in slots.iter().enumerate() {
            match self.experts.last_mut() {
                Some((last, range)) if *last == expert as usize => range.end = i + 1,
                _ => self.experts.push((expert as usize, i..i + 1)),
            }
        }
        self.tokens.clear();
        self.tokens.extend(slots.iter().map(|s| s.1));
        self.factors.clear();
        self.factors.extend(slots.iter().map(|s| s.2));
    }
}

/// An integer that sorts as the number does, with every NaN below all numbers.
fn ordered(x: f32) -> i32 {
    if x.is_nan() {
        return i32::MIN;
    }
    let bits = x.to_bits() as i32;
    if bits < 0 { !(bits & i32::MAX) } else { bits }
}

/// What choosing goes by: probability and bias, and only the best groups where experts are in groups.
fn scores(experts: &Experts, bias: &[f32], p: &[f32]) -> Vec<f32> {
    let mut score: Vec<f32> = p.iter().zip(bias).map(|(p, b)| p + b).collect();
    let (groups, kept) = experts.groups;
    if groups > 1 {
        let size = experts.count / groups;
        let best_two = |group: &[f32]| {
            let (a, b) = group.iter().fold((f32::NEG_INFINITY, f32::NEG_INFINITY), |(a, b), &x| {
                if x > a { (x, a) } else { (a, b.max(x)) }
            });
            a + b
        };
        let mut order: Vec<(i32, usize)> =
            score.chunks_exact(size).map(|g| ordered(best_two(g))).zip(0..).collect();
        order.sort_by_key(|&(score, group)| (std::cmp::Reverse(score), group));
        for &(_, group) in &order[kept..] {
            score[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(count: usize, used: usize, groups: (usize, usize)) -> Experts {
        Experts { count, used, shared: 0, hidden: 1, latent: None, groups, scale: 2.0, normalise: true }
    }

    #[test]
    fn bias_chooses_and_probability_weighs() {
        let mut routes = Routes::default();
        routes.route(&experts(3, 2, (1, 1)), &[0.0, 0.0, 1.0], &[0.5, 0.2, 0.3, 0.1, 0.1, 0.0]);
        assert_eq!(routes.chosen, [2, 0, 2, 0]); // equal scores: the lower index first
        assert_eq!(routes.experts, [(0, 0..2), (2, 2..4)]);
        assert_eq!(routes.tokens, [0, 1, 0, 1]);
        assert_eq!(routes.factors, [0.5 / 0.8 * 2.0, 2.0, 0.3 / 0.8 * 2.0, 0.0]);
    }

    #[test]
    fn groups_limit_the_choice() {
        let mut routes = Routes::default();
        routes.route(&experts(6, 2, (3, 1)), &[0.0; 6], &[0.9, 0.0, 0.5, 0.5, 0.1, 0.1]);
        assert_eq!(routes.chosen, [2, 3]);
    }

    #[test]
    fn nan_is_chosen_last() {
        let mut routes = Routes::default();
        routes.route(&experts(3, 2, (1, 1)), &[0.0; 3], &[f32::NAN, 0.2, 0.1]);
        assert_eq!(routes.chosen, [1, 2]);
        assert!([-1.0, -0.5, -0.0, 0.0, 2.0].windows(2).all(|w| ordered(w[0]) < ordered(w[1])));
    }
}
