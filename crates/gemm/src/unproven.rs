//! Kernels that are written, compiled and modelled, and that no device has run yet.

use crate::{Error, GemmProblem, Provider};

/// Set to 1, it lets them run: the tests for GPUs do, and whoever wants to find out.
pub const VARIABLE: &str = "WARPWEAVE_UNPROVEN";

/// Refuses `problem` unless the user asked for what is unproven.
pub(crate) fn ask(provider: Provider, problem: &GemmProblem) -> Result<(), Error> {
    if std::env::var(VARIABLE).is_ok_and(|value| value == "1") {
        return Ok(());
    }
    Err(Error::Unsupported {
        provider,
        problem: Box::new(*problem),
        requirement: format!("no device has run this kernel yet; {VARIABLE}=1 lets it run"),
    })
}
