//! Plans as candidates. No other module of the bench binds or runs plans.

mod prepared;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Buffer, Plan, Problem, Role};
use warpweave_overlap::{Checked, Configuration, Operation, PlanError, Timeline, algorithms};
use warpweave_report::{Metric, Row};
use warpweave_symm_mem::{DevicePtr, Memory};

use crate::candidate::{Candidate, Form, Output};
use crate::error::{BenchError, Result, if_available};
use crate::inputs::{InputSets, Numbers, Set, Stored, with_role};
use crate::session::Session;
use crate::transport;
use crate::verification::comparison::{Comparison, WrongElement};
use crate::verification::reference::References;

use self::prepared::ScheduledCalls;
pub use self::prepared::{Scheduled, Schedules};

/// Builds the plan of a rank among a number of ranks.
pub type Build = Rc<dyn Fn(usize, usize, &Problem) -> Result<Plan, PlanError>>;

/// Says which parts of which matrices the plan of a rank takes from its caller and gives to it.
pub type Operands = Rc<dyn Fn(usize, usize, &Problem) -> Vec<Operand>>;

/// What follows the name of a configuration whose plan is bound.
const BOUND: &str = "bound";

/// A plan to be timed, and what it is called.
#[derive(Clone)]
pub struct Implementation {
    /// Its name in tables.
    pub name: String,
    /// Its name and a sentence in the catalogue, where all configurations of an algorithm are one.
    pub in_catalogue: (&'static str, String),
    /// The operation among whose rows it stands.
    pub operation: Option<Operation>,
    /// The caller's buffers for a rank: what is loaded before its calls and verified after them.
    pub operands: Operands,
    /// Builds its plan for a rank.
    pub plan: Build,
    /// The schedule that is called; without, the plan is bound.
    pub scheduled: Option<Scheduled>,
}

impl Implementation {
    /// A plan of this name that is bound, in no catalogue.
    pub fn of_plan(
        name: &str,
        operands: impl Fn(usize, usize, &Problem) -> Vec<Operand> + 'static,
        plan: impl Fn(usize, usize, &Problem) -> Result<Plan, PlanError> + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            in_catalogue: Default::default(),
            operation: None,
            operands: Rc::new(operands),
            plan: Rc::new(plan),
            scheduled: None,
        }
    }

    /// A configuration whose plan is bound, with operands of its own: `NAME/bound`.
    pub fn bound(configuration: Configuration) -> Self {
        let (algorithm, same) = (configuration.algorithm(), configuration.clone());
        let choices: Vec<_> = algorithm.parameters.iter().map(|p| p.to_string()).collect();
        let choices = match choices.is_empty() {
            true => String::new(),
            false => format!(" [{}]", choices.join(", ")),
        };
        Self {
            in_catalogue: (algorithm.name, format!("{}{choices}", algorithm.summary)),
            operation: Some(algorithm.operation),
            ..Self::of_plan(
                &format!("{}/{BOUND}", configuration.name()),
                move |rank, world, problem| same.operands(rank, world, problem),
                move |rank, world, problem| configuration.plan(rank, world, problem),
            )
        }
    }

    /// Any configuration, called as the part of the name after the first `/` says.
    ///
    /// # Errors
    /// Why there is none.
    pub fn named(name: &str) -> Result<Self, String> {
        let mut parts = name.splitn(2, '/');
        let (configuration, suffix) = (parts.next().unwrap_or_default(), parts.next());
        let found = algorithms::find(configuration).map_err(|error| format!("; {error}"))?;
        let known = "; what may follow a name is [/local][/invariant], or /bound";
        Ok(match suffix {
            None => found.into(),
            Some(BOUND) => Self::bound(found),
            Some(suffix) => Scheduled::parse(found, suffix).ok_or(known)?.into(),
        })
    }

    /// The same in a job of so many nodes: see [`Configuration::over_nodes`].
    pub fn over_nodes(self, nodes: usize) -> Self {
        match &self.scheduled {
            None => self,
            Some(scheduled) => Self::from(Scheduled {
                configuration: scheduled.configuration.clone().over_nodes(nodes),
                ..scheduled.clone()
            }),
        }
    }
}

impl From<Configuration> for Implementation {
    fn from(configuration: Configuration) -> Self {
        Scheduled::new(configuration).into()
    }
}

impl From<Scheduled> for Implementation {
    fn from(scheduled: Scheduled) -> Self {
        Self {
            name: scheduled.name(),
            scheduled: Some(scheduled.clone()),
            ..Self::bound(scheduled.configuration)
        }
    }
}

