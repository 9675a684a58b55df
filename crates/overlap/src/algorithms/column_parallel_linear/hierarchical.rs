//! `hierarchicalColumnParallelLinear`: NCCL between nodes, copy engines inside them.

use crate::algorithms::Algorithm;
use crate::algorithms::all_gather_matmul::hierarchical;
use crate::operation::Operation;

/// [`hierarchical`](hierarchical::ALGORITHM) with the weight as the layer stores it, and the bias.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "hierarchicalColumnParallelLinear",
    operation: Operation::ColumnParallelLinear,
    build: |options, rank, world, problem| {
        let operation = Operation::ColumnParallelLinear;
        hierarchical::over_nodes(operation, ALGORITHM.name, options, (rank, world), problem)
    },
    batch_invariant: |_| true,
    has_activation: |_| true,
    ..hierarchical::ALGORITHM
};
