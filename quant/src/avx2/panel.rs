//! Products with several vectors: sixteen weight rows side by side.
//!
//! A panel is a super-block's length of sixteen rows, unfolded to integers and turned so that two neighbouring elements
//! of eight rows fill a register. `madd` with two elements of a vector, spread over a register, then adds eight rows
//! at once, and no lanes have to be added up at the end; the sums come out as the rows of the output lie. Two registers
//! of rows by four vectors are eight sums in registers: an element of a row is loaded once for four vectors, one
//! of a vector once for sixteen rows, and both lie in the first-level cache. What unfolding and turning cost is
//! shared by all vectors.
//!
//! Sums are exact integers for a group of elements, as long as the format's scales and codes allow, then f32.

use std::arch::x86_64::*;

use super::lanes::{pair, put, putf, take, takef};
use super::unfold::{SMALL, SUPER, Unfolded};
use crate::activation::Vector;

/// Rows of a panel, in two registers of eight.
pub(crate) const ROWS: usize = 16;

/// Most vectors that are multiplied together: with two registers of rows, eight sums.
pub(crate) const TILE: usize = 4;

/// Sums of the panel's rows with one vector.
pub(crate) type Sums = [f32; ROWS];

/// What is multiplied together: the elements of a panel with a block of each vector.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    /// Elements.
    pub(crate) len: usize,
    /// Elements that are added as integers.
    pub(crate) exact: usize,
    /// The block of the vectors.
    pub(crate) block: usize,
    /// Whether the rows have minima.
    pub(crate) mins: bool,
}

/// Sixteen rows of up to [`SUPER`] elements; aligned, because a load that crosses cache lines takes twice as long.
#[repr(align(64))]
pub(crate) struct Panel {
    /// Row after row, as they are unfolded.
    rows: [[i16; SUPER]; ROWS],
    row_scales: [[f32; SUPER / SMALL]; ROWS],
    row_mins: [[f32; SUPER / 16]; ROWS],
    /// Elements 2p and 2p + 1 of all rows.
    pub(crate) pairs: [[i16; 2 * ROWS]; SUPER / 2],
    /// For every group of elements, the scales of all rows.
    pub(crate) scales: [Sums; SUPER / SMALL],
    /// For every 16 elements, the minima of all rows.
    pub(crate) mins: [Sums; SUPER / 16],
}

impl Panel {
    pub(super) fn new() -> Panel {
        Panel {
            rows: [[0; SUPER]; ROWS],
            row_scales: [[0.0; SUPER / SMALL]; ROWS],
            row_mins: [[0.0; SUPER / 16]; ROWS],
            pairs: [[0; 2 * ROWS]; SUPER / 2],
            scales: [[0.0; ROWS]; SUPER / SMALL],
            mins: [[0.0; ROWS]; SUPER / 16],
        }
    }

