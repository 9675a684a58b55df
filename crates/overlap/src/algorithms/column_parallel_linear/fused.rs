//! `fusedColumnParallelLinear`: one launch that gathers A and computes the layer.

use crate::algorithms::Algorithm;
use crate::algorithms::all_gather_matmul::fused;
use crate::operation::Operation;

/// The launch of [`fusedAllGather`](fused::ALGORITHM) with the weight as the layer stores it. It adds the
/// bias to the f32 accumulators before they are rounded.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedColumnParallelLinear",
    operation: Operation::ColumnParallelLinear,
    build: |options, rank, world, problem| {
        fused::build(&ALGORITHM, options, (rank, world), problem)
    },
    batch_invariant: |_| true,
    has_activation: |_| true,
    ..fused::ALGORITHM
};
