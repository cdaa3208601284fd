//! Products on processors with AVX-512 and its dot products of integers (VNNI): Zen 4, Ice Lake and later.
//!
//! The panel of `avx2`, sixteen rows side by side, is as wide as one register here, and multiplying two elements of each
//! row and adding them to the sums is one instruction: 80 % of the most that a core can do, where `avx2` comes to 70 % of
//! less (Zen 4: 90 and 70 of 114 and 93 GMAC/s). The usual formats make their panels for sixteen rows at once (`fill`), and
//! multiply single rows as bytes (`row`); what others need stays with `avx2`.

// Tiles are arrays of a constant size, walked by index in several arrays at once.
#![allow(clippy::needless_range_loop)]

mod block;
mod fill;
mod row;

use std::arch::x86_64::*;

use crate::Format;
use crate::activation::Vector;
use crate::avx2::panel::{Panel, Step, Sums};
use crate::avx2::unfold::{SMALL, SUPER};
use crate::avx2::{FEW, multiply_integers};
use crate::product::Product;

use fill::fill;

/// The product of a format, if it has one here. To be called only on processors that `simd::has_avx512` says yes of.
pub(crate) fn product(format: Format) -> Option<Product> {
    macro_rules! of {
        ($($name:ident)*) => {
            match format {
                $(Format::$name => {
                    // SAFETY: `crate::product` hands this out after it has found the features.
                    #[allow(unsafe_code)]
                    let product: Product = |w, x, y| unsafe { integers(Format::$name, w, x, y) };
                    Some(product)
                })*
                Format::F32 | Format::F16 | Format::BF16 | Format::I8 | Format::NVFP4 => None,
            }
        };
    }
    of!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4 Q1_0 Q2_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
        IQ1_S IQ1_M IQ4_XS TQ1_0 TQ2_0)
}

/// Inlined into each format's product, so that how blocks come apart is resolved at compile time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn integers(format: Format, w: &[u8], x: &[Vector<'_>], y: &mut [f32]) {
    match x.len() {
        1..=FEW if row::has(format, x[0].q.len()) => row::rows(format, w, x, y),
        _ => multiply_integers::<TILE>(
            format,
            w,
            x,
            y,
            |panel, rows, step| fill(format, panel, rows, step),
            |panel, step, x, sums| add(panel, step, x, sums),
        ),
    }
}

/// Most vectors that are multiplied together: their sums take a quarter of the registers, and are enough to keep the
/// multipliers busy.
const TILE: usize = 8;

/// As [`Panel::add`], with up to [`TILE`] vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn add(panel: &Panel, step: Step, x: &[Vector<'_>], sums: &mut [Sums]) {
    macro_rules! tile {
        ($n:literal) => {
            match step.exact {
                SMALL => tile::<$n, SMALL, 1>(panel, step, x, sums),
                64 => tile::<$n, 64, 4>(panel, step, x, sums),
                _ => tile::<$n, SUPER, 1>(panel, step, x, sums),
            }
        };
    }
    match x.len() {
        1 => tile!(1),
        2 => tile!(2),
        3 => tile!(3),
        4 => tile!(4),
        5 => tile!(5),
        6 => tile!(6),
        7 => tile!(7),
        TILE => tile!(8),
        more => unreachable!("{more} vectors"),
    }
}

/// `GROUPS` groups of `G` elements share a scale.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
fn tile<const N: usize, const G: usize, const GROUPS: usize>(
    panel: &Panel,
    Step { len, block, mins, .. }: Step,
    x: &[Vector<'_>],
    sums: &mut [Sums],
) {
    let mut q: [&[[i16; G]]; N] = [&[]; N];
    for t in 0..N {
        q[t] = &x[t].q[block * SUPER..][..len].as_chunks().0[..len / G];
    }
    let mut parts = [_mm512_setzero_ps(); N];
    for g in 0..len / G {
        let mut dots = [_mm512_setzero_si512(); N];
        for (p, w) in panel.pairs[g * (G / 2)..][..G / 2].iter().enumerate() {
            let w = line(w);
            for t in 0..N {
                dots[t] = _mm512_dpwssd_epi32(dots[t], w, pair(&q[t][g], 2 * p));
            }
        }
        let scales = numbers(&panel.scales[g / GROUPS]);
        for t in 0..N {
            parts[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), scales, parts[t]);
        }
    }
    let mut totals = [_mm512_setzero_ps(); N];
    for t in 0..N {
        totals[t] = _mm512_fmadd_ps(parts[t], _mm512_set1_ps(x[t].scale[block]), numbers(&sums[t]));
    }
    if mins {
        let mut of: [&[f32]; N] = [&[]; N];
        for t in 0..N {
            of[t] = &x[t].sums[block * (SUPER / 16)..][..len / 16];
        }
        for (m, mins) in panel.mins[..len / 16].iter().enumerate() {
            let mins = numbers(mins);
            for t in 0..N {
                totals[t] = _mm512_fnmadd_ps(mins, _mm512_set1_ps(of[t][m]), totals[t]);
            }
        }
    }
    for t in 0..N {
        put_numbers(&mut sums[t], totals[t]);
    }
}

/// 64 bytes of integers.
#[inline]
#[target_feature(enable = "avx512f")]
fn line<T: Into<i32> + Copy, const N: usize>(q: &[T; N]) -> __m512i {
    const { assert!(size_of::<[T; N]>() == 64) };
    // SAFETY: 64 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_loadu_si512(q.as_ptr().cast())
    }
}

/// 16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn numbers(x: &Sums) -> __m512 {
    // SAFETY: 16 readable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_loadu_ps(x.as_ptr())
    }
}

/// Writes 16 numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn put_numbers(to: &mut Sums, numbers: __m512) {
    // SAFETY: 16 writable elements; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_storeu_ps(to.as_mut_ptr(), numbers);
    }
}

/// Writes 32 integers.
#[inline]
#[target_feature(enable = "avx512f")]
fn put_line(to: &mut [i16; 32], integers: __m512i) {
    // SAFETY: 64 writable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_storeu_si512(to.as_mut_ptr().cast(), integers);
    }
}

/// Two neighbouring integers, in every lane of 32 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair(q: &[i16], at: usize) -> __m512i {
    let q = &q[at..at + 2];
    // SAFETY: 4 readable bytes; unaligned access is what this is for.
    #[allow(unsafe_code)]
    unsafe {
        _mm512_set1_epi32(q.as_ptr().cast::<i32>().read_unaligned())
    }
}
