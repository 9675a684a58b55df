//! Plans on GPUs, one for each rank.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use warpweave_overlap::algorithms;
use warpweave_overlap::execute::ExecuteError;
use warpweave_overlap::plan::Problem;
use warpweave_symm_mem::{Cuda, DType};

use crate::chunked_matmul::computes_every_call;
use crate::collectives::every_collective_is_right;
use crate::fixtures::{calls, gemm, on_ranks};

/// The rank that stays away.
const AWAY: usize = 1;
/// Longer than a library takes to load what it launches for the first time.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pipelines whose ranks know their neighbours alone, so that they can drift furthest apart.
pub const RINGS: [&str; 2] = ["ringGet", "ringPut"];

/// The device of a rank.
pub fn gpu(rank: usize) -> Cuda {
    // Contexts that outlive a case are not made anew for the next.
    static KEPT: OnceLock<Vec<Cuda>> = OnceLock::new();
    let all = || (0..world()).map(|i| Cuda::new(i).unwrap());
    KEPT.get_or_init(|| all().collect());
    Cuda::new(rank).unwrap()
}

/// Ranks, four at most: one for each GPU.
pub fn world() -> usize {
    let gpus = Cuda::device_count().expect("a driver and GPUs");
    assert!(
        gpus >= 2,
        "this test needs two GPUs, and this process sees {gpus}"
    );
    gpus.min(4)
}

/// Calls a plan, leaves one rank out of the next call, recovers, and calls it again on the same contexts.
/// Every result is compared; returns what the ranks that made the call got, in order.
fn one_rank_stays_away(name: &str, bound_of_time: Duration) -> Vec<ExecuteError> {
    // Few rows: every piece of work has a block of its own, so that nobody waits for a rank that waits
    // itself.
    let problem = Problem::new(70, 40, 48, DType::F16);
    let algorithm = algorithms::find(name).unwrap();
    let world = world();
    let wanted: Vec<_> = (0..3).map(|call| gemm(&problem, call)).collect();
    let gpu = |rank| Cuda::new(rank).unwrap().with_timeout(PATIENCE);
    let errors = on_ranks(world, gpu, |rank| {
        let (me, world) = rank.place();
        let plan = algorithm.plan(me, world, &problem).unwrap();
        let mut bound = rank.bind(plan).unwrap();
        let before = calls(&mut bound, &problem, 3).unwrap();
        assert!(before == wanted, "{name}, rank {me}, before the fault");

        rank.exchange.barrier("before the fault").unwrap();
        let fault = (me != AWAY).then(|| {
            let start = Instant::now();
            bound.run().unwrap();
            let fault = bound.synchronize().unwrap_err();
            let took = start.elapsed();
            assert!(took < bound_of_time, "{name}, rank {me}: {took:?}, {fault}");
            fault
        });
        rank.exchange.barrier("after the fault").unwrap();

        bound.recover().unwrap();
        let after = calls(&mut bound, &problem, 3).unwrap();
        assert!(after == wanted, "{name}, rank {me}, after the recovery");
        rank.exchange.barrier("end").unwrap();
        fault
    });
    let errors: Vec<_> = errors.into_iter().flatten().collect();
    assert_eq!(errors.len(), world - 1);
    errors
}

pub fn is_named(name: &str) {
    let errors = one_rank_stays_away(name, 4 * PATIENCE);
    for (rank, error) in (0..).filter(|&rank| rank != AWAY).zip(errors) {
        let timeout = error.signal_fault();
        let timeout = timeout.unwrap_or_else(|| panic!("{name}, rank {rank}: {error}"));
        assert_eq!((timeout.rank, timeout.peer), (rank, AWAY), "{name}");
        assert!(timeout.waited >= PATIENCE, "{name}: {timeout}");
    }
}

#[test]
#[ignore = "needs two GPUs"]
fn a_peer_that_stays_away_from_a_kernel_is_named_and_the_plan_recovers() {
    is_named("threadloadGatherScalarCompute");
}

#[test]
#[ignore = "needs two GPUs"]
fn a_peer_that_stays_away_from_a_push_is_named_and_the_plan_recovers() {
    is_named("baselineCudaAllgatherMatmul");
}

/// NCCL knows no deadline and names nobody: the executor ends its wait.
#[test]
#[ignore = "needs two GPUs and NCCL"]
fn a_peer_that_stays_away_from_nccl_ends_in_time_and_the_plan_recovers() {
    let errors = one_rank_stays_away("baselineNcclAllgatherMatmul", 10 * PATIENCE);
    for (me, error) in (0..).filter(|&rank| rank != AWAY).zip(errors) {
        assert!(
            matches!(error, ExecuteError::CollectiveTimeout { rank, .. } if rank == me),
            "rank {me}: {error}"
        );
    }
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn every_collective_is_right_on_gpus() {
    every_collective_is_right(world(), |rank| Cuda::new(rank).unwrap());
}

/// Ten thousand calls of each ring, alternately run and replayed, with inputs that change and ranks that are
/// late by chance. The shards are ragged, and every element of every call is compared.
#[test]
#[ignore = "needs two GPUs"]
fn soak() {
    let world = world();
    let gpu = |rank| Cuda::new(rank).unwrap();
    let problem = Problem::new(40 * world + 3, 72, 136, DType::Bf16);
    computes_every_call(&RINGS, world, gpu, (problem, 10_000));
}
