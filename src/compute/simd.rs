//! One body, several instruction sets.
//!
//! A kernel is written once, as an `#[inline(always)]` function that is generic over [`Lanes`]: eight f32 that the
//! processor keeps in its registers. [`dispatch!`] makes it twice, for any processor and for those with AVX2 and
//! FMA, and chooses by what the processor has; on aarch64, where every processor has NEON, once. Bodies that only map slices may also be plain loops over
//! [`Lanes::fused`]: they are vectorised by the compiler, for the processor that the instance is made for.

/// Numbers in a [`Lanes`].
pub(crate) const LANES: usize = 8;

/// Eight f32 that are worked on together.
pub(crate) trait Lanes: Copy {
    /// Eight times `x`.
    fn splat(x: f32) -> Self;
    /// The first eight numbers of `x`.
    fn load(x: &[f32]) -> Self;
    /// Writes the numbers to the start of `out`.
    fn store(self, out: &mut [f32]);
    /// `self + other`
    fn add(self, other: Self) -> Self;
    /// `self * other`
    fn mul(self, other: Self) -> Self;
    /// `self * factor + summand`, rounded once where the processor can.
    fn mul_add(self, factor: Self, summand: Self) -> Self;
    /// The larger one of each pair; `other`'s where one of them is NaN.
    fn max(self, other: Self) -> Self;
    /// [`Lanes::mul_add`] of single numbers.
    fn fused(x: f32, factor: f32, summand: f32) -> f32;

    /// The sum of the numbers.
    fn sum(self) -> f32;

    /// The numbers.
    #[inline(always)]
    fn array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out);
        out
    }
}

/// The first `N` vectors of `x`.
#[inline(always)]
pub(crate) fn load_all<L: Lanes, const N: usize>(x: &[f32]) -> [L; N] {
    let x = &x[..N * LANES];
    let mut vectors = [L::splat(0.0); N];
    for (i, vector) in vectors.iter_mut().enumerate() {
        *vector = L::load(&x[i * LANES..]);
    }
    vectors
}

/// Writes vectors to the start of `out`.
#[inline(always)]
pub(crate) fn store_all<L: Lanes, const N: usize>(vectors: [L; N], out: &mut [f32]) {
    let out = &mut out[..N * LANES];
    for (i, vector) in vectors.into_iter().enumerate() {
        vector.store(&mut out[i * LANES..]);
    }
}

/// Whether every processor that this build is for multiplies and adds in one instruction.
#[cfg(any(test, not(target_arch = "aarch64")))]
const BASELINE_FUSES: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// [`Lanes`] of any processor.
#[cfg(any(test, not(target_arch = "aarch64")))]
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; LANES]);

#[cfg(any(test, not(target_arch = "aarch64")))]
impl Portable {
    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for (x, y) in self.0.iter_mut().zip(other.0) {
            *x = f(*x, y);
        }
        self
    }
}

