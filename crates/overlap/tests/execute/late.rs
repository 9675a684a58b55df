//! Ranks that come too late, skip a call or repeat one: each rank ends with an error or with the right result
//! of every row, never with wrong rows in silence.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::{Bound, ExecuteBackend, ExecuteError};
use warpweave_overlap::operation::Operand;
use warpweave_overlap::plan::{Plan, Problem, Role, Transport};
use warpweave_symm_mem::{
    DType, DevicePtr, Exchange, ExchangeError, FaultCause, Host, Memory, Nodes, ThreadExchange,
};

use crate::cuda::{self, gpu};
use crate::fixtures::{Rank, on_ranks_by};
use crate::gathers::stored;

/// The rank that does otherwise than the others.
const ODD: usize = 1;

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lapse {
    /// It comes when all others have given up and overwritten their memory, after some calls for which it
    /// was in time.
    Late {
        after: usize,
    },
    Skips,
    Repeats,
    /// A wait on another pad of its device has failed.
    IsStopped,
}

/// Calls are enqueued back to back, with inputs of their own where the odd rank is late.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    lapse: Lapse,
    calls: usize,
}

const SCENARIOS: [Scenario; 6] = [
    scenario(Lapse::Late { after: 0 }, 1),
    scenario(Lapse::Late { after: 1 }, 1),
    scenario(Lapse::Late { after: 0 }, 3),
    scenario(Lapse::Skips, 3),
    scenario(Lapse::Repeats, 3),
    scenario(Lapse::IsStopped, 1),
];

const fn scenario(lapse: Lapse, calls: usize) -> Scenario {
    Scenario { lapse, calls }
}

/// How a rank's calls ended.
#[derive(Debug)]
enum End {
    Right,
    Wrong(String),
    Failed(ExecuteError),
    /// The machine was too busy for the calls before the lapse.
    Disturbed,
}

/// Every algorithm with each of its parameters, and those that take groups of rows with several groups at
/// small sizes.
fn configurations() -> Vec<Configuration> {
    let mut all = algorithms::every();
    for name in [
        "fusedReduceScatter:rows=2",
        "fusedAllReduce:rows=2",
        "fusedRowParallelLinear:rows=2",
    ] {
        all.push(algorithms::find(name).unwrap());
    }
    all
}

/// A bound plan with inputs that are copied into it, and outputs that are copied out of it, in the order of
/// its stream.
struct Caller<'a, B: ExecuteBackend> {
    rank: &'a Rank<B>,
    bound: Bound<B>,
    problem: &'a Problem,
    operands: Vec<Operand>,
    /// Inputs and outputs of each call.
    kept: B::Memory,
    bytes: usize,
}

impl<'a, B: ExecuteBackend> Caller<'a, B> {
    fn new(
        rank: &'a Rank<B>,
        configuration: &Configuration,
        problem: &'a Problem,
        calls: usize,
    ) -> Self {
        let (me, world) = rank.place();
        let operands = configuration.operands(me, world, problem);
        let bound = rank
            .bind(configuration.plan(me, world, problem).unwrap())
            .unwrap();
        let bytes = operands.iter().map(|o| bytes_of(o, problem)).sum();
        let caller = Caller {
            rank,
            bound,
            problem,
            operands,
            kept: rank.backend().allocate(calls * bytes).unwrap(),
            bytes,
        };
        for call in 0..calls {
            for (operand, at) in caller.places(call) {
                let bytes = caller.stored(operand, call);
                match operand.role() {
                    Role::Input => caller.upload(at, &bytes),
                    Role::Weight => caller.bound.write(operand.buffer, &bytes).unwrap(),
                    _ => {}
                }
            }
        }
        caller
    }

    fn stored(&self, operand: &Operand, call: usize) -> Vec<u8> {
        stored(operand, &self.operands, self.problem, call)
    }

    /// Where what belongs to a call is kept.
    fn places(&self, call: usize) -> impl Iterator<Item = (&Operand, DevicePtr)> {
        let mut at = self.kept.address().add(call * self.bytes);
        self.operands.iter().map(move |operand| {
            let place = (operand, at);
            at = at.add(bytes_of(operand, self.problem));
            place
        })
    }

    fn upload(&self, at: DevicePtr, bytes: &[u8]) {
        // SAFETY: `at` is a place in `kept`, with room for them, which nothing else uses now.
        unsafe {
            let backend = self.rank.backend();
            backend.upload(self.rank.stream(), at, bytes).unwrap();
        }
    }

