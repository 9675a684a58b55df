//! A journal of all driver calls with their results, and the injected failure.
//!
//! Calls are counted per rank, because ranks that are threads of one process interleave differently in every
//! run: the n-th call *of a rank* is the same call in every run of a scenario.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;

use crate::failure::{Failure, When};

/// A call that broke a rule: the error code that the driver returns, and the rule.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub code: CUresult,
    pub why: String,
}

/// The result of a call's body.
pub(crate) type Outcome<T = ()> = Result<T, Refusal>;

/// Refuses a call, with a reason.
pub(crate) fn refuse<T>(code: CUresult, why: impl Into<String>) -> Outcome<T> {
    Err(Refusal {
        code,
        why: why.into(),
    })
}

/// States what a call requires.
pub(crate) fn require(holds: bool, code: CUresult, why: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { refuse(code, why) }
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// One line per call: rank, number within the rank, function, code.
    pub lines: Vec<String>,
    /// Rules that were broken.
    pub faults: Vec<String>,
    calls: Vec<u64>,
    failure: Option<Failure>,
    fired: bool,
}

impl Journal {
    const fn new() -> Self {
        Journal {
            lines: Vec::new(),
            faults: Vec::new(),
            calls: Vec::new(),
            failure: None,
            fired: false,
        }
    }

    /// Clears the journal and sets the failure to inject.
    pub fn restart(&mut self, failure: Option<Failure>) {
        *self = Journal {
            failure,
            ..Journal::new()
        };
    }

    /// Whether the injected failure has happened.
    pub fn fired(&self) -> bool {
        self.fired
    }

    fn count(&mut self, rank: usize) -> u64 {
        if self.calls.len() <= rank {
            self.calls.resize(rank + 1, 0);
        }
        self.calls[rank] += 1;
        self.calls[rank]
    }
}

/// Queries about an address or an event: an error is a valid answer, not a fault.
const QUESTIONS: &[&str] = &[
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuMemGetAddressRange_v2",
    "cuMemRetainAllocationHandle",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
];

pub(crate) static JOURNAL: Mutex<Journal> = Mutex::new(Journal::new());

thread_local! {
    static RANK: Cell<usize> = const { Cell::new(0) };
}

/// Sets the rank whose calls this thread makes.
pub(crate) fn set_rank(rank: usize) {
    RANK.set(rank);
}

/// The rank whose calls this thread makes.
pub(crate) fn rank() -> usize {
    RANK.get()
}

/// Records a broken rule that a real driver would not report.
pub(crate) fn fault(why: impl Into<String>) {
    let why = format!("rank {}: {}", RANK.get(), why.into());
    JOURNAL.lock().faults.push(why);
}

/// Runs the body of the function `name`, unless this call is to fail instead, and records the result.
pub(crate) fn call(name: &'static str, body: impl FnOnce() -> Outcome) -> CUresult {
    let rank = RANK.get();
    let (number, failure) = {
        let mut journal = JOURNAL.lock();
        let number = journal.count(rank);
        let due = journal.failure.filter(|f| f.strikes(rank, number));
        journal.fired |= due.is_some();
        (number, due)
    };
    let outcome = match failure {
        Some(failure) if failure.when != When::After => Ok(failure.result()),
        _ => match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => Ok(failure.map_or(CUresult::CUDA_SUCCESS, |f| f.result())),
            Ok(Err(refusal)) => Err(refusal),
            Err(_) => Err(Refusal {
                code: CUresult::CUDA_ERROR_UNKNOWN,
                why: "the fake driver panicked".into(),
            }),
        },
    };
    let mut journal = JOURNAL.lock();
    let code = match outcome {
        Ok(code) => code,
        Err(Refusal { code, why }) => {
            let news = [
                CUresult::CUDA_ERROR_NOT_READY,
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
            ];
            if !news.contains(&code) && !QUESTIONS.contains(&name) {
                let fault = format!("rank {rank}: {name} refused ({code:?}): {why}");
                journal.faults.push(fault);
            }
            code
        }
    };
    journal
        .lines
        .push(format!("{rank} {number} {name} {}", code as u32));
    code
}
