//! On GPUs.

use std::sync::OnceLock;

use half::bf16;
use warpweave_gemm::{GemmReduceBackend, Layout, Scaling};
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::{Backend, Cuda, DType};

use crate::job::{Case, INPUTS, Job, PATIENCE, To, bytes, on_ranks};
use crate::{exact, replays, silence, small};

/// m, n, k over all ranks: ragged shards, groups and tiles; fewer rows than ranks; aligned; more columns than
/// rows; a shard of several groups, of which the last is short.
const SHAPES: [(usize, usize, usize); 5] = [
    (300, 136, 128),
    (3, 8, 64),
    (1024, 512, 256),
    (70, 1032, 192),
    (1500, 264, 64),
];

/// Without scales, then e4m3 with them, of twice the depth: of eight ranks, too, each has rows of 16 bytes.
fn every_case(world: usize, group_rows: usize) -> impl Iterator<Item = Case> {
    let unscaled = of_each_shape(world, group_rows);
    let scaled = of_each_shape(world, group_rows).flat_map(|case| {
        [Scaling::Tensor, Scaling::Row].map(|scaling| Case {
            k: 2 * case.k,
            b: Layout::Transposed,
            scaling,
            ..case
        })
    });
    unscaled.chain(scaled)
}

fn of_each_shape(world: usize, group_rows: usize) -> impl Iterator<Item = Case> {
    SHAPES
        .into_iter()
        .enumerate()
        .flat_map(move |(i, (m, n, k))| {
            To::WITHOUT_MULTICAST.map(|to| Case {
                m: m + i % 2 * world,
                n,
                k,
                scaling: Scaling::None,
                dtype: if i % 2 == 0 { DType::Bf16 } else { DType::F16 },
                b: if (i + usize::from(to == To::Everyone)) % 2 == 0 {
                    Layout::RowMajor
                } else {
                    Layout::Transposed
                },
                group_rows,
                to,
                bias: i / 2 % 2 == 1,
            })
        })
}

/// Worlds to try on this machine, of which each rank has a device of its own or all have the first.
fn gpu_worlds() -> Vec<usize> {
    let gpus = Cuda::device_count().unwrap();
    [1, 2, 4, 8]
        .into_iter()
        .filter(|&world| world <= gpus.max(4))
        .collect()
}

fn gpu(world: usize) -> impl Fn(usize) -> Cuda + Sync {
    // Contexts that outlive a case are not made anew for the next.
    static KEPT: OnceLock<Vec<Cuda>> = OnceLock::new();
    let all = || (0..Cuda::device_count().unwrap()).map(|i| Cuda::new(i).unwrap());
    let apart = KEPT.get_or_init(|| all().collect()).len() >= world;
    move |rank| Cuda::new(if apart { rank } else { 0 }).unwrap()
}

/// One tile for each rank: the place to begin when something is wrong. Of eight ranks the partials of a
/// tile take several stages.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_one_tile_for_each_rank_is_reduced() {
    for (world, to) in [2, 8]
        .into_iter()
        .flat_map(|world| To::WITHOUT_MULTICAST.map(|to| (world, to)))
    {
        let case = Case {
            m: 128 * world,
            n: 128,
            k: 64 * world,
            b: Layout::Transposed,
            ..small(to, 128)
        };
        exact(world, gpu(world), &case, 1);
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_every_rank_gets_its_result() {
    for world in gpu_worlds() {
        for group_rows in [256, 128] {
            for case in every_case(world, group_rows) {
                exact(world, gpu(world), &case, 6);
            }
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_a_hundred_calls_back_to_back_are_kept_apart() {
    for world in gpu_worlds() {
        for to in To::WITHOUT_MULTICAST {
            let shape = Case {
                m: 1028,
                n: 520,
                k: 256,
                ..small(to, 256)
            };
            exact(world, gpu(world), &shape, 100);
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_captured_calls_are_replayed() {
    for to in To::WITHOUT_MULTICAST {
        replays(2, gpu(2), &small(to, 128));
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_a_rank_that_stays_away_is_a_fault_and_the_pad_recovers() {
    for to in To::WITHOUT_MULTICAST {
        silence(2, gpu(2), &small(to, 128));
    }
}

/// Reals, whose reductions depend on their order: the same bits on every call and from every grid.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_every_run_gives_the_same_bits() {
    for to in [To::Everyone, To::Each] {
        for scaling in [Scaling::None, Scaling::Row] {
            same_bits(to, scaling);
        }
    }
}

/// As many units as there may be, so that each has several tiles.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_units_of_several_tiles_are_published_once_all_are_there() {
    let case = Case {
        m: 8200,
        n: 2056,
        k: 128,
        ..small(To::Each, 128)
    };
    exact(2, gpu(2), &case, 6);
}

fn same_bits(to: To, scaling: Scaling) {
    let case = Case {
        m: 520,
        n: 264,
        k: 512,
        b: Layout::Transposed,
        scaling,
        ..small(to, 128)
    };
    // By rank: the ranks need not have the same grids and tiles.
    let results = |blocks: [u32; 2]| -> Vec<Vec<u8>> {
        let (sender, receiver) = std::sync::mpsc::channel();
        on_ranks(2, gpu(2), |backend, exchange| {
            let mut job = Job::new::<bf16>(backend, exchange, &case, PATIENCE);
            job.gemm.max_blocks = Some(blocks[job.exchange.rank()]);
            job.prepared = job.backend.prepare_reduce(&job.handle, &job.gemm).unwrap();
            let real = |i: usize| {
                ((i * 7919 + 13).wrapping_mul(2_654_435_761) >> 9) as f32 % 1000.0 / 777.0
            };
            let values: Vec<f32> = (0..case.m * case.k / 2).map(real).collect();
            let values = encode(case.of_operands(), &values);
            let of_a: Vec<f32> = match scaling {
                Scaling::Row => (0..case.m).map(real).collect(),
                _ => Vec::new(),
            };
            // SAFETY: the ranges are those of A for each input.
            unsafe {
                for input in 0..INPUTS {
                    let at = job.inputs.add(input * job.a_bytes.next_multiple_of(256));
                    job.backend.upload(&job.stream, at, &values).unwrap();
                    let scales = at.add(job.scales_of_a);
                    job.backend
                        .upload(&job.stream, scales, bytes(&of_a))
                        .unwrap();
                }
            }
            job.barrier("uploaded");
            for call in 0..4 {
                job.enqueue(call).unwrap();
                let mut c = vec![0; job.c_bytes];
                // SAFETY: the range is that of C.
                unsafe {
                    job.backend
                        .download(&job.stream, job.c(call), &mut c)
                        .unwrap()
                };
                job.pad.check(&job.stream).unwrap();
                sender.send(c).unwrap();
            }
            job.close();
        });
        drop(sender);
        receiver.into_iter().collect()
    };
    let grids = [[2, 2], [7, 40], [40, 7]];
    let all: Vec<_> = grids.into_iter().flat_map(results).collect();
    assert_eq!(all.len(), 24);
    assert!(all.iter().all(|c| *c == all[0]));
    assert!(all[0].iter().any(|&byte| byte != 0xff));
}
