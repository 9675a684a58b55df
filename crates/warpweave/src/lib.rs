#![doc = include_str!("../README.md")]

pub use warpweave_comm as comm;
pub use warpweave_gemm as gemm;
pub use warpweave_kernels as kernels;
pub use warpweave_overlap as overlap;
pub use warpweave_symm_mem as symm_mem;

/// The code of the guides is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/cudarc-and-candle.md")]
struct CudarcAndCandle;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/layers.md")]
struct LayersInAnEngine;
