//! Fault injection: tests make a rank of the real binary stall, die, return a wrong result or run slowly, and
//! see what the other ranks do.

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
    /// Each of the rank's calls takes longer, by a time between two in µs.
    Slow { least: u32, most: u32 },
}

impl Fault {
    fn named(name: &str) -> Option<Self> {
        match name {
            "stall" => Some(Fault::Stall),
            "kill" => Some(Fault::Kill),
            "corrupt" => Some(Fault::Corrupt),
            _ => {
                let (least, most) = name.strip_prefix("slow")?.split_once('-')?;
                let (least, most) = (least.parse().ok()?, most.parse().ok()?);
                (least <= most).then_some(Fault::Slow { least, most })
            }
        }
    }
}

/// Which rank suffers which fault, as `stall:RANK`, `kill:RANK`, `corrupt:RANK` or `slowLEAST-MOST:RANK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedFault {
    fault: Fault,
    rank: usize,
}

impl FromStr for InjectedFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(fault, rank)| {
            Some(Self {
                fault: Fault::named(fault)?,
                rank: rank.parse().ok()?,
            })
        });
        parts.ok_or_else(|| {
            format!(
                "`{text}` is none of stall:RANK, kill:RANK, corrupt:RANK and slowLEAST-MOST:RANK, in µs"
            )
        })
    }
}

/// The fault of a run, if there is one, and how far it is.
#[derive(Debug)]
pub struct Injection {
    fault: Option<Fault>,
    rank: usize,
    calls_left: Cell<usize>,
    /// Calls that were slowed down.
    slowed: Cell<u32>,
    patience: Duration,
}

impl Injection {
    /// The part of `fault` that concerns `rank`. It strikes before the fourth call of a plan: in the middle
    /// of calls that follow each other back to back. A stalled rank outlives `patience`, by which the others
    /// must have noticed.
    pub fn new(fault: Option<InjectedFault>, rank: usize, patience: Duration) -> Self {
        let fault = fault.filter(|f| f.rank == rank).map(|f| f.fault);
        Self {
            fault,
            rank,
            calls_left: Cell::new(3),
            slowed: Cell::new(0),
            patience,
        }
    }

    /// Whether this rank's results are to be wrong.
    pub fn corrupts(&self) -> bool {
        self.fault == Some(Fault::Corrupt)
    }

    /// By how much the next call on this rank is to take longer. The times go up and down between the two of
    /// the fault without a pattern, the same in every run and others on every rank.
    pub fn delay(&self) -> Option<Duration> {
        let Some(Fault::Slow { least, most }) = self.fault else {
            return None;
        };
        let call = self.slowed.replace(self.slowed.get().wrapping_add(1));
        // Multiples of the golden ratio, without their whole parts, are spread evenly, however many there
        // are; where they begin depends on the rank.
        let place = (f64::from(call) * 0.618_033_988_749_895 + self.rank as f64 * 0.29).fract();
        let us = f64::from(least) + f64::from(most - least) * place;
        Some(Duration::from_secs_f64(us / 1e6))
    }

    /// Comes before each call of a plan.
    pub fn before_call(&self) -> Result<()> {
        let Some(fault @ (Fault::Stall | Fault::Kill)) = self.fault else {
            return Ok(());
        };
        if let Some(left) = self.calls_left.get().checked_sub(1) {
            self.calls_left.set(left);
            return Ok(());
        }
        let what = match fault {
            Fault::Stall => {
                std::thread::sleep(self.patience);
                "stalled"
            }
            _ => {
                let own = rustix::process::getpid();
                let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
                "could not kill itself"
            }
        };
        let rank = self.rank;
        Err(BenchError::Injected { rank, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_slowed_by_all_that_lies_between_and_by_the_same_in_each_run() {
        let fault: Option<InjectedFault> = Some("slow100-200:1".parse().unwrap());
        let delays = || {
            let injection = Injection::new(fault, 1, Duration::ZERO);
            let delays = (0..100).map(|_| injection.delay().unwrap().as_micros());
            delays.collect::<Vec<_>>()
        };
        let mut all = delays();
        assert_eq!(all, delays());
        assert_ne!(all[0], all[1]);
        all.sort_unstable();
        assert!(all[0] >= 100 && all[99] <= 200);
        for (i, delay) in all.iter().enumerate() {
            let even = 100 + i as u128;
            assert!(delay.abs_diff(even) <= 3, "{delay} at {i}");
        }
        let other = Injection::new(fault, 0, Duration::ZERO);
        assert_eq!(other.delay(), None);
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
