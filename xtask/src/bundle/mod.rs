//! A folder of programs built here that runs on a machine without a Rust toolchain.
//!
//! ```text
//! DIR/xtask           this program: `DIR/xtask bench`, `DIR/xtask test`, `DIR/xtask plan`, `DIR/xtask launch`
//! DIR/bundle.json     what is here, and the mark by which xtask knows that it stands in a bundle
//! DIR/bin/warpweave   the program that runs on every rank
//! DIR/bin/tests/…     the test programs that have tests for GPUs
//! DIR/bin/benches/…   the benches of criterion, to be started with `--bench`
//! DIR/bin/examples/…  example programs
//! ```
//!
//! Run-time libraries (the driver, NCCL, cuBLASLt) are not part of it: the programs look for them where they run.

mod make;
mod manifest;

pub use make::{Contents, make};
pub use manifest::{Bundle, Manifest, Program};
