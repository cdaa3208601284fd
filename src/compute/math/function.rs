//! exp, σ, tanh and softplus of one number, without branches: a loop over them becomes vector instructions.
//!
//! The polynomials are minimax fits (relative error below 5e-9 over their range). The errors stated are the
//! largest that the test of [`super`] finds over the whole range, against f64.

use super::super::simd::Lanes;

/// 1.5 * 2^23: a number of moderate size added to it is rounded to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with integers up to 2^8 are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// e^x, within 1 ulp; 0 and infinity where the result has no other number, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite anyhow; both comparisons are false for NaN, which thus stays.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = L::fused(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = L::fused(n, -LN_2[1], L::fused(n, -LN_2[0], x));
    let p = polynomial::<L, 5>(r, [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_717, 0.001_381_459_9]);
    let e = L::fused(p, r * r, r) + 1.0;
    // 2^n as a product: n = 128 and denormal results have no factor of their own.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// 1 / (1 + e^-x), within 2.2 ulp also where it is tiny.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: f32) -> f32 {
    let [numerator, denominator] = sigmoid_fraction::<L>(x);
    numerator / denominator
}

/// The numerator and the denominator of [`sigmoid`].
#[inline(always)]
pub(crate) fn sigmoid_fraction<L: Lanes>(x: f32) -> [f32; 2] {
    let e = exp::<L>(-x.abs());
    [if x < 0.0 { e } else { 1.0 }, 1.0 + e]
}

/// x σ(x), within 3.2 ulp, or within 1e-43 where σ(x) is tiny. NaN for -infinity, as the formula has it.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(x: f32) -> f32 {
    x * sigmoid::<L>(x)
}

/// tanh x as a fraction, numerator and denominator, so that a product of several functions takes one division. The quotient
/// is within 6 ulp: a rational minimax fit, off by 2e-8, and what rounding adds.
#[inline(always)]
pub(crate) fn tanh_fraction<L: Lanes>(x: f32) -> [f32; 2] {
    // From here on it is 1. Both comparisons are false for NaN, which thus stays.
    let x = if x > 9.02 { 9.02 } else { x };
    let x = if x < -9.02 { -9.02 } else { x };
    let z = x * x;
    let p = [1.0, 0.133_797_1, 0.003_494_024, 2.058_330_8e-5, 1.331_883_6e-8];
    let q = [1.0, 0.467_130_24, 0.025_871_033, 3.283_075_3e-4, 7.761_921_7e-7];
    [x * polynomial::<L, 5>(z, p), polynomial::<L, 5>(z, q)]
}

/// ln(1 + e^x), within 2.8 ulp also where it is tiny.
#[inline(always)]
pub(crate) fn softplus<L: Lanes>(x: f32) -> f32 {
    // max(x, 0) + ln(1 + e), and ln(1 + e) = 2 artanh(e / (2 + e)).
    let e = exp::<L>(-x.abs());
    let s = e / (2.0 + e);
    let z = s * s;
    let p = polynomial::<L, 4>(z, [0.666_664_1, 0.400_217_06, 0.279_990_14, 0.280_251_4]);
    L::fused(p * z, s, 2.0 * s) + if x < 0.0 { 0.0 } else { x }
}

/// `Σ c_i x^i`
#[inline(always)]
fn polynomial<L: Lanes, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = L::fused(sum, x, c[i]);
    }
    sum
}
