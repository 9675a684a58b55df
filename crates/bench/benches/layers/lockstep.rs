//! Keeps the other ranks in step with rank 0's criterion.
//!
//! criterion decides by wall time how often to repeat a benchmark, and two ranks would decide differently. So
//! rank 0 alone runs it. Before each collective step it sends an order over the job's exchange: prepare this
//! benchmark, time so many calls, or end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use criterion::{Criterion, SamplingMode};
use serde::{Deserialize, Serialize};
use warpweave_bench::error::if_available;
use warpweave_bench::job;
use warpweave_bench::session::{ExecuteBackend, Session};
use warpweave_bench::{BenchError, Result};
use warpweave_report::statistics::slowest;

use crate::timed::Timed;

/// What is timed, or why it cannot be here, which all ranks then know.
pub type Made<'a> = Result<std::result::Result<Timed<'a>, String>>;

/// One benchmark.
pub struct Entry<'a> {
    /// Its group in criterion.
    pub group: String,
    /// Its name in the group.
    pub name: String,
    /// Whether calls take so long that every sample is to have as many of them.
    pub long: bool,
    /// Makes what is timed. Collective.
    pub make: Box<dyn Fn() -> Made<'a> + 'a>,
}

impl Entry<'_> {
    /// Its name in full, as filters see it.
    fn id(&self) -> String {
        format!("{}/{}", self.group, self.name)
    }
}

/// Most calls between two exchanges of times.
pub const CALLS: usize = 64;

/// What rank 0 says.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Order {
    /// Drop what there is, and make the benchmark of this number.
    Make(usize),
    /// Time so many calls.
    Time(u64),
    /// Leave.
    End,
}

/// A rank among those that keep step.
pub struct Lockstep<'a, B: ExecuteBackend> {
    session: &'a Session<B>,
    entries: Vec<Entry<'a>>,
    current: RefCell<Option<Timed<'a>>>,
}

impl<'a, B: ExecuteBackend> Lockstep<'a, B> {
    /// All ranks give the same entries.
    pub fn new(session: &'a Session<B>, entries: Vec<Entry<'a>>) -> Self {
        Self {
            session,
            entries,
            current: RefCell::default(),
        }
    }

    /// Rank 0: runs criterion over all entries.
    ///
    /// # Errors
    /// What fails on any rank, but a missing capability, for which a benchmark is left out.
    pub fn lead(&self, criterion: Criterion) -> Result<()> {
        let mut criterion = criterion
            .without_plots()
            .sample_size(20)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_millis(800))
            .nresamples(10_000)
            // Command-line options go above these.
            .configure_from_args();
        let mut number = 0;
        // criterion does not say beforehand what its filter lets through. So all benchmarks are prepared, and
        // each reason why some cannot run is printed once.
        let mut not_run: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entries in self.entries.chunk_by(|a, b| a.group == b.group) {
            let mut group = criterion.benchmark_group(&entries[0].group);
            for entry in entries {
                self.order(Some(Order::Make(number)))?;
                if let Some(reason) = self.make(number)? {
                    not_run.entry(reason).or_default().push(entry.id());
                } else {
                    group.sampling_mode(match entry.long {
                        true => SamplingMode::Flat,
                        false => SamplingMode::Auto,
                    });
                    group.bench_function(&entry.name, |bencher| {
                        bencher.iter_custom(|calls| self.lead_calls(calls));
                    });
                }
                number += 1;
            }
            group.finish();
        }
        self.order(Some(Order::End))?;
        criterion.final_summary();
        for (reason, names) in not_run {
            eprintln!("not run, as {reason}: {}", names.join(", "));
        }
        Ok(())
    }

    /// The other ranks: carry out the orders of rank 0 until the last.
    ///
    /// # Errors
    /// As [`Lockstep::lead`].
    pub fn follow(&self) -> Result<()> {
        loop {
            match self.order(None)? {
                Order::Time(calls) => drop(self.time(calls)?),
                Order::Make(number) => drop(self.make(number)?),
                Order::End => return Ok(()),
            }
        }
    }

    /// What criterion calls, which has no place for an error: the job ends then.
    fn lead_calls(&self, calls: u64) -> Duration {
        let order = self.order(Some(Order::Time(calls)));
        match order.and_then(|_| self.time(calls)) {
            Ok(time) => time,
            Err(error) => job::give_up(self.session, &error),
        }
    }

    /// Sends the next order, on rank 0, or receives it.
    fn order(&self, order: Option<Order>) -> Result<Order> {
        let all = self.session.agree("what rank 0 wants", Ok(order))?;
        all[0].ok_or_else(|| BenchError::Usage("rank 0 gave no order".into()))
    }

    /// Makes a benchmark, with one call to see whether it runs. A reason, the same on all ranks, if it
    /// cannot.
    fn make(&self, number: usize) -> Result<Option<String>> {
        self.current.replace(None);
        let entry = &self.entries[number];
        let first = || -> Made<'a> {
            let mut made = (entry.make)()?;
            if let Ok(timed) = &mut made {
                timed(1)?;
            }
            Ok(made)
        };
        let mine = if_available(first()).map(std::result::Result::flatten);
        match self.session.if_all_can(&entry.id(), mine)? {
            Ok(timed) => self.current.replace(Some(timed)),
            Err(reason) => return Ok(Some(reason)),
        };
        Ok(None)
    }

    /// The sum of the times of `calls` calls, of the slowest rank each.
    fn time(&self, calls: u64) -> Result<Duration> {
        let mut current = self.current.borrow_mut();
        let timed = current
            .as_mut()
            .ok_or_else(|| BenchError::Usage("nothing was made that could be timed".into()))?;
        let (mut left, mut ms) = (calls, 0.0);
        while left > 0 {
            let now = left.min(CALLS as u64);
            let ranks = self.session.agree("times", timed(now as usize))?;
            ms += slowest(&ranks).iter().sum::<f64>();
            left -= now;
        }
        Ok(Duration::from_secs_f64(ms / 1e3))
    }
}
