//! `cargo xtask bundle DIR`: build here, run there.

use std::path::PathBuf;

use crate::bundle::{Contents, make};
use crate::cargo::CUDA_FEATURES;
use crate::error::Result;
use crate::{place, program};

/// Above this size, a warning says how to make the bundle smaller.
const LARGE: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The folder to fill: an empty one, or an older bundle
    dir: PathBuf,
    /// Cargo features of the programs; empty for the host only
    #[arg(long, default_value = CUDA_FEATURES)]
    features: String,
    /// Leave the tests for GPUs out
    #[arg(long)]
    no_tests: bool,
    /// Keep the debug information
    #[arg(long)]
    no_strip: bool,
}

/// Builds the bundle and prints its size.
pub fn run(options: &Options) -> Result<()> {
    let root = place::workspace()?;
    if options
        .features
        .split(',')
        .any(|feature| matches!(feature, "nvcc" | "cutlass"))
    {
        program::provide_toolchain(&root)?;
    }
    let contents = Contents {
        features: &options.features,
        tests: !options.no_tests,
        strip: !options.no_strip,
    };
    let bytes = make(&root, &options.dir, contents)?;
    println!(
        "{}: {}; on the other machine: {0}/xtask bench",
        options.dir.display(),
        mebibytes(bytes)
    );
    if bytes > LARGE {
        eprintln!(
            "warning: the bundle is larger than {}; --no-tests makes it smaller",
            mebibytes(LARGE)
        );
    }
    Ok(())
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
