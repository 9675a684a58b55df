//! `fused-matmul`: all-gather + matmul in nvFuser's seven ways, and in one launch that does both at once.

use warpweave_overlap::algorithms::Configuration;
use warpweave_overlap::{Operation, algorithms};
use warpweave_symm_mem::{BackendKind, DType};

use super::{Beside, Entry, Figure, Sizes, Suite, on_host};
use crate::shape::Shape;

pub(super) const SUITE: Suite = Suite {
    name: "fused-matmul",
    reproduces: "all-gather + matmul in seven ways and in one launch; nvFuser PR 6002, 8×H100, M=N=K=1024 f16",
    operations: &[Operation::AllGatherMatmul],
    entries: || {
        let single = |c: &Configuration| SINGLE.contains(&c.name().as_str());
        let single = algorithms::every().into_iter().filter(single);
        let all = algorithms::table().into_iter().chain(single);
        all.map(Entry::Configured).collect()
    },
    problems,
    figures,
};

/// The one launch, by each protocol, which is not in nvFuser's table.
const SINGLE: [&str; 2] = ["fusedAllGather", "fusedAllGather:protocol=eager"];

const CUBE: Sizes = (Shape::new(1024, 1024, 1024), DType::F16);

fn problems(kind: BackendKind, _: usize) -> Vec<Sizes> {
    match kind {
        BackendKind::Host => on_host(),
        BackendKind::Cuda => vec![
            CUBE,
            (Shape::new(8192, 3584, 8192), DType::Bf16),
            (Shape::new(4 * 257, 1160, 1032), DType::F16),
        ],
    }
}

/// The two baselines were timed by another clock there than the kernels; part of their gap is the clock.
fn figures() -> Vec<Figure> {
    let row = |name, ms| (name, ms, Beside::Row(name));
    let seven = [
        row("baselineNcclAllgatherMatmul", 0.052),
        row("baselineCudaAllgatherMatmul", 0.093),
        row("naiveRemoteRead", 0.808),
        row("threadloadGatherScalarCompute", 0.531),
        row("multimemGatherScalarCompute", 0.588),
        row("threadloadGatherThenCutlass", 0.043),
        row("multimemGatherThenCutlass", 0.043),
    ];
    Figure::all(CUBE, "8×H100, nvFuser PR 6002", seven).into()
}
