//! A schedule on a device: calls with the caller's operands, at any M.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use warpweave_symm_mem::sync::Mutex;
use warpweave_symm_mem::{
    DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer, agree, require_same,
};

use super::addresses::{Addresses, Location};
use super::arena::{ArenaSize, Spot, layout};
use super::bind::{Asked, Binder, ProcessGroups, gemms, node_of};
use super::error::{ExecuteError, Result};
use super::faults::NodePad;
use super::interface::Interface;
use super::operands::{DeviceSlice, Operands, Which};
use super::program::Program;
use super::{ExecuteBackend, Executor, validate};
use crate::check::Checked;
use crate::plan::{Placement, Plan, Role};
use crate::schedule::Schedule;

/// The most values of M of which a schedule keeps the steps.
const MOST_PROGRAMS: usize = 1024;

/// A schedule on a device, by [`Executor::prepare`]: takes operands and M with each call.
///
/// It owns signal flags and, for kernels whose calls alternate between two stagings, those; the rest of its
/// memory is the executor's arena. It holds no operands. Calls of everything that an executor has prepared
/// may follow each other with no synchronisation between the ranks, in any order that is the same on all of
/// them.
///
/// The first call at an M builds and proves the plans of that M and resolves them into steps: host work
/// ([`Prepared::warm`] does it ahead). Later ones at this M look the steps up.
pub struct Prepared<B: ExecuteBackend> {
    executor: Executor<B>,
    schedule: Schedule,
    /// The ranks of the plans' node, and the first of them in the world.
    node: Arc<dyn Exchange>,
    first_rank: usize,
    node_size: usize,
    pad: Option<Arc<NodePad<B>>>,
    groups: ProcessGroups<B>,
    /// Two halves for buffers that alternate.
    alternating: Option<SymmetricBuffer<B>>,
    state: Mutex<State<B>>,
}

/// What calls change.
struct State<B: ExecuteBackend> {
    /// By M, with the number of the latest call.
    programs: HashMap<usize, (u64, Arc<Bound<B>>)>,
    calls: u64,
    /// Those of captured calls, which graphs may run at any time, each with its M.
    captured: Vec<(usize, Arc<Bound<B>>)>,
    /// Those that were forgotten, until the event of their last call.
    leaving: Vec<(B::Event, Arc<Bound<B>>)>,
    /// Kept between calls, so that none allocates.
    locations: Vec<Location>,
}

impl<B: ExecuteBackend> State<B> {
    /// Whether graphs have these steps.
    fn is_captured(&self, bound: &Arc<Bound<B>>) -> bool {
        let mut captured = self.captured.iter();
        captured.any(|(_, known)| Arc::ptr_eq(known, bound))
    }
}

/// The steps of one M, and where its buffers lie.
struct Bound<B: ExecuteBackend> {
    program: Program<B>,
    spots: Vec<Spot>,
    /// For each buffer what it asks of the caller, if it is an operand.
    operands: Vec<Option<Needs>>,
    /// What it needs of an arena, whose local part ends with the scratch memory of GEMMs.
    size: ArenaSize,
    /// Where that begins.
    scratch: usize,
    /// Scratch memory that the arena has no room for.
    own_scratch: Option<B::Memory>,
}

/// What a plan asks of an operand.
#[derive(Clone, Copy, Debug)]
struct Needs {
    which: Which,
    /// The fewest bytes.
    bytes: usize,
    /// Whether peers reach it.
    symmetric: bool,
    /// Whether the call writes it.
    written: bool,
}

