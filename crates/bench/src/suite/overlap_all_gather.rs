//! `overlap-allgather`: a product beside an all-gather that it has nothing to do with.

use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{
    Collective, Provider, Placement, Plan, PlanBuilder, Problem, StreamId, Transport,
};
use warpweave_overlap::{Operation, PlanError};
use warpweave_symm_mem::{BackendKind, DType};

use super::{Beside, Entry, Figure, Sizes, Suite, all_of, on_host};
use crate::candidate::Implementation;
use crate::shape::Shape;

const OPERATION: Operation = Operation::MatmulOverlappingAllGather;

pub(super) const SUITE: Suite = Suite {
    name: "overlap-allgather",
    reproduces: "a product of 8192³ f16 beside an all-gather of 64 MiB a rank, in sequence and overlapped; nvFuser",
    operations: &[OPERATION],
    entries: || {
        let mut entries = all_of(OPERATION);
        // Without what they are the parts of, there is nothing to compare.
        if !entries.is_empty() {
            entries.extend([PRODUCT, GATHER]);
        }
        entries
    },
    problems: |kind, _| match kind {
        BackendKind::Host => on_host(),
        BackendKind::Cuda => vec![CUBE],
    },
    figures,
};

const PRODUCT: Entry = Entry::Product {
    name: "productAlone",
    summary: "only the product, by cuBLASLt",
    provider: Provider::CublasLt,
    operation: Some(OPERATION),
};

const GATHER: Entry = Entry::Own {
    name: "allGatherAlone",
    summary: "only the all-gather, by NCCL",
    operation: OPERATION,
    implementation: gather_alone,
};

const CUBE: Sizes = (Shape::new(8192, 8192, 8192), DType::F16);

/// Copy engines move the bytes of the last there too, but under NCCL's all-gather, which no row of ours runs.
fn figures() -> Vec<Figure> {
    let three = [
        ("in sequence", 2.96, Beside::Row("sequentialAllGather")),
        ("overlapped", 2.02, Beside::Row("overlappedAllGather")),
        ("NCCL by copy engine (zero-CTA)", 1.77, Beside::Nothing),
    ];
    Figure::all(CUBE, "8 GPUs, nvFuser", three).into()
}

pub(super) fn gather_alone() -> Implementation {
    Implementation {
        name: "allGatherAlone".into(),
        operands: Box::new(gathered),
        plan: Box::new(gather_plan),
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
    use warpweave_overlap::check;

    #[test]
    fn the_gather_alone_holds_and_is_64_mib_a_rank() {
        let problem = Problem::new(10, 6, 8, DType::F16);
        for world in [1, 2, 4] {
            let plans: Vec<_> = (0..world)
                .map(|rank| gather_plan(rank, world, &problem).unwrap())
                .collect();
            let report = check(&plans, 3);
            assert!(report.holds(), "{report}");
        }
        let (Shape { m, n, k }, dtype) = CUBE;
        let operands = gathered(1, 4, &Problem::new(m, n, k, dtype));
        let (rows, cols) = operands[0].stored();
        assert_eq!(rows * cols * dtype.size(), 64 << 20);
    }
}
