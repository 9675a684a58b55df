//! `cargo xtask bundle DIR`: build here, run there.

use std::path::PathBuf;

use crate::bundle::{Contents, make, pack};
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
    /// Write the bundle to DIR.tar.xz too, at a small part of its size. Needs tar and xz, here and there, and
    /// 1.5 GB of memory here
    #[arg(long)]
    pack: bool,
}

/// Builds the bundle and prints its size, and how to unpack it if it is packed.
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
    if options.pack {
        let (archive, bytes) = pack(&options.dir)?;
        println!(
            "{}: {}; on the other machine: tar -xJf {0}",
            archive.display(),
            mebibytes(bytes)
        );
    } else if bytes > LARGE {
        eprintln!(
            "warning: the bundle is larger than {}; --pack packs it, --no-tests makes it smaller",
            mebibytes(LARGE)
        );
    }
    Ok(())
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