impl<B: ExecuteBackend> Executor<B> {
    /// Prepares `schedule`: makes the arena large enough, and flags and groups for its collectives.
    /// Collective: all ranks prepare the same schedules in the same order. An error on one rank is one on
    /// all.
    ///
    /// # Errors
    /// - [`ExecuteError::Schedule`] for a schedule without proof at its largest M.
    /// - Else as [`Executor::bind`].
    pub fn prepare(&self, schedule: &Schedule) -> Result<Prepared<B>> {
        let name = schedule.configuration().name();
        let span = tracing::info_span!("schedule.prepare", name, world = schedule.world());
        let _entered = span.enter();
        let exchange = self.0.exchange.clone();
        let (rank, world) = (exchange.rank(), exchange.world());

        let largest = foreseen(schedule).map(|m| Ok((m, schedule.checked(m)?)));
        let largest: Result<Vec<_>> = largest.collect();
        let largest = agree(exchange.as_ref(), "proof of a schedule", largest)?;
        require_same(exchange.as_ref(), "the schedule", &described(schedule))?;
        self.most_blocks()?;
        let plans = largest[0].1.plans();
        if world != plans.len() {
            return Err(validate::wrong_ranks(&plans[0], rank, world));
        }
        let plan = plans[rank].clone();
        let node = node_of(&exchange, &plan)?;

        let (mut half, mut slots) = (0, 0);
        let mut groups = ProcessGroups::new();
        for (_, checked) in &largest {
            let (_, _, of_a_half) = layout(checked.plan(rank));
            half = half.max(of_a_half);
            slots = slots.max(checked.plan(rank).slots.len());
            let interfaces = interfaces(checked);
            for (round, group) in self.groups(checked.plan(rank), &interfaces)? {
                match groups.iter_mut().find(|(known, _)| *known == round) {
                    Some((_, known)) => *known = group,
                    None => groups.push((round, group)),
                }
            }
        }
        let multicast = self.require_multicast(&plan);
        agree(exchange.as_ref(), "multicast", multicast)?;
        let pad = match slots {
            0 => None,
            slots => Some(Arc::new(NodePad {
                pad: SignalPad::new(&self.0.backend, &node, &name, slots)?,
                node: node.clone(),
                ranks: plan.node_of(rank).collect(),
            })),
        };
        if let Some(pad) = &pad {
            self.0.pads.lock().push(Arc::downgrade(pad));
        }
        let alternating = match half {
            0 => None,
            half => {
                let name = format!("{name}.alternating");
                Some(SymmetricBuffer::new(
                    &self.0.backend,
                    &node,
                    &name,
                    2 * half,
                )?)
            }
        };
        let prepared = Prepared {
            executor: self.clone(),
            schedule: schedule.clone(),
            node: node.clone(),
            first_rank: plan.node_of(rank).start,
            node_size: plan.node_size,
            pad,
            groups,
            alternating,
            state: Mutex::new(State {
                programs: HashMap::new(),
                calls: 0,
                captured: Vec::new(),
                leaving: Vec::new(),
                locations: Vec::new(),
            }),
        };
        // Finds what the device or the build lacks before any rank waits for another.
        let bounds = largest.iter().enumerate().map(|(index, (m, checked))| {
            match prepared.bound(checked, *m, index == 0) {
                Ok(bound) => Ok(Some((*m, Arc::new(bound)))),
                // Other values of M may do: calls with this one will say so.
                Err(error) if index > 0 && error.is_unavailable() => Ok(None),
                Err(error) => Err(error),
            }
        });
        let bounds = bounds.filter_map(Result::transpose);
        let bounds = bounds.collect::<Result<Vec<_>>>();
        let bounds = agree(exchange.as_ref(), "preparation of a schedule", bounds)?;
        let size = bounds.iter().map(|(_, bound)| bound.size);
        let size = size.fold(ArenaSize::default(), ArenaSize::or);
        let mut arenas = self.0.arenas.lock();
        arenas.reserve(&self.0.backend, &exchange, (&node, plan.node_size), size)?;
        drop(arenas);
        let programs = bounds.into_iter().map(|(m, bound)| (m, (0, bound)));
        prepared.state.lock().programs.extend(programs);
        Ok(prepared)
    }

    /// Bytes on this rank of the arena, and of former arenas that captured graphs may still use.
    pub fn arena_bytes(&self) -> (usize, usize) {
        self.0.arenas.lock().bytes()
    }
}

