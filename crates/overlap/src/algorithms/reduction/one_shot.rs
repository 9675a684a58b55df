//! One launch whose partials go to everyone, who all reduce them.

use super::fused::{ROWS, ROWS_OF_A_GROUP, fused};
use super::multimem::{REDUCE, is_multimem, multimem};
use super::{PartialGemm, Reach, Stored};
use crate::algorithms::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{KernelShape, OneShotMatmul};
use crate::plan::{Placement, Plan, Problem, StreamId};

/// Whether everyone gets the result by [`fused()`](super::fused()) or by [`one_shot()`].
pub(in crate::algorithms) const SHOTS: Parameter = Parameter {
    key: "shots",
    summary: "2: owners pull and reduce partials, and the others pull the results; \
              1: partials are pushed to everyone, who reduces them",
    values: Values::Choices(&["2", "1"]),
};

/// The plan by either.
pub(in crate::algorithms) fn in_shots(
    name: &str,
    options: &Options,
    place: (usize, usize),
    problem: &Problem,
    stored: Stored,
) -> Result<Plan, PlanError> {
    if is_one_shot(options) {
        return one_shot(name, place, problem, stored);
    }
    match is_multimem(options) {
        true => multimem(name, options, place, problem, stored),
        false => fused(name, options, place, problem, stored, Reach::Everyone),
    }
}

/// Whether everyone reduces everything.
pub(super) fn is_one_shot(options: &Options) -> bool {
    options.choice(SHOTS.key) == "1"
}

/// Whether another configuration is the same plan: in one shot there are no groups, and no owners.
pub(in crate::algorithms) fn is_redundant(options: &Options) -> bool {
    let is_default =
        options.count(ROWS.key) == ROWS_OF_A_GROUP && options.choice(REDUCE.key) == "pull";
    is_one_shot(options) && !is_default
}

/// One kernel. It pushes its partial C into the `staging` of every rank as it is computed, by an eager
/// protocol, and adds the partials of all in the order of ranks. Calls alternate between two stagings. In a
/// world of one it is one GEMM. For outputs so small that latency exceeds transfer time: on two H200s up to
/// about four million elements.
///
/// `arrived`: "my partial of the unit is in your staging", a slot for each unit of C. `calls` carries no
/// signal.
fn one_shot(
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
    let parts = problem.m.saturating_mul(world);
    let staging = plan.buffer("staging", Placement::Symmetric, parts);
    plan.builder.alternate(staging);
    let Problem { m, n, k, dtype, .. } = *problem;
    let shape = KernelShape { m, n, k, dtype };
    let units = OneShotMatmul::units(shape);
    // First, so that its place does not depend on the number of units, and so not on M.
    let calls = plan.builder.slot("calls");
    let ready = plan.builder.slots(units, |_| "arrived".into());
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
