//! Unfolded rows by up to four vectors, in the best of three ways that the processor has.
//!
//! Codes are 8-bit and activations 14-bit numbers. The instructions that add products of bytes (dot product, i8mm) do four
//! or eight times as much as those that multiply 16-bit numbers, so an activation is split for them into two bytes,
//! `q = 256 · high + low`, both signed: even with everything done twice that is two and four times as much. The order
//! in which each way wants its vectors is made once for all rows ([`Way::spread`]).
//!
//! The inner loops, with loads and all, take for 32 elements of two rows and four vectors, which are 256 products, 122
//! instructions with plain NEON, 83 with dot product and 56 with i8mm. (They are counted, not timed.)

use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

use super::lanes::integers;
use super::unfold::Row;

/// Rows that are unfolded at once, an even number.
pub(super) const ROWS: usize = 16;

/// The sums of [`ROWS`] rows with one vector, in four parts each.
pub(super) type Sums = [float32x4_t; ROWS];

/// 16 activations as a way wants them.
pub(super) type Unit = [int8x16_t; 2];

/// How codes and activations are multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// SMLAL: codes are widened to 16 bits; activations are 16-bit numbers.
    Long,
    /// SDOT: 16 low bytes, then 16 high bytes.
    Dot,
    /// SMMLA: 8 low bytes, 8 high bytes, then those of the next 8 activations.
    Matrix,
}

impl Way {
    /// The ways that this processor has, the best one first.
    pub(super) fn all() -> impl Iterator<Item = Way> {
        let matrix = is_aarch64_feature_detected!("i8mm").then_some(Way(Kind::Matrix));
        let dot = is_aarch64_feature_detected!("dotprod").then_some(Way(Kind::Dot));
        [matrix, dot, Some(Way(Kind::Long))].into_iter().flatten()
    }

    pub(super) fn name(self) -> &'static str {
        match self.0 {
            Kind::Long => "neon",
            Kind::Dot => "neon+dotprod",
            Kind::Matrix => "neon+i8mm",
        }
    }

    /// Vectors that are multiplied at once: with four the loop of the plain way is too long for the compiler to unroll.
    pub(super) fn width(self) -> usize {
        if self.0 == Kind::Long { 2 } else { 4 }
    }

    /// Brings activations, given with the even and odd ones of 32 apart, into the form for this way.
    #[target_feature(enable = "neon")]
    pub(super) fn spread(self, q: &[i16], to: &mut [Unit]) {
        match self.0 {
            Kind::Long => each_unit(q, to, |even, odd| [vzip1q_s16(even, odd), vzip2q_s16(even, odd)]),
            Kind::Dot => each_unit(q, to, |even, odd| [low_bytes(even, odd), high_bytes(even, odd)]),
            Kind::Matrix => each_unit(q, to, |even, odd| {
                let bytes = [low_bytes(even, odd), high_bytes(even, odd)];
                let [low, high] = bytes.map(|x| vreinterpretq_s64_s16(x));
                [vzip1q_s64(low, high), vzip2q_s64(low, high)].map(|x| vreinterpretq_s16_s64(x))
            }),
        }
    }

    /// Adds the products of an even number of rows with `N` vectors to their sums. `K` registers of codes share a scale.
    /// `x` are the vectors' units, as many of each, and `scales` their scales.
    #[inline]
    pub(super) fn add<const N: usize, const K: usize>(
        self,
        rows: &[Row],
        x: [&[Unit]; N],
        scales: [f32; N],
        sums: &mut [Sums],
    ) {
        // SAFETY: `all` has found what each way needs, and a way comes from nowhere else.
        #[allow(unsafe_code)]
        unsafe {
            match self.0 {
                Kind::Long => long_tiles::<N, K>(rows, x, scales, sums),
                Kind::Dot => dot_tiles::<N, K>(rows, x, scales, sums),
                Kind::Matrix => matrix_tiles::<N, K>(rows, x, scales, sums),
            }
        }
    }
}

/// Makes units of the even and the odd ones of 16 activations.
#[inline]
#[target_feature(enable = "neon")]
fn each_unit(q: &[i16], to: &mut [Unit], f: impl Fn(int16x8_t, int16x8_t) -> [int16x8_t; 2]) {
    for (q, to) in q.as_chunks::<32>().0.iter().zip(to.as_chunks_mut::<2>().0) {
        for half in 0..2 {
            let unit = f(integers(q, 8 * half), integers(q, 16 + 8 * half));
            to[half] = unit.map(|x| vreinterpretq_s8_s16(x));
        }
    }
}

/// The low bytes of 16 activations in their order.
#[inline]
#[target_feature(enable = "neon")]
fn low_bytes(even: int16x8_t, odd: int16x8_t) -> int16x8_t {
    vsliq_n_s16::<8>(even, odd)
}

/// The high bytes, rounded, so that what is left for the low ones fits a signed byte.
#[inline]
#[target_feature(enable = "neon")]
fn high_bytes(even: int16x8_t, odd: int16x8_t) -> int16x8_t {
    vsliq_n_s16::<8>(vrshrq_n_s16::<8>(even), vrshrq_n_s16::<8>(odd))
}

