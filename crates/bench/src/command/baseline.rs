//! `warpweave compare`.

use std::io::Write;

use crate::baseline::{self, Baselines, default_threshold};
use crate::cli::BaselineArgs;
use crate::error::Result;

/// Prints what has changed from one baseline to another. True if nothing is slower.
pub(super) fn compare(args: &BaselineArgs, out: &mut impl Write) -> Result<bool> {
    let baselines = Baselines::new(&args.baselines);
    let (old, new) = (baselines.read(&args.old)?, baselines.read(&args.new)?);
    let names = [args.old.as_str(), args.new.as_str()];
    let threshold = match args.threshold {
        Some(percent) => percent / 100.0,
        None => default_threshold(&old),
    };
    let found = baseline::compare((&old, &new), names, threshold)?;
    baseline::print(&found, (&old, &new), names, threshold, out)?;
    Ok(found.holds())
}
