//! Times of candidates, taken in interleaved rounds: A B C A B C, never one after another, because long GEMMs
//! throttle.

use std::time::{Duration, Instant};

use warpweave_report::statistics::slowest;
use warpweave_report::{Metric, Times};
use warpweave_symm_mem::BackendKind;

use crate::candidate::{Candidate, Form};
use crate::clock::Clock;
use crate::error::{BenchError, Result};
use crate::inputs::{Numbers, Set};
use crate::session::ExecuteBackend;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Single calls of a candidate, over all rounds.
    pub iterations: usize,
    /// Rounds.
    pub rounds: usize,
    /// Single calls of a candidate that takes long.
    pub least: usize,
    /// About how long a candidate's back-to-back calls of one round may take.
    pub block: Duration,
    /// About how long a candidate's single calls may take, over all rounds; there are `least` of them all the
    /// same.
    pub singles: Duration,
}

impl Effort {
    /// The effort that suits a backend, with as many iterations as were asked for.
    pub fn of(kind: BackendKind, iterations: Option<u32>) -> Self {
        let (default, rounds, block, singles) = match kind {
            BackendKind::Cuda => (50, 10, Duration::from_millis(5), Duration::from_millis(100)),
            BackendKind::Host => (9, 3, Duration::from_millis(50), Duration::MAX),
        };
        let effort = Self::new(iterations, default, rounds, block);
        Self {
            least: iterations.map_or(default.min(20), |_| effort.iterations),
            singles,
            ..effort
        }
    }

    /// As [`Effort::of`], for calls that are many and short.
    pub fn of_collectives(kind: BackendKind, iterations: Option<u32>) -> Self {
        match kind {
            BackendKind::Cuda => Self::new(iterations, 40, 8, Duration::from_millis(6)),
            BackendKind::Host => Self::new(iterations, 6, 2, Duration::from_millis(10)),
        }
    }

    /// A candidate whose calls do not fit in a block is called once a round.
    fn new(asked: Option<u32>, default: usize, rounds: usize, block: Duration) -> Self {
        let iterations = asked.map_or(default, |n| n as usize).max(1);
        let rounds = rounds.min(iterations);
        Self {
            iterations,
            rounds,
            least: rounds,
            block,
            singles: block * iterations as u32,
        }
    }

    /// Single calls of a candidate whose calls take so long, over all rounds.
    fn single_calls(&self, call: Duration) -> usize {
        fitting(self.singles, call).clamp(self.least, self.iterations)
    }

    /// The most single calls between two readings of the clock.
    pub fn capacity(&self) -> usize {
        self.iterations.div_ceil(self.rounds).max(PROBES)
    }
}

/// How many calls fit in a time.
fn fitting(time: Duration, call: Duration) -> usize {
    (time.as_secs_f64() / call.as_secs_f64().max(1e-6)) as usize
}

/// Calls by which a candidate's time is guessed before the rounds.
const PROBES: usize = 3;

/// How a candidate is measured in each round; the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    metrics: &'static [Metric],
    singles: usize,
    /// Calls that follow each other.
    back_to_back: usize,
    lead: Duration,
}

impl Schedule {
    /// Times that a round takes.
    fn count(&self, metric: Metric) -> usize {
        match metric {
            _ if !self.metrics.contains(&metric) => 0,
            Metric::Single | Metric::GraphSingle => self.singles,
            Metric::BackToBack | Metric::Graph => 1,
        }
    }
}

/// Takes the times of candidates.
pub struct Timing<'a, B: ExecuteBackend> {
    /// The clock.
    pub clock: &'a Clock<'a, B>,
    /// How much is measured.
    pub effort: Effort,
}