    /// Enqueues a call, with the inputs of call `input`, whose outputs are kept as those of call `call`.
    fn enqueue(&self, call: usize, input: usize) -> Result<(), ExecuteError> {
        let (backend, stream) = (self.rank.backend(), self.rank.stream());
        let buffer = |operand: &Operand| self.bound.buffer(operand.buffer).unwrap().1;
        let bytes = |operand| bytes_of(operand, self.problem);
        // SAFETY: buffers and places have the size of the operand, and everything is on one stream.
        unsafe {
            for (operand, at) in self.places(input) {
                match operand.role() {
                    Role::Input => backend.copy(stream, buffer(operand), at, bytes(operand)),
                    Role::Output => backend.fill(stream, buffer(operand), 0xff, bytes(operand)),
                    _ => Ok(()),
                }
                .unwrap();
            }
            self.bound.run()?;
            for (operand, at) in self.places(call) {
                match operand.role() {
                    Role::Input => backend.fill(stream, buffer(operand), 0x7f, bytes(operand)),
                    Role::Output => backend.copy(stream, at, buffer(operand), bytes(operand)),
                    _ => Ok(()),
                }
                .unwrap();
            }
        }
        Ok(())
    }

    /// How `calls` calls end, each of which is given with its input.
    fn make(&self, calls: impl Iterator<Item = (usize, usize)> + Clone) -> End {
        let mut each = calls.clone();
        let enqueued = each.try_for_each(|(call, input)| self.enqueue(call, input));
        if let Err(error) = self.bound.synchronize().and(enqueued) {
            return End::Failed(error);
        }
        for (call, input) in calls {
            for (operand, at) in self.places(call) {
                let wanted = self.stored(operand, input);
                let mut found = vec![0; wanted.len()];
                if operand.role() != Role::Output {
                    continue;
                }
                // SAFETY: a place of `kept`, which the calls have left.
                unsafe {
                    let backend = self.rank.backend();
                    let stream = self.rank.stream();
                    backend.download(stream, at, &mut found).unwrap();
                }
                if found != wanted {
                    return End::Wrong(format!("`{}` of call {call}", operand.buffer));
                }
            }
        }
        End::Right
    }

    /// Overwrites all memory of the plan, as one who is done with it may.
    fn poison(&self) {
        for buffer in &self.bound.plan().buffers {
            let (_, address) = self.bound.buffer(&buffer.name).unwrap();
            let bytes = buffer.copies() * buffer.bytes();
            // SAFETY: the buffer has as many bytes; that peers may still read it is what is tested.
            unsafe {
                let (backend, stream) = (self.rank.backend(), self.rank.stream());
                backend.fill(stream, address, 0x7f, bytes).unwrap();
            }
        }
        self.rank.backend().synchronize(self.rank.stream()).unwrap();
    }
}

fn bytes_of(operand: &Operand, problem: &Problem) -> usize {
    let (rows, cols) = operand.stored();
    rows * cols * problem.dtype.size()
}

/// One rank's part of a scenario.
fn ends<B: ExecuteBackend>(
    rank: &Rank<B>,
    configuration: &Configuration,
    problem: &Problem,
    Scenario { lapse, calls }: Scenario,
) -> End {
    let odd = rank.place().0 == ODD;
    let after = match lapse {
        Lapse::Late { after } => after,
        _ => 0,
    };
    let mut caller = Caller::new(rank, configuration, problem, after + calls + 1);
    let barrier = |name| rank.exchange.barrier(name).unwrap();
    for call in 0..after {
        let end = caller.make(std::iter::once((call, call)));
        let right = matches!(end, End::Right);
        let all = rank.exchange.all_gather("right", &[right.into()]).unwrap();
        if all.contains(&vec![0]) {
            caller.bound.recover().unwrap();
            return match end {
                End::Wrong(_) => end,
                _ => End::Disturbed,
            };
        }
    }
    barrier("begin");
    let mine = match lapse {
        Lapse::Late { .. } if odd => {
            barrier("the others ended");
            calls
        }
        Lapse::IsStopped if odd => {
            rank.backend().stop_waits();
            calls
        }
        Lapse::Skips if odd => calls - 1,
        Lapse::Repeats if odd => calls + 1,
        _ => calls,
    };
    let input = |call| match lapse {
        Lapse::Late { .. } => call,
        // Calls pair up by their number, so that nobody can tell which of them was left out.
        _ => 0,
    };
    let end = caller.make((after..after + mine).map(|call| (call, input(call))));
    if matches!(end, End::Failed(_)) {
        caller.poison();
    }
    if matches!(lapse, Lapse::Late { .. }) && !odd {
        barrier("the others ended");
    }
    barrier("end");
    // GPUs are those of the next case, too.
    caller.bound.recover().unwrap();
    end
}