/// What a candidate calls.
enum Calls<'a, B: ExecuteBackend> {
    /// A plan with operands of its own.
    Bound(Box<Bound<B>>),
    /// A schedule at any M.
    Scheduled(ScheduledCalls<'a, B>),
}

impl<B: ExecuteBackend> Calls<'_, B> {
    fn plan(&self) -> &Plan {
        match self {
            Calls::Bound(bound) => bound.plan(),
            Calls::Scheduled(calls) => &calls.plan,
        }
    }

    /// What the executor has of the buffer of this name, and where it is.
    fn buffer(&self, name: &str) -> Result<(&Buffer, DevicePtr)> {
        Ok(match self {
            Calls::Bound(bound) => bound.buffer(name)?,
            Calls::Scheduled(calls) => calls.buffer(name)?,
        })
    }

    /// Enqueues a call at M = `m`, which for a bound plan is its own.
    fn run(&self, m: usize) -> Result<()> {
        match self {
            Calls::Bound(bound) => Ok(bound.run()?),
            Calls::Scheduled(calls) => calls.run(m),
        }
    }

    /// Captures a call in a graph.
    fn capture(&mut self) -> Result<()> {
        match self {
            Calls::Bound(bound) => Ok(bound.capture()?),
            Calls::Scheduled(calls) => calls.capture(),
        }
    }
}

/// A plan that can be run, with its inputs and with what its outputs must be.
pub struct PlanCandidate<'a, B: ExecuteBackend> {
    session: &'a Session<B>,
    name: String,
    operands: Vec<Operand>,
    calls: Calls<'a, B>,
    m: usize,
    /// Those of each operand that goes in, for each kind of numbers.
    inputs: BTreeMap<(Numbers, &'static str), Rc<Stored<B>>>,
    /// With these calls and graph launches back to back are timed too.
    references: Option<Rc<References>>,
}

impl<'a, B: ExecuteBackend> PlanCandidate<'a, B> {
    /// Makes `implementation` ready for calls at the M of `problem`: of `schedules`, which are for at least
    /// that M, or bound. Collective; a missing capability is no error but the reason, on all ranks, why it is
    /// not run.
    ///
    /// # Errors
    /// Anything but a missing capability.
    pub fn new(
        session: &'a Session<B>,
        schedules: &mut Schedules<B>,
        implementation: &Implementation,
        problem: &Problem,
    ) -> Result<Result<Self, String>> {
        let world = session.world();
        let made = match &implementation.scheduled {
            Some(scheduled) => match schedules.of(session, scheduled, problem)? {
                Ok(prepared) => {
                    let calls = ScheduledCalls::new(session, prepared, problem.m);
                    calls.map(|calls| Self::of_calls(session, Calls::Scheduled(calls)))
                }
                Err(reason) => return Ok(Err(reason)),
            },
            None => {
                let plans = of_ranks(world, |rank| (implementation.plan)(rank, world, problem));
                plans.and_then(|plans| Self::of_plans(session, plans))
            }
        };
        if_available(made.map(|candidate| candidate.with_operands_of(implementation, problem)))
    }

    /// The same under the name of `implementation`, with its operands.
    pub(crate) fn with_operands_of(
        self,
        implementation: &Implementation,
        problem: &Problem,
    ) -> Self {
        let (rank, world) = (self.session.rank(), self.session.world());
        Self {
            name: implementation.name.clone(),
            operands: (implementation.operands)(rank, world, problem),
            m: problem.m,
            ..self
        }
    }

    /// Proves the plans of all ranks and binds that of this one. Their inputs do not matter, and only single
    /// calls are timed. Collective.
    ///
    /// # Errors
    /// The report of a proof that fails; what binding reports, a missing capability too.
    pub fn of_plans(session: &'a Session<B>, plans: Vec<Plan>) -> Result<Self> {
        let checked = Checked::prove(plans)?;
        let bound = session.executor.bind(&checked, &session.stream)?;
        Ok(Self::of_calls(session, Calls::Bound(bound.into())))
    }

    /// Binds a plan that is not proved, as [`PlanCandidate::of_plans`] does. Collective.
    ///
    /// # Safety
    /// As for [`bind_unchecked`](warpweave_overlap::execute::Executor::bind_unchecked).
    pub unsafe fn of_unproved(session: &'a Session<B>, plan: Plan) -> Result<Self> {
        // SAFETY: the caller's obligation.
        let bound = unsafe { session.executor.bind_unchecked(plan, &session.stream)? };
        Ok(Self::of_calls(session, Calls::Bound(bound.into())))
    }

