//! `row-parallel`: the linear layer whose output is summed over the ranks, in every combination of what can be chosen.

use warpweave_overlap::Operation;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Beside, Figure, Sizes, Suite, all_of, on_host};
use crate::shape::Shape;

pub(super) const SUITE: Suite = Suite {
    name: "row-parallel",
    reproduces: "x[t, 4h/d] · W[h, 4h/d]ᵀ and its all-reduce, chunks × streams × reduce; nvFuser, 2 GPUs, h=t=8192 bf16",
    operations: &[Operation::RowParallelLinear],
    entries: || all_of(Operation::RowParallelLinear),
    problems: |kind, world| match (kind, world) {
        (BackendKind::Host, _) => on_host(),
        (BackendKind::Cuda, 2) => vec![LAYER],
        (BackendKind::Cuda, _) => vec![(Shape::new(8192, 8192, 8192), DType::Bf16)],
    },
    figures,
};

/// h = t = 8192, K = 4h.
const LAYER: Sizes = (Shape::new(8192, 8192, 32768), DType::Bf16);

/// The last has its output in a window of NCCL's; `output=symmetric` registers none.
fn figures() -> Vec<Figure> {
    let three = [
        ("2 chunks", 3.31, Beside::Nothing),
        (
            "4 chunks on 2 streams",
            3.09,
            Beside::Row("rowParallelLinear"),
        ),
        (
            "the same, output in NCCL symmetric memory",
            3.07,
            Beside::Nothing,
        ),
    ];
    Figure::all(LAYER, "2 GPUs, nvFuser", three).into()
}