/// The values of M of which `prepare` takes the most that is needed, the largest first: that, those just
/// below, where a rank may have more groups to talk to or a buffer more padding, and powers of two.
fn foreseen(schedule: &Schedule) -> impl Iterator<Item = usize> {
    let most = schedule.problem().m;
    let near = (most.saturating_sub(schedule.world()).max(1)..=most).rev();
    let powers = (0..usize::BITS).map(|power| 1 << power);
    near.chain(powers.take_while(move |&power| power < most))
}

/// All that a schedule is of, alike in all processes: the algorithm by its name, as the addresses of its
/// functions differ.
fn described(schedule: &Schedule) -> String {
    let (name, world) = (schedule.configuration().name(), schedule.world());
    let problem = schedule.problem();
    let operands = schedule.configuration().operands(0, world, problem);
    let names = operands.iter().map(|operand| operand.buffer);
    let symmetric: Vec<_> = names.filter(|name| schedule.is_symmetric(name)).collect();
    let invariant = schedule.is_batch_invariant();
    format!(
        "{name} of {world} ranks, {problem:?}, symmetric {symmetric:?}, batch-invariant {invariant}"
    )
}

/// That the plan of some M needs more than those that `prepare` looked at.
pub(super) fn unforeseen(plan: &Plan, needs: String, has: String) -> ExecuteError {
    ExecuteError::InvalidPlan {
        plan: plan.name.clone(),
        rank: plan.rank,
        place: "memory".into(),
        why: format!("it needs {needs}, and the schedule was prepared with {has}"),
    }
}

/// What all ranks share.
fn interfaces(checked: &Checked) -> Vec<Interface> {
    checked.plans().iter().map(Interface::of).collect()
}

impl<B: ExecuteBackend> Prepared<B> {
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The ranks that share memory in its plans: those among which symmetric operands are allocated.
    pub fn node(&self) -> &Arc<dyn Exchange> {
        &self.node
    }

    /// What prepared it.
    pub fn executor(&self) -> &Executor<B> {
        &self.executor
    }

    /// Bytes on this rank of memory that no other schedule uses, without flags.
    pub fn own_bytes(&self) -> usize {
        self.alternating.as_ref().map_or(0, SymmetricBuffer::bytes)
    }

    /// Whether graphs have calls of it.
    pub(crate) fn is_captured(&self) -> bool {
        !self.state.lock().captured.is_empty()
    }

    /// Enqueues one call at M = `m` on `stream`: waits for nothing, exchanges nothing, and allocates no
    /// device memory, but for the first call at an M whose GEMMs need more scratch than any that `prepare`
    /// looked at. It may be captured in a graph of the caller's, which then uses these operands at every
    /// launch; launching the graph is a call like any other. Before NCCL's first collective of a kind and
    /// size, in which it connects them, ranks of a node wait for each other, unless it is captured.
    ///
    /// All ranks make the same calls of all that the executor has prepared, in the same order, with the same
    /// M. Calls follow each other on one stream, or on several that wait for each other.
    ///
    /// # Errors
    /// - [`ExecuteError::Schedule`] for an M out of range.
    /// - [`ExecuteError::Operand`] for an operand that is missing, too small, not symmetric where the
    ///   schedule says so, or overlaps the result.
    /// - [`ExecuteError::Stopped`] after a wait of this device has failed: [`Executor::recover`] makes all
    ///   good.
    /// - What the backend reports while enqueuing. If only a part of the call was enqueued, the next is
    ///   [`ExecuteError::Stopped`], too. What goes wrong later [`Executor::check`] finds.
    pub fn run(&self, stream: &B::Stream, operands: &Operands<'_>, m: usize) -> Result<()> {
        let backend = &self.executor.0.backend;
        if backend.is_stopped() {
            return Err(ExecuteError::Stopped {
                plan: self.schedule.configuration().name(),
            });
        }
        let _call = self.executor.0.calls.lock();
        let mut state = self.state.lock();
        let bound = self.at(&mut state, stream, m)?;
        let captures = backend.is_capturing(stream)?;
        if captures && !state.is_captured(&bound) {
            state.captured.push((m, bound.clone()));
        }
        let mut locations = std::mem::take(&mut state.locations);
        let located = self.locate(&bound, operands, captures, &mut locations);
        let enqueued = located.and_then(|located| {
            let pad = self.pad.as_ref().map(|pad| &pad.pad);
            let (locations, scratch) = (&locations, located);
            let resources = bound
                .program
                .resources(backend, stream, pad, locations, scratch);
            // SAFETY: the steps were made from regions of the plan's buffers; operands are as large as the
            // plan says and live as `DeviceSlice` promises; the arena and what is of this schedule alone wait
            // for the work when they are dropped. The calls of the executor are enqueued one by one.
            unsafe { bound.program.enqueue(&resources) }
        });
        state.locations = locations;
        enqueued
    }

