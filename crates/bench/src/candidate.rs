//! What is compared: plans of one problem with the same inputs, each bound or with the reason why it is not.

use warpweave_overlap::PlanError;
use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::plan::{Buffer, Plan, Problem, Role};
use warpweave_symm_mem::{Backend, DevicePtr, Memory};

use crate::error::{BenchError, Result};
use crate::inputs::{Numbers, Source};
use crate::session::Session;
use crate::timing::{Call, Contender, Measures};

/// Which part of A a plan takes from its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOfA {
    /// The rank's shard.
    Shard,
    /// All of it.
    Whole,
    /// None: what it computes depends on nothing.
    Nothing,
}

/// Builds the plan of a rank among a number of ranks.
pub type Build = Box<dyn Fn(usize, usize, &Problem) -> Result<Plan, PlanError>>;

/// A plan to be timed, and what it is called.
pub struct Implementation {
    /// Its name in tables.
    pub name: String,
    /// Which part of A it takes.
    pub takes: PartOfA,
    /// Its plan for a rank.
    pub plan: Build,
}

/// An implementation on this rank.
pub struct Candidate<B: ExecuteBackend> {
    /// Its name in tables.
    pub name: String,
    /// Which part of A it takes.
    pub takes: PartOfA,
    /// The bound plan, or why there is none.
    pub bound: Result<Bound<B>, String>,
}

impl<B: ExecuteBackend> Candidate<B> {
    /// Binds `implementation`. Collective; a missing capability is no error but a candidate that is not run, on all ranks.
    ///
    /// # Errors
    /// Anything but a missing capability.
    pub fn bind(
        session: &Session<B>,
        implementation: &Implementation,
        problem: &Problem,
    ) -> Result<Self> {
        let plan = (implementation.plan)(session.rank(), session.world(), problem)?;
        let bound = match session.executor.bind(plan, &session.stream) {
            Ok(bound) => Ok(bound),
            Err(error) if error.is_unavailable() => Err(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            name: implementation.name.clone(),
            takes: implementation.takes,
            bound,
        })
    }

    /// Enqueues one call, or a replay of the captured one.
    ///
    /// # Errors
    /// What the executor reports; the injected fault of a test.
    pub fn call(&self, session: &Session<B>, bound: &Bound<B>, how: Call) -> Result<()> {
        session.injection.before_call()?;
        match how {
            Call::Run => bound.run()?,
            Call::Replay => bound.replay()?,
        }
        Ok(())
    }
}

/// A candidate that is bound, with the inputs that it is timed with.
pub struct BoundCandidate<'a, B: ExecuteBackend> {
    /// This rank.
    pub session: &'a Session<B>,
    /// The candidate.
    pub candidate: &'a Candidate<B>,
    /// Its bound plan.
    pub bound: &'a Bound<B>,
    /// The inputs, which change with every call.
    pub inputs: &'a InputSets<B>,
    /// Whether calls in a row and graph launches are timed too.
    pub in_a_row: bool,
}

impl<B: ExecuteBackend> Contender for BoundCandidate<'_, B> {
    fn name(&self) -> &str {
        &self.candidate.name
    }

    fn measures(&self) -> Measures {
        Measures {
            single_replays: false,
            in_a_row: self.in_a_row,
            replays_in_a_row: self.in_a_row,
        }
    }

    fn prepare(&self) -> Result<()> {
        self.inputs.load_b(self.session, self.bound)
    }

    fn load(&self, set: usize) -> Result<()> {
        self.inputs
            .load_a(self.session, self.bound, self.candidate.takes, set)
    }

    fn call(&self, how: Call) -> Result<()> {
        self.candidate.call(self.session, self.bound, how)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.bound.synchronize()?)
    }
}

