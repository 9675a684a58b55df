//! Times of candidates, taken in interleaved rounds: A B C A B C, never one after another, because long products throttle.

use std::time::{Duration, Instant};

use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_symm_mem::BackendKind;

use crate::candidate::{Call, Candidate, InputSets};
use crate::clock::Clock;
use crate::error::{BenchError, Result};
use crate::session::Session;
use crate::statistics::{Spread, slowest};

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
}

impl Effort {
    /// What suits a backend, with as many iterations as were asked for.
    pub fn of(kind: BackendKind, iterations: Option<usize>) -> Self {
        let (default, rounds, block) = match kind {
            BackendKind::Cuda => (50, 10, Duration::from_millis(10)),
            BackendKind::Host => (9, 3, Duration::from_millis(50)),
        };
        let iterations = iterations.unwrap_or(default).max(1);
        Self {
            iterations,
            rounds: rounds.min(iterations),
            least: iterations.min(20),
            block,
        }
    }

    /// The most single calls between two readings of the clock.
    pub fn capacity(&self) -> usize {
        self.iterations.div_ceil(self.rounds).max(PROBES)
    }
}

/// The times of a candidate: for each sample the slowest rank's, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Times {
    single: Vec<f64>,
    back_to_back: Vec<f64>,
    graph: Vec<f64>,
}

impl Times {
    /// One call, all ranks aligned before it.
    pub fn single(&self) -> Option<Spread> {
        Spread::of(&self.single)
    }

    /// Each of calls that follow each other.
    pub fn back_to_back(&self) -> Option<Spread> {
        Spread::of(&self.back_to_back)
    }

    /// Each of graph launches that follow each other.
    pub fn graph(&self) -> Option<Spread> {
        Spread::of(&self.graph)
    }
}

/// A candidate that is bound, with what the timing needs to know of it.
pub struct Contender<'a, B: ExecuteBackend> {
    /// The candidate.
    pub candidate: &'a Candidate<B>,
    /// Its bound plan.
    pub bound: &'a Bound<B>,
    /// Whether calls in a row and graph launches are timed too.
    pub in_a_row: bool,
}

impl<B: ExecuteBackend> Clone for Contender<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: ExecuteBackend> Copy for Contender<'_, B> {}

/// Calls by which a candidate's time is guessed before the rounds.
const PROBES: usize = 3;

/// How a candidate is measured in each round; the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    singles: usize,
    /// Calls that follow each other; `None` where only single ones are timed.
    in_a_row: Option<usize>,
    lead: Duration,
}

/// Takes the times of one problem's candidates.
pub struct Timing<'a, B: ExecuteBackend> {
    /// This rank.
    pub session: &'a Session<B>,
    /// The clock.
    pub clock: &'a Clock<B>,
    /// The inputs, which change with every call.
    pub inputs: &'a InputSets<B>,
    /// How much is measured.
    pub effort: Effort,
}

