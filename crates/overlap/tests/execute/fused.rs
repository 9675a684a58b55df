//! The launch that gathers and multiplies: on the host, and on GPUs, one for each rank.

use warpweave_overlap::plan::Problem;
use warpweave_symm_mem::{Cuda, DType};

use crate::cuda::{is_named, world};
use crate::host;
use crate::waiting::computes_every_call;

const NAMES: [&str; 4] = [
    "fusedAllGather",
    "fusedAllGather:chunks=1",
    "fusedAllGather:chunks=3",
    "fusedAllGather:chunks=8",
];

#[test]
fn calls_in_a_row_gather_the_rows_of_their_own_call() {
    for world in 1..=8 {
        // Even, ragged, and from two ranks on one shard that is empty.
        for m in [8 * world, 9 * world + 5, world.max(2) - 1] {
            let problem = Problem::new(m, 7, 18, DType::Bf16);
            computes_every_call(&NAMES, world, host, (problem, 12));
        }
    }
}

fn gpu(rank: usize) -> Cuda {
    Cuda::new(rank).unwrap()
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_gather_ragged_shards_call_after_call() {
    let world = world();
    // Whole tiles and chunks, ragged ones, shards smaller than a tile, shards without rows.
    for (m, n, k) in [
        (512 * world, 520, 256),
        (300 * world + 5, 264, 136),
        (40 * world + 1, 1032, 72),
        (world - 1, 8, 8),
    ] {
        for dtype in [DType::Bf16, DType::F16] {
            computes_every_call(&NAMES, world, gpu, (Problem::new(m, n, k, dtype), 10));
        }
    }
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_keep_a_hundred_launches_in_a_row_apart() {
    let problem = Problem::new(1024 * world() + 72, 520, 264, DType::Bf16);
    computes_every_call(&NAMES, world(), gpu, (problem, 100));
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_sends_nothing_is_named_and_the_plan_recovers() {
    is_named("fusedAllGather");
}
