//! The GEMM whose tiles wait for their rows: on the host, and on GPUs, one for each rank.

use std::time::{Duration, Instant};

use warpweave_overlap::algorithms;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::plan::Problem;
use warpweave_symm_mem::{DType, Memory};

use crate::cuda::{gpu, is_named, world};
use crate::fixtures::{Rank, gemm, matrix, on_ranks};
use crate::host;

const NAMES: [&str; 4] = [
    "pushChunksWaitingGemm",
    "pushChunksWaitingGemm:chunks=1",
    "pushChunksWaitingGemm:chunks=3",
    "pushChunksWaitingGemm:chunks=8",
];
/// Different inputs; each call takes the next.
const INPUTS: usize = 5;
/// Calls that are enqueued before the host waits for them.
const ENQUEUED: usize = 100;

/// Enqueues `count` calls with nothing between them that waits on the host, every other one as a replay, and
/// gives what each of them left in C. Some calls start late on some ranks, so that the others wait for their
/// rows.
fn in_a_row<B: ExecuteBackend>(
    rank: &Rank<B>,
    name: &str,
    problem: &Problem,
    count: usize,
) -> Vec<Vec<u8>> {
    let (me, world) = rank.place();
    let (backend, stream) = (rank.backend(), rank.stream());
    let plan = algorithms::find(name)
        .unwrap()
        .plan(me, world, problem)
        .unwrap();
    let mut bound = rank.bind(plan).unwrap();
    let dtype = problem.dtype;
    bound
        .write("b", &matrix(dtype, (1, 0), 0..problem.k, problem.n))
        .unwrap();
    bound.capture().unwrap();

    let shard = problem.shard(me, world);
    let (a_bytes, c_bytes) = (
        shard.len() * problem.k * dtype.size(),
        problem.m * problem.n * dtype.size(),
    );
    let sources = backend.allocate((INPUTS * a_bytes).max(1)).unwrap();
    let results = backend.allocate(count * c_bytes).unwrap();
    let (a, c) = (bound.buffer("a").unwrap().1, bound.buffer("c").unwrap().1);
    let mut bytes = vec![0; count * c_bytes];
    // SAFETY: all ranges lie in the plan's buffers and in the two made here, and everything is on one stream,
    // which is drained before they go.
    unsafe {
        for input in 0..INPUTS {
            let rows = matrix(dtype, (0, input), shard.clone(), problem.k);
            let at = sources.address().add(input * a_bytes);
            backend.upload(stream, at, &rows).unwrap();
        }
        rank.exchange.barrier("uploaded").unwrap();
        for call in 0..count {
            if a_bytes > 0 {
                let from = sources.address().add(call % INPUTS * a_bytes);
                backend.copy(stream, a, from, a_bytes).unwrap();
            }
            backend.fill(stream, c, 0xff, c_bytes).unwrap();
            let late = mixed(call, me) % 5;
            if late < 2 {
                let time = Duration::from_micros(200 * late + 50);
                backend.delay(stream, time).unwrap();
            }
            if call % 2 == 0 {
                bound.run().unwrap();
            } else {
                bound.replay().unwrap();
            }
            let to = results.address().add(call * c_bytes);
            backend.copy(stream, to, c, c_bytes).unwrap();
            // A driver takes so much work and no more: who enqueues further may hold up the other ranks of
            // this process.
            if call % ENQUEUED == ENQUEUED - 1 {
                bound.synchronize().unwrap();
            }
        }
        backend
            .download(stream, results.address(), &mut bytes)
            .unwrap();
    }
    bound.synchronize().unwrap();
    rank.exchange.barrier("end").unwrap();
    bytes.chunks_exact(c_bytes).map(<[u8]>::to_vec).collect()
}

/// A number that seems to be of chance, for a call of a rank.
fn mixed(call: usize, rank: usize) -> u64 {
    let seed = (call * 7919 + rank * 104_729) as u64;
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

/// Calls each of the plans `count` times back to back on every rank, and compares every element of every
/// call.
pub fn computes_every_call<B: ExecuteBackend>(
    names: &[&str],
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    (problem, count): (Problem, usize),
) {
    let wanted: Vec<_> = (0..INPUTS).map(|input| gemm(&problem, input)).collect();
    for name in names {
        let start = Instant::now();
        let got = on_ranks(world, &device, |rank| {
            in_a_row(&rank, name, &problem, count)
        });
        for (rank, calls) in got.iter().enumerate() {
            let wrong = (0..count).find(|&call| calls[call] != wanted[call % INPUTS]);
            assert_eq!(wrong, None, "{name}, rank {rank} of {world}, {problem:?}");
        }
        println!("{name} on {world}, {problem:?}: {:?}", start.elapsed());
    }
}

#[test]
fn calls_back_to_back_multiply_the_rows_of_their_own_call() {
    for world in 1..=4 {
        // Even, ragged, and from two ranks on one shard that is empty.
        for m in [8 * world, 9 * world + 5, world.max(2) - 1] {
            let problem = Problem::new(m, 7, 18, DType::Bf16);
            computes_every_call(&NAMES, world, host, (problem, 20));
        }
    }
}

/// Problems in both halves: shards of whole tiles and chunks, ragged ones that share tiles, shards smaller
/// than a tile and without rows; one tile wide and several.
pub fn ragged_shards(world: usize) -> impl Iterator<Item = Problem> {
    let shapes = [
        (512 * world, 520, 256),
        (300 * world + 5, 264, 136),
        (40 * world + 1, 1032, 72),
        (world - 1, 8, 8),
    ];
    shapes
        .into_iter()
        .flat_map(|(m, n, k)| [DType::Bf16, DType::F16].map(|dtype| Problem::new(m, n, k, dtype)))
}

/// Calls the plans on all GPUs.
pub fn gpus_compute_ragged_shards(names: &[&str]) {
    let world = world();
    for problem in ragged_shards(world) {
        computes_every_call(names, world, gpu, (problem, 10));
    }
}

/// A hundred calls of the plans on all GPUs.
pub fn gpus_compute_a_hundred_calls(names: &[&str]) {
    let problem = Problem::new(1024 * world() + 72, 520, 264, DType::Bf16);
    computes_every_call(names, world(), gpu, (problem, 100));
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `cutlass`"]
fn gpus_multiply_ragged_shards_call_after_call() {
    gpus_compute_ragged_shards(&NAMES);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `cutlass`"]
fn gpus_keep_a_hundred_calls_back_to_back_apart() {
    gpus_compute_a_hundred_calls(&NAMES);
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `cutlass`"]
fn a_gpu_that_pushes_nothing_is_named_and_the_plan_recovers() {
    is_named("pushChunksWaitingGemm");
}
