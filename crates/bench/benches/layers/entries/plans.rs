//! GEMMs of every provider, and every algorithm of every operation with its defaults.

use warpweave_bench::candidate::{BoundCandidate, Candidate, Implementation};
use warpweave_bench::clock::Clock;
use warpweave_bench::inputs::{InputSets, Matrices, Numbers};
use warpweave_bench::session::Session;
use warpweave_bench::suite::{self, Sizes, Suite};
use warpweave_bench::timing::{Call, Contender};
use warpweave_bench::{BenchError, Result};
use warpweave_overlap::Operation;
use warpweave_overlap::execute::ExecuteBackend;

use crate::device::OnDevice;
use crate::lockstep::{Entry, Made};

/// Input sets: calls that follow each other have different inputs.
const SETS: usize = 2;

/// As the suites `gemm` and `quick`, each with the first of its problems.
///
/// # Errors
/// A suite has nothing to measure.
pub fn entries<'a, B: ExecuteBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<B>,
) -> Result<Vec<Entry<'a>>> {
    let quick = suite::named("quick").map_err(BenchError::Usage)?;
    let mut entries = of_suite(session, clock, &suite::GEMM)?;
    let plans = of_suite(session, clock, quick)?;
    // The GEMMs of `quick` are those of `gemm`.
    entries.extend(plans.into_iter().filter(|entry| entry.group != GEMMS));
    Ok(entries)
}

const GEMMS: &str = "gemm";

fn of_suite<'a, B: ExecuteBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<B>,
    suite: &Suite,
) -> Result<Vec<Entry<'a>>> {
    let Some(&sizes) = suite.problems(B::KIND, session.world()).first() else {
        return Ok(Vec::new());
    };
    let (shape, dtype) = sizes;
    let mut entries = Vec::new();
    for case in suite.cases(&[])? {
        for implementation in case.implementations {
            entries.push(Entry {
                group: case
                    .operation
                    .map_or(GEMMS.into(), |operation| format!("plan/{operation}")),
                name: format!("{}/{shape} {dtype}", implementation.name),
                long: true,
                make: Box::new(move || {
                    plan(session, clock, (case.operation, &implementation), sizes)
                }),
            });
        }
    }
    Ok(entries)
}

fn plan<'a, B: ExecuteBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<B>,
    (operation, implementation): (Option<Operation>, &Implementation),
    sizes: Sizes,
) -> Made<'a> {
    let problem = suite::problem(&session.backend, sizes);
    let mut candidate = Candidate::bind(session, implementation, &problem)?;
    let matrices = Matrices::of(operation, session.world(), &problem);
    let mut inputs = InputSets::new(matrices, Numbers::Reals, SETS);
    inputs.add(session, &candidate.operands)?;
    let Candidate {
        bound, operands, ..
    } = &mut candidate;
    let bound = match bound {
        Ok(bound) => bound,
        Err(reason) => return Ok(Err(reason.clone())),
    };
    inputs.load_weights(session, (bound, operands))?;
    inputs.load(session, (bound, operands), 0)?;
    bound.run()?;
    bound.synchronize()?;
    bound.tune(&session.executor)?;
    let calls = PlanCalls {
        session,
        candidate,
        inputs,
    };
    Ok(Ok(Box::new(OnDevice::new(session, clock, calls))))
}

/// A bound plan with its inputs.
struct PlanCalls<'a, B: ExecuteBackend> {
    session: &'a Session<B>,
    candidate: Candidate<B>,
    inputs: InputSets<B>,
}

impl<B: ExecuteBackend> PlanCalls<'_, B> {
    fn bound(&self) -> Result<BoundCandidate<'_, B>> {
        let bound = self.candidate.bound.as_ref();
        Ok(BoundCandidate {
            session: self.session,
            candidate: &self.candidate,
            bound: bound.map_err(|reason| BenchError::Usage(reason.clone()))?,
            inputs: &self.inputs,
            back_to_back: false,
        })
    }
}

impl<B: ExecuteBackend> Contender for PlanCalls<'_, B> {
    fn name(&self) -> &str {
        &self.candidate.name
    }

    fn prepare(&self) -> Result<()> {
        self.bound()?.prepare()
    }

    fn load(&self, set: usize) -> Result<()> {
        self.bound()?.load(set)
    }

    fn call(&self, how: Call) -> Result<()> {
        self.bound()?.call(how)
    }

    fn synchronize(&self) -> Result<()> {
        self.bound()?.synchronize()
    }
}
