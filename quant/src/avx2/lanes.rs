//! Vectors to and from memory: the loads and stores of the products, each checked against its slice.

use std::arch::x86_64::*;

use crate::decode::u16_at;

#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn half(b: &[u8], at: usize) -> f32 {
    let bits = i32::from(u16_at(b, at));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

/// 16 bytes of a block.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn bytes16(b: &[u8], at: usize) -> __m128i {
    let b = &b[at..at + 16];
    // SAFETY: 16 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm_loadu_si128(b.as_ptr().cast())
    }
}

/// 32 bytes of a block.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn bytes32(b: &[u8], at: usize) -> __m256i {
    let b = &b[at..at + 32];
    // SAFETY: 32 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_si256(b.as_ptr().cast())
    }
}

/// Writes 16 codes.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn put(q: &mut [i16], at: usize, codes: __m256i) {
    let q = &mut q[at..at + 16];
    // SAFETY: 16 writable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_si256(q.as_mut_ptr().cast(), codes);
    }
}

/// Writes 8 numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn putf(x: &mut [f32], at: usize, numbers: __m256) {
    let x = &mut x[at..at + 8];
    // SAFETY: 8 writable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_ps(x.as_mut_ptr(), numbers);
    }
}

/// Writes 8 sums.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn put_sums(to: &mut [i32], at: usize, sums: __m256i) {
    let to = &mut to[at..at + 8];
    // SAFETY: 8 writable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_storeu_si256(to.as_mut_ptr().cast(), sums);
    }
}

/// 16 integers.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn take(q: &[i16], at: usize) -> __m256i {
    let q = &q[at..at + 16];
    // SAFETY: 16 readable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_si256(q.as_ptr().cast())
    }
}

/// 8 numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn takef(x: &[f32], at: usize) -> __m256 {
    let x = &x[at..at + 8];
    // SAFETY: 8 readable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_loadu_ps(x.as_ptr())
    }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn horizontal(x: __m256) -> f32 {
    let half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
}

/// Two neighbouring integers, in every lane of 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn pair(q: &[i16], at: usize) -> __m256i {
    let q = &q[at..at + 2];
    // SAFETY: 4 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm256_set1_epi32(q.as_ptr().cast::<i32>().read_unaligned())
    }
}

/// 32 signed bytes as integers: those of the even elements, and those of the odd ones. Two shifts do that, where widening
/// would have to cross the halves of the register, which is slow.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn split_bytes(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)), _mm256_srai_epi16::<8>(bytes)]
}

/// The same for unsigned bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn split_unsigned(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(bytes)]
}

/// 32 integers in their order: those of the even elements, and those of the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn split([low, high]: [__m256i; 2]) -> [__m256i; 2] {
    let order = _mm256_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11,
        14, 15,
    );
    let (low, high) = (_mm256_shuffle_epi8(low, order), _mm256_shuffle_epi8(high, order));
    [
        _mm256_permute4x64_epi64::<0xd8>(_mm256_unpacklo_epi64(low, high)),
        _mm256_permute4x64_epi64::<0xd8>(_mm256_unpackhi_epi64(low, high)),
    ]
}
