//! `fusedColumnParallelLinear`: one launch in which every rank fetches the shards of the others and multiplies what it has and what
//! comes.

use crate::algorithms::all_gather_matmul::fused::{PARAMETERS, build_layer, is_redundant};
use crate::algorithms::{Algorithm, Capabilities};
use crate::operation::Operation;

/// The launch of [`fusedAllGather`](crate::algorithms::all_gather_matmul::fused::ALGORITHM), which takes the weight as the layer has
/// it stored, and adds the bias to the sums before they are rounded.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedColumnParallelLinear",
    operation: Operation::ColumnParallelLinear,
    summary: "one SM90 kernel: each block fetches rows of the peers while it multiplies what has arrived",
    needs: Capabilities::SM90,
    parameters: PARAMETERS,
    build: |options, rank, world, problem| {
        build_layer(ALGORITHM.name, options, (rank, world), problem)
    },
    rows: None,
    redundant: Some(is_redundant),
};
