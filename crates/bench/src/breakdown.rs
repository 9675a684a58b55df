//! Where the time of `threadloadGatherThenCutlass` goes: its parts as plans of their own, timed in the rounds
//! of the rows.
//!
//! The parts need not add up to the whole: each of them is measured with the clock's own cost, which is that
//! of the empty call, and with the ranks aligned, while in the whole the GEMM begins on each rank when its
//! own gather ends.

use std::rc::Rc;

use warpweave_overlap::kernels::{KernelShape, ThreadloadGather};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Placement, Plan, PlanBuilder, Problem, Provider, Role, StreamId};
use warpweave_overlap::{Operation, PlanError};

use crate::candidate::Entrant;
use crate::limit::gemm_alone;
use crate::plans::{Build, Implementation};
use crate::report::{Breakdown, Metric, Row};
use crate::timing::Times;

/// The implementation that is taken apart.
pub const WHOLE: &str = "threadloadGatherThenCutlass";

/// Bytes of a row that leaves nothing to a gather but its signals and waits: one load of a thread.
const LEAST_ROW: usize = 16;

/// What is to be measured besides `rows` if that of [`WHOLE`] is among them and can run, in the order of the
/// fields of [`Breakdown`].
pub fn parts(rows: &[Entrant<'_>]) -> Vec<Implementation> {
    let runs = |row: &Entrant<'_>| row.name == WHOLE && row.candidate.is_ok();
    match rows.iter().any(runs) {
        true => all_parts().into(),
        false => Vec::new(),
    }
}

fn all_parts() -> [Implementation; 4] {
    let part = |name: &str, operands, plan: Build| Implementation {
        name: name.to_owned(),
        scheduled: None,
        operands,
        plan,
    };
    let nothing = || Rc::new(|_: usize, _: usize, _: &Problem| Vec::new());
    [
        part("empty call", nothing(), Rc::new(empty_plan)),
        // The rows of its matrix are shorter than those of A, and what they hold does not matter.
        part("handshake alone", nothing(), Rc::new(handshake_plan)),
        Implementation {
            name: "gather alone".into(),
            scheduled: None,
            operands: Rc::new(shard_of_a),
            plan: Rc::new(gather_plan),
        },
        gemm_alone(
            "CUTLASS GEMM alone",
            Provider::Cutlass,
            Some(Operation::AllGatherMatmul),
        ),
    ]
}

fn shard_of_a(rank: usize, world: usize, problem: &Problem) -> Vec<Operand> {
    let mut operands = Operation::AllGatherMatmul.operands((rank, world), problem, None);
    operands.retain(|operand| operand.matrix == Matrix::A);
    operands
}

fn empty_plan(rank: usize, world: usize, _: &Problem) -> Result<Plan, PlanError> {
    PlanBuilder::new("emptyCall", rank, world).finish()
}

fn handshake_plan(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let k = LEAST_ROW / problem.dtype.size();
    gather("handshakeAlone", rank, world, &Problem { k, ..*problem })
}

fn gather_plan(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    gather("threadloadGatherAlone", rank, world, problem)
}

/// The same kernel with the same buffers and slots as in the whole.
fn gather(name: &str, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let Problem { m, k, dtype, .. } = *problem;
    let mut plan = PlanBuilder::new(name, rank, world);
    let own = (problem.max_shard(world), k);
    let (ready, done) = (plan.slot("ready"), plan.slot("done"));
    let kernel = ThreadloadGather {
        shape: KernelShape { m, n: 0, k, dtype },
        a: plan.buffer("a", Placement::Symmetric, Role::Input, dtype, own),
        staging: plan.buffer("staging", Placement::Local, Role::Staging, dtype, (m, k)),
        ready,
        done,
    };
    plan.kernel(StreamId::MAIN, kernel);
    plan.finish()
}

/// The breakdown of the row of [`WHOLE`], from the times of the parts that ran. `None` without that row or
/// without parts.
pub fn breakdown(rows: &[Row], times: &[Option<Times>]) -> Option<Breakdown> {
    let single = |times: &Option<Times>| times.as_ref()?.spread(Metric::Single);
    let [empty, handshake, gather, gemm] = times else {
        return None;
    };
    let whole = rows.iter().find(|row| row.implementation == WHOLE)?;
    Some(Breakdown {
        implementation: whole.implementation.clone(),
        empty_ms: single(empty),
        handshake_ms: single(handshake),
        gather_ms: single(gather),
        gemm_ms: single(gemm),
        together_ms: whole.single_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::hold;
    use warpweave_overlap::algorithms;
    use warpweave_symm_mem::DType;

    #[test]
    fn the_plans_of_the_parts_hold_back_to_back() {
        for dtype in [DType::F16, DType::F32] {
            let problem = Problem::new(10, 6, 24, dtype);
            for world in [2, 3, 4] {
                for part in all_parts() {
                    hold(world, |rank| (part.plan)(rank, world, &problem));
                }
            }
        }
    }

    #[test]
    fn the_gather_is_that_of_the_whole() {
        let problem = Problem::new(10, 6, 24, DType::F16);
        let whole = algorithms::find(WHOLE)
            .unwrap()
            .plan(1, 4, &problem)
            .unwrap();
        let alone = gather_plan(1, 4, &problem).unwrap();
        let kernel_of = |plan: &Plan| {
            let named = plan.ops.iter().find_map(|op| match &op.kind {
                warpweave_overlap::plan::OpKind::Kernel { kernel, .. } => {
                    Some((kernel.name(), kernel.shape()))
                }
                _ => None,
            });
            named.unwrap()
        };
        assert_eq!(kernel_of(&whole), kernel_of(&alone));
        let handshake = handshake_plan(1, 4, &problem).unwrap();
        assert_eq!(kernel_of(&handshake).1.k * problem.dtype.size(), LEAST_ROW);
    }
}
