//! Plans as candidates: what binds and runs them. No other module of the bench does.

use std::collections::BTreeMap;
use std::rc::Rc;

use warpweave_overlap::execute::Bound;
pub use warpweave_overlap::execute::{
    CollectiveBackend, ExecuteBackend, ExecuteError, Executor, NcclGroup,
};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Plan, Problem, Role};
use warpweave_overlap::{Checked, Configuration, PlanError, Timeline};
use warpweave_symm_mem::{DevicePtr, Memory};

use crate::candidate::{Call, Candidate, Entrant, Measures, Output, Set};
use crate::error::{BenchError, Result};
use crate::inputs::{InputSets, Numbers, Part, Stored, with_role};
use crate::report::{Kind, Row};
use crate::session::Session;
use crate::transport;
use crate::verification::comparison::{Comparison, WrongElement};
use crate::verification::reference::References;

/// Builds the plan of a rank among a number of ranks.
pub type Build = Rc<dyn Fn(usize, usize, &Problem) -> Result<Plan, PlanError>>;

/// Says which parts of which matrices the plan of a rank takes from its caller and gives to it.
pub type Operands = Rc<dyn Fn(usize, usize, &Problem) -> Vec<Operand>>;

/// A plan to be timed, and what it is called.
#[derive(Clone)]
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
            operands: Rc::new(move |rank, world, problem| same.operands(rank, world, problem)),
            plan: Rc::new(move |rank, world, problem| configuration.plan(rank, world, problem)),
        }
    }
}

/// A bound plan with its inputs and with what its outputs must be.
pub struct PlanCandidate<'a, B: ExecuteBackend> {
    session: &'a Session<B>,
    name: String,
    operands: Vec<Operand>,
    bound: Bound<B>,
    /// Those of each operand that goes in, for each kind of numbers.
    inputs: BTreeMap<(Numbers, &'static str), Rc<Stored<B>>>,
    references: Option<Rc<References>>,
    /// Whether calls and graph launches back to back are timed too.
    back_to_back: bool,
}

