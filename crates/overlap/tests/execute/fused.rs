//! The all-gather GEMM: on the host, and on GPUs, one for each rank.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::{Problem, Scaling};
use warpweave_symm_mem::DType;

use crate::chunked_matmul::{
    computes_every_call, gpus_compute_a_hundred_calls, gpus_compute_ragged_shards,
};
use crate::cuda::{self, gpu, is_named};
use crate::{computes_the_gemm_on, host};

const NAMES: [&str; 8] = [
    "fusedAllGather",
    "fusedAllGather:chunks=1",
    "fusedAllGather:chunks=3",
    "fusedAllGather:chunks=8",
    "fusedAllGather:pulled=3",
    "fusedAllGather:chunks=2:pulled=4",
    "fusedAllGather:chunks=16:pulled=1",
    "fusedAllGather:protocol=eager",
];

#[test]
fn calls_back_to_back_gather_the_rows_of_their_own_call() {
    for world in 1..=8 {
        // Even, ragged, and from two ranks on one shard that is empty.
        for m in [8 * world, 9 * world + 5, world.max(2) - 1] {
            let problem = Problem::new(m, 7, 18, DType::Bf16);
            computes_every_call(&NAMES, world, host, (problem, 12));
        }
    }
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_gather_ragged_shards_call_after_call() {
    gpus_compute_ragged_shards(&NAMES);
}

/// Whole chunks and tiles, ragged ones, several slices of a row, fewer rows than ranks.
#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_gather_rows_of_e4m3_with_their_scales() {
    let world = cuda::world();
    for name in NAMES {
        let algorithm = algorithms::find(name).unwrap();
        for (m, n, k) in [
            (512 * world, 136, 128),
            (160 * world + 5, 264, 48),
            (600 * world + 1, 8, 4224),
            (world - 1, 16, 16),
        ] {
            for scaling in [Scaling::Row, Scaling::Tensor] {
                let problem = Problem::new(m, n, k, DType::E4m3).with_scaling(scaling);
                computes_the_gemm_on(gpu, &algorithm, world, problem);
            }
        }
    }
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_keep_a_hundred_launches_back_to_back_apart() {
    gpus_compute_a_hundred_calls(&NAMES);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_sends_nothing_is_named_and_the_plan_recovers() {
    is_named("fusedAllGather");
    is_named("fusedAllGather:pulled=3");
    is_named("fusedAllGather:protocol=eager");
}
