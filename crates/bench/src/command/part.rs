//! A rank's part in a job, from joining to leaving it.

use warpweave_comm::Job;
use warpweave_overlap::execute::ExecuteBackend;

use super::exit;
use crate::error::{BenchError, Result};
use crate::inject::Injection;
use crate::session::Session;

/// Joins `job` with `backend`, does `part`, and leaves once all ranks have come to the end of theirs. After an error, which
/// the others are told, the process ends here.
///
/// # Errors
/// The job cannot be joined.
pub fn take<B: ExecuteBackend, T>(
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
    match outcome {
        Ok(value) => Ok(value),
        // The session is alive here: to drop it may take longer than there is.
        Err(error) => give_up(&session, &error),
    }
}

/// Tells the other ranks of `error` and ends the process, with the status that tells a launcher which rank to name.
pub fn give_up<B: ExecuteBackend>(session: &Session<B>, error: &BenchError) -> ! {
    session.abandon(error);
    exit::fail(error)
}
