//! The all-gather of `overlap-allgather` alone, as a plan of its own.

use std::rc::Rc;

use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{
    Collective, Placement, Plan, PlanBuilder, Problem, StreamId, Transport,
};
use warpweave_overlap::{Operation, PlanError};

use crate::plans::Implementation;

const OPERATION: Operation = Operation::MatmulOverlappingAllGather;

pub(super) fn gather_alone() -> Implementation {
    Implementation {
        name: "allGatherAlone".into(),
        scheduled: None,
        operands: Rc::new(gathered),
        plan: Rc::new(gather_plan),
    }
}

/// X and Y.
fn gathered(rank: usize, world: usize, problem: &Problem) -> Vec<Operand> {
    let mut operands = OPERATION.operands((rank, world), problem, None);
    operands.retain(|operand| matches!(operand.matrix, Matrix::X | Matrix::Y));
    operands
}

fn gather_plan(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = PlanBuilder::new("allGatherAlone", rank, world);
    let mut regions = gathered(rank, world, problem).into_iter().map(|operand| {
        let (role, shape) = (operand.role(), operand.stored());
        let id = plan.buffer(operand.buffer, Placement::Local, role, problem.dtype, shape);
        plan.whole(id)
    });
    if let (Some(x), Some(y)) = (regions.next(), regions.next()) {
        plan.collective(StreamId::MAIN, Collective::AllGather, x, y, Transport::Nccl);
    }
    plan.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::hold;
    use crate::shape::Shape;
    use crate::suite::suites::WITH_GATHER;
    use warpweave_symm_mem::DType;

    #[test]
    fn the_gather_alone_holds_and_is_64_mib_a_rank() {
        let problem = Problem::new(10, 6, 8, DType::F16);
        for world in [1, 2, 4] {
            hold(world, |rank| gather_plan(rank, world, &problem));
        }
        let (Shape { m, n, k }, dtype) = WITH_GATHER;
        let operands = gathered(1, 4, &Problem::new(m, n, k, dtype));
        let (rows, cols) = operands[0].stored();
        assert_eq!(rows * cols * dtype.size(), 64 << 20);
    }
}
