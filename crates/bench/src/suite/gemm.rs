//! `gemm`: the matrix products of the providers, without communication. Every rank computes all of C on its own device, all
//! ranks at once, and the slowest counts; a job of one rank tells of one GPU alone.

use warpweave_overlap::plan::Provider;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Entry, Sizes, Suite, on_host};
use crate::shape::Shape;

/// The matrix products of the providers, without communication.
pub const SUITE: Suite = Suite {
    name: "gemm",
    reproduces: "the CUTLASS and the hand-written kernels against cuBLASLt, no communication, at symm-mem-recipes' nine shapes and two cubes",
    operations: &[],
    entries: || vec![CUBLASLT, CUTLASS, SM90],
    problems,
    figures: Vec::new,
};

pub(super) const CUBLASLT: Entry = Entry::Product {
    name: "cublasLt",
    summary: "cuBLASLt, its heuristics' candidates timed; the host's own product on the host",
    provider: Provider::CublasLt,
    operation: None,
};

pub(super) const CUTLASS: Entry = Entry::Product {
    name: "cutlass",
    summary: "the CUTLASS SM90 kernels, tile and schedule timed",
    provider: Provider::Cutlass,
    operation: None,
};

const SM90: Entry = Entry::Product {
    name: "sm90",
    summary: "the hand-written SM90 kernel, tile, cluster and order timed",
    provider: Provider::Sm90,
    operation: None,
};

fn problems(kind: BackendKind, _: usize) -> Vec<Sizes> {
    if kind == BackendKind::Host {
        return on_host();
    }
    let sides = [(1792, 4096), (3584, 8192), (6656, 16384)];
    let nine = sides
        .iter()
        .flat_map(|&(n, k)| [4096, 8192, 16384].map(|m| (Shape::new(m, n, k), DType::Bf16)));
    let square = |side| Shape::new(side, side, side);
    let squares = [(square(8192), DType::Bf16), (square(1024), DType::F16)];
    nine.chain(squares).collect()
}
