//! Schedules as candidates: one [`Prepared`] for all M of a run, called with operands that a candidate
//! allocates.

use std::rc::Rc;

use warpweave_overlap::execute::{
    DeviceSlice, ExecuteBackend, ExecuteError, NormOperands, Operands, Prepared,
};
use warpweave_overlap::plan::{Buffer, Placement, Plan, Problem, Role};
use warpweave_overlap::{Configuration, Schedule};
use warpweave_report::Shape;
use warpweave_symm_mem::{DType, DevicePtr, SymmetricBuffer};

use crate::error::{Result, if_available};
use crate::session::Session;

/// The part of a name for operands in local memory.
const LOCAL: &str = "local";
/// The part of a name for batch-invariant GEMMs.
const INVARIANT: &str = "invariant";

/// A configuration with how it is called: with operands of each call, at any M. Its name is that of the
/// configuration, with `/local` and `/invariant` after it where they hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// The algorithm with everything chosen.
    pub configuration: Configuration,
    /// Whether all operands are in local memory, so that those that peers reach are staged. Else they are in
    /// symmetric memory where the algorithm has them there.
    pub local: bool,
    /// Whether the bits of a row of C depend on nothing but that row of A and on B.
    pub invariant: bool,
}

impl Scheduled {
    /// With the fastest memory and the fastest GEMMs.
    pub fn new(configuration: Configuration) -> Self {
        Self {
            configuration,
            local: false,
            invariant: false,
        }
    }

    /// The same configuration as the part of a name after its first `/` says; `None` if it says something
    /// else.
    pub fn parse(configuration: Configuration, suffix: &str) -> Option<Self> {
        let mut words = suffix.split('/').peekable();
        let mut has = |word| words.next_if_eq(&word).is_some();
        let scheduled = Self {
            configuration,
            local: has(LOCAL),
            invariant: has(INVARIANT),
        };
        words.next().is_none().then_some(scheduled)
    }

    /// The name in tables and on command lines.
    pub fn name(&self) -> String {
        let mut name = self.configuration.name();
        for (holds, word) in [(self.local, LOCAL), (self.invariant, INVARIANT)] {
            if holds {
                name = format!("{name}/{word}");
            }
        }
        name
    }

    /// The schedule of problems up to `largest`.
    fn schedule(&self, world: usize, largest: &Problem) -> Result<Schedule, ExecuteError> {
        let mut schedule = Schedule::new(self.configuration.clone(), world, *largest)?;
        if !self.local {
            let plan = self.configuration.plan(0, world, largest);
            let plan = plan.map_err(warpweave_overlap::ScheduleError::from)?;
            for buffer in &plan.buffers {
                let is_operand = matches!(buffer.role, Role::Input | Role::Weight | Role::Output);
                if is_operand && buffer.placement == Placement::Symmetric {
                    schedule = schedule.symmetric(&buffer.name)?;
                }
            }
        }
        Ok(match self.invariant {
            true => schedule.batch_invariant(),
            false => schedule,
        })
    }
}

/// The schedules that the problems of one N, K and element type share, as an engine would hold them.
pub struct Schedules<B: ExecuteBackend> {
    /// All problems of a run.
    problems: Vec<(Shape, DType)>,
    of: Option<(usize, usize, DType)>,
    /// By name; why there is none where this machine lacks something.
    prepared: Vec<(String, Shared<B>)>,
}

/// A schedule that candidates of several M call, or why there is none.
type Shared<B> = Result<Rc<Prepared<B>>, String>;

impl<B: ExecuteBackend> Schedules<B> {
    /// For these problems and no others.
    pub fn new(problems: &[(Shape, DType)]) -> Self {
        Self {
            problems: problems.to_vec(),
            of: None,
            prepared: Vec::new(),
        }
    }

    /// The schedule of `problem` and of those that differ from it in M, prepared where it is not there yet.
    /// Schedules of another N, K or type are dropped. Collective.
    ///
    /// # Errors
    /// Anything but a missing capability.
    pub fn of(
        &mut self,
        session: &Session<B>,
        scheduled: &Scheduled,
        problem: &Problem,
    ) -> Result<Shared<B>> {
        let of = (problem.n, problem.k, problem.dtype);
        if self.of != Some(of) {
            self.prepared.clear();
            self.of = Some(of);
        }
        let name = scheduled.name();
        if let Some((_, known)) = self.prepared.iter().find(|(own, _)| *own == name) {
            return Ok(known.clone());
        }
        let alike = self.problems.iter().filter(|(s, d)| (s.n, s.k, *d) == of);
        let largest = Problem {
            m: alike.map(|(shape, _)| shape.m).fold(problem.m, usize::max),
            ..*problem
        };
        let schedule = scheduled.schedule(session.world(), &largest);
        let prepared = schedule.and_then(|schedule| session.executor.prepare(&schedule));
        let shared = if_available(prepared)?.map(Rc::new);
        self.prepared.push((name, shared.clone()));
        Ok(shared)
    }
}

/// An operand of a candidate.
enum Held<B: ExecuteBackend> {
    Local(B::Memory),
    Symmetric(SymmetricBuffer<B>),
}

/// A schedule at one M with operands of its own, and a graph of a call.
pub(super) struct ScheduledCalls<'a, B: ExecuteBackend> {
    /// Those of the plan, by name. Dropped first, which waits for calls and launches.
    held: Vec<(String, Held<B>)>,
    graph: Option<B::Graph>,
    prepared: Rc<Prepared<B>>,
    session: &'a Session<B>,
    /// At this M.
    pub plan: Plan,
    m: usize,
}