    /// Where `len` elements of row `r` are unfolded to, with a scale for every `group` elements and minima or none.
    pub(super) fn row(&mut self, r: usize, len: usize, group: usize, mins: bool) -> Unfolded<'_> {
        Unfolded {
            codes: &mut self.rows[r][..len],
            scales: &mut self.row_scales[r][..len.div_ceil(group)],
            mins: &mut self.row_mins[r][..if mins { len / 16 } else { 0 }],
        }
    }

    /// Turns what was unfolded.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn turn(&mut self, len: usize, group: usize, mins: bool) {
        for p in (0..len / 2).step_by(8) {
            for half in 0..2 {
                let mut x = [_mm256_setzero_si256(); 8];
                for r in 0..8 {
                    x[r] = take(&self.rows[8 * half + r], 2 * p);
                }
                let turned = turn_pairs(x);
                for i in 0..8 {
                    put(&mut self.pairs[p + i], 16 * half, turned[i]);
                }
            }
        }
        turn_numbers(&self.row_scales, &mut self.scales, len.div_ceil(group));
        if mins {
            turn_numbers(&self.row_mins, &mut self.mins, len / 16);
        }
    }

    /// Adds the products of a step with up to [`TILE`] vectors to `sums`, which has an entry a vector.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add(&self, Step { len, exact, block, mins }: Step, x: &[Vector<'_>], sums: &mut [Sums]) {
        macro_rules! tile {
            ($n:literal) => {{
                if mins {
                    self.subtract_mins::<$n>(len, block, x, sums);
                }
                match exact {
                    SMALL => self.tile::<$n, SMALL, 1>(len, block, x, sums),
                    64 => self.tile::<$n, 64, 4>(len, block, x, sums),
                    _ => self.tile::<$n, SUPER, 1>(len, block, x, sums),
                }
            }};
        }
        match x.len() {
            1 => tile!(1),
            2 => tile!(2),
            3 => tile!(3),
            TILE => tile!(4),
            more => unreachable!("{more} vectors"),
        }
    }

    /// `GROUPS` groups of `G` elements share a scale.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn tile<const N: usize, const G: usize, const GROUPS: usize>(
        &self,
        len: usize,
        block: usize,
        x: &[Vector<'_>],
        sums: &mut [Sums],
    ) {
        let mut q: [&[[i16; G]]; N] = [&[]; N];
        for t in 0..N {
            q[t] = &x[t].q[block * SUPER..][..len].as_chunks().0[..len / G];
        }
        let mut parts = [[_mm256_setzero_ps(); 2]; N];
        for g in 0..len / G {
            let mut dots = [[_mm256_setzero_si256(); 2]; N];
            for (p, w) in self.pairs[g * (G / 2)..][..G / 2].iter().enumerate() {
                let (w0, w1) = (take(w, 0), take(w, 16));
                for t in 0..N {
                    let q = pair(&q[t][g], 2 * p);
                    dots[t][0] = _mm256_add_epi32(dots[t][0], _mm256_madd_epi16(w0, q));
                    dots[t][1] = _mm256_add_epi32(dots[t][1], _mm256_madd_epi16(w1, q));
                }
            }
            let scales = &self.scales[g / GROUPS];
            let scales = [takef(scales, 0), takef(scales, 8)];
            for t in 0..N {
                for half in 0..2 {
                    parts[t][half] =
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t][half]), scales[half], parts[t][half]);
                }
            }
        }
        for t in 0..N {
            let scale = _mm256_set1_ps(x[t].scale[block]);
            for half in 0..2 {
                let sum = _mm256_fmadd_ps(parts[t][half], scale, takef(&sums[t], 8 * half));
                putf(&mut sums[t], 8 * half, sum);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn subtract_mins<const N: usize>(&self, len: usize, block: usize, x: &[Vector<'_>], sums: &mut [Sums]) {
        let mut total = [[_mm256_setzero_ps(); 2]; N];
        let mut of: [&[f32]; N] = [&[]; N];
        for t in 0..N {
            total[t] = [takef(&sums[t], 0), takef(&sums[t], 8)];
            of[t] = &x[t].sums[block * (SUPER / 16)..][..len / 16];
        }
        for (m, mins) in self.mins[..len / 16].iter().enumerate() {
            let mins = [takef(mins, 0), takef(mins, 8)];
            for t in 0..N {
                let sum = _mm256_set1_ps(of[t][m]);
                for half in 0..2 {
                    total[t][half] = _mm256_fnmadd_ps(mins[half], sum, total[t][half]);
                }
            }
        }
        for t in 0..N {
            putf(&mut sums[t], 0, total[t][0]);
            putf(&mut sums[t], 8, total[t][1]);
        }
    }
}

/// Eight rows of eight pairs: pair i of every row.
#[inline]
#[target_feature(enable = "avx2")]
fn turn_pairs(x: [__m256i; 8]) -> [__m256i; 8] {
    let mut two = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        two[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        two[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    let mut four = [_mm256_setzero_si256(); 8];
    for i in 0..2 {
        for j in 0..2 {
            four[4 * i + 2 * j] = _mm256_unpacklo_epi64(two[4 * i + j], two[4 * i + 2 + j]);
            four[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(two[4 * i + j], two[4 * i + 2 + j]);
        }
    }
    let mut out = [_mm256_setzero_si256(); 8];
    for i in 0..4 {
        out[i] = _mm256_permute2x128_si256::<0x20>(four[i], four[4 + i]);
        out[4 + i] = _mm256_permute2x128_si256::<0x31>(four[i], four[4 + i]);
    }
    out
}

/// Turns the first `count` numbers, and up to seven more, of sixteen rows.
#[inline]
#[target_feature(enable = "avx2")]
fn turn_numbers<const N: usize>(rows: &[[f32; N]; ROWS], turned: &mut [Sums; N], count: usize) {
    if count == 1 {
        for r in 0..ROWS {
            turned[0][r] = rows[r][0];
        }
        return;
    }
    for first in (0..count).step_by(8) {
        for half in 0..2 {
            let mut x = [_mm256_setzero_si256(); 8];
            for r in 0..8 {
                x[r] = _mm256_castps_si256(takef(&rows[8 * half + r], first));
            }
            for (i, numbers) in turn_pairs(x).into_iter().enumerate() {
                putf(&mut turned[first + i], 8 * half, _mm256_castsi256_ps(numbers));
            }
        }
    }
}
