//! How many multiplications this processor could do: the limit that products are measured against.

use std::hint::black_box;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// f32, as products with rows of floats have them.
    Floats,
    /// 16-bit integers, as products with all other rows have them.
    Integers,
}

/// Numbers that are multiplied, in threes: few enough for the first-level cache.
const LEN: usize = 256;
/// Numbers on both sides of a tile: nine sums hide how long an instruction takes, and stay in registers.
const SIDE: usize = 3;

/// Multiplies numbers from the first-level cache and adds the products up, with the widest instructions that this
/// processor has for it, and returns how many multiplications that were: `rounds` times some thousand.
pub fn multiply_add(numbers: Numbers, rounds: usize) -> u64 {
    let tiles = (rounds * LEN * SIDE * SIDE) as u64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has what the functions need.
    #[allow(unsafe_code)]
    unsafe {
        match numbers {
            Numbers::Floats if is_x86_feature_detected!("avx512f") => {
                x86::floats512(rounds);
                return tiles * 16;
            }
            Numbers::Floats if crate::simd::has_avx2() => {
                x86::floats256(rounds);
                return tiles * 8;
            }
            Numbers::Integers if crate::simd::has_avx512() => {
                x86::integers512(rounds);
                return tiles * 32;
            }
            Numbers::Integers if crate::simd::has_avx2() => {
                x86::integers256(rounds);
                return tiles * 16;
            }
            _ => {}
        }
    }
    // The portable products are in f32 for every format.
    let _ = numbers;
    portable(rounds);
    tiles * LANES as u64
}

/// Numbers that the compiler may put into one register, or into two.
const LANES: usize = 8;

fn portable(rounds: usize) {
    let w = black_box([0.25f32, 0.5, 0.75]);
    let mut sums = [[[0f32; LANES]; SIDE]; SIDE];
    let data = [[0.5f32; SIDE]; LEN];
    for _ in 0..rounds {
        for x in black_box(&data) {
            for i in 0..SIDE {
                for j in 0..SIDE {
                    for sum in &mut sums[i][j] {
                        *sum += x[i] * w[j];
                    }
                }
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{LEN, SIDE};

    /// A function that multiplies every number with each of three others and adds that to nine sums.
    macro_rules! peak {
        ($name:ident, $features:literal, $number:literal, $zero:ident, $splat:ident, $step:expr) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(rounds: usize) {
                let w = black_box([$number; SIDE]);
                let w = [$splat(w[0]), $splat(w[1]), $splat(w[2])];
                let mut sums = [[$zero(); SIDE]; SIDE];
                let data = [[$number; SIDE]; LEN];
                for _ in 0..rounds {
                    for x in black_box(&data) {
                        for i in 0..SIDE {
                            let x = $splat(x[i]);
                            for j in 0..SIDE {
                                sums[i][j] = $step(sums[i][j], x, w[j]);
                            }
                        }
                    }
                }
                black_box(sums);
            }
        };
    }
    peak!(floats256, "avx2,fma", 0.5, _mm256_setzero_ps, _mm256_set1_ps, |sum, x, w| _mm256_fmadd_ps(
        x, w, sum
    ));
    peak!(floats512, "avx512f", 0.5, _mm512_setzero_ps, _mm512_set1_ps, |sum, x, w| _mm512_fmadd_ps(
        x, w, sum
    ));
    peak!(integers256, "avx2", 0x10001, _mm256_setzero_si256, _mm256_set1_epi32, |sum, x, w| {
        _mm256_add_epi32(sum, _mm256_madd_epi16(x, w))
    });
    peak!(
        integers512,
        "avx512f,avx512bw,avx512vnni",
        0x10001,
        _mm512_setzero_si512,
        _mm512_set1_epi32,
        |sum, x, w| _mm512_dpwssd_epi32(sum, x, w)
    );
}