    fn of_calls(session: &'a Session<B>, calls: Calls<'a, B>) -> Self {
        Self {
            session,
            name: calls.plan().name.clone(),
            operands: Vec::new(),
            calls,
            m: 0,
            inputs: BTreeMap::new(),
            references: None,
        }
    }

    /// Enqueues a call that no injected fault concerns.
    pub fn run(&self) -> Result<()> {
        self.calls.run(self.m)
    }

    /// Takes the inputs of its operands out of `inputs`, which makes those that it lacks. What has no output
    /// is timed, with reals, and not verified.
    pub fn take(&mut self, inputs: &mut InputSets<B>) -> Result<()> {
        let is_verified = with_role(&self.operands, Role::Output).next().is_some();
        for operand in self.operands.iter().filter(|o| o.role() != Role::Output) {
            for numbers in [Numbers::Reals, Numbers::Integers] {
                if numbers == Numbers::Reals || is_verified {
                    let stored = inputs.of(self.session, operand, numbers)?;
                    self.inputs.insert((numbers, operand.buffer), stored);
                }
            }
        }
        Ok(())
    }

    /// Has its outputs compared with `references`, and its calls back to back timed too.
    pub fn verified_by(&mut self, references: &Rc<References>) {
        self.references = Some(references.clone());
    }

    /// Makes the first call and lets the plan choose its algorithms. Collective.
    pub fn tune(&mut self) -> Result<()> {
        self.prepare(Numbers::Reals)?;
        self.load(Set::reals(0))?;
        self.run()?;
        self.synchronize()?;
        match &mut self.calls {
            Calls::Bound(bound) => Ok(bound.tune(&self.session.executor)?),
            Calls::Scheduled(calls) => calls.tune(),
        }
    }

    fn wrong(&self, operand: &Operand, why: String) -> BenchError {
        BenchError::Operand {
            plan: self.calls.plan().name.clone(),
            buffer: operand.buffer.into(),
            why,
        }
    }

    /// Where the buffer of `operand` begins, which has the operand's role, its columns, and at least its
    /// rows.
    fn address(&self, operand: &Operand) -> Result<DevicePtr> {
        let (buffer, address) = self.calls.buffer(operand.buffer)?;
        let (rows, cols) = operand.stored();
        // A buffer of a rank without a share may have any shape.
        let fits = rows * cols == 0 || (rows <= buffer.rows && cols == buffer.cols);
        if fits && buffer.role == operand.role() {
            return Ok(address);
        }
        let why = format!(
            "it is {} of {}x{}, and the operation asks for {} of {rows}x{cols}",
            buffer.role,
            buffer.rows,
            buffer.cols,
            operand.role()
        );
        Err(self.wrong(operand, why))
    }

    /// Enqueues the copies of a set into the operands of a role.
    fn fill(&self, role: Role, set: Set) -> Result<()> {
        for operand in with_role(&self.operands, role) {
            let to = self.address(operand)?;
            let (rows, cols) = operand.stored();
            if rows * cols == 0 {
                continue;
            }
            let Some(stored) = self.inputs.get(&(set.numbers, operand.buffer)) else {
                return Err(self.wrong(operand, "no input was made for it".into()));
            };
            let from = stored.set(set.index);
            let (from, bytes) = (from.address(), from.bytes());
            let (backend, stream) = (&self.session.backend, &self.session.stream);
            // SAFETY: both ranges are as long as `address` has checked and outlive the stream's work, as
            // memory waits for it when dropped. The plan's own work on the buffer is ordered by the stream,
            // and its proof covers this write between calls.
            unsafe { backend.copy(stream, to, from, bytes)? };
        }
        Ok(())
    }

    fn output(&self, number: usize) -> Option<&Operand> {
        with_role(&self.operands, Role::Output).nth(number)
    }
}

