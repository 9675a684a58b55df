//! One launch whose partials the switch adds, and whose results it copies.

use super::fused::groups;
use super::{PartialGemm, Stored};
use crate::algorithms::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{KernelShape, MultimemMatmulReduce};
use crate::plan::{Placement, Plan, Problem, StreamId};

/// How the owners reduce where everyone gets the result.
pub(in crate::algorithms) const REDUCE: Parameter = Parameter {
    key: "reduce",
    summary: "pull: owners pull partials, add them in the order of ranks, and the others pull results; \
              multimem: the switch adds partials in an order of its own and copies results",
    values: Values::Choices(&["pull", MULTIMEM]),
};

const MULTIMEM: &str = "multimem";

/// Whether the switch reduces: that needs multicast, and the bits of a row are not those of other algorithms.
pub(in crate::algorithms) fn is_multimem(options: &Options) -> bool {
    options.choice(REDUCE.key) == MULTIMEM && !super::is_one_shot(options)
}

/// One kernel. It leaves its partial C in its `staging` as it is computed, in groups of `rows` rows. The
/// owners load the reduction of all ranks' partials from the multicast address of `staging`, and store it
/// to that of C. In a world of one it is one GEMM.
///
/// `ready i`: "my partial of group i of your rows is in my staging, and my C may be written". `done`: "I have
/// loaded everything of yours, and stored my rows to your C"; each call ends after it, so no credit is
/// needed.
pub(super) fn multimem(
    name: &str,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
) -> Result<Plan, PlanError> {
    let placement = match world {
        1 => Placement::Symmetric,
        _ => Placement::Multicast,
    };
    let all = (placement, 0..problem.m);
    let mut plan = PartialGemm::new(name, (rank, world), problem, stored, all);
    if world == 1 {
        return plan.alone();
    }
    let staging = plan.buffer("staging", Placement::Multicast, problem.m);
    let (rows, groups) = groups(name, options, rank, problem.max_shard(world))?;
    // The kernel counts its calls in this slot, which has the same number whatever M is.
    let done = plan.builder.slot("done");
    let ready = plan.builder.slots(groups, |group| format!("ready {group}"));
    let Problem { m, n, k, dtype, .. } = *problem;
    let kernel = MultimemMatmulReduce {
        shape: KernelShape { m, n, k, dtype },
        a: plan.a,
        b: plan.b,
        b_transposed: plan.b_transposed,
        scales: plan.scales,
        c: plan.c,
        staging,
        ready,
        done,
        rows,
        groups,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
