//! What is compared: plans of one problem with the same inputs, each bound or with the reason why it is not.

use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::operation::Operand;
use warpweave_overlap::plan::{Plan, Problem};
use warpweave_overlap::{Configuration, PlanError};

use crate::error::Result;
use crate::inputs::InputSets;
use crate::session::Session;
use crate::timing::{Call, Contender, Measures};

/// Builds the plan of a rank among a number of ranks.
pub type Build = Box<dyn Fn(usize, usize, &Problem) -> Result<Plan, PlanError>>;

/// Says which parts of which matrices the plan of a rank takes from its caller and gives to it.
pub type Operands = Box<dyn Fn(usize, usize, &Problem) -> Vec<Operand>>;

/// A plan to be timed, and what it is called.
pub struct Implementation {
    /// Its name in tables.
    pub name: String,
    /// The caller's buffers for a rank: what is loaded before its calls and verified after them.
    pub operands: Operands,
    /// Its plan for a rank.
    pub plan: Build,
}

impl From<Configuration> for Implementation {
    fn from(configuration: Configuration) -> Self {
        let same = configuration.clone();
        Self {
            name: configuration.name(),
            operands: Box::new(move |rank, world, problem| same.operands(rank, world, problem)),
            plan: Box::new(move |rank, world, problem| configuration.plan(rank, world, problem)),
        }
    }
}

/// An implementation on this rank.
pub struct Candidate<B: ExecuteBackend> {
    /// Its name in tables.
    pub name: String,
    /// The caller's buffers.
    pub operands: Vec<Operand>,
    /// The bound plan, or why there is none.
    pub bound: Result<Bound<B>, String>,
    /// Whether there is none because a call failed.
    pub failed: bool,
}

impl<B: ExecuteBackend> Candidate<B> {
    /// Binds `implementation`. Collective; a missing capability is no error but a candidate that is not run,
    /// on all ranks.
    ///
    /// # Errors
    /// Anything but a missing capability.
    pub fn bind(
        session: &Session<B>,
        implementation: &Implementation,
        problem: &Problem,
    ) -> Result<Self> {
        let (rank, world) = (session.rank(), session.world());
        let plan = (implementation.plan)(rank, world, problem)?;
        let bound = match session.executor.bind(plan, &session.stream) {
            Ok(bound) => Ok(bound),
            Err(error) if error.is_unavailable() => Err(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            name: implementation.name.clone(),
            operands: (implementation.operands)(rank, world, problem),
            bound,
            failed: false,
        })
    }

    /// Enqueues one call, or a replay of the captured one.
    ///
    /// # Errors
    /// What the executor reports; the injected fault of a test.
    pub fn call(&self, session: &Session<B>, bound: &Bound<B>, how: Call) -> Result<()> {
        session.before_call()?;
        match how {
            Call::Run => bound.run()?,
            Call::Replay => bound.replay()?,
        }
        Ok(())
    }

    /// Runs the plan once with the first set of `inputs`, lets it choose its algorithms, and captures it.
    /// Collective. What fails is taken out, see [`Candidate::survive`].
    ///
    /// # Errors
    /// As [`Candidate::survive`]; a rank did not come.
    pub fn prepare(&mut self, session: &Session<B>, inputs: &InputSets<B>) -> Result<()> {
        let Candidate {
            name,
            operands,
            bound: Ok(bound),
            ..
        } = self
        else {
            return Ok(());
        };
        let mut mine = || {
            inputs.load_weights(session, (bound, operands))?;
            inputs.load(session, (bound, operands), 0)?;
            bound.run()?;
            bound.synchronize()?;
            bound.tune(&session.executor)?;
            bound.capture()?;
            Ok(Vec::new())
        };
        let mine = mine();
        let outcome = session.attempt(&format!("first call of {name}"), mine)?;
        self.survive(session, outcome.map(drop)).map(drop)
    }

    /// After a call that failed on some rank though all of them came: makes whole again what the plan shares
    /// with others, and takes the candidate out, with the reason. Collective; true if the call did fail.
    ///
    /// # Errors
    /// The failure, where a rank's device cannot go on either.
    pub fn survive(&mut self, session: &Session<B>, outcome: Result<()>) -> Result<bool> {
        let (Err(error), Ok(bound)) = (outcome, &mut self.bound) else {
            return Ok(false);
        };
        let mine = bound.recover().map(|()| Vec::new()).map_err(Into::into);
        if session
            .attempt(&format!("recovery of {}", self.name), mine)?
            .is_err()
        {
            return Err(error);
        }
        self.bound = Err(error.to_string());
        self.failed = true;
        Ok(true)
    }

    /// Captures the plan anew, after a failure of one that it may share collectives with.
    ///
    /// # Errors
    /// What the executor reports.
    pub fn recapture(&mut self) -> Result<()> {
        match &mut self.bound {
            Ok(bound) => Ok(bound.capture()?),
            Err(_) => Ok(()),
        }
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
    /// Whether calls and graph launches back to back are timed too.
    pub back_to_back: bool,
}

impl<B: ExecuteBackend> Contender for BoundCandidate<'_, B> {
    fn name(&self) -> &str {
        &self.candidate.name
    }

    fn measures(&self) -> Measures {
        Measures {
            single_replays: false,
            back_to_back: self.back_to_back,
            replays_back_to_back: self.back_to_back,
        }
    }

    fn prepare(&self) -> Result<()> {
        let plan = (self.bound, self.candidate.operands.as_slice());
        self.inputs.load_weights(self.session, plan)
    }

    fn load(&self, set: usize) -> Result<()> {
        let plan = (self.bound, self.candidate.operands.as_slice());
        self.inputs.load(self.session, plan, set)
    }

    fn call(&self, how: Call) -> Result<()> {
        self.candidate.call(self.session, self.bound, how)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.bound.synchronize()?)
    }
}