impl<'a, B: ExecuteBackend> PlanCandidate<'a, B> {
    /// Binds `implementation`. Collective; a missing capability is no error but the reason, on all ranks, why
    /// it is not run.
    ///
    /// # Errors
    /// Anything but a missing capability.
    pub fn bind(
        session: &'a Session<B>,
        implementation: &Implementation,
        problem: &Problem,
    ) -> Result<Result<Self, String>> {
        let (rank, world) = (session.rank(), session.world());
        let plans = of_ranks(world, |rank| (implementation.plan)(rank, world, problem))?;
        match Self::of_plans(session, plans) {
            Ok(bound) => Ok(Ok(Self {
                name: implementation.name.clone(),
                operands: (implementation.operands)(rank, world, problem),
                back_to_back: true,
                ..bound
            })),
            Err(error) if error.is_unavailable() => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Proves the plans of all ranks and binds that of this one. Their inputs do not matter, and only single
    /// calls are timed. Collective.
    ///
    /// # Errors
    /// The report of a proof that fails; what binding reports, a missing capability too.
    pub fn of_plans(session: &'a Session<B>, plans: Vec<Plan>) -> Result<Self> {
        let checked = Checked::prove(plans)?;
        Ok(Self {
            session,
            name: checked.plan(session.rank()).name.clone(),
            operands: Vec::new(),
            bound: session.executor.bind(&checked, &session.stream)?,
            inputs: BTreeMap::new(),
            references: None,
            back_to_back: false,
        })
    }

    /// Enqueues a call that no injected fault concerns.
    ///
    /// # Errors
    /// What the executor reports.
    pub fn run(&self) -> Result<()> {
        Ok(self.bound.run()?)
    }

    /// Takes the inputs of its operands out of `inputs`, which makes those that it lacks. What has no output
    /// is timed, with reals, and not verified.
    ///
    /// # Errors
    /// What the backend reports.
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

    /// Has its outputs compared with `references`.
    pub fn verified_by(&mut self, references: &Rc<References>) {
        self.references = Some(references.clone());
    }

    /// Leaves out calls back to back.
    #[must_use]
    pub fn single_calls(self) -> Self {
        Self {
            back_to_back: false,
            ..self
        }
    }

    /// As an entrant among the rows.
    pub fn entrant(name: &str, made: Result<Self, String>) -> Entrant<'a> {
        let boxed = made.map(|candidate| Box::new(candidate) as Box<dyn Candidate + 'a>);
        Entrant::new(name, Kind::Ours, boxed)
    }

    /// When each operation of a call ran, on all ranks. Collective.
    ///
    /// # Errors
    /// What the executor reports.
    pub fn timeline(&self) -> Result<Timeline> {
        Ok(self.session.executor.timeline(&self.bound)?)
    }

    /// Makes the first call and lets the plan choose its algorithms. Collective.
    ///
    /// # Errors
    /// What the executor reports.
    pub fn tune(&mut self) -> Result<()> {
        self.prepare(Numbers::Reals)?;
        self.load(Set {
            numbers: Numbers::Reals,
            index: 0,
        })?;
        self.run()?;
        self.synchronize()?;
        Ok(self.bound.tune(&self.session.executor)?)
    }

    fn wrong(&self, operand: &Operand, why: String) -> BenchError {
        BenchError::Operand {
            plan: self.bound.plan().name.clone(),
            buffer: operand.buffer.into(),
            why,
        }
    }

    /// Where the buffer of `operand` begins, which has the operand's role, its columns, and at least its
    /// rows.
    fn address(&self, operand: &Operand) -> Result<DevicePtr> {
        let (buffer, address) = self.bound.buffer(operand.buffer)?;
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
            let (from, bytes) = (stored.set(set.index).address(), stored.bytes());
            let Session {
                backend, stream, ..
            } = self.session;
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

    fn measures(&self) -> Measures {
        Measures {
            single_replays: false,
            back_to_back: self.back_to_back,
            replays_back_to_back: self.back_to_back,
        }
    }

    fn first_call(&mut self) -> Result<Option<String>> {
        self.tune()?;
        self.bound.capture()?;
        Ok(None)
    }

    fn capture(&mut self) -> Result<()> {
        Ok(self.bound.capture()?)
    }

    fn recover(&mut self) -> Option<Result<()>> {
        Some(self.bound.recover().map_err(Into::into))
    }

    fn prepare(&self, numbers: Numbers) -> Result<()> {
        self.fill(Role::Weight, Set { numbers, index: 0 })
    }

    fn load(&self, set: Set) -> Result<()> {
        self.fill(Role::Input, set)
    }

    fn call(&self, how: Call) -> Result<()> {
        self.session.before_call()?;
        match how {
            Call::Run => self.run(),
            Call::Replay => Ok(self.bound.replay()?),
        }
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.bound.synchronize()?)
    }

    fn outputs(&self) -> Result<Vec<Output>> {
        let output = |operand: &Operand| -> Result<_> {
            let (rows, cols) = operand.stored();
            let element = self.bound.buffer(operand.buffer)?.0.dtype.size();
            Ok(Output {
                address: self.address(operand)?,
                bytes: rows * cols * element,
                element,
            })
        };
        with_role(&self.operands, Role::Output)
            .map(output)
            .collect()
    }

    fn compare(&self, output: usize, set: Set, got: &[u8]) -> (Comparison, f64) {
        let reference = self.references.as_ref().and_then(|all| all.of(set));
        let (Some(reference), Some(operand)) = (reference, self.output(output)) else {
            return Default::default();
        };
        let compared = reference.compare(&Part::from(operand), got, self.session.threads());
        let expectation = reference.of().expectation(operand.matrix);
        (compared, expectation.tolerance())
    }

    fn place(&self, output: usize, element: &WrongElement) -> String {
        let matrix = self.output(output).map_or(Matrix::C, |o| o.matrix);
        format!("{matrix:?}[{}, {}]", element.row, element.col)
    }

    fn describe(&self, row: &mut Row) {
        let plan = self.bound.plan();
        row.transport = transport::names(B::KIND, plan);
        row.launches = Some(plan.launches());
        row.algorithms = self.bound.algorithms();
    }
}

/// The plans of all ranks.
///
/// # Errors
/// The first that cannot be built.
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
