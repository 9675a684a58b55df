//! `cargo xtask setup`: puts a pinned, hash-checked toolchain into the target directory.

use crate::error::Result;
use crate::place;
use crate::setup::{self, pins};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Also NCCL and cuBLASLt, for a GPU machine that has neither (1.5 GB of disk)
    #[arg(long)]
    runtime: bool,
    /// Also cuobjdump and nvdisasm, to look at the machine code of kernels
    #[arg(long)]
    inspect: bool,
}

/// Provides the compiler, the CUTLASS headers and the components that were asked for. Skips what is there
/// with the right pins.
pub fn run(options: &Options) -> Result<()> {
    let mut wanted = vec![&pins::CUDA, &pins::CUTLASS];
    wanted.extend(options.runtime.then_some(&pins::RUNTIME));
    wanted.extend(options.inspect.then_some(&pins::INSPECT));
    setup::provide(&place::toolchain(&place::workspace()?), &wanted)
}
