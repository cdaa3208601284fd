use super::super::simd::Portable;
use super::*;

/// Every so-manieth f32 there is, and the special ones.
fn numbers() -> Vec<f32> {
    let mut all: Vec<f32> = (0..=u32::MAX).step_by(40_009).map(f32::from_bits).collect();
    // The range in which the functions are neither 0, 1 nor their argument.
    all.extend((-1_100_000..1_100_000).map(|i| i as f32 * 1e-4));
    let special =
        [0.0, 1.0, f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::INFINITY, 88.722_84, 103.97, 0.625];
    all.extend(special.iter().flat_map(|x| [*x, -x]));
    all
}

/// The distance in units of the last place of the exact result; a distance of up to `slack` is none.
fn ulps(got: f32, exact: f64, slack: f64) -> f64 {
    let nearest = exact as f32;
    if got.is_nan() || exact.is_nan() || nearest.is_infinite() {
        let equal = got == nearest || (got.is_nan() && exact.is_nan());
        return if equal { 0.0 } else { f64::INFINITY };
    }
    let exponent = exact.abs().log2().floor().max(-126.0);
    ((f64::from(got) - exact).abs() - slack).max(0.0) / (exponent - 23.0).exp2()
}

fn check(name: &str, [limit, slack]: [f64; 2], bodies: [fn(&mut [f32]); 2], exact: fn(f64) -> f64) {
    let x = numbers();
    for body in bodies {
        let mut y = x.clone();
        body(&mut y);
        let (error, at) = x
            .iter()
            .zip(&y)
            .map(|(&x, &y)| (ulps(y, exact(f64::from(x)), slack), x))
            .fold((0.0, 0.0), |worst, this| if this.0 > worst.0 { this } else { worst });
        assert!(error <= limit, "{name}({at:e}) is off by {error} ulp");
    }
}

#[inline(always)]
fn tanh_body<L: Lanes>(x: &mut [f32]) {
    map(x, |x| {
        let [numerator, denominator] = function::tanh_fraction::<L>(x);
        numerator / denominator
    });
}
dispatch! { fn tanh(x: &mut [f32]) = tanh_body; }

#[test]
fn functions_are_as_exact_as_stated() {
    check("exp", [1.0, 0.0], [exp, exp_body::<Portable>], f64::exp);
    check("sigmoid", [2.2, 0.0], [sigmoid, sigmoid_body::<Portable>], exact_sigmoid);
    check("silu", [3.2, 1e-43], [silu, silu_body::<Portable>], |x| x * exact_sigmoid(x));
    check("tanh", [6.0, 0.0], [tanh, tanh_body::<Portable>], f64::tanh);
    let decays: [fn(&mut [f32]); 2] =
        [|x| softplus_decay(x, -1.0), |x| softplus_decay_body::<Portable>(x, -1.0)];
    check("softplus", [2.8, 0.0], decays, |x| x.max(0.0) + (-x.abs()).exp().ln_1p());
}

fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| 4.0 * next()).collect()
}

#[track_caller]
fn close(got: &[f32], exact: impl Iterator<Item = f64>) {
    for (i, (&got, exact)) in got.iter().zip(exact).enumerate() {
        let limit = 3e-6 * exact.abs().max(0.3);
        assert!((f64::from(got) - exact).abs() <= limit, "element {i} is {got}, not {exact}");
    }
}

/// The instance that this processor gets, and the portable one.
fn both<F: Copy>(fast: F, portable: F) -> [F; 2] {
    [fast, portable]
}

const LENGTHS: [usize; 8] = [1, 7, 8, 31, 32, 33, 100, 1024];

fn f64s(x: &[f32]) -> impl Iterator<Item = f64> + Clone {
    x.iter().map(|&x| f64::from(x))
}

fn exact_sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn reductions_equal_f64() {
    type Pair = fn(&[f32], &[f32]) -> f32;
    type Single = fn(&[f32]) -> f32;
    for n in LENGTHS {
        let (a, b) = (random(n, 1), random(n, 2));
        let products = f64s(&a).zip(f64s(&b)).map(|(a, b)| a * b);
        let size = products.clone().map(f64::abs).sum::<f64>();
        for dot in both::<Pair>(dot, dot_body::<Portable>) {
            assert!(
                (f64::from(dot(&a, &b)) - products.clone().sum::<f64>()).abs() <= 1e-6 * size,
                "{n} elements"
            );
        }
        for max in both::<Single>(max, max_body::<Portable>) {
            assert_eq!(max(&a), a.iter().copied().fold(f32::MIN, f32::max));
            let mut holed = a.clone();
            holed[0] = f32::NAN;
            let rest = a[1..].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&holed), rest);
        }
    }
    assert_eq!((dot(&[], &[]), max(&[])), (0.0, f32::NEG_INFINITY));
}