/// Whether a rank's error says that the odd rank is the odd one, or leads to a rank whose error does: in a
/// ring one waits for a neighbour that waits itself.
fn names_the_odd_one(ends: &[End], rank: usize) -> bool {
    let mut seen = vec![false; ends.len()];
    let mut next = rank;
    while !std::mem::replace(&mut seen[next], true) {
        let End::Failed(error) = &ends[next] else {
            return false;
        };
        let Some(fault) = error.signal_fault() else {
            // NCCL does not know.
            return matches!(
                error,
                ExecuteError::CollectiveTimeout { .. } | ExecuteError::CollectiveAborted { .. }
            );
        };
        let named = match &fault.cause {
            FaultCause::Deadline { missing } => missing.contains(&ODD),
            FaultCause::PeerGaveUp { reporter } => *reporter == ODD,
            _ => false,
        };
        if named || fault.peer == ODD {
            return true;
        }
        next = fault.peer;
    }
    false
}

/// What is wrong with the ends of all ranks, if anything.
#[derive(Debug)]
enum Objection {
    Silence(String),
    /// A busy machine can make others late, too.
    Name(String),
}

fn objection(lapse: Lapse, ends: &[End]) -> Option<Objection> {
    let silent = |(rank, end): (usize, &End)| {
        let must_fail = match lapse {
            Lapse::Late { .. } | Lapse::Skips => rank != ODD,
            Lapse::Repeats => rank == ODD,
            // On a GPU what needs no wait goes on.
            Lapse::IsStopped => false,
        };
        match end {
            End::Wrong(what) => Some(format!("rank {rank} ends with wrong {what} and no error")),
            End::Right if must_fail => Some(format!("rank {rank} ends without an error")),
            _ => None,
        }
    };
    let ranks = || ends.iter().enumerate();
    let silence: Vec<_> = ranks().filter_map(silent).collect();
    if !silence.is_empty() {
        return Some(Objection::Silence(silence.join("; ")));
    }
    let misnamed = |(rank, end): (usize, &End)| match end {
        End::Failed(error) if rank != ODD && !names_the_odd_one(ends, rank) => {
            Some(Objection::Name(format!("rank {rank}: {error}")))
        }
        _ => None,
    };
    ranks().find_map(misnamed)
}

/// Makes the exchange of a rank.
type By = fn(ThreadExchange) -> Arc<dyn Exchange>;

fn together(exchange: ThreadExchange) -> Arc<dyn Exchange> {
    Arc::new(exchange)
}

fn apart(exchange: ThreadExchange) -> Arc<dyn Exchange> {
    Arc::new(Apart(exchange))
}

/// Ranks in a node each.
struct Apart(ThreadExchange);

impl Exchange for Apart {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world(&self) -> usize {
        self.0.world()
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.0.all_gather(tag, bytes)
    }

    fn nodes(&self) -> Result<Nodes, ExchangeError> {
        let own: Vec<usize> = (0..self.world()).collect();
        Ok(Nodes::by_identity(&own))
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        self.0.all_gather_fds(tag, fds)
    }

    fn mark(&self, name: &str, leave: bool) -> Result<Option<usize>, ExchangeError> {
        self.0.mark(name, leave)
    }
}

/// What is wrong with a scenario, if anything.
fn tried<B: ExecuteBackend>(
    device: &(impl Fn(usize) -> B + Sync),
    (world, by): (usize, By),
    configuration: &Configuration,
    scenario: Scenario,
) -> Option<String> {
    let problem = Problem::new(6 * world, 8, 8 * world, DType::F16);
    let mut last = None;
    for _ in 0..8 {
        let ends = on_ranks_by(world, by, device, |rank| {
            ends(&rank, configuration, &problem, scenario)
        });
        let disturbed = ends.iter().any(|end| matches!(end, End::Disturbed));
        match objection(scenario.lapse, &ends) {
            Some(Objection::Silence(what)) if !disturbed => {
                last = Some(what);
                break;
            }
            Some(Objection::Name(what)) if !disturbed => last = Some(what),
            None if !disturbed => return None,
            _ if ends.iter().any(|end| matches!(end, End::Wrong(_))) => {
                last = Some(format!("{ends:?}"));
                break;
            }
            _ => {}
        }
    }
    let what = last.unwrap_or_else(|| "no call was in time".into());
    Some(format!(
        "{configuration}, world {world}, {scenario:?}: {what}"
    ))
}

