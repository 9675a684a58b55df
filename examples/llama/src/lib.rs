//! Tensor-parallel Llama and Qwen in candle: the linear layers and norms of the transformer go over
//! Warpweave, everything else is candle's; on GPUs, attention and SwiGLU are kernels of this package.
//!
//! In the order in which one reads it:
//! 1. [`parallel`]: what a transformer asks of tensor parallelism, and who does it: Warpweave, or candle
//!    alone on one rank.
//! 2. [`model`]: the transformer, with [`attention`] and [`rope`] of candle's operations, which `fused` has
//!    as kernels. [`decode`] has the steps that a CUDA graph captures.
//! 3. [`weights`]: which rank has what of a [`checkpoint`].
//! 4. [`generate`]: a batch of requests of different lengths, with a [`sampler`].
//! 5. [`mod@bench`]: what it costs, with and without communication, and by candle with NCCL.
//! 6. [`job`] and [`command`]: processes, one for each rank, and what they are told to do.

pub mod attention;
pub mod bench;
pub mod checkpoint;
pub mod command;
pub mod config;
pub mod decode;
pub mod error;
mod fused;
pub mod generate;
pub mod job;
pub mod model;
pub mod parallel;
pub mod place;
pub mod rope;
pub mod sampler;
#[cfg(feature = "cuda")]
mod scratch;
pub mod show;
pub mod weights;

pub use error::{Error, Result};