#[test]
fn updates_equal_f64() {
    for n in LENGTHS {
        let (x, y) = (random(n, 3), random(n, 4));
        for axpy in both::<fn(&mut [f32], f32, &[f32])>(axpy, axpy_body::<Portable>) {
            let mut out = y.clone();
            axpy(&mut out, -1.5, &x);
            close(&out, f64s(&y).zip(f64s(&x)).map(|(y, x)| y - 1.5 * x));
        }
        for add in both::<fn(&mut [f32], &[f32])>(add, add_body::<Portable>) {
            let mut out = y.clone();
            add(&mut out, &x);
            close(&out, f64s(&y).zip(f64s(&x)).map(|(y, x)| y + x));
        }
        for scale in both::<fn(&mut [f32], f32)>(scale, scale_body::<Portable>) {
            let mut out = y.clone();
            scale(&mut out, 0.3);
            close(&out, f64s(&y).map(|y| y * f64::from(0.3f32)));
        }
    }
}

#[test]
fn norms_equal_f64() {
    let epsilon = 0.01f32;
    for n in LENGTHS {
        let (x, w) = (random(n, 5), random(n, 6));
        let squares: f64 = f64s(&x).map(|x| x * x).sum();
        let rms = (squares / n as f64 + f64::from(epsilon)).sqrt();
        let l2 = (squares + f64::from(epsilon)).sqrt();
        for rms_factor in both::<fn(&[f32], f32) -> f32>(rms_factor, rms_factor_body::<Portable>) {
            close(&[rms_factor(&x, epsilon)], [1.0 / rms].into_iter());
        }
        for rms_norm in both::<fn(&[f32], &[f32], f32, &mut [f32])>(rms_norm, rms_norm_body::<Portable>) {
            let mut out = vec![0.0; n];
            rms_norm(&x, &w, epsilon, &mut out);
            close(&out, f64s(&x).zip(f64s(&w)).map(|(x, w)| x / rms * w));
        }
        for l2_norm in both::<fn(&mut [f32], f32)>(l2_norm, l2_norm_body::<Portable>) {
            let mut out = x.clone();
            l2_norm(&mut out, epsilon);
            close(&out, f64s(&x).map(|x| x / l2));
        }
    }
}

#[test]
fn softmax_equals_f64() {
    for (n, shift) in LENGTHS.into_iter().flat_map(|n| [(n, 0.0), (n, 3e4), (n, -3e4)]) {
        let mut x = random(n, 7);
        x.iter_mut().for_each(|x| *x += shift);
        x[n / 2] += 9.0;
        let top = f64s(&x).fold(f64::MIN, f64::max);
        let weights = f64s(&x).map(|x| (x - top).exp());
        let sum: f64 = weights.clone().sum();
        for exp_minus in both::<fn(&mut [f32], f32) -> f32>(exp_minus, exp_minus_body::<Portable>) {
            let mut out = x.clone();
            close(&[exp_minus(&mut out, top as f32)], [sum].into_iter());
            close(&out, weights.clone());
        }
        for softmax in both::<fn(&mut [f32])>(softmax, softmax_body::<Portable>) {
            let mut out = x.clone();
            softmax(&mut out);
            close(&out, weights.clone().map(|w| w / sum));
        }
    }
    let mut hidden = [f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY];
    softmax(&mut hidden);
    assert_eq!(hidden, [0.0, 1.0, 0.0]);
}

#[test]
fn activations_equal_f64() {
    for n in LENGTHS {
        let (mut gate, mut up) = (random(n, 8), random(n, 9));
        scale(&mut gate, 4.0);
        scale(&mut up, 10.0);
        let pairs = || f64s(&gate).zip(f64s(&up));
        for mul_sigmoid in both::<fn(&mut [f32], &[f32])>(mul_sigmoid, mul_sigmoid_body::<Portable>) {
            let mut out = up.clone();
            mul_sigmoid(&mut out, &gate);
            close(&out, pairs().map(|(gate, up)| up * exact_sigmoid(gate)));
        }
        for swiglu in both::<fn(&[f32], &[f32], &mut [f32])>(swiglu, swiglu_body::<Portable>) {
            let mut out = vec![0.0; n];
            swiglu(&gate, &up, &mut out);
            close(&out, pairs().map(|(gate, up)| gate * exact_sigmoid(gate) * up));
        }
        for situ in both::<fn(&[f32], &[f32], f32, f32, &mut [f32])>(situ, situ_body::<Portable>) {
            let mut out = vec![0.0; n];
            let gated = |gate: f64| 4.0 * (gate / 4.0).tanh() * exact_sigmoid(gate);
            situ(&gate, &up, 4.0, 25.0, &mut out);
            close(&out, pairs().map(|(gate, up)| gated(gate) * 25.0 * (up / 25.0).tanh()));
            situ(&gate, &up, 4.0, 0.0, &mut out);
            close(&out, pairs().map(|(gate, up)| gated(gate) * up));
        }
    }
}

#[test]
fn decays_equal_f64() {
    let z = random(100, 10);
    for bounded_decay in both::<fn(&mut [f32], f32, f32)>(bounded_decay, bounded_decay_body::<Portable>) {
        let mut out = z.clone();
        bounded_decay(&mut out, 1.5, -5.0);
        close(&out, f64s(&z).map(|z| -5.0 * exact_sigmoid(1.5 * z)));
    }
    for softplus_decay in both::<fn(&mut [f32], f32)>(softplus_decay, softplus_decay_body::<Portable>) {
        let mut out = z.clone();
        softplus_decay(&mut out, 1.5);
        close(&out, f64s(&z).map(|z| -1.5 * z.exp().ln_1p()));
    }
}