/// Some scenarios of all configurations, a few at a time: they mostly wait.
fn all_end_well(world: usize, scenarios: &[Scenario]) {
    let patience = Duration::from_millis(150);
    let device = |_| Host::with_timeout(patience);
    let configurations = configurations();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut objections = Vec::new();
        loop {
            let case = next.fetch_add(1, Ordering::Relaxed);
            let Some(configuration) = configurations.get(case / scenarios.len()) else {
                break objections;
            };
            let scenario = scenarios[case % scenarios.len()];
            objections.extend(tried(&device, (world, together), configuration, scenario));
        }
    };
    let objections: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..12).map(|_| scope.spawn(work)).collect();
        let ends = workers.into_iter().flat_map(|w| w.join().unwrap());
        ends.collect()
    });
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn a_late_rank_of_two_fails_or_is_right() {
    all_end_well(2, &SCENARIOS);
}

#[test]
fn a_late_rank_of_three_fails_or_is_right() {
    all_end_well(3, &SCENARIOS);
}

/// Which configurations this process takes, of the processes that share the GPUs, which mostly wait:
/// `WARPWEAVE_TEST_PART=1/3`.
fn is_mine(index: usize) -> bool {
    let part = std::env::var("WARPWEAVE_TEST_PART").unwrap_or_else(|_| "1/1".into());
    let (this, all) = part.split_once('/').expect("a part of all");
    let [this, all] = [this, all].map(|number| number.parse::<usize>().expect("a number"));
    index % all == this - 1
}

/// How many times as long everything may take: under compute-sanitizer NCCL needs ten seconds to connect.
fn slowdown() -> u32 {
    let times = std::env::var("WARPWEAVE_TEST_SLOWDOWN").unwrap_or_else(|_| "1".into());
    times.parse().expect("a number")
}

/// One scenario of all configurations on GPUs. Each is a test of its own, so that several processes can run
/// them at once, too.
fn on_gpus(scenario: Scenario) {
    on_gpus_by(together, |_| true, scenario);
}

fn on_gpus_by(by: By, takes: fn(&Plan) -> bool, scenario: Scenario) {
    let plan = |configuration: &Configuration| {
        configuration.plan(0, 2, &Problem::new(12, 8, 16, DType::F16))
    };
    let has_nccl = |configuration: &Configuration| {
        plan(configuration).is_ok_and(|plan| plan.transports().contains(&Transport::Nccl))
    };
    let objection = |configuration: Configuration| {
        // NCCL alone takes seconds to make a communicator, for which it has a multiple of the deadline.
        let has_nccl = has_nccl(&configuration);
        let patience = slowdown() * if has_nccl { 1500 } else { 500 };
        let patience = Duration::from_millis(patience.into());
        let impatient = |rank| gpu(rank).with_timeout(patience);
        let start = Instant::now();
        let objection = tried(&impatient, (cuda::world(), by), &configuration, scenario);
        // All of them take minutes.
        let took = start.elapsed().as_secs_f64();
        eprintln!(
            "{configuration}: {took:.1} s {}",
            objection.as_deref().unwrap_or("ok")
        );
        objection
    };
    // The kernels of GPUs take groups of 128 rows at least. What takes longest comes last.
    let mut all = algorithms::every();
    all.sort_by_key(has_nccl);
    let objections: Vec<String> = all
        .into_iter()
        .filter(|configuration| !configuration.needs().multicast)
        .filter(|configuration| plan(configuration).is_ok_and(|plan| takes(&plan)))
        .enumerate()
        .filter(|(index, _)| is_mine(*index))
        .filter_map(|(_, configuration)| objection(configuration))
        .collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_is_late_at_once_fails_or_is_right() {
    on_gpus(SCENARIOS[0]);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_is_late_after_a_call_fails_or_is_right() {
    on_gpus(SCENARIOS[1]);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_is_late_for_several_calls_fails_or_is_right() {
    on_gpus(SCENARIOS[2]);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_skips_a_call_fails_or_is_right() {
    on_gpus(SCENARIOS[3]);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_repeats_a_call_fails_or_is_right() {
    on_gpus(SCENARIOS[4]);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_whose_device_was_stopped_fails_or_is_right() {
    on_gpus(SCENARIOS[5]);
}

/// NCCL's ranks do not tell each other of an abort by a pad then.
fn spans_nodes(plan: &Plan) -> bool {
    plan.transports().contains(&Transport::Nccl) && !plan.shares_memory()
}

#[test]
#[ignore = "needs two GPUs, NCCL and the feature `nvcc`"]
fn a_gpu_of_another_node_that_is_late_after_a_call_fails_or_is_right() {
    on_gpus_by(apart, spans_nodes, SCENARIOS[1]);
}
