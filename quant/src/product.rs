//! Products of weight rows with activation vectors, portable: the reference for every other path.
//!
//! A row is decoded to f32 once and serves every vector of the batch.

use crate::{Format, activation::Vector, decode};

/// `y[r * x.len() + t] = Σ_i w[r][i] · x[t][i]` for the `y.len() / x.len()` rows that lie one after the other
/// in `w`. All vectors of `x` have the same length, a whole number of the format's blocks.
pub type Product = fn(w: &[u8], x: &[Vector<'_>], y: &mut [f32]);
