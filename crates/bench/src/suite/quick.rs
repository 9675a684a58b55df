//! `quick`: every algorithm of every operation as it usually is, at small sizes: whether all of it runs and is right.

use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_symm_mem::{BackendKind, DType};

use super::{Entry, Sizes, Suite, gemm};
use crate::shape::Shape;

pub(super) const SUITE: Suite = Suite {
    name: "quick",
    reproduces: "every algorithm of every operation once, small: for checks, not for figures",
    operations: &Operation::ALL,
    entries,
    problems,
    figures: Vec::new,
};

fn entries() -> Vec<Entry> {
    let usual = algorithms::algorithms().map(Configuration::with_defaults);
    let all = usual.map(Entry::Configured);
    all.chain([gemm::CUBLASLT, gemm::CUTLASS]).collect()
}

fn problems(kind: BackendKind, _: usize) -> Vec<Sizes> {
    let small = (Shape::new(64, 48, 40), DType::F16);
    match kind {
        BackendKind::Host => vec![small],
        // Sizes whose rows TMA can take.
        BackendKind::Cuda => vec![(Shape::new(1024, 512, 512), DType::Bf16), small],
    }
}