    /// Does the host work of first calls at these M.
    ///
    /// # Errors
    /// As [`Prepared::run`] finds them.
    pub fn warm(&self, stream: &B::Stream, ms: impl IntoIterator<Item = usize>) -> Result<()> {
        let mut state = self.state.lock();
        ms.into_iter()
            .try_for_each(|m| self.at(&mut state, stream, m).map(|_| ()))
    }

    /// Chooses the fastest algorithm of each GEMM at M = `m` by trying them, with these operands. Overwrites
    /// their outputs, waits for the stream, and is not collective. What [`Schedule`] and M other calls
    /// have in common takes over the choice, where they are bound later. Graphs that were captured before
    /// stay as they are.
    ///
    /// # Errors
    /// As [`Prepared::run`]; what the provider reports.
    pub fn tune(&self, stream: &B::Stream, operands: &Operands<'_>, m: usize) -> Result<()> {
        let shared = &self.executor.0;
        let _call = shared.calls.lock();
        let mut state = self.state.lock();
        let bound = self.at(&mut state, stream, m)?;
        let mut locations = Vec::new();
        self.locate(&bound, operands, false, &mut locations)?;
        shared.backend.synchronize(stream)?;
        let at = Addresses {
            plan: &bound.program.plan,
            first_rank: self.first_rank,
            locations: &locations,
            pad: None,
        };
        // SAFETY: the operands are those of a call; the stream is idle.
        unsafe { bound.program.tune(&self.executor, stream, &at)? };
        shared.backend.synchronize(stream)?;
        let tuned = self.made(m)?;
        let now = state.calls;
        state.programs.insert(m, (now, tuned));
        Ok(())
    }

    /// The algorithms of the GEMMs at M = `m`, in order, for tables and logs.
    ///
    /// # Errors
    /// As [`Prepared::run`] finds them.
    pub fn algorithms(&self, stream: &B::Stream, m: usize) -> Result<Vec<String>> {
        let bound = self.at(&mut self.state.lock(), stream, m)?;
        Ok(bound.program.algorithms())
    }

    /// The plan of this rank at M = `m`.
    ///
    /// # Errors
    /// As [`Schedule::checked`].
    pub fn plan(&self, m: usize) -> Result<Plan> {
        let rank = self.executor.0.exchange.rank();
        Ok(self.schedule.checked(m)?.plan(rank).clone())
    }

    /// The steps at M = `m`, of an earlier call or made now.
    fn at(&self, state: &mut State<B>, stream: &B::Stream, m: usize) -> Result<Arc<Bound<B>>> {
        state.calls += 1;
        let now = state.calls;
        if let Some((latest, bound)) = state.programs.get_mut(&m) {
            *latest = now;
            return Ok(bound.clone());
        }
        let mut captured = state.captured.iter().rev();
        let bound = match captured.find(|(of, _)| *of == m) {
            Some((_, bound)) => bound.clone(),
            None => self.made(m)?,
        };
        if state.programs.len() == MOST_PROGRAMS {
            self.forget_one(state, stream)?;
        }
        state.programs.insert(m, (now, bound.clone()));
        Ok(bound)
    }

