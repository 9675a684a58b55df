//! On GPUs.

use std::sync::OnceLock;

use warpweave_gemm::sm90::{CONFIGS, Tiling};
use warpweave_gemm::{AllGatherMatmul, Scaling};
use warpweave_symm_mem::{Cuda, DType};

use crate::rank::Case;
use crate::{calls, replays, silence};

/// SMs of a shared GPU that no GEMM takes.
const LEFT_FREE: u32 = 8;

/// m, n, k and rows of a chunk: aligned, ragged, chunks that split tiles, shards without rows.
const SHAPES: [(usize, usize, usize, usize); 6] = [
    (1024, 256, 128, 128),
    (1100, 264, 72, 256),
    (1031, 520, 136, 50),
    (333, 136, 264, 1000),
    (70, 8, 21, 3),
    (3, 16, 8, 1),
];

/// A GPU for each rank, or a part of the first for each.
fn gpus(world: usize) -> impl Fn(usize) -> (Cuda, Option<u32>) + Sync {
    // Contexts that outlive a case are not made anew for the next.
    static KEPT: OnceLock<Vec<Cuda>> = OnceLock::new();
    let all = || (0..Cuda::device_count().unwrap()).map(|i| Cuda::new(i).unwrap());
    let alone = KEPT.get_or_init(|| all().collect()).len() >= world;
    move |rank| match alone {
        true => (Cuda::new(rank).unwrap(), None),
        false => {
            let cuda = Cuda::new(0).unwrap();
            let all = warpweave_symm_mem::Backend::device(&cuda).sms;
            (cuda, Some((all - LEFT_FREE) / world as u32))
        }
    }
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_every_element_is_right_call_after_call() {
    for world in [1, 2, 4] {
        for (m, n, k, chunk_rows) in SHAPES {
            let case = |dtype| Case::new(m, n, k, dtype, chunk_rows);
            calls(world, &gpus(world), case(DType::F16));
            calls(world, &gpus(world), case(DType::Bf16).transposed().biased());
            calls(world, &gpus(world), case(DType::Bf16).pushing(1));
            calls(world, &gpus(world), case(DType::F16).pushing(100));
            calls(world, &gpus(world), case(DType::F16).eager());
            calls(
                world,
                &gpus(world),
                case(DType::Bf16).transposed().biased().eager(),
            );
            let scaled = |dtype, scaling| case(dtype).scaled(scaling);
            let by_row = scaled(DType::Bf16, Scaling::Row);
            calls(world, &gpus(world), by_row);
            calls(world, &gpus(world), by_row.biased().pushing(1));
            calls(world, &gpus(world), by_row.biased().eager());
            let by_tensor = scaled(DType::F16, Scaling::Tensor);
            calls(world, &gpus(world), by_tensor.biased());
            calls(world, &gpus(world), by_tensor.eager());
        }
    }
}

/// Chunks of so many rows come in slices of 512 and 1024 bytes of a row, the last of which is shorter, and in
/// pieces of several rows, of which the last of a shard has fewer.
fn in_slices(world: usize) {
    for (m, k, chunk_rows) in [(7203, 552, 5000), (5632, 512, 1408)] {
        let case = |dtype| Case {
            calls: 3,
            ..Case::new(m, 136, k, dtype, chunk_rows)
        };
        calls(world, &gpus(world), case(DType::Bf16).transposed());
        calls(world, &gpus(world), case(DType::F16).pushing(1));
        calls(world, &gpus(world), case(DType::Bf16).scaled(Scaling::Row));
    }
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_rows_that_come_in_slices_are_right() {
    in_slices(2);
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_rows_of_three_peers_that_come_in_slices_are_right() {
    in_slices(4);
}

/// As plans have them: a tile has more chunks than a warp has lanes.
#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_tiles_of_many_chunks_that_go_eagerly_are_right() {
    for world in [2, 4] {
        for shard in [128, 300] {
            let chunk_rows = AllGatherMatmul::eager_chunk_rows(shard);
            let case = Case::new(shard * world, 264, 136, DType::Bf16, chunk_rows);
            calls(world, &gpus(world), case.eager());
        }
    }
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_every_tile_and_cluster_is_right() {
    for config in 0..CONFIGS.len() {
        for swizzle in [1, 3] {
            let case = Case {
                tiling: Some(Tiling { config, swizzle }),
                ..Case::new(1100, 776, 136, DType::Bf16, 256)
            };
            calls(2, &gpus(2), case);
            calls(2, &gpus(2), case.transposed().biased());
            calls(2, &gpus(2), case.eager());
            calls(2, &gpus(2), case.scaled(Scaling::Row));
            calls(2, &gpus(2), case.scaled(Scaling::Row).biased().eager());
        }
    }
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_a_hundred_calls_back_to_back_are_kept_apart() {
    for world in [2, 4] {
        let case = Case {
            calls: 100,
            ..Case::new(1024 + 72, 520, 264, DType::Bf16, 100)
        };
        calls(world, &gpus(world), case);
        calls(world, &gpus(world), case.pushing(2));
        calls(world, &gpus(world), case.eager());
        calls(world, &gpus(world), case.scaled(Scaling::Row));
        calls(world, &gpus(world), case.scaled(Scaling::Row).eager());
    }
}

fn captured(world: usize) {
    let case = Case::new(700, 136, 72, DType::F16, 90);
    replays(world, &gpus(world), case);
    replays(world, &gpus(world), case.pushing(1));
    replays(world, &gpus(world), case.eager());
    replays(world, &gpus(world), case.scaled(Scaling::Row));
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_a_captured_call_gathers_at_each_launch() {
    captured(2);
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_a_captured_call_gathers_from_three_peers_at_each_launch() {
    captured(4);
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_a_gpu_a_rank_that_stays_away_is_named_and_the_pad_recovers() {
    for world in [2, 4] {
        let case = Case::new(700, 136, 72, DType::F16, 90);
        silence(world, &gpus(world), case);
        silence(world, &gpus(world), case.pushing(1));
        silence(world, &gpus(world), case.eager());
        silence(world, &gpus(world), case.scaled(Scaling::Row));
    }
}
