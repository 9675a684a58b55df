//! `fusedColumnParallelLinear`: one launch in which every rank pulls the shards of the others and multiplies what it has and what
//! comes.

use crate::algorithms::Algorithm;
use crate::algorithms::all_gather_matmul::fused;
use crate::operation::Operation;

/// The launch of [`fusedAllGather`](fused::ALGORITHM), which takes the weight as the layer has it stored, and adds the bias to the
/// sums before they are rounded.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedColumnParallelLinear",
    operation: Operation::ColumnParallelLinear,
    build: |options, rank, world, problem| {
        fused::build(&ALGORITHM, options, (rank, world), problem)
    },
    ..fused::ALGORITHM
};
