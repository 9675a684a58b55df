//! One launch that multiplies, pulls partials and reduces.

use super::{PartialGemm, Reach, Stored};
use crate::algorithms::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{KernelShape, MatmulReduce};
use crate::plan::{Placement, Plan, Problem, StreamId};

/// How many rows share a flag, for [`fused()`].
pub(in crate::algorithms) const ROWS: Parameter = Parameter {
    key: "rows",
    summary: "rows of a shard that share a flag; on a GPU a multiple of 128",
    values: Values::Counts(&[ROWS_OF_A_GROUP, 256, 1024]),
};

/// The default.
pub(super) const ROWS_OF_A_GROUP: usize = 512;

/// One kernel. It leaves its partials of other ranks' rows in its `staging` as they are computed, in groups
/// of `rows` rows. The owners pull them into `pulled` and add them, in the order of ranks, to their own f32
/// accumulators. Where everyone gets the result, the others then pull it. In a world of one it is one GEMM.
///
/// `ready i`: "my partial of group i of your rows may be pulled". `reduced i`, where everyone gets the
/// result: "my group i is reduced and may be pulled from my C". `done`: "I have pulled everything of yours";
/// each call ends after it, so no credit is needed.
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
    let mut plan = PartialGemm::new(name, (rank, world), problem, stored, c);
    if world == 1 {
        return plan.alone();
    }
    let most = problem.max_shard(world);
    let parts = most.saturating_mul(world - 1);
    let staging = plan.buffer("staging", Placement::Symmetric, parts);
    let pulled = plan.buffer("pulled", Placement::Local, parts);
    let (rows, groups) = groups(name, options, rank, most)?;
    // The kernel counts its calls in this slot, which has the same number whatever M is.
    let done = plan.builder.slot("done");
    let ready = plan.builder.slots(groups, |group| format!("ready {group}"));
    let reduced = everyone.then(|| {
        plan.builder
            .slots(groups, |group| format!("reduced {group}"))
    });
    let Problem { m, n, k, dtype, .. } = *problem;
    let kernel = MatmulReduce {
        shape: KernelShape { m, n, k, dtype },
        a: plan.a,
        b: plan.b,
        b_transposed: plan.b_transposed,
        scales: plan.scales,
        c: plan.c,
        local_c: None,
        staging,
        pulled,
        ready,
        reduced,
        done,
        rows,
        groups,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}

/// Rows of a group, and how many groups the largest shard has.
pub(super) fn groups(
    name: &str,
    options: &Options,
    rank: usize,
    most_rows: usize,
) -> Result<(usize, usize), PlanError> {
    let rows = options.count(ROWS.key);
    match most_rows.div_ceil(rows) {
        groups if groups <= MOST_GROUPS => Ok((rows, groups)),
        groups => Err(PlanError::Malformed {
            plan: name.into(),
            rank,
            what: format!("{groups} groups of {rows} rows: at most {MOST_GROUPS} have a slot each"),
        }),
    }
}

/// A signal pad has 4096 slots: two of a group, and that of `done`.
const MOST_GROUPS: usize = 2047;
