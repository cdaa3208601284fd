//! A KDA layer between its projections: convolutions, gates, delta rule and output norm, head by head.

use std::cell::RefCell;

use kadence_quant::activation::Vector;

use super::disjoint::Disjoint;
use super::kda::{HeadInput, Scratch, convolve, delta_rule, slide};
use super::math;
use super::operand::Operand;
use super::pool::Pool;
use super::product::Weights;

/// Tokens that a head works on from beginning to end before the next: what lies between stays in the second-level cache.
const TOKENS: usize = 64;

thread_local! {
    /// Kept between calls: making it would take a tenth of the time in which a head reads one token.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// How a gate becomes the logarithm of a decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayGate {
    /// `bound · σ(a z)`
    Bounded(f32),
    /// `−a softplus(z)`
    Softplus,
}

/// What a KDA layer holds besides its large matrices.
pub struct KdaLayer<'a> {
    /// Heads.
    pub heads: usize,
    /// Size of a head.
    pub size: usize,
    /// ε of the norms.
    pub epsilon: f32,
    /// The convolutions' taps for q, k and v: `taps x width`.
    pub taps: [&'a [f32]; 3],
    /// Second half of the decay gate.
    pub decay: Weights<'a>,
    /// The decay gate's bias.
    pub bias: &'a [f32],
    /// Each head's a.
    pub a: &'a [f32],
    /// The form of the decay gate.
    pub gate: DecayGate,
    /// The output norm.
    pub norm: &'a [f32],
}

/// What a batch brings to a KDA layer; `width` = heads x size.
pub struct KdaInput<'a> {
    /// q, k and v before the convolutions: `tokens x width`.
    pub qkv: [&'a [f32]; 3],
    /// First half of the decay gate.
    pub decay: &'a Operand,
    /// Write strengths before σ: `tokens x heads`.
    pub beta: &'a [f32],
    /// Output gates before σ: `tokens x width`.
    pub gate: &'a [f32],
}

/// One session's share of a batch.
pub struct KdaSession<'a> {
    /// Its tokens' places in the batch.
    pub tokens: std::ops::Range<usize>,
    /// S of every head.
    pub s: &'a mut [f32],
    /// The convolutions' windows for q, k and v.
    pub window: &'a mut [Vec<f32>; 3],
}

/// What a layer computed on the way, for who wants to look.
#[derive(Default)]
pub struct KdaTrace {
    /// Logarithms of the decays: `tokens x width`.
    pub decay: Vec<f32>,
    /// What the states gave back, before the norm.
    pub read: Vec<f32>,
}

/// A session's tokens, its states for the threads to share, and its windows.
type SharedSession<'a> = (std::ops::Range<usize>, Disjoint<'a, f32>, &'a [Vec<f32>; 3]);

