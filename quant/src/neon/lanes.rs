//! Vectors to and from memory: the loads and stores of the NEON products, each checked against its slice.

use std::arch::aarch64::*;

use crate::decode::u16_at;

/// The half-precision number at a place of a block.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn half(b: &[u8], at: usize) -> f32 {
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(u16_at(b, at)))))
}

/// 16 bytes of a block.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn bytes(b: &[u8], at: usize) -> uint8x16_t {
    let b = &b[at..at + 16];
    // SAFETY: 16 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        vld1q_u8(b.as_ptr())
    }
}

/// 8 integers.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn integers(q: &[i16], at: usize) -> int16x8_t {
    let q = &q[at..at + 8];
    // SAFETY: 8 readable integers; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        vld1q_s16(q.as_ptr())
    }
}

/// 4 numbers.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn numbers(x: &[f32], at: usize) -> float32x4_t {
    let x = &x[at..at + 4];
    // SAFETY: 4 readable numbers; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        vld1q_f32(x.as_ptr())
    }
}

/// Writes 4 numbers.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn put(x: &mut [f32], at: usize, numbers: float32x4_t) {
    let x = &mut x[at..at + 4];
    // SAFETY: 4 writable numbers; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        vst1q_f32(x.as_mut_ptr(), numbers);
    }
}
