//! Times of candidates, taken in interleaved rounds: A B C A B C, never one after another, because long products throttle.

use std::time::{Duration, Instant};

use warpweave_overlap::execute::ExecuteBackend;
use warpweave_symm_mem::BackendKind;

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

    /// As [`Effort::of`], for calls that are many and short.
    pub fn of_collectives(kind: BackendKind, iterations: Option<usize>) -> Self {
        let (default, rounds, block) = match kind {
            BackendKind::Cuda => (40, 8, Duration::from_millis(6)),
            BackendKind::Host => (6, 2, Duration::from_millis(10)),
        };
        let iterations = iterations.unwrap_or(default).max(1);
        Self {
            iterations,
            rounds: rounds.min(iterations),
            least: rounds.min(iterations),
            block,
        }
    }

    /// The most single calls between two readings of the clock.
    pub fn capacity(&self) -> usize {
        self.iterations.div_ceil(self.rounds).max(PROBES)
    }
}

/// The times of a contender: for each sample the slowest rank's, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Times {
    single: Vec<f64>,
    single_replay: Vec<f64>,
    back_to_back: Vec<f64>,
    graph: Vec<f64>,
}

impl Times {
    /// One call, all ranks aligned before it.
    pub fn single(&self) -> Option<Spread> {
        Spread::of(&self.single)
    }

    /// One graph launch, all ranks aligned before it.
    pub fn single_replay(&self) -> Option<Spread> {
        Spread::of(&self.single_replay)
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

/// How a call is enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Operation by operation.
    Run,
    /// As a graph.
    Replay,
}

/// What is timed beside single calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Single graph launches.
    pub single_replays: bool,
    /// Calls that follow each other.
    pub in_a_row: bool,
    /// Graph launches that follow each other.
    pub replays_in_a_row: bool,
}

/// What the clock can time: calls that all ranks make together, on the session's stream, with inputs that change.
pub trait Contender {
    /// Its name in errors.
    fn name(&self) -> &str;

    /// What is timed beside single calls; the same on all ranks.
    fn measures(&self) -> Measures;

    /// Enqueues what calls need and never change.
    ///
    /// # Errors
    /// What the backend reports.
    fn prepare(&self) -> Result<()>;

    /// Enqueues the copy of input set `set`, counted round and round.
    ///
    /// # Errors
    /// What the backend reports.
    fn load(&self, set: usize) -> Result<()>;

    /// Enqueues one call, or a replay of the captured one.
    ///
    /// # Errors
    /// What the backend reports; the injected fault of a test.
    fn call(&self, how: Call) -> Result<()>;

    /// Waits until all that was enqueued has ended.
    ///
    /// # Errors
    /// What went wrong in it.
    fn synchronize(&self) -> Result<()>;
}

/// Calls by which a candidate's time is guessed before the rounds.
const PROBES: usize = 3;

/// How a contender is measured in each round; the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    measures: Measures,
    singles: usize,
    /// Calls that follow each other.
    in_a_row: usize,
    lead: Duration,
}

impl Schedule {
    fn single(&self, how: Call) -> usize {
        match how {
            Call::Replay if !self.measures.single_replays => 0,
            _ => self.singles,
        }
    }

    fn has_row(&self, how: Call) -> bool {
        match how {
            Call::Run => self.measures.in_a_row,
            Call::Replay => self.measures.replays_in_a_row,
        }
    }
}