impl<'a, B: ExecuteBackend> ScheduledCalls<'a, B> {
    /// Allocates operands for calls at M = `m`. Collective where some are symmetric.
    pub fn new(session: &'a Session<B>, prepared: Rc<Prepared<B>>, m: usize) -> Result<Self> {
        let plan = prepared.plan(m)?;
        let schedule = prepared.schedule();
        let operands = schedule.operands(session.rank(), m);
        let operands = operands.map_err(ExecuteError::from)?;
        let mut held = Vec::new();
        for buffer in &plan.buffers {
            if !operands.iter().any(|o| o.buffer == buffer.name) {
                continue;
            }
            let bytes = buffer.bytes().max(1);
            let memory = match buffer.placement {
                Placement::Local => Held::Local(session.backend.allocate(bytes)?),
                _ => Held::Symmetric(SymmetricBuffer::new(
                    &session.backend,
                    prepared.node(),
                    &buffer.name,
                    bytes,
                )?),
            };
            held.push((buffer.name.clone(), memory));
        }
        Ok(Self {
            held,
            graph: None,
            prepared,
            session,
            plan,
            m,
        })
    }

    fn slice(&self, name: &str) -> Option<DeviceSlice<'_>> {
        let (_, held) = self.held.iter().find(|(own, _)| own == name)?;
        Some(match held {
            Held::Local(memory) => DeviceSlice::of(memory),
            Held::Symmetric(buffer) => DeviceSlice::symmetric(buffer),
        })
    }

    fn operands(&self) -> Result<Operands<'_>> {
        let slice = |name: &str| {
            let missing = || ExecuteError::Operand {
                schedule: self.plan.name.clone(),
                operand: name.into(),
                why: "it is missing".into(),
            };
            self.slice(name).ok_or_else(missing)
        };
        Ok(Operands {
            bias: self.slice("bias"),
            gathered: self.slice("x").zip(self.slice("y")).map(Into::into),
            norm: match self.slice("norm_weight") {
                None => None,
                Some(weight) => Some(NormOperands {
                    residual: slice("residual")?,
                    weight,
                    residual_out: slice("residual_out")?,
                }),
            },
            scales: (self.slice("scales_a").zip(self.slice("scales_b"))).map(Into::into),
            ..Operands::new(slice("a")?, slice("b")?, slice("c")?)
        })
    }

    pub fn buffer(&self, name: &str) -> Result<(&Buffer, DevicePtr), ExecuteError> {
        let buffer = self.plan.buffers.iter().find(|buffer| buffer.name == name);
        match (buffer, self.slice(name)) {
            (Some(buffer), Some(slice)) => Ok((buffer, slice.address(self.prepared.node().rank()))),
            _ => Err(ExecuteError::Buffer {
                plan: self.plan.name.clone(),
                buffer: name.into(),
                why: "the schedule has no such operand".into(),
            }),
        }
    }

    pub fn run(&self, m: usize) -> Result<()> {
        let (prepared, stream) = (&self.prepared, &self.session.stream);
        Ok(prepared.run(stream, &self.operands()?, m)?)
    }

    /// Does the host work of first calls at these M.
    pub fn warm(&self, ms: &[usize]) -> Result<()> {
        let ms = ms.iter().copied();
        Ok(self.prepared.warm(&self.session.stream, ms)?)
    }

    pub fn tune(&self) -> Result<()> {
        let (prepared, stream) = (&self.prepared, &self.session.stream);
        Ok(prepared.tune(stream, &self.operands()?, self.m)?)
    }

    pub fn capture(&mut self) -> Result<()> {
        self.graph = None;
        let (backend, stream) = (&self.session.backend, &self.session.stream);
        self.graph = Some(backend.capture(stream, || self.run(self.m))?);
        Ok(())
    }

    pub fn replay(&self) -> Result<()> {
        let plan = || self.plan.name.clone();
        // Peers have not given their memory for a call after a failed wait.
        if self.prepared.executor().is_stopped() {
            return Err(ExecuteError::Stopped { plan: plan() }.into());
        }
        let graph = self.graph.as_ref();
        let graph = graph.ok_or_else(|| ExecuteError::NotCaptured { plan: plan() })?;
        let (backend, stream) = (&self.session.backend, &self.session.stream);
        // SAFETY: this device captured the graph, which holds one call. Its operands and its schedule are
        // fields of this candidate, and the operands are dropped first, which waits for the launch; the
        // executor, which the session has, keeps the arena of captured calls. All ranks launch theirs in the
        // same place among calls on this one stream, as they do calls that are not captured.
        unsafe { backend.launch_graph(graph, stream)? };
        Ok(())
    }

    pub fn recover(&self) -> Result<()> {
        let executor = self.prepared.executor();
        Ok(executor.recover(&self.session.stream)?)
    }

    pub fn algorithms(&self) -> Vec<String> {
        let algorithms = self.prepared.algorithms(&self.session.stream, self.m);
        // Those of an M that has run are known.
        algorithms.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_overlap::algorithms;

    #[test]
    fn names_say_how_a_configuration_is_called() {
        let configuration = algorithms::find("fusedRowParallelLinear:shots=1").unwrap();
        let parse = |suffix| Scheduled::parse(configuration.clone(), suffix);
        for suffix in ["local", "invariant", "local/invariant"] {
            let name = parse(suffix).unwrap().name();
            assert_eq!(name, format!("fusedRowParallelLinear:shots=1/{suffix}"));
        }
        for suffix in ["", "symmetric", "local/", "invariant/local"] {
            assert_eq!(parse(suffix), None, "{suffix}");
        }
    }
}
