//! A rank's part in a job, from joining to leaving it.

use warpweave_comm::Job;
use warpweave_overlap::execute::ExecuteBackend;

use super::exit;
use crate::error::Result;
use crate::inject::Injection;
use crate::session::Session;

/// Joins `job` with `backend`, does `part`, and leaves once all ranks have come to the end of theirs. After an error, which
/// the others are told, the process ends here.
///
/// # Errors
/// The job cannot be joined.
pub(super) fn take<B: ExecuteBackend, T>(
    job: &Job,
    backend: B,
    injection: Injection,
    part: impl FnOnce(&Session<B>) -> Result<T>,
) -> Result<T> {
    let session = Session::join(job, backend, injection)?;
    let outcome = part(&session).and_then(|value| {
        // Rank 0 keeps the store until all have come this far.
        session.settle("end", Ok(Vec::new()))?;
        Ok(value)
    });
    if let Err(error) = &outcome {
        session.abandon(error);
        // The session is alive here: to drop it may take longer than there is.
        exit::fail(error);
    }
    outcome
}
