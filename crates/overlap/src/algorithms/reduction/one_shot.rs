//! One launch whose partials go to everyone, who all reduce them.

use super::{PartialGemm, Stored};
use crate::algorithms::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{KernelShape, OneShotMatmul};
use crate::plan::{Placement, Plan, Problem, StreamId};
use warpweave_gemm::matmul_reduce::Units;

/// Whether everyone gets the result by [`fused()`](super::fused()) or by [`one_shot()`].
pub(in crate::algorithms) const SHOTS: Parameter = Parameter {
    key: "shots",
    summary: "2: owners pull and reduce partials, and the others pull the results; \
              1: partials are pushed to everyone, who reduces them",
    values: Values::Choices(&["2", "1"]),
};

/// Whether everyone reduces everything.
pub(super) fn is_one_shot(options: &Options) -> bool {
    options.choice(SHOTS.key) == "1"
}

/// One kernel. It pushes its partial C into the `staging` of every rank as it is computed, by an eager
/// protocol, and adds the partials of all in the order of ranks. Calls alternate between two stagings. In a
/// world of one it is one GEMM. For outputs so small that latency exceeds transfer time: on two H200s up to
/// about four million elements.
///
/// `arrived`: "my partial of the unit is in your staging", a slot for each unit of C. `calls` carries no
/// signal.
pub(super) fn one_shot(
    name: &str,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
) -> Result<Plan, PlanError> {
    let all = (Placement::Local, 0..problem.m);
    let mut plan = PartialGemm::new(name, (rank, world), problem, stored, all);
    if world == 1 {
        return plan.alone();
    }
    let partials = problem.m.saturating_mul(world);
    let staging = plan.buffer("staging", Placement::Symmetric, partials);
    plan.builder.alternate(staging);
    let Problem { m, n, k, dtype, .. } = *problem;
    let shape = KernelShape { m, n, k, dtype };
    let units = OneShotMatmul::units(shape);
    // First, so that its place does not depend on the number of units, and so not on M.
    let calls = plan.builder.slot("calls");
    // As many as fewer rows may need: they may have more units.
    let ready = plan.builder.slots(Units::most(m, n), |_| "arrived".into());
    let kernel = OneShotMatmul {
        shape,
        a: plan.a,
        b: plan.b,
        b_transposed: plan.b_transposed,
        scales: plan.scales,
        c: plan.c,
        staging,
        ready,
        units,
        calls,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