/// The products of `K` registers of codes with activations, in four parts, by widening.
#[inline]
#[target_feature(enable = "neon")]
fn long<const K: usize>(codes: [int8x16_t; K], x: [Unit; K]) -> int32x4_t {
    let mut sum = vdupq_n_s32(0);
    for k in 0..K {
        let wide = [vmovl_s8(vget_low_s8(codes[k])), vmovl_high_s8(codes[k])];
        for half in 0..2 {
            let x = vreinterpretq_s16_s8(x[k][half]);
            sum = vmlal_s16(sum, vget_low_s16(wide[half]), vget_low_s16(x));
            sum = vmlal_high_s16(sum, wide[half], x);
        }
    }
    sum
}

/// The same with dot products of bytes.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const K: usize>(codes: [int8x16_t; K], x: [Unit; K]) -> int32x4_t {
    let mut sum = vdupq_n_s32(0);
    for k in 0..K {
        sum = sdot(sum, codes[k], x[k][1]);
    }
    sum = vshlq_n_s32::<8>(sum);
    for k in 0..K {
        sum = sdot(sum, codes[k], x[k][0]);
    }
    sum
}

macro_rules! tiles {
    ($name:ident, $features:literal, $products:ident) => {
        #[target_feature(enable = $features)]
        fn $name<const N: usize, const K: usize>(
            rows: &[Row],
            x: [&[Unit]; N],
            scales: [f32; N],
            sums: &mut [Sums],
        ) {
            let groups = x[0].len() / K;
            let x = x.map(|x| &x.as_chunks::<K>().0[..groups]);
            for (p, rows) in rows.as_chunks::<2>().0.iter().enumerate() {
                let mut parts = [[vdupq_n_f32(0.0); N]; 2];
                let codes = rows.each_ref().map(|row| &row.codes.as_chunks::<K>().0[..groups]);
                let row_scales = rows.each_ref().map(|row| &row.scales[..groups]);
                for g in 0..groups {
                    for t in 0..N {
                        for r in 0..2 {
                            let products = vcvtq_f32_s32($products(codes[r][g], x[t][g]));
                            parts[r][t] = vfmaq_n_f32(parts[r][t], products, row_scales[r][g]);
                        }
                    }
                }
                for t in 0..N {
                    for r in 0..2 {
                        let sum = &mut sums[t][2 * p + r];
                        *sum = vfmaq_n_f32(*sum, parts[r][t], scales[t]);
                    }
                }
            }
        }
    };
}
tiles!(long_tiles, "neon", long);
tiles!(dot_tiles, "neon,dotprod", dot);

/// With products of matrices: two rows of codes by the low and the high bytes of a vector.
#[target_feature(enable = "neon,i8mm")]
fn matrix_tiles<const N: usize, const K: usize>(
    rows: &[Row],
    x: [&[Unit]; N],
    scales: [f32; N],
    sums: &mut [Sums],
) {
    let groups = x[0].len() / K;
    let x = x.map(|x| &x.as_chunks::<K>().0[..groups]);
    for (p, rows) in rows.as_chunks::<2>().0.iter().enumerate() {
        // Of each row, the sum with the low bytes, and that with the high ones.
        let mut parts = [vdupq_n_f32(0.0); N];
        let codes = rows.each_ref().map(|row| &row.codes.as_chunks::<K>().0[..groups]);
        let row_scales = rows.each_ref().map(|row| &row.scales[..groups]);
        for g in 0..groups {
            let mut both = [[vdupq_n_s8(0); 2]; K];
            for k in 0..K {
                let [a, b] = codes.map(|codes| vreinterpretq_s64_s8(codes[g][k]));
                both[k] = [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))];
            }
            let [first, second] = row_scales.map(|scales| vdup_n_f32(scales[g]));
            let row_scale = vcombine_f32(first, second);
            for t in 0..N {
                let mut products = vdupq_n_s32(0);
                for k in 0..K {
                    products = smmla(products, both[k][0], x[t][g][k][0]);
                    products = smmla(products, both[k][1], x[t][g][k][1]);
                }
                parts[t] = vfmaq_f32(parts[t], vcvtq_f32_s32(products), row_scale);
            }
        }
        for t in 0..N {
            let bytes = vset_lane_f32::<1>(256.0 * scales[t], vdup_n_f32(scales[t]));
            let part = vmulq_f32(parts[t], vcombine_f32(bytes, bytes));
            let zero = vdup_n_f32(0.0);
            let rows = [vcombine_f32(vget_low_f32(part), zero), vcombine_f32(vget_high_f32(part), zero)];
            for r in 0..2 {
                let sum = &mut sums[t][2 * p + r];
                *sum = vaddq_f32(*sum, rows[r]);
            }
        }
    }
}

// The standard library's functions for these two instructions aren't stable.

/// `sum[i] + Σ_j a[4i + j] · b[4i + j]` for j from 0 to 3.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: an instruction that the function's features have, which changes nothing but its own register.
    #[allow(unsafe_code)]
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum[2r + c] + Σ_j a[8r + j] · b[8c + j]` for j from 0 to 7.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
