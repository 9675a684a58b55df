//! `cargo xtask timeline`: runs a plan once on all ranks and writes when each of its operations ran.

use std::ffi::OsString;

use super::launch::JobOptions;
use crate::device::Wanted;
use crate::error::Result;

/// The options of `timeline`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to run: all GPUs where there are some, else four host ranks
    #[arg(long, value_enum, default_value_t)]
    device: Wanted,
    /// Number of ranks [default: one a GPU, four on the host]
    #[arg(long, short = 'n')]
    ranks: Option<usize>,
    #[command(flatten)]
    job: JobOptions,
    /// As `pushChunks --shape 8192x3584x8192 --dtype bf16 --machine h200x4 --out trace.json`
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ALGORITHM …"
    )]
    words: Vec<OsString>,
}

/// Starts `warpweave timeline` on every rank.
///
/// # Errors
/// What ends a job.
pub fn run(options: &Options) -> Result<()> {
    let wanted = (options.device, options.ranks);
    options
        .job
        .start("timeline", wanted, options.words.iter().cloned())
}