    /// The steps at M = `m`, by what is known now.
    fn made(&self, m: usize) -> Result<Arc<Bound<B>>> {
        let bound = self.bound(&*self.schedule.checked(m)?, m, false)?;
        Ok(Arc::new(self.fitting(bound)?))
    }

    /// Steps that the arena has room for. GEMMs that were tuned, or of an M that `prepare` did not look at,
    /// may need more scratch memory than it has: then these steps have their own.
    fn fitting(&self, mut bound: Bound<B>) -> Result<Bound<B>> {
        let shared = &self.executor.0;
        let has = shared.arenas.lock().size(self.node_size);
        let without_scratch = ArenaSize {
            local: bound.scratch,
            ..bound.size
        };
        if !has.holds(without_scratch) {
            let needs = format!("an arena of {without_scratch:?}");
            return Err(unforeseen(
                &bound.program.plan,
                needs,
                format!("one of {has:?}"),
            ));
        }
        if !has.holds(bound.size) {
            bound.own_scratch = bound.program.scratch(&shared.backend)?;
        }
        Ok(bound)
    }

    /// Forgets the steps that were used longest ago; what they own stays until their calls have ended.
    fn forget_one(&self, state: &mut State<B>, stream: &B::Stream) -> Result<()> {
        let backend = &self.executor.0.backend;
        // An event that was not reached has no time.
        state
            .leaving
            .retain(|(event, _)| backend.elapsed(event, event).is_err());
        let oldest = state.programs.iter().min_by_key(|(_, (latest, _))| *latest);
        if let Some((&m, _)) = oldest
            && let Some((_, bound)) = state.programs.remove(&m)
            && !state.is_captured(&bound)
        {
            let event = backend.event()?;
            backend.record(&event, stream)?;
            state.leaving.push((event, bound));
        }
        Ok(())
    }

    /// Resolves this rank's plan of `checked`, which is for M = `m`, into steps. Not collective.
    fn bound(&self, checked: &Checked, m: usize, probe: bool) -> Result<Bound<B>> {
        let executor = &self.executor;
        let shared = &executor.0;
        let plan = checked.plan(shared.exchange.rank()).clone();
        validate::validate(&plan, shared.exchange.rank(), shared.exchange.world())?;
        let (spots, size, half) = layout(&plan);
        let slots = self.pad.as_ref().map_or(0, |pad| pad.pad.slots());
        let own = self.own_bytes() / 2;
        if plan.slots.len() > slots || half > own {
            let what = format!("{} slots and {half} bytes that alternate", plan.slots.len());
            return Err(unforeseen(&plan, what, format!("{slots} and {own}")));
        }
        let interfaces = interfaces(checked);
        let binder = Binder {
            executor,
            plan: &plan,
            pad: self.pad.as_ref().map(|pad| pad.pad.view()),
            groups: &self.groups,
            interfaces: &interfaces,
            probe,
        };
        let steps = binder.steps(gemms(executor, &plan, Asked::by(&self.schedule))?)?;
        let (streams, events) = executor.streams_and_events(&plan)?;
        let given = self.schedule.operands(plan.rank, m)?;
        let operands = plan.buffers.iter().map(|buffer| {
            let operand = given.iter().find(|operand| operand.buffer == buffer.name)?;
            let (rows, cols) = operand.stored();
            // Shards may differ by a row, and peers see memory of the largest.
            let symmetric = buffer.placement != Placement::Local;
            Some(Needs {
                which: Which::named(&buffer.name)?,
                bytes: match symmetric {
                    false => rows * cols * buffer.dtype.size(),
                    true => buffer.bytes(),
                },
                symmetric,
                written: buffer.role == Role::Output,
            })
        });
        let operands = operands.collect();
        let program = Program::new(plan, steps, streams, events);
        Ok(Bound {
            operands,
            spots,
            scratch: size.local,
            own_scratch: None,
            size: ArenaSize {
                local: size.local + program.scratch_bytes(),
                ..size
            },
            program,
        })
    }

