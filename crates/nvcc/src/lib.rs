//! Turns CUDA sources into cubins, PTX and static libraries from a build script.
//!
//! The crate finds an `nvcc`, refuses one whose code the supported drivers would not load, compiles
//! with the flags that Warpweave's kernels need, and keeps every result in a cache keyed by
//! content, so that a change of profile or a `cargo clean -p` recompiles no device code.
//!
//! A build script of a crate whose feature `nvcc` turns this crate on as an optional
//! build-dependency:
//!
//! ```no_run
//! # fn main() {
//! # #[cfg(any())]
//! #[cfg(feature = "nvcc")]
//! # {}
//! warpweave_nvcc::run(|| {
//!     let device = warpweave_nvcc::Builder::new()?.include("cuda/include");
//!     device.cubin("cuda/signal.cu", "sm_90a")?;
//!     device.ptx("cuda/signal.cu", "compute_80")?;
//!     Ok(())
//! });
//! # }
//! ```
//!
//! and in the crate itself, where nothing refers to this crate:
//!
//! ```ignore
//! #[cfg(feature = "nvcc")]
//! static SIGNAL_SM90: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/signal.sm_90a.cubin"));
//! #[cfg(feature = "nvcc")]
//! static SIGNAL_PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/signal.compute_80.ptx"));
//! ```
//!
//! # Contract
//!
//! - Nothing is searched for and nothing runs before [`Builder::new`].
//! - Every failure is an [`Error`] whose text says what to install or to set; [`run`] shows it as
//!   cargo's own error and ends the build script.
//! - `-DNDEBUG` is always given: without it ptxas serialises `wgmma`.
//! - The advisories of ptxas about serialised `wgmma` (C7510 and its kin) and ignored `setmaxnreg`
//!   (C7508) are errors; register spills are cargo warnings.
//! - PTX is assembled once for the device it is named after, so that a mistake in inline assembly
//!   fails the build and not the user's driver.
//! - One compiler runs at a time in a target directory, across all build scripts, unless
//!   `WARPWEAVE_NVCC_JOBS` allows more: one CUTLASS kernel takes about 2 GB.

mod advisory;
mod architecture;
mod builder;
mod cache;
mod cargo;
mod command;
mod depfile;
mod environment;
mod error;
mod find;
mod fingerprint;
pub mod layout;
mod process;
mod slots;
mod version;

#[cfg(test)]
mod fake;

pub use architecture::{Architecture, Kind};
pub use builder::Builder;
pub use cargo::run;
pub use environment::Environment;
pub use error::{Error, Result};
pub use find::{Cutlass, HostCompiler, Nvcc, Origin, Rejection};
pub use version::{NEWEST, OLDEST, Version};