/// Runs the layer for all sessions of a batch in one region. `out` becomes `tokens x width`; so does `trace`, if somebody
/// wants to look.
pub fn kda(
    pool: &Pool,
    layer: &KdaLayer<'_>,
    input: &KdaInput<'_>,
    sessions: &mut [KdaSession<'_>],
    trace: Option<&mut KdaTrace>,
    out: &mut Operand,
) {
    let (heads, size) = (layer.heads, layer.size);
    let width = heads * size;
    let tokens = input.qkv[0].len() / width;
    out.reset(tokens, width);
    let trace = trace.map(|trace| {
        [&mut trace.decay, &mut trace.read].map(|values| {
            values.resize(tokens * width, 0.0);
            Disjoint::new(values)
        })
    });
    let writer = out.writer();
    let states: Vec<SharedSession<'_>> =
        sessions.iter_mut().map(|s| (s.tokens.clone(), Disjoint::new(&mut *s.s), &*s.window)).collect();
    pool.for_each(heads * states.len(), |part| {
        let ((tokens, s, window), head) = (&states[part / heads], part % heads);
        let state = head * size * size;
        // SAFETY: a head of a session is one part of the region; so are its columns of its tokens, below.
        #[allow(unsafe_code)]
        let s = unsafe { s.slice(state..state + size * size) };
        for first in tokens.clone().step_by(TOKENS) {
            let piece = first..tokens.end.min(first + TOKENS);
            let done = Head { layer, input, head, tokens: piece.clone() }.run(tokens.start, window, s);
            for (token, (decay, y)) in
                piece.zip(done.log_decay.chunks_exact(size).zip(done.y.chunks_exact(size)))
            {
                let cell = token * width + head * size;
                // SAFETY: see above.
                #[allow(unsafe_code)]
                let x = unsafe { writer.part(token, head * size, size) };
                for (values, shown) in trace.iter().flatten().zip([decay, y]) {
                    // SAFETY: see above.
                    #[allow(unsafe_code)]
                    unsafe { values.slice(cell..cell + size) }.copy_from_slice(shown);
                }
                math::rms_norm(y, layer.norm, layer.epsilon, x);
                math::mul_sigmoid(x, &input.gate[cell..cell + size]);
            }
        }
    });
    out.quantize(pool);
    for session in sessions {
        for (window, x) in session.window.iter_mut().zip(input.qkv) {
            slide(window, &x[session.tokens.start * width..session.tokens.end * width]);
        }
    }
}

/// One head of some tokens of a session.
struct Head<'a> {
    layer: &'a KdaLayer<'a>,
    input: &'a KdaInput<'a>,
    head: usize,
    tokens: std::ops::Range<usize>,
}

struct Done {
    log_decay: Vec<f32>,
    y: Vec<f32>,
}

impl Head<'_> {
    /// `start` is the session's first token, which `window` lies before.
    fn run(&self, start: usize, window: &[Vec<f32>; 3], s: &mut [f32]) -> Done {
        let &Head { layer, input, head, ref tokens } = self;
        let (size, width) = (layer.size, layer.heads * layer.size);
        let n = tokens.len() * size;
        let mut qkv: [Vec<f32>; 3] = std::array::from_fn(|i| {
            let x = &input.qkv[i][start * width..tokens.end * width];
            let mut out = vec![0.0; n];
            convolve(x, tokens.start - start, layer.taps[i], &window[i], width, head * size, size, &mut out);
            out
        });
        let [q, k, v] = &mut qkv;
        for x in q.chunks_exact_mut(size).chain(k.chunks_exact_mut(size)) {
            math::l2_norm(x, layer.epsilon);
        }
        math::scale(q, 1.0 / (size as f32).sqrt());
        let log_decay = self.log_decay();
        let mut decay = log_decay.clone();
        math::exp_minus(&mut decay, 0.0);
        let mut beta: Vec<f32> = tokens.clone().map(|t| input.beta[t * layer.heads + head]).collect();
        math::sigmoid(&mut beta);
        let mut y = vec![0.0; n];
        let delta = HeadInput { q, k, v, decay: &decay, beta: &beta };
        SCRATCH.with_borrow_mut(|scratch| delta_rule(delta, size, s, scratch, &mut y));
        Done { log_decay, y }
    }

    fn log_decay(&self) -> Vec<f32> {
        let &Head { layer, input, head, ref tokens } = self;
        let size = layer.size;
        let rows = layer.decay.rows(head * size, size);
        let bias = &layer.bias[head * size..][..size];
        let mut z = vec![0f32; tokens.len() * size];
        let vectors: Vec<Vector<'_>> = tokens.clone().map(|t| input.decay.vector(t)).collect();
        rows.multiply(&vectors, &mut z);
        z.chunks_exact_mut(size).for_each(|z| math::add(z, bias));
        let a = layer.a[head];
        match layer.gate {
            DecayGate::Bounded(bound) => math::bounded_decay(&mut z, a, bound),
            DecayGate::Softplus => math::softplus_decay(&mut z, a),
        }
        z
    }
}