    /// Where the buffers of a call lie, and the scratch memory of its GEMMs.
    fn locate(
        &self,
        bound: &Bound<B>,
        operands: &Operands<'_>,
        captures: bool,
        locations: &mut Vec<Location>,
    ) -> Result<DevicePtr> {
        locations.clear();
        let arenas = self.executor.0.arenas.lock();
        let arena = arenas.current(self.node_size);
        if captures && let Some(arena) = arena {
            arena.captured.store(true, Ordering::Relaxed);
        }
        let buffers = bound.program.plan.buffers.iter();
        for ((buffer, spot), needs) in buffers.zip(&bound.spots).zip(&bound.operands) {
            let location = match (spot, needs) {
                (Spot::Operand, Some(needs)) => {
                    Some(self.operand(&buffer.name, operands.of(needs.which), *needs)?)
                }
                (Spot::Alternating(offset), _) => {
                    self.alternating.as_ref().map(|memory| Location {
                        alternate: memory.bytes() / 2,
                        ..Location::symmetric(memory).at(*offset)
                    })
                }
                _ => arena.and_then(|arena| arena.location(*spot)),
            };
            // What a plan needs and is not there `bound` has refused.
            locations.push(location.unwrap_or(Location::local(DevicePtr::NULL)));
        }
        let scratch = arena.and_then(|arena| arena.location(Spot::Local(bound.scratch)));
        drop(arenas);
        self.apart(bound, locations)?;
        let scratch = scratch.map_or(DevicePtr::NULL, |location| location.first);
        Ok(bound.own_scratch.as_ref().map_or(scratch, Memory::address))
    }

    fn operand(
        &self,
        name: &str,
        given: Option<DeviceSlice<'_>>,
        needs: Needs,
    ) -> Result<Location> {
        let wrong = |why: String| ExecuteError::Operand {
            schedule: self.schedule.configuration().name(),
            operand: name.into(),
            why,
        };
        let given = given.ok_or_else(|| wrong("it is missing".into()))?;
        if given.bytes() < needs.bytes {
            let why = format!("{} bytes, and {} are needed", given.bytes(), needs.bytes);
            return Err(wrong(why));
        }
        if needs.symmetric && !given.is_symmetric() {
            return Err(wrong("the schedule has it in symmetric memory".into()));
        }
        // Of symmetric memory that peers do not reach, this rank's is local.
        if !needs.symmetric {
            return Ok(Location::local(given.own()));
        }
        if given.group_id() != Some(self.node.group_id()) {
            let why =
                "its symmetric memory is that of other ranks: allocate it on Prepared::node()";
            return Err(wrong(why.into()));
        }
        Ok(Location::of(&given))
    }

    /// Refuses results that overlap another operand.
    fn apart(&self, bound: &Bound<B>, locations: &[Location]) -> Result<()> {
        let ranges = || {
            let all = bound.operands.iter().zip(locations).enumerate();
            all.filter_map(|(index, (needs, location))| {
                let needs = (*needs)?;
                let start = location.first.0 + (self.node.rank() * location.stride) as u64;
                Some((index, needs.written, start..start + needs.bytes as u64))
            })
        };
        for (result, _, written) in ranges().filter(|(_, written, _)| *written) {
            for (other, _, range) in ranges().filter(|(other, ..)| *other != result) {
                if range.start < written.end && written.start < range.end {
                    let name = |index: usize| bound.program.plan.buffers[index].name.clone();
                    return Err(ExecuteError::Operand {
                        schedule: self.schedule.configuration().name(),
                        operand: name(result),
                        why: format!("it overlaps `{}`", name(other)),
                    });
                }
            }
        }
        Ok(())
    }
}

