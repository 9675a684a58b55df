//! GEMMs of every provider, and every algorithm of every operation with its defaults.

use warpweave_bench::clock::Clock;
use warpweave_bench::inputs::{InputSets, Matrices, Numbers};
use warpweave_bench::plans::{Implementation, PlanCandidate, Schedules};
use warpweave_bench::session::{ExecuteBackend, Session};
use warpweave_bench::suite::{self, Sizes, Suite};
use warpweave_bench::{BenchError, Result};
use warpweave_overlap::Operation;

use crate::lockstep::{Entry, Made};
use crate::timed::on_device;

/// Input sets: calls that follow each other have different inputs.
const SETS: usize = 2;

/// As the suites `gemm` and `quick`, each with the first of its problems.
///
/// # Errors
/// A suite has nothing to measure.
pub fn entries<'a, B: ExecuteBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<'a, B>,
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
    clock: &'a Clock<'a, B>,
    suite: &Suite,
) -> Result<Vec<Entry<'a>>> {
    let Some(&sizes) = (suite.problems)(B::KIND, session.world()).first() else {
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
    clock: &'a Clock<'a, B>,
    (operation, implementation): (Option<Operation>, &Implementation),
    sizes: Sizes,
) -> Made<'a> {
    let problem = suite::problem(&session.backend, sizes);
    let matrices = Matrices::of(operation, session.world(), &problem);
    let mut schedules = Schedules::new(&[sizes]);
    let mut candidate = match PlanCandidate::new(session, &mut schedules, implementation, &problem)?
    {
        Ok(candidate) => candidate,
        Err(reason) => return Ok(Err(reason)),
    };
    candidate.take(&mut InputSets::new(matrices, &[(Numbers::Reals, SETS)]))?;
    candidate.tune()?;
    Ok(Ok(on_device(clock, candidate)))
}
