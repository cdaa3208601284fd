//! Operators on vectors of f32. Sums are f32, in 32 independent parts.

pub(crate) mod function;

use super::simd::{LANES, Lanes, dispatch};

/// Registers that a sum is spread over, so that an addition needn't wait for the one before.
const PARTS: usize = 4;
/// Elements of a step of a sum.
const STEP: usize = PARTS * LANES;

dispatch! {
    /// `Σ a_i b_i`
    pub fn dot(a: &[f32], b: &[f32]) -> f32 = dot_body;

    /// The largest element, NaN aside; -∞ if there is none.
    pub fn max(x: &[f32]) -> f32 = max_body;

    /// `y += a x`
    pub fn axpy(y: &mut [f32], a: f32, x: &[f32]) = axpy_body;

    /// `y += x`
    pub fn add(y: &mut [f32], x: &[f32]) = add_body;

    /// `y *= a`
    pub fn scale(y: &mut [f32], a: f32) = scale_body;

    /// `1 / sqrt(mean(x²) + epsilon)`
    pub fn rms_factor(x: &[f32], epsilon: f32) -> f32 = rms_factor_body;

    /// `out = x / sqrt(mean(x²) + epsilon) * weight`
    pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) = rms_norm_body;

    /// `x /= sqrt(Σ x² + epsilon)`: epsilon is added to the sum, not to the mean.
    pub fn l2_norm(x: &mut [f32], epsilon: f32) = l2_norm_body;

    /// `x = e^x`
    pub fn exp(x: &mut [f32]) = exp_body;

    /// `x = 1 / (1 + e^-x)`
    pub fn sigmoid(x: &mut [f32]) = sigmoid_body;

    /// `x = x σ(x)`
    pub fn silu(x: &mut [f32]) = silu_body;

    /// `x = bound σ(a x)`: the logarithm of a decay, with a negative bound.
    pub fn bounded_decay(x: &mut [f32], a: f32, bound: f32) = bounded_decay_body;

    /// `x = -a ln(1 + e^x)`: the logarithm of a decay without a bound.
    pub fn softplus_decay(x: &mut [f32], a: f32) = softplus_decay_body;

    /// `x = e^(x - top)`; returns the sum.
    pub fn exp_minus(x: &mut [f32], top: f32) -> f32 = exp_minus_body;

    /// `x = e^x / Σ e^x`, for scores of any size; at least one must be finite.
    pub fn softmax(x: &mut [f32]) = softmax_body;

    /// `y *= σ(gate)`
    pub fn mul_sigmoid(y: &mut [f32], gate: &[f32]) = mul_sigmoid_body;

    /// `out = silu(gate) up`
    pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) = swiglu_body;

    /// `out = β tanh(gate / β) σ(gate) · β_lin tanh(up / β_lin)`; the last factor is `up` itself if `β_lin <= 0`.
    pub fn situ(gate: &[f32], up: &[f32], beta: f32, linear_beta: f32, out: &mut [f32]) = situ_body;
}

#[inline(always)]
pub(crate) fn dot_body<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a_steps, a_rest) = a.as_chunks::<STEP>();
    let (b_steps, b_rest) = b.as_chunks::<STEP>();
    let mut parts = [L::splat(0.0); PARTS];
    for (a, b) in a_steps.iter().zip(b_steps) {
        for (i, part) in parts.iter_mut().enumerate() {
            *part = L::load(&a[i * LANES..]).mul_add(L::load(&b[i * LANES..]), *part);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    total(parts) + rest
}

#[inline(always)]
fn total<L: Lanes>([a, b, c, d]: [L; PARTS]) -> f32 {
    a.add(b).add(c.add(d)).sum()
}

#[inline(always)]
fn max_body<L: Lanes>(x: &[f32]) -> f32 {
    let (steps, rest) = x.as_chunks::<STEP>();
    let mut parts = [L::splat(f32::NEG_INFINITY); PARTS];
    for x in steps {
        for (i, part) in parts.iter_mut().enumerate() {
            *part = L::load(&x[i * LANES..]).max(*part);
        }
    }
    let [a, b, c, d] = parts;
    let larger = |top: f32, &x: &f32| if x > top { x } else { top };
    let top = rest.iter().fold(f32::NEG_INFINITY, larger);
    a.max(b).max(c.max(d)).array().iter().fold(top, larger)
}

#[inline(always)]
fn axpy_body<L: Lanes>(y: &mut [f32], a: f32, x: &[f32]) {
    assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y = L::fused(a, *x, *y);
    }
}

