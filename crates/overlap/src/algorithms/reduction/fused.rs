//! One launch that multiplies, fetches and sums.

use super::{PartialProduct, Reach, Stored};
use crate::algorithms::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{KernelShape, MatmulReduce};
use crate::plan::{Placement, Plan, Problem, StreamId};

/// How many rows are announced together, for [`fused()`].
pub(in crate::algorithms) const ROWS: Parameter = Parameter {
    key: "rows",
    summary: "rows of a shard that are announced together; on a GPU a multiple of 128",
    values: Values::Counts(&[ROWS_OF_A_GROUP, 256, 1024]),
};

/// The usual choice.
pub(super) const ROWS_OF_A_GROUP: usize = 512;

/// One kernel, which leaves its parts of other ranks' rows in its `staging` as they are computed, in groups of the parameter
/// `rows` rows; their owners fetch them into `fetched` and add them in the order of ranks to their own f32 sums. Where everyone gets
/// the sums, the others fetch these in their turn. At a world of one it is one product.
///
/// `ready i`: "my part of group i of your rows may be fetched". `summed i`, where everyone gets the sums: "my group i is summed,
/// and may be fetched from my C". `done`: "I have fetched everything of yours", behind which each call ends, so that no credit
/// is needed.
pub(in crate::algorithms) fn fused(
    name: &str,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
    reach: Reach,
) -> Result<Plan, PlanError> {
    let everyone = reach == Reach::Everyone;
    let c = match reach {
        Reach::Owner => (Placement::Local, problem.shard(rank, world)),
        Reach::Everyone => (Placement::Symmetric, 0..problem.m),
    };
    let mut plan = PartialProduct::new(name, (rank, world), problem, stored, c);
    if world == 1 {
        let c = plan.builder.whole(plan.c);
        plan.product(StreamId::MAIN, 0..problem.m, c);
        return plan.builder.finish();
    }
    let most = problem.max_shard(world);
    let parts = most.saturating_mul(world - 1);
    let staging = plan.buffer("staging", Placement::Symmetric, parts);
    let fetched = plan.buffer("fetched", Placement::Local, parts);
    let rows = options.count(ROWS.key);
    let groups = most.div_ceil(rows);
    if groups > MOST_GROUPS {
        return Err(PlanError::Malformed {
            plan: name.into(),
            rank,
            what: format!("{groups} groups of {rows} rows: {MOST_GROUPS} can be announced"),
        });
    }
    let mut slots = |what: &str| {
        let all: Vec<_> = (0..groups)
            .map(|group| plan.builder.slot(format!("{what} {group}")))
            .collect();
        all[0]
    };
    let ready = slots("ready");
    let summed = everyone.then(|| slots("summed"));
    let done = plan.builder.slot("done");
    let Problem { m, n, k, dtype, .. } = *problem;
    let kernel = MatmulReduce {
        shape: KernelShape { m, n, k, dtype },
        a: plan.a,
        b: plan.b,
        b_transposed: stored == Stored::Transposed,
        c: plan.c,
        staging,
        pulled: fetched,
        ready,
        reduced: summed,
        done,
        rows,
        groups,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}

/// A signal pad has 4096 slots: two of a group, and that of `done`.
const MOST_GROUPS: usize = 2047;