impl<B: ExecuteBackend> Timing<'_, B> {
    /// Measures all `candidates`; `progress` is called before every round. Collective.
    pub fn measure(
        &self,
        candidates: &[&dyn Candidate],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Times>> {
        let mut schedules = Vec::new();
        for &candidate in candidates {
            schedules.push(self.schedule(candidate)?);
        }
        let mut times = vec![Times::default(); candidates.len()];
        for round in 0..self.effort.rounds {
            progress(round, self.effort.rounds);
            let mine = self.round(round, candidates, &schedules);
            let ranks = self.clock.session.agree(&format!("round {round}"), mine)?;
            let mut samples = slowest(&ranks).into_iter();
            for metric in Metric::ALL {
                for (times, schedule) in times.iter_mut().zip(&schedules) {
                    if schedule.metrics.contains(&metric) {
                        let own = samples.by_ref().take(schedule.count(metric));
                        times.extend(metric, own);
                    }
                }
            }
        }
        Ok(times)
    }

    /// One round on this rank: for each metric the times of each candidate whose schedule has it.
    fn round(
        &self,
        round: usize,
        candidates: &[&dyn Candidate],
        schedules: &[Schedule],
    ) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for metric in Metric::ALL {
            for (&candidate, schedule) in candidates.iter().zip(schedules) {
                let (count, form) = (schedule.count(metric), Form::of(metric));
                match metric {
                    _ if count == 0 => {}
                    Metric::Single | Metric::GraphSingle => {
                        times.extend(self.calls(candidate, schedule, (round, count), form)?);
                    }
                    Metric::BackToBack | Metric::Graph => {
                        times.push(self.back_to_back(candidate, schedule, round, form)?);
                    }
                }
            }
        }
        Ok(times)
    }

    /// The times of `calls` single calls on this rank in ms, with input sets from the `first` on. All ranks
    /// make them together; no more than the clock has a place for.
    pub fn calls(
        &self,
        candidate: &dyn Candidate,
        schedule: &Schedule,
        (first, calls): (usize, usize),
        form: Form,
    ) -> Result<Vec<f64>> {
        for i in 0..calls {
            candidate.load(Set::reals(first + i))?;
            self.clock.time(i, schedule.lead, || candidate.call(form))?;
        }
        candidate.synchronize()?;
        self.clock.read(calls)
    }

    fn back_to_back(
        &self,
        candidate: &dyn Candidate,
        schedule: &Schedule,
        round: usize,
        form: Form,
    ) -> Result<f64> {
        let calls = schedule.back_to_back;
        candidate.load(Set::reals(round))?;
        let lead = (schedule.lead * calls as u32).min(Duration::from_millis(20));
        self.clock.time(0, lead, || {
            (0..calls).try_for_each(|_| candidate.call(form))
        })?;
        candidate.synchronize()?;
        Ok(self.clock.read(1)?[0] / calls as f64)
    }

    /// Prepares a candidate, and finds out how long a call takes and how long it takes to enqueue it.
    /// Collective.
    pub fn schedule(&self, candidate: &dyn Candidate) -> Result<Schedule> {
        candidate.prepare(Numbers::Reals)?;
        let mine = || {
            let mut enqueuing = Duration::ZERO;
            for i in 0..PROBES {
                candidate.load(Set::reals(i))?;
                let start = Instant::now();
                self.clock
                    .time(i, Duration::from_millis(1), || candidate.call(Form::Run))?;
                enqueuing = start.elapsed();
            }
            candidate.synchronize()?;
            let mut numbers = self.clock.read(PROBES)?;
            numbers.push(enqueuing.as_secs_f64() * 1e3);
            Ok::<_, BenchError>(numbers)
        };
        let step = format!("first calls of {}", candidate.name());
        let ranks = slowest(&self.clock.session.agree(&step, mine())?);
        let (calls, enqueuing) = ranks.split_at(PROBES.min(ranks.len()));
        let call =
            Duration::from_secs_f64(calls.iter().copied().fold(f64::MAX, f64::min).min(1e6) / 1e3);
        let enqueuing = Duration::from_secs_f64(enqueuing.first().copied().unwrap_or(1.0) / 1e3);
        let effort = &self.effort;
        let wanted = effort.single_calls(call);
        Ok(Schedule {
            metrics: candidate.metrics(),
            singles: wanted.div_ceil(effort.rounds),
            back_to_back: fitting(effort.block, call).clamp(2, 20),
            // Twice the cost of enqueuing: the next measurement is unlikely to take longer than that.
            lead: (enqueuing * 2 + Duration::from_micros(50)).min(Duration::from_millis(5)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_calls_are_made_less_often_and_as_often_as_asked_for() {
        let gpu = Effort::of(BackendKind::Cuda, None);
        let singles = |effort: &Effort, us: u64| effort.single_calls(Duration::from_micros(us));
        assert_eq!(
            [10, 2000, 4000, 13_000].map(|us| singles(&gpu, us)),
            [50, 50, 25, 20]
        );
        let asked = Effort::of(BackendKind::Cuda, Some(70));
        assert_eq!([10, 13_000].map(|us| singles(&asked, us)), [70, 70]);
        let host = Effort::of(BackendKind::Host, None);
        assert_eq!([0, 10, 900_000].map(|us| singles(&host, us)), [9, 9, 9]);
        let collectives = Effort::of_collectives(BackendKind::Cuda, None);
        assert_eq!(
            [10, 6000, 60_000].map(|us| singles(&collectives, us)),
            [40, 40, 8]
        );
    }
}