/// Takes the times of contenders.
pub struct Timing<'a, B: ExecuteBackend> {
    /// This rank.
    pub session: &'a Session<B>,
    /// The clock.
    pub clock: &'a Clock<B>,
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
        contenders: &[&dyn Contender],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Times>> {
        let mut schedules = Vec::new();
        for &contender in contenders {
            contender.prepare()?;
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
                let samples = &mut samples;
                for (times, count) in [
                    (&mut times.single, schedule.single(Call::Run)),
                    (&mut times.single_replay, schedule.single(Call::Replay)),
                    (&mut times.back_to_back, schedule.has_row(Call::Run).into()),
                    (&mut times.graph, schedule.has_row(Call::Replay).into()),
                ] {
                    times.extend(samples.take(count));
                }
            }
        }
        Ok(times)
    }

    /// One round on this rank: for each contender the times of its single calls, of its single graph launches, of a call in
    /// a row, and of a graph launch in a row, as far as its schedule has them.
    fn round(
        &self,
        round: usize,
        contenders: &[&dyn Contender],
        schedules: &[Schedule],
    ) -> Result<Vec<f64>> {
        let mut blocks = vec![Vec::new(); contenders.len()];
        let all = || contenders.iter().zip(schedules).enumerate();
        for how in [Call::Run, Call::Replay] {
            for (i, (&contender, schedule)) in all() {
                blocks[i].extend(self.singles(contender, schedule, round, how)?);
            }
        }
        for how in [Call::Run, Call::Replay] {
            for (i, (&contender, schedule)) in all() {
                if schedule.has_row(how) {
                    blocks[i].push(self.in_a_row(contender, schedule, round, how)?);
                }
            }
        }
        Ok(blocks.concat())
    }

    fn singles(
        &self,
        contender: &dyn Contender,
        schedule: &Schedule,
        round: usize,
        how: Call,
    ) -> Result<Vec<f64>> {
        let calls = schedule.single(how);
        if calls == 0 {
            return Ok(Vec::new());
        }
        for i in 0..calls {
            contender.load(round + i)?;
            self.clock
                .time(self.session, i, schedule.lead, || contender.call(how))?;
        }
        contender.synchronize()?;
        self.clock.read(self.session, calls)
    }

    fn in_a_row(
        &self,
        contender: &dyn Contender,
        schedule: &Schedule,
        round: usize,
        how: Call,
    ) -> Result<f64> {
        let calls = schedule.in_a_row;
        contender.load(round)?;
        let lead = (schedule.lead * calls as u32).min(Duration::from_millis(20));
        self.clock.time(self.session, 0, lead, || {
            (0..calls).try_for_each(|_| contender.call(how))
        })?;
        contender.synchronize()?;
        Ok(self.clock.read(self.session, 1)?[0] / calls as f64)
    }

    /// Finds out how long a call takes and how long it takes to enqueue it.
    fn probe(&self, contender: &dyn Contender) -> Result<Schedule> {
        let mine = || {
            let mut enqueuing = Duration::ZERO;
            for i in 0..PROBES {
                contender.load(i)?;
                let start = Instant::now();
                self.clock
                    .time(self.session, i, Duration::from_millis(1), || {
                        contender.call(Call::Run)
                    })?;
                enqueuing = start.elapsed();
            }
            contender.synchronize()?;
            let mut numbers = self.clock.read(self.session, PROBES)?;
            numbers.push(enqueuing.as_secs_f64() * 1e3);
            Ok::<_, BenchError>(numbers)
        };
        let step = format!("first calls of {}", contender.name());
        let ranks = slowest(&self.session.settle_numbers(&step, mine())?);
        let (calls, enqueuing) = ranks.split_at(PROBES.min(ranks.len()));
        let call =
            Duration::from_secs_f64(calls.iter().copied().fold(f64::MAX, f64::min).min(1e6) / 1e3);
        let enqueuing = Duration::from_secs_f64(enqueuing.first().copied().unwrap_or(1.0) / 1e3);
        Ok(self.schedule(call, enqueuing, contender.measures()))
    }

    fn schedule(&self, call: Duration, enqueuing: Duration, measures: Measures) -> Schedule {
        let effort = &self.effort;
        let wanted = if call > effort.block {
            effort.least
        } else {
            effort.iterations
        };
        let fitting = effort.block.as_secs_f64() / call.as_secs_f64().max(1e-6);
        Schedule {
            measures,
            singles: wanted.div_ceil(effort.rounds),
            in_a_row: (fitting as usize).clamp(2, 20),
            // Twice the cost of enqueuing: the next measurement is unlikely to take longer than that.
            lead: (enqueuing * 2 + Duration::from_micros(50)).min(Duration::from_millis(5)),
        }
    }
}