impl<B: ExecuteBackend> Timing<'_, B> {
    /// Measures all `contenders`; `progress` hears of every round. Collective.
    ///
    /// # Errors
    /// A call failed on some rank.
    pub fn measure(
        &self,
        contenders: &[Contender<'_, B>],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Times>> {
        let mut schedules = Vec::new();
        for &contender in contenders {
            self.inputs.load_b(self.session, contender.bound)?;
            schedules.push(self.probe(contender)?);
        }
        let mut times = vec![Times::default(); contenders.len()];
        for round in 0..self.effort.rounds {
            progress(round, self.effort.rounds);
            let mine = self.round(round, contenders, &schedules);
            let ranks = self
                .session
                .settle_numbers(&format!("round {round}"), mine)?;
            let mut samples = slowest(&ranks).into_iter();
            for (times, schedule) in times.iter_mut().zip(&schedules) {
                times.single.extend(samples.by_ref().take(schedule.singles));
                if schedule.in_a_row.is_some() {
                    times.back_to_back.extend(samples.next());
                    times.graph.extend(samples.next());
                }
            }
        }
        Ok(times)
    }

    /// One round on this rank: for each contender the times of its single calls, of a call in a row, and of a graph.
    fn round(
        &self,
        round: usize,
        contenders: &[Contender<'_, B>],
        schedules: &[Schedule],
    ) -> Result<Vec<f64>> {
        let mut blocks = vec![Vec::new(); contenders.len()];
        let all = || contenders.iter().zip(schedules).enumerate();
        for (i, (&contender, schedule)) in all() {
            blocks[i] = self.singles(contender, schedule, round)?;
        }
        for how in [Call::Run, Call::Replay] {
            for (i, (&contender, schedule)) in all() {
                if let Some(calls) = schedule.in_a_row {
                    blocks[i].push(self.in_a_row(contender, (calls, schedule.lead), round, how)?);
                }
            }
        }
        Ok(blocks.concat())
    }

    fn singles(
        &self,
        contender: Contender<'_, B>,
        schedule: &Schedule,
        round: usize,
    ) -> Result<Vec<f64>> {
        let Contender {
            candidate, bound, ..
        } = contender;
        for i in 0..schedule.singles {
            self.inputs
                .load_a(self.session, bound, candidate.takes, round + i)?;
            self.clock.time(self.session, i, schedule.lead, || {
                candidate.call(self.session, bound, Call::Run)
            })?;
        }
        bound.synchronize()?;
        self.clock.read(self.session, schedule.singles)
    }

    fn in_a_row(
        &self,
        contender: Contender<'_, B>,
        (calls, lead): (usize, Duration),
        round: usize,
        how: Call,
    ) -> Result<f64> {
        let Contender {
            candidate, bound, ..
        } = contender;
        self.inputs
            .load_a(self.session, bound, candidate.takes, round)?;
        let lead = (lead * calls as u32).min(Duration::from_millis(20));
        self.clock.time(self.session, 0, lead, || {
            (0..calls).try_for_each(|_| candidate.call(self.session, bound, how))
        })?;
        bound.synchronize()?;
        Ok(self.clock.read(self.session, 1)?[0] / calls as f64)
    }

    /// Finds out how long a call takes and how long it takes to enqueue it.
    fn probe(&self, contender: Contender<'_, B>) -> Result<Schedule> {
        let Contender {
            candidate, bound, ..
        } = contender;
        let mine = || {
            let mut enqueuing = Duration::ZERO;
            for i in 0..PROBES {
                self.inputs
                    .load_a(self.session, bound, candidate.takes, i)?;
                let start = Instant::now();
                self.clock
                    .time(self.session, i, Duration::from_millis(1), || {
                        candidate.call(self.session, bound, Call::Run)
                    })?;
                enqueuing = start.elapsed();
            }
            bound.synchronize()?;
            let mut numbers = self.clock.read(self.session, PROBES)?;
            numbers.push(enqueuing.as_secs_f64() * 1e3);
            Ok::<_, BenchError>(numbers)
        };
        let step = format!("first calls of {}", candidate.name);
        let ranks = slowest(&self.session.settle_numbers(&step, mine())?);
        let (calls, enqueuing) = ranks.split_at(PROBES.min(ranks.len()));
        let call =
            Duration::from_secs_f64(calls.iter().copied().fold(f64::MAX, f64::min).min(1e6) / 1e3);
        let enqueuing = Duration::from_secs_f64(enqueuing.first().copied().unwrap_or(1.0) / 1e3);
        let mut schedule = self.schedule(call, enqueuing);
        schedule.in_a_row = schedule.in_a_row.filter(|_| contender.in_a_row);
        Ok(schedule)
    }

    fn schedule(&self, call: Duration, enqueuing: Duration) -> Schedule {
        let effort = &self.effort;
        let wanted = if call > effort.block {
            effort.least
        } else {
            effort.iterations
        };
        let fitting = effort.block.as_secs_f64() / call.as_secs_f64().max(1e-6);
        Schedule {
            singles: wanted.div_ceil(effort.rounds),
            in_a_row: Some((fitting as usize).clamp(2, 20)),
            // Twice the cost of enqueuing: the next measurement is unlikely to take longer than that.
            lead: (enqueuing * 2 + Duration::from_micros(50)).min(Duration::from_millis(5)),
        }
    }
}
