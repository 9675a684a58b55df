//! One launch whose parts go to everyone, who sums them.

use super::fused::{ROWS, ROWS_OF_A_GROUP, fused};
use super::{PartialProduct, Reach, Stored};
use crate::algorithms::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{KernelShape, OneShotMatmul};
use crate::plan::{Placement, Plan, Problem, StreamId};

/// Whether everyone gets the sums by [`fused()`](super::fused()) or by [`one_shot()`].
pub(in crate::algorithms) const SHOTS: Parameter = Parameter {
    key: "shots",
    summary: "2: owners fetch parts and sum them, and the others fetch the sums; 1: parts go to everyone, who sums them",
    values: Values::Words(&["2", "1"]),
};

/// The plan by either.
pub(in crate::algorithms) fn in_shots(
    name: &str,
    options: &Options,
    place: (usize, usize),
    problem: &Problem,
    stored: Stored,
) -> Result<Plan, PlanError> {
    match is_one_shot(options) {
        true => one_shot(name, place, problem, stored),
        false => fused(name, options, place, problem, stored, Reach::Everyone),
    }
}

/// Whether it is the latter.
fn is_one_shot(options: &Options) -> bool {
    options.word(SHOTS.key) == "1"
}

/// Whether another configuration is the same plan: in one shot there are no groups.
pub(in crate::algorithms) fn is_redundant(options: &Options) -> bool {
    is_one_shot(options) && options.count(ROWS.key) != ROWS_OF_A_GROUP
}

/// One kernel, which writes its part of C into the `staging` of every rank as it is computed, unasked, and adds the parts of all in the
/// order of ranks. Calls take two stagings in turn. At a world of one it is one product. For outputs so small that words take longer than
/// bytes: on two H200s up to about four million elements.
///
/// `arrived`: "my part of the unit is in your staging", a slot for each unit of C. Nothing is said in `calls`.
fn one_shot(
    name: &str,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
) -> Result<Plan, PlanError> {
    let all = (Placement::Local, 0..problem.m);
    let mut plan = PartialProduct::new(name, (rank, world), problem, stored, all);
    if world == 1 {
        let c = plan.builder.whole(plan.c);
        plan.product(StreamId::MAIN, 0..problem.m, c);
        return plan.builder.finish();
    }
    let parts = problem.m.saturating_mul(world);
    let staging = plan.buffer("staging", Placement::Symmetric, parts);
    plan.builder.alternate(staging);
    let Problem { m, n, k, dtype, .. } = *problem;
    let shape = KernelShape { m, n, k, dtype };
    let units = OneShotMatmul::units(shape);
    let ready = plan.builder.slot("arrived");
    for _ in 1..units {
        plan.builder.slot("arrived");
    }
    let calls = plan.builder.slot("calls");
    let kernel = OneShotMatmul {
        shape,
        a: plan.a,
        b: plan.b,
        b_transposed: stored == Stored::Transposed,
        c: plan.c,
        staging,
        ready,
        units,
        calls,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