/// The only buffer of this role.
///
/// # Errors
/// [`BenchError::Usage`] if the plan has none or several.
pub fn buffer_of<B: ExecuteBackend>(bound: &Bound<B>, role: Role) -> Result<(&Buffer, DevicePtr)> {
    let mut buffers = bound.plan().buffers.iter().filter(|b| b.role == role);
    match (buffers.next(), buffers.next()) {
        (Some(buffer), None) => Ok(bound.buffer(&buffer.name)?),
        _ => Err(BenchError::Usage(format!(
            "plan `{}` does not have exactly one {role} buffer",
            bound.plan().name
        ))),
    }
}

/// The input sets of one kind of numbers in device memory, ready to be copied into a plan's buffers between calls.
pub struct InputSets<B: Backend> {
    /// What kind of numbers.
    pub numbers: Numbers,
    shards: Vec<B::Memory>,
    wholes: Vec<B::Memory>,
    b: B::Memory,
}

impl<B: ExecuteBackend> InputSets<B> {
    /// Makes `sets` sets of `numbers`, those of all of A only if a candidate takes it.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn new(
        session: &Session<B>,
        problem: &Problem,
        (numbers, sets): (Numbers, usize),
        whole: bool,
    ) -> Result<Self> {
        let upload = |source: Source, rows: std::ops::Range<usize>| {
            let bytes = source.bytes(rows, session.threads());
            let memory = session.backend.allocate(bytes.len().max(1))?;
            // SAFETY: the memory was just allocated with this length and nothing else knows it.
            unsafe {
                session
                    .backend
                    .upload(&session.stream, memory.address(), &bytes)?
            };
            Ok::<_, BenchError>(memory)
        };
        let a = |set| Source::a(numbers, set, problem.dtype, problem.k);
        let shard = problem.shard(session.rank(), session.world());
        let sets = 0..sets;
        let wholes = if whole { sets.clone() } else { 0..0 };
        Ok(Self {
            numbers,
            shards: sets
                .map(|set| upload(a(set), shard.clone()))
                .collect::<Result<_>>()?,
            wholes: wholes
                .map(|set| upload(a(set), 0..problem.m))
                .collect::<Result<_>>()?,
            b: upload(Source::b(numbers, problem.dtype, problem.n), 0..problem.k)?,
        })
    }

    /// Number of sets.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Enqueues the copy of set `set` into the input of `bound`.
    ///
    /// # Errors
    /// The plan has no input of that size; what the backend reports.
    pub fn load_a(
        &self,
        session: &Session<B>,
        bound: &Bound<B>,
        takes: PartOfA,
        set: usize,
    ) -> Result<()> {
        let from = match takes {
            PartOfA::Shard => &self.shards[set % self.shards.len()],
            PartOfA::Whole => &self.wholes[set % self.wholes.len()],
            PartOfA::Nothing => return Ok(()),
        };
        load(session, bound, Role::Input, from)
    }

    /// Enqueues the copy of B into the weight of `bound`, if it has one.
    ///
    /// # Errors
    /// As [`InputSets::load_a`].
    pub fn load_b(&self, session: &Session<B>, bound: &Bound<B>) -> Result<()> {
        let mut buffers = bound.plan().buffers.iter();
        if !buffers.any(|buffer| buffer.role == Role::Weight) {
            return Ok(());
        }
        load(session, bound, Role::Weight, &self.b)
    }
}

fn load<B: ExecuteBackend>(
    session: &Session<B>,
    bound: &Bound<B>,
    role: Role,
    from: &B::Memory,
) -> Result<()> {
    let (buffer, to) = buffer_of(bound, role)?;
    if from.bytes() > buffer.bytes() {
        return Err(BenchError::Usage(format!(
            "buffer `{}` of plan `{}` has {} bytes, its input {}",
            buffer.name,
            bound.plan().name,
            buffer.bytes(),
            from.bytes()
        )));
    }
    // SAFETY: both ranges are as long as checked and outlive the stream's work, as memory waits for it when dropped. The
    // plan's own work on the buffer is ordered by the stream, and its proof covers this write between calls.
    unsafe {
        session
            .backend
            .copy(&session.stream, to, from.address(), from.bytes())?
    };
    Ok(())
}
