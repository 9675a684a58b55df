//! Plans timed for their own sake.

use warpweave_overlap::execute::Bound;
use warpweave_overlap::plan::Plan;

use crate::clock::Clock;
use crate::collectives::NcclBackend;
use crate::error::Result;
use crate::session::Session;
use crate::timing::{Call, Contender, Effort, Timing};

/// Medians of single calls of plans in µs, in interleaved rounds; `None` for a plan that cannot run here.
pub(super) fn times<B: NcclBackend>(
    session: &Session<B>,
    plans: Vec<Plan>,
    iterations: Option<usize>,
) -> Result<Vec<Option<f64>>> {
    let effort = Effort::of_collectives(B::KIND, iterations);
    let clock = Clock::new(session, effort.capacity())?;
    let mut bound = Vec::new();
    for plan in plans {
        bound.push(match session.executor.bind(plan, &session.stream) {
            Ok(bound) => Some(PlanAlone { session, bound }),
            Err(error) if error.is_unavailable() => None,
            Err(error) => return Err(error.into()),
        });
    }
    let timing = Timing {
        session,
        clock: &clock,
        effort,
    };
    let able: Vec<&dyn Contender> = bound
        .iter()
        .flatten()
        .map(|p| p as &dyn Contender)
        .collect();
    let mut times = timing.measure(&able, |_, _| ())?.into_iter();
    let median = |plan: &Option<PlanAlone<'_, B>>| {
        plan.as_ref()?;
        Some(times.next()?.single()?.median * 1e3)
    };
    Ok(bound.iter().map(median).collect())
}

/// A plan whose inputs do not matter.
struct PlanAlone<'a, B: NcclBackend> {
    session: &'a Session<B>,
    bound: Bound<B>,
}

impl<B: NcclBackend> Contender for PlanAlone<'_, B> {
    fn name(&self) -> &str {
        &self.bound.plan().name
    }

    fn call(&self, _: Call) -> Result<()> {
        self.session.before_call()?;
        Ok(self.bound.run()?)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.bound.synchronize()?)
    }
}
