//! Which call is to fail, and how.

use cudarc::driver::sys::CUresult;

/// Whether the failing call does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The call does nothing and returns the code.
    Instead,
    /// The call does its work and returns the code, like a driver that reports an earlier failure.
    After,
    /// As [`When::Instead`], and every later call of the rank fails too: the context is lost.
    Onward,
}

impl When {
    pub(crate) const ALL: [When; 3] = [When::Instead, When::After, When::Onward];
}

/// The call that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rank of the call; 0 for threads that set none.
    pub rank: usize,
    /// Which of the rank's calls, from 1.
    pub call: u64,
    /// The driver's code.
    pub code: u32,
    /// Whether it does its work.
    pub when: When,
}

impl Failure {
    /// Whether the call with this number fails.
    pub(crate) fn strikes(self, rank: usize, number: u64) -> bool {
        let from = number > self.call && self.when == When::Onward;
        rank == self.rank && (number == self.call || from)
    }

    pub(crate) fn result(self) -> CUresult {
        use CUresult as R;
        let known = [
            R::CUDA_ERROR_INVALID_VALUE,
            R::CUDA_ERROR_OUT_OF_MEMORY,
            R::CUDA_ERROR_DEINITIALIZED,
            R::CUDA_ERROR_INVALID_CONTEXT,
            R::CUDA_ERROR_INVALID_HANDLE,
            R::CUDA_ERROR_NOT_READY,
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_NOT_PERMITTED,
            R::CUDA_ERROR_NOT_SUPPORTED,
        ];
        known
            .into_iter()
            .find(|code| *code as u32 == self.code)
            .unwrap_or(R::CUDA_ERROR_UNKNOWN)
    }
}
