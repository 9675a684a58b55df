//! `matmul-reduce-scatter` and `matmul-all-reduce`: products whose sums are split over the ranks.

use warpweave_overlap::Operation;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Sizes, Suite, all_of, on_host};
use crate::shape::Shape;

pub(super) const SCATTER: Suite = Suite {
    name: "matmul-reduce-scatter",
    reproduces: "x[M, K/d] · W[K/d, N], reduce-scatter; beside PyTorch's fused operator with --peers. ParallelKittens, \
                 8×H100, 32768²×4096: 11.83 ms where the product alone takes 11.78",
    operations: &[Operation::MatmulReduceScatter],
    entries: || all_of(Operation::MatmulReduceScatter),
    problems,
    figures: Vec::new,
};

pub(super) const ALL: Suite = Suite {
    name: "matmul-all-reduce",
    reproduces: "x[M, K/d] · W[K/d, N], all-reduce; beside PyTorch with --peers. ParallelKittens, 8×H100: 624 TFLOP/s by \
                 multicast",
    operations: &[Operation::MatmulAllReduce],
    entries: || all_of(Operation::MatmulAllReduce),
    problems,
    figures: Vec::new,
};

fn problems(kind: BackendKind, _: usize) -> Vec<Sizes> {
    let shapes = [
        Shape::new(8192, 8192, 8192),
        Shape::new(8192, 8192, 32768),
        Shape::new(4096, 4096, 14336),
    ];
    match kind {
        BackendKind::Host => on_host(),
        BackendKind::Cuda => shapes.map(|shape| (shape, DType::Bf16)).into(),
    }
}
