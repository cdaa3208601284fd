//! One body, two builds: code that the compiler vectorises is written once and compiled both plainly and for AVX2.

/// Whether this processor has what the AVX2 builds need.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    // The standard library keeps what the processor said: this is a load and a test.
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Whether this processor has what the AVX-512 products need.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// Makes functions that call their body in the build for this processor. A body is an `#[inline(always)]`
/// function with a `const FMA: bool` parameter, true where multiply-add in one rounding is an instruction.
macro_rules! dispatch {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident;)*) => {$(
        $(#[$doc])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn fast($($arg: $ty),*) $(-> $ret)? {
                    $body::<true>($($arg),*)
                }
                if $crate::simd::has_avx2() {
                    // SAFETY: the processor has what the function needs.
                    #[allow(unsafe_code)]
                    return unsafe { fast($($arg),*) };
                }
            }
            $body::<false>($($arg),*)
        }
    )*};
}
pub(crate) use dispatch;