#[inline(always)]
fn add_body<L: Lanes>(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len());
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

#[inline(always)]
fn scale_body<L: Lanes>(y: &mut [f32], a: f32) {
    for y in y {
        *y *= a;
    }
}

#[inline(always)]
fn rms_factor_body<L: Lanes>(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot_body::<L>(x, x) / x.len() as f32 + epsilon).sqrt()
}

#[inline(always)]
fn rms_norm_body<L: Lanes>(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let factor = rms_factor_body::<L>(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

#[inline(always)]
fn l2_norm_body<L: Lanes>(x: &mut [f32], epsilon: f32) {
    let factor = 1.0 / (dot_body::<L>(x, x) + epsilon).sqrt();
    scale_body::<L>(x, factor);
}

#[inline(always)]
fn map(x: &mut [f32], f: impl Fn(f32) -> f32) {
    for x in x {
        *x = f(*x);
    }
}

#[inline(always)]
fn exp_body<L: Lanes>(x: &mut [f32]) {
    map(x, |x| function::exp::<L>(x));
}

#[inline(always)]
fn sigmoid_body<L: Lanes>(x: &mut [f32]) {
    map(x, |x| function::sigmoid::<L>(x));
}

#[inline(always)]
fn silu_body<L: Lanes>(x: &mut [f32]) {
    map(x, |x| function::silu::<L>(x));
}

#[inline(always)]
fn bounded_decay_body<L: Lanes>(x: &mut [f32], a: f32, bound: f32) {
    map(x, |x| bound * function::sigmoid::<L>(a * x));
}

#[inline(always)]
fn softplus_decay_body<L: Lanes>(x: &mut [f32], a: f32) {
    map(x, |x| -a * function::softplus::<L>(x));
}

#[inline(always)]
fn exp_minus_body<L: Lanes>(x: &mut [f32], top: f32) -> f32 {
    map(x, |x| function::exp::<L>(x - top));
    let (steps, rest) = x.as_chunks::<STEP>();
    let mut parts = [L::splat(0.0); PARTS];
    for x in steps {
        for (i, part) in parts.iter_mut().enumerate() {
            *part = part.add(L::load(&x[i * LANES..]));
        }
    }
    total(parts) + rest.iter().sum::<f32>()
}

#[inline(always)]
fn softmax_body<L: Lanes>(x: &mut [f32]) {
    let top = max_body::<L>(x);
    let sum = exp_minus_body::<L>(x, top);
    scale_body::<L>(x, 1.0 / sum);
}

#[inline(always)]
fn mul_sigmoid_body<L: Lanes>(y: &mut [f32], gate: &[f32]) {
    assert_eq!(y.len(), gate.len());
    for (y, gate) in y.iter_mut().zip(gate) {
        *y *= function::sigmoid::<L>(*gate);
    }
}

#[inline(always)]
fn swiglu_body<L: Lanes>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len());
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = function::silu::<L>(*gate) * up;
    }
}

#[inline(always)]
fn situ_body<L: Lanes>(gate: &[f32], up: &[f32], beta: f32, linear_beta: f32, out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len());
    let (inverse, inverse_linear) = (1.0 / beta, 1.0 / linear_beta);
    // `tanh(gate / β) σ(gate)`
    let gated = |gate: f32| {
        let ([a, b], [c, d]) =
            (function::tanh_fraction::<L>(gate * inverse), function::sigmoid_fraction::<L>(gate));
        [a * c, b * d]
    };
    if linear_beta > 0.0 {
        let factor = beta * linear_beta;
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let ([a, b], [c, d]) = (gated(*gate), function::tanh_fraction::<L>(up * inverse_linear));
            *out = factor * (a * c) / (b * d);
        }
    } else {
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            let [a, b] = gated(*gate);
            *out = beta * a / b * up;
        }
    }
}

#[cfg(test)]
mod tests;
