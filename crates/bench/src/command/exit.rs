//! The end of a process that has failed.

use std::io::Write;

use crate::error::BenchError;
use crate::logging;

unsafe extern "C" {
    /// Ends the process at once (POSIX).
    fn _exit(status: i32) -> !;
}

/// Says on standard error why this rank gives up, and ends the process with the status that tells a launcher so.
///
/// Nothing is dropped and no exit handler runs. A lost peer leaves behind what a library cannot end in bounded time: an NCCL
/// kernel that waits for it, or a thread inside NCCL's abort. Dropping a session may wait for the former, and the exit
/// handlers of NCCL and CUDA take away what the latter still uses, so that the process would die of a signal and
/// its launcher blame the wrong rank. The operating system and the driver take everything back all the same.
pub(super) fn fail(error: &BenchError) -> ! {
    // The reader of the report has gone, and knows.
    let told = matches!(error, BenchError::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe);
    if !told {
        let rank = std::env::var("WARPWEAVE_RANK").ok();
        let who = rank.map_or(String::new(), |rank| format!(" (rank {rank})"));
        // With standard error gone too, the exit status is all that is left.
        let _ = writeln!(std::io::stderr(), "error{who}: {error}");
    }
    logging::finish();
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: `_exit` takes any status, may be called by any thread at any time, and does not return.
    unsafe { _exit(error.exit_status().into()) }
}
