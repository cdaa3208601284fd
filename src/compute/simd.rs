//! One body, two builds: the vector operators are written once over arrays of eight lanes, and compiled both
//! plainly and for AVX2 with fused multiply-add. Which build runs is decided once.
//!
//! The bodies are generic over `FMA`, because `mul_add` without the instruction is a slow library call; with it
//! the compiler turns the arrays into registers.

/// Lanes of the arrays that operators are written over: one AVX2 register, two NEON ones.
pub(super) const LANES: usize = 8;

/// A vector of [`LANES`] elements.
pub(super) type Lanes = [f32; LANES];

/// Whether this processor has AVX2 and fused multiply-add.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_fma() -> bool {
    // The standard library caches what the processor says: this is a load and a test.
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Makes functions that call their body in the build for this processor. A body is an `#[inline(always)]`
/// function with a `const FMA: bool` parameter.
macro_rules! dispatch {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn fast($($arg: $ty),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                if $crate::compute::simd::has_fma() {
                    // SAFETY: the processor has what the function needs.
                    #[allow(unsafe_code)]
                    return unsafe { fast($($arg),*) };
                }
            }
            $body::<false>($($arg),*)
        }
    )*};
}
pub(super) use dispatch;

/// `a * b + c`, in one rounding where the processor can.
#[inline(always)]
pub(super) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// [`fma`] lane by lane.
#[inline(always)]
pub(super) fn fused<const FMA: bool>(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
    std::array::from_fn(|i| fma::<FMA>(a[i], b[i], c[i]))
}

/// The sum of the lanes, in the order of a tree.
#[inline(always)]
pub(super) fn sum(x: Lanes) -> f32 {
    let half: [f32; 4] = std::array::from_fn(|i| x[i] + x[i + 4]);
    (half[0] + half[2]) + (half[1] + half[3])
}

/// Eight elements of a slice.
#[inline(always)]
pub(super) fn load(x: &[f32], at: usize) -> Lanes {
    x[at..][..LANES].try_into().expect("a slice of this length")
}