#[cfg(any(test, not(target_arch = "aarch64")))]
impl Lanes for Portable {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Portable([x; LANES])
    }

    #[inline(always)]
    fn load(x: &[f32]) -> Self {
        Portable(*x.first_chunk().expect("at least eight numbers"))
    }

    #[inline(always)]
    fn store(self, out: &mut [f32]) {
        out[..LANES].copy_from_slice(&self.0);
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |x, y| x + y)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |x, y| x * y)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, mut summand: Self) -> Self {
        for ((x, y), z) in self.0.iter().zip(factor.0).zip(&mut summand.0) {
            *z = Self::fused(*x, y, *z);
        }
        summand
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }

    #[inline(always)]
    fn fused(x: f32, factor: f32, summand: f32) -> f32 {
        if BASELINE_FUSES { x.mul_add(factor, summand) } else { x * factor + summand }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2 {
    use super::{LANES, Lanes};
    use std::arch::x86_64::*;

    /// [`Lanes`] in one register. Only [`dispatch!`](super::dispatch) names this type, in functions that have
    /// AVX2 and FMA and that it calls only where the processor has them: hence the bodies below are safe.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256);

    impl Lanes for Avx2 {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: see `Avx2`.
            Avx2(unsafe { _mm256_set1_ps(x) })
        }

        #[inline(always)]
        fn load(x: &[f32]) -> Self {
            let x: &[f32; LANES] = x.first_chunk().expect("at least eight numbers");
            // SAFETY: see `Avx2`; there are eight numbers.
            Avx2(unsafe { _mm256_loadu_ps(x.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, out: &mut [f32]) {
            let out: &mut [f32; LANES] = out.first_chunk_mut().expect("room for eight numbers");
            // SAFETY: see `Avx2`; there is room for eight numbers.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see `Avx2`.
            Avx2(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see `Avx2`.
            Avx2(unsafe { _mm256_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul_add(self, factor: Self, summand: Self) -> Self {
            // SAFETY: see `Avx2`.
            Avx2(unsafe { _mm256_fmadd_ps(self.0, factor.0, summand.0) })
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see `Avx2`.
            Avx2(unsafe { _mm256_max_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: see `Avx2`.
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
        }

        #[inline(always)]
        fn fused(x: f32, factor: f32, summand: f32) -> f32 {
            x.mul_add(factor, summand)
        }
    }
}
#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod neon {
    use super::{LANES, Lanes};
    use std::arch::aarch64::*;

    /// [`Lanes`] in two registers. Every processor that a build for aarch64 runs on has NEON: hence the bodies below are
    /// safe.
    #[derive(Clone, Copy)]
    pub(crate) struct Neon(float32x4_t, float32x4_t);

    impl Lanes for Neon {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: see `Neon`.
            unsafe { Neon(vdupq_n_f32(x), vdupq_n_f32(x)) }
        }

        #[inline(always)]
        fn load(x: &[f32]) -> Self {
            let x: &[f32; LANES] = x.first_chunk().expect("at least eight numbers");
            // SAFETY: see `Neon`; there are eight numbers.
            unsafe { Neon(vld1q_f32(x.as_ptr()), vld1q_f32(x[4..].as_ptr())) }
        }

        #[inline(always)]
        fn store(self, out: &mut [f32]) {
            let out: &mut [f32; LANES] = out.first_chunk_mut().expect("room for eight numbers");
            // SAFETY: see `Neon`; there is room for eight numbers.
            unsafe {
                vst1q_f32(out.as_mut_ptr(), self.0);
                vst1q_f32(out[4..].as_mut_ptr(), self.1);
            }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see `Neon`.
            unsafe { Neon(vaddq_f32(self.0, other.0), vaddq_f32(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see `Neon`.
            unsafe { Neon(vmulq_f32(self.0, other.0), vmulq_f32(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul_add(self, factor: Self, summand: Self) -> Self {
            // SAFETY: see `Neon`.
            unsafe { Neon(vfmaq_f32(summand.0, self.0, factor.0), vfmaq_f32(summand.1, self.1, factor.1)) }
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see `Neon`. Its own instruction gives NaN where either is.
            unsafe {
                Neon(
                    vbslq_f32(vcgtq_f32(self.0, other.0), self.0, other.0),
                    vbslq_f32(vcgtq_f32(self.1, other.1), self.1, other.1),
                )
            }
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: see `Neon`.
            unsafe {
                let four = vaddq_f32(self.0, self.1);
                vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
            }
        }

        #[inline(always)]
        fn fused(x: f32, factor: f32, summand: f32) -> f32 {
            x.mul_add(factor, summand)
        }
    }
}

#[cfg(not(target_arch = "aarch64"))]
pub(crate) use Portable as Baseline;
/// What every processor has that this build is for.
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon as Baseline;

/// Makes functions out of bodies that are generic over [`Lanes`]: `dispatch! { fn name(arguments) = body; }`.
macro_rules! dispatch {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? = $body:ident;
    )+) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide($($arg: $type),*) $(-> $out)? {
                    $body::<$crate::compute::simd::Avx2>($($arg),*)
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has what the function needs.
                    #[allow(unsafe_code)]
                    return unsafe { wide($($arg),*) };
                }
            }
            $body::<$crate::compute::simd::Baseline>($($arg),*)
        }
    )+};
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    fn operations_body<L: Lanes>(x: &[f32], y: &[f32]) -> Vec<f32> {
        let (a, b) = (L::load(x), L::load(y));
        let mut out = Vec::new();
        for result in [a.add(b), a.mul(b), a.max(b), a.mul_add(b, L::splat(0.5))] {
            out.extend(result.array());
        }
        out.extend([a.sum(), L::fused(3.0, 4.0, 5.0)]);
        out
    }
    dispatch! { fn operations(x: &[f32], y: &[f32]) -> Vec<f32> = operations_body; }

    #[test]
    fn all_lanes_agree() {
        let x = [1.0, -2.0, 3.5, 0.0, 7.0, f32::NAN, 1e3, -0.25];
        let y = [4.0, 5.0, -6.0, 1.0, f32::INFINITY, 8.0, f32::NAN, 0.5];
        let (fast, plain) = (operations(&x, &y), operations_body::<Portable>(&x, &y));
        let bits =
            |v: &[f32]| v.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect::<Vec<_>>();
        assert_eq!(bits(&fast), bits(&plain));
        assert_eq!(plain[..3], [5.0, 3.0, -2.5]);
        assert_eq!(plain[8..11], [4.0, -10.0, -21.0]);
        assert_eq!((plain[16], plain[21], plain[24], plain[33]), (4.0, 8.0, 4.5, 17.0));
        assert!(plain[22].is_nan() && plain[32].is_nan());
    }

    #[test]
    #[should_panic(expected = "at least eight numbers")]
    fn a_short_load_is_refused() {
        operations(&[0.0; 8], &[0.0; 7]);
    }
}
