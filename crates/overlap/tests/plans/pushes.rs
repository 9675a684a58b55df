//! What plans write in the memory of peers.

use std::collections::BTreeSet;

use crate::fixtures::{plans, problem};
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::{OpKind, Plan, Role};

/// Whether a copy or a multicast copy of the plan writes an operand of a peer, which its caller uses between
/// calls.
fn pushes_operands(plan: &Plan) -> bool {
    plan.ops.iter().any(|op| {
        let buffer = match &op.kind {
            OpKind::Copy { dst, .. } if dst.rank != plan.rank => dst.buffer,
            OpKind::MulticastCopy { dst, .. } => dst.buffer,
            _ => return false,
        };
        plan.buffers[buffer.0].role != Role::Staging
    })
}

/// Copy engines cannot be stopped after a failed wait, so the executor gives such copies to SMs, where they
/// compete with GEMMs. A plan that pulls, or that pushes to staging, keeps the copy engines.
#[test]
fn two_pipelines_push_into_operands_and_the_others_into_staging() {
    let every = algorithms::every().into_iter();
    let found: BTreeSet<&str> = every
        .filter(|algorithm| {
            plans(algorithm, 4, &problem(16))
                .iter()
                .any(pushes_operands)
        })
        .map(|algorithm| algorithm.algorithm().name)
        .collect();
    let known = BTreeSet::from(["allReducePipeline", "rowParallelLinearPipeline"]);
    assert_eq!(found, known);
}