impl<B: ExecuteBackend> std::fmt::Debug for Prepared<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem = self.schedule.problem();
        write!(
            f,
            "Prepared({} up to M = {})",
            self.schedule.configuration(),
            problem.m
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms;
    use crate::plan::Problem;
    use warpweave_symm_mem::{Backend, DType, Host, ThreadExchange};

    /// What `prepare` makes for a plan: bytes of arena and of a half that alternates, and slots.
    fn needs(plan: &Plan) -> [usize; 4] {
        let (_, size, half) = layout(plan);
        [size.symmetric, size.local, half, plan.slots.len()]
    }

    /// The most that all ranks need at some M, one by one.
    fn most_of(schedule: &Schedule, ms: impl Iterator<Item = usize>) -> Vec<[usize; 4]> {
        let mut most = vec![[0; 4]; schedule.world()];
        for m in ms {
            let checked = schedule.checked(m).unwrap_or_else(|e| panic!("{e}"));
            for (most, plan) in most.iter_mut().zip(checked.plans()) {
                let needs = needs(plan);
                *most = std::array::from_fn(|i| most[i].max(needs[i]));
            }
        }
        most
    }

    /// Chunks, units and groups come and go with M.
    #[test]
    fn no_m_needs_more_than_those_that_are_foreseen() {
        for configuration in algorithms::every() {
            for (world, m, n) in [(2, 1000, 5120), (3, 900, 2), (3, 512, 2)] {
                let problem = Problem::new(m, n, 6, DType::F32);
                let schedule = Schedule::new(configuration.clone(), world, problem).unwrap();
                let foreseen = most_of(&schedule, foreseen(&schedule));
                let all = (1..=m).filter(|m| m % 32 < 2);
                for (has, needs) in foreseen.iter().zip(most_of(&schedule, all)) {
                    let holds = has.iter().zip(needs).all(|(has, needs)| needs <= *has);
                    assert!(
                        holds,
                        "{configuration}, {world} ranks, up to {m}: {needs:?} of {has:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn calls_after_a_tuning_are_tuned_where_others_were_captured() {
        let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
        let backend = Host::new();
        let stream = backend.stream(Default::default()).unwrap();
        let executor = Executor::new(&backend, &exchange).unwrap();
        let configuration = algorithms::find("matmulThenAllReduce").unwrap();
        let problem = Problem::new(4, 2, 6, DType::F32);
        let schedule = Schedule::new(configuration, 1, problem).unwrap();
        let prepared = executor.prepare(&schedule).unwrap();
        let memory = [24, 12, 8].map(|elements| backend.allocate(4 * elements).unwrap());
        let [a, b, c] = memory.each_ref().map(DeviceSlice::of);
        let operands = Operands::new(a, b, c);
        let run = || prepared.run(&stream, &operands, 4);
        let latest = || prepared.state.lock().programs[&4].1.clone();

        let _before = backend.capture(&stream, run).unwrap();
        let untuned = latest();
        prepared.tune(&stream, &operands, 4).unwrap();
        let _after = backend.capture(&stream, run).unwrap();
        let tuned = latest();
        assert!(!Arc::ptr_eq(&untuned, &tuned));
        // Each graph has its own.
        let state = prepared.state.lock();
        assert!([&untuned, &tuned].map(|bound| state.is_captured(bound)) == [true; 2]);
    }

    #[test]
    fn a_collective_whose_process_group_was_not_foreseen_is_an_error() {
        let ranks = ThreadExchange::group(2).into_iter().map(|exchange| {
            std::thread::spawn(move || {
                let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                let backend = Host::new();
                let stream = backend.stream(Default::default()).unwrap();
                let executor = Executor::new(&backend, &exchange).unwrap();
                let configuration = algorithms::find("matmulThenAllReduce").unwrap();
                let problem = Problem::new(32, 2, 6, DType::F32);
                let schedule = Schedule::new(configuration, 2, problem).unwrap();
                let mut prepared = executor.prepare(&schedule).unwrap();
                prepared.groups.clear();
                let error = prepared.warm(&stream, [20]).unwrap_err().to_string();
                assert!(error.contains("a process group of ranks [0, 1]"), "{error}");
                exchange.barrier("end").unwrap();
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }
}