impl<B: ExecuteBackend> Candidate for PlanCandidate<'_, B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn metrics(&self) -> &'static [Metric] {
        match &self.references {
            Some(_) => &[Metric::Single, Metric::BackToBack, Metric::Graph],
            None => &[Metric::Single],
        }
    }

    fn first_call(&mut self) -> Result<Option<String>> {
        self.tune()?;
        self.calls.capture()?;
        Ok(None)
    }

    fn capture(&mut self) -> Result<()> {
        self.calls.capture()
    }

    fn recover(&mut self) -> Option<Result<()>> {
        Some(match &mut self.calls {
            Calls::Bound(bound) => bound.recover().map_err(Into::into),
            Calls::Scheduled(calls) => calls.recover(),
        })
    }

    fn prepare(&self, numbers: Numbers) -> Result<()> {
        self.fill(Role::Weight, Set { numbers, index: 0 })
    }

    fn load(&self, set: Set) -> Result<()> {
        self.fill(Role::Input, set)
    }

    fn call(&self, form: Form) -> Result<()> {
        self.session.before_call()?;
        match (form, &self.calls) {
            (Form::Run, _) => self.run(),
            (Form::Replay, Calls::Bound(bound)) => Ok(bound.replay()?),
            (Form::Replay, Calls::Scheduled(calls)) => calls.replay(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        let session = self.session;
        let ended = match &self.calls {
            Calls::Bound(bound) => bound.synchronize(),
            Calls::Scheduled(_) => session.executor.synchronize(&session.stream),
        };
        Ok(ended?)
    }

    fn enqueue_us(&self, calls: usize) -> Result<[Vec<f64>; 2]> {
        let time = |m: usize| {
            self.synchronize()?;
            let start = Instant::now();
            self.calls.run(m)?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        // The operands are large enough for fewer rows.
        let mut ms = vec![self.m, self.m - self.m / 4, self.m / 2, self.m / 4];
        ms.retain(|&m| m > 0);
        ms.dedup();
        // A bound plan has one M alone.
        let changes = match &self.calls {
            Calls::Bound(_) => false,
            Calls::Scheduled(calls) => calls.warm(&ms).map(|()| true)?,
        };
        let alike = (0..calls).map(|_| time(self.m)).collect::<Result<_>>()?;
        let changing = match ms.len() {
            some if some == 1 || !changes => Vec::new(),
            some => (0..calls)
                .map(|call| time(ms[call % some]))
                .collect::<Result<_>>()?,
        };
        self.synchronize()?;
        Ok([alike, changing])
    }

    /// Without references there is nothing to verify.
    fn outputs(&self) -> Result<Vec<Output>> {
        let output = |operand: &Operand| -> Result<_> {
            let (rows, cols) = operand.stored();
            let element = self.calls.buffer(operand.buffer)?.0.dtype.size();
            Ok(Output {
                address: self.address(operand)?,
                bytes: rows * cols * element,
                element,
            })
        };
        let outputs = with_role(&self.operands, Role::Output);
        let outputs = outputs.filter(|_| self.references.is_some());
        outputs.map(output).collect()
    }

    fn compare(&self, output: usize, set: Set, got: &[u8]) -> (Comparison, f64) {
        let reference = self.references.as_ref().and_then(|all| all.of(set));
        let (Some(reference), Some(operand)) = (reference, self.output(output)) else {
            return Default::default();
        };
        let compared = reference.compare(operand, got, self.session.threads());
        let expectation = reference.of().expectation(operand.matrix);
        (compared, expectation.tolerance())
    }

    fn place(&self, output: usize, element: &WrongElement) -> String {
        let matrix = self.output(output).map_or(Matrix::C, |o| o.matrix);
        format!("{matrix:?}[{}, {}]", element.row, element.col)
    }

    fn describe(&self, row: &mut Row) {
        let plan = self.calls.plan();
        row.transport = transport::names(B::KIND, plan);
        row.launches = Some(plan.launches());
        row.algorithms = match &self.calls {
            Calls::Bound(bound) => bound.algorithms(),
            Calls::Scheduled(calls) => calls.algorithms(),
        };
    }
}

/// When each operation of a call ran, on all ranks: one that follows `warm_up` calls, tuned. Collective.
pub fn timeline<B: ExecuteBackend>(
    session: &Session<B>,
    plans: Vec<Plan>,
    warm_up: usize,
) -> Result<Timeline> {
    let executor = &session.executor;
    let mut bound = executor.bind(&Checked::prove(plans)?, &session.stream)?;
    bound.run()?;
    bound.synchronize()?;
    bound.tune(executor)?;
    (0..warm_up).try_for_each(|_| bound.run())?;
    bound.synchronize()?;
    Ok(executor.timeline(&bound)?)
}

/// The plans of all ranks.
pub fn of_ranks(
    world: usize,
    plan: impl Fn(usize) -> Result<Plan, PlanError>,
) -> Result<Vec<Plan>> {
    Ok((0..world).map(plan).collect::<Result<_, _>>()?)
}

/// Makes sure that the plans of all ranks hold, also back to back.
#[cfg(test)]
#[track_caller]
pub(crate) fn hold(world: usize, plan: impl Fn(usize) -> Result<Plan, PlanError>) {
    let plans: Vec<_> = (0..world).map(|rank| plan(rank).unwrap()).collect();
    let report = warpweave_overlap::check(&plans, 3);
    assert!(report.holds(), "{}: {report}", plans[0].name);
}
