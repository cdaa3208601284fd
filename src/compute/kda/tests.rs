use super::super::{math, simd::Portable};
use super::*;

pub(super) fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// The logarithm of a decay for a number between -1 and 1.
type Gate = fn(f32) -> f32;

/// What a head may meet.
const GATES: [(&str, Gate); 4] = [
    ("bounded", |x| -5.0 / (1.0 + (3.0 - 3.0 * x).exp())),
    ("at its bound", |_| -5.0),
    ("open", |x| 1e-3 * (x - 1.0)),
    ("extreme", |x| if x < -0.5 { 1e4 * x } else { 0.1 * (x - 1.0) }),
];

type Rule = fn(HeadInput<'_>, usize, &mut [f32], &mut Scratch, &mut [f32]);

struct Head {
    size: usize,
    /// q, k, v, decays, β and S.
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    s: Vec<f32>,
}

impl Head {
    fn new(size: usize, tokens: usize, gate: Gate) -> Head {
        let n = tokens * size;
        let unit = |seed: u32| {
            let mut x = random(n, seed);
            x.chunks_exact_mut(size).for_each(|x| math::l2_norm(x, 0.0));
            x
        };
        let (mut q, k) = (unit(1), unit(2));
        math::scale(&mut q, 1.0 / (size as f32).sqrt());
        let decay = random(n, 3).into_iter().map(|x| gate(x).exp()).collect();
        let beta = random(tokens, 4).into_iter().map(|x| 0.5 + 0.5 * x).collect();
        let s = random(size * size, 5).into_iter().map(|x| 0.4 * x).collect();
        let v = random(n, 6).into_iter().map(|x| 2.0 * x).collect();
        Head { size, q, k, v, decay, beta, s }
    }

    fn input(&self, tokens: std::ops::Range<usize>) -> HeadInput<'_> {
        let at = tokens.start * self.size..tokens.end * self.size;
        HeadInput {
            q: &self.q[at.clone()],
            k: &self.k[at.clone()],
            v: &self.v[at.clone()],
            decay: &self.decay[at],
            beta: &self.beta[tokens],
        }
    }

    /// y and S after tokens in groups of these sizes.
    fn run(&self, rule: Rule, groups: &[usize]) -> [Vec<f32>; 2] {
        let (mut s, mut y) = (self.s.clone(), vec![f32::NAN; self.v.len()]);
        let (mut at, mut scratch) = (0, Scratch::default());
        for n in groups {
            rule(
                self.input(at..at + n),
                self.size,
                &mut s,
                &mut scratch,
                &mut y[at * self.size..(at + n) * self.size],
            );
            at += n;
        }
        [y, s]
    }

    /// The recurrence as the specification has it, in f64.
    fn exact(&self) -> [Vec<f64>; 2] {
        let size = self.size;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let [q, k, v, decay, beta] = [&self.q, &self.k, &self.v, &self.decay, &self.beta].map(|x| wide(x));
        let (mut s, mut y) = (wide(&self.s), vec![0.0; v.len()]);
        for (t, y) in y.chunks_exact_mut(size).enumerate() {
            let row = t * size..(t + 1) * size;
            let (q, k, v, decay) = (&q[row.clone()], &k[row.clone()], &v[row.clone()], &decay[row]);
            let mut u = v.to_vec();
            for (s, (k, decay)) in s.chunks_exact_mut(size).zip(k.iter().zip(decay)) {
                s.iter_mut().for_each(|s| *s *= decay);
                u.iter_mut().zip(s).for_each(|(u, s)| *u -= k * *s);
            }
            for (s, (k, q)) in s.chunks_exact_mut(size).zip(k.iter().zip(q)) {
                s.iter_mut().zip(&u).for_each(|(s, u)| *s += beta[t] * k * u);
                y.iter_mut().zip(s).for_each(|(y, s)| *y += q * *s);
            }
        }
        [y, s]
    }
}

/// The largest difference, for a largest element of up to 1; relative to it if that is larger.
fn distance(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(1.0, |size: f64, b| size.max(b.abs()));
    // A sum, not `f64::max`: that would pass over NaN.
    a.iter().zip(b).fold(0.0, |worst, (a, b)| {
        let distance = (f64::from(*a) - b).abs();
        if distance <= worst { worst } else { distance }
    }) / size
}

#[test]
fn equals_the_recurrence_in_f64() {
    for (name, gate) in GATES {
        for size in [8, 32, 40, 64, 128] {
            let lengths: &[usize] =
                if size == 128 { &[1, 2, 16, 17, 130] } else { &[1, 2, 7, 15, 16, 17, 33, 64, 100, 257] };
            for &tokens in lengths {
                let head = Head::new(size, tokens, gate);
                let exact = head.exact();
                let rules: [Rule; 2] = [delta_rule, delta_rule_body::<Portable>];
                for rule in rules {
                    let [y, s] = head.run(rule, &[tokens]);
                    let (y, s) = (distance(&y, &exact[0]), distance(&s, &exact[1]));
                    assert!(
                        y < 4e-7 && s < 1e-6,
                        "{name} gate, {tokens} tokens of {size}: y {y:.1e}, S {s:.1e}"
                    );
                }
            }
        }
    }
}

#[test]
fn any_split_gives_the_same() {
    for (name, gate) in GATES {
        let head = Head::new(32, 100, gate);
        let [y, s] = head.run(delta_rule, &[100]).map(|x| x.into_iter().map(f64::from).collect::<Vec<_>>());
        for split in [vec![1; 100], vec![99, 1], vec![1, 15, 17, 67], vec![20; 5]] {
            let [split_y, split_s] = head.run(delta_rule, &split);
            let (y, s) = (distance(&split_y, &y), distance(&split_s, &s));
            assert!(y < 4e-7 && s < 1e-6, "{name} gate, {split:?}: y {y:.1e}, S {s:.1e}");
        }
    }
}

#[test]
fn no_tokens_change_nothing() {
    let head = Head::new(8, 0, |_| 0.0);
    assert_eq!(head.run(delta_rule, &[0]), [vec![], head.s.clone()]);
}
