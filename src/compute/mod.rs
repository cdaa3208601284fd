//! Who executes the mathematics: the thread pool and the CPU's operators.
//!
//! An operator takes the activations of a batch and works for all of its tokens in one parallel region. Weights
//! are used where they are mapped. Vector code is written once and built for what the processor has (`simd`).

mod attention;
mod disjoint;
mod gemm;
pub mod kda;
mod kda_heads;
pub mod math;
mod mla;
mod operand;
mod pool;
mod product;
mod residual;
mod simd;

pub use attention::{Attended, RowSource, Sequence, Shape, attend};
pub use kda_heads::{DecayGate, KdaInput, KdaLayer, KdaSession, KdaTrace, kda};
pub use mla::{HeadShape, queries, values};
pub use operand::Operand;
pub use pool::Pool;
pub use product::{Activation, GateUp, Pick, Sum, Term, Weights, gate_up, sums};
pub use residual::{Streams, copy_rows, gate_rows, norm_rows};
