//! Faults on purpose: what the other ranks do about a rank that stops or dies is tested with the real binary.

use std::cell::Cell;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{BenchError, Result};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The rank takes no further part, and stays alive for a while.
    Stall,
    /// The rank dies at once, as by the out-of-memory killer.
    Kill,
    /// The rank's results are wrong in one element.
    Corrupt,
}

/// Which rank suffers which fault, as `stall:RANK`, `kill:RANK` or `corrupt:RANK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    fault: Fault,
    rank: usize,
}

impl FromStr for InjectedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(fault, rank)| {
            let fault = match fault {
                "stall" => Fault::Stall,
                "kill" => Fault::Kill,
                "corrupt" => Fault::Corrupt,
                _ => return None,
            };
            Some(Self {
                fault,
                rank: rank.parse().ok()?,
            })
        });
        parts.ok_or_else(|| format!("`{text}` is none of stall:RANK, kill:RANK and corrupt:RANK"))
    }
}

/// The fault of a run, if there is one, and how far it is.
#[derive(Debug)]
pub struct Injection {
    fault: Option<Fault>,
    rank: usize,
    calls_left: Cell<usize>,
    patience: Duration,
}

impl Injection {
    /// The part of `fault` that concerns `rank`. It strikes before the fourth call of a plan: in the middle of calls that
    /// follow each other back to back. A stalled rank outlives `patience`, by which the others must have noticed.
    pub fn new(fault: Option<InjectedFault>, rank: usize, patience: Duration) -> Self {
        let fault = fault.filter(|f| f.rank == rank).map(|f| f.fault);
        Self {
            fault,
            rank,
            calls_left: Cell::new(3),
            patience,
        }
    }

    /// Whether this rank's results are to be wrong.
    pub fn corrupts(&self) -> bool {
        self.fault == Some(Fault::Corrupt)
    }

    /// Comes before each call of a plan.
    ///
    /// # Errors
    /// [`BenchError::Injected`] on the rank that has stalled, once the others must have noticed.
    pub fn before_call(&self) -> Result<()> {
        let Some(fault @ (Fault::Stall | Fault::Kill)) = self.fault else {
            return Ok(());
        };
        if let Some(left) = self.calls_left.get().checked_sub(1) {
            self.calls_left.set(left);
            return Ok(());
        }
        match fault {
            Fault::Stall => {
                std::thread::sleep(self.patience);
                Err(BenchError::Injected {
                    rank: self.rank,
                    what: "stalled",
                })
            }
            _ => {
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                Err(BenchError::Injected {
                    rank: self.rank,
                    what: "could not kill itself",
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_from_text() {
        let fault: InjectedFault = "stall:3".parse().unwrap();
        assert_eq!(
            fault,
            InjectedFault {
                fault: Fault::Stall,
                rank: 3
            }
        );
        for wrong in ["stall", "stall:", "freeze:1", "kill:-1"] {
            assert!(wrong.parse::<InjectedFault>().unwrap_err().contains(wrong));
        }
    }

    #[test]
    fn only_the_named_rank_stalls_and_only_in_the_fourth_call() {
        let fault: Option<InjectedFault> = Some("stall:1".parse().unwrap());
        let (own, other) = (
            Injection::new(fault, 1, Duration::ZERO),
            Injection::new(fault, 0, Duration::ZERO),
        );
        for call in 0..8 {
            assert_eq!(own.before_call().is_err(), call >= 3, "call {call}");
            assert!(other.before_call().is_ok());
        }
    }
}
