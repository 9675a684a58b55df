//! The all-gather GEMM, with ranks as threads: on the host, and on GPUs.
//!
//! Where there are fewer GPUs than ranks, all ranks take the first one, each with a part of its SMs: their
//! launches must be resident together, and a few SMs stay free for what else is enqueued.
//! `CUDA_DEVICE_MAX_CONNECTIONS=32` gives each stream a queue of its own, so that no rank's work queues
//! after another's.

mod cuda;
mod rank;

use std::time::{Duration, Instant};

use rank::{Case, Place, on_ranks};
use warpweave_gemm::{AllGatherGemmBackend, AllGatherMatmul, AllGatherOperands, Error, Scaling};
use warpweave_symm_mem::{DType, DevicePtr, Host};

fn calls<B: AllGatherGemmBackend>(world: usize, place: &Place<B>, case: Case) {
    on_ranks(world, place, case, |rank| {
        rank.calls(Duration::ZERO);
        rank.calls(Duration::from_micros(300));
        rank.close();
    });
}

fn replays<B: AllGatherGemmBackend>(world: usize, place: &Place<B>, case: Case) {
    let case = Case { calls: 1, ..case };
    on_ranks(world, place, case, |rank| {
        rank.calls(Duration::ZERO);
        let enqueue = || rank.gemm(0);
        let graph = rank.backend.capture(&rank.stream, enqueue).unwrap();
        rank.exchange.barrier("captured").unwrap();
        for (call, input) in [2, 0, 1, 2].into_iter().enumerate() {
            rank.feed(input);
            // A launch between the replays goes on with their epochs.
            if call == 2 {
                rank.gemm(0).unwrap();
            } else {
                // SAFETY: the rank owns what was captured, and drains the stream.
                unsafe { rank.backend.launch_graph(&graph, &rank.stream).unwrap() };
            }
            rank.check_calls(|_| input);
        }
        rank.exchange.barrier("replayed").unwrap();
        drop(graph);
        rank.close();
    });
}

/// One rank leaves a call out: the others end in time and name it, and all recover.
fn silence<B: AllGatherGemmBackend>(world: usize, place: &Place<B>, case: Case) {
    const AWAY: usize = 1;
    let patience = Duration::from_millis(500);
    on_ranks(world, place, case, |mut rank| {
        rank.pad.set_timeout(patience);
        rank.operands.pad = rank.pad.view();
        rank.exchange.barrier("patience").unwrap();
        rank.calls(Duration::ZERO);
        rank.exchange.barrier("before the fault").unwrap();
        if rank.me() != AWAY {
            let start = Instant::now();
            rank.gemm(0).unwrap();
            rank.backend.synchronize(&rank.stream).unwrap();
            assert!(start.elapsed() < Duration::from_secs(20), "ended late");
            let fault = rank.pad.check(&rank.stream).unwrap_err();
            let warpweave_symm_mem::Error::SignalFault(fault) = fault else {
                panic!("{fault}");
            };
            assert_eq!((fault.rank, fault.peer), (rank.me(), AWAY), "{fault}");
            // Whoever is told by another rank ends before its own deadline.
            let told = matches!(
                fault.cause,
                warpweave_symm_mem::FaultCause::PeerGaveUp { .. }
            );
            assert!(told || fault.waited >= patience, "{fault}");
        }
        rank.exchange.barrier("after the fault").unwrap();
        rank.pad
            .recover(&rank.stream, rank.exchange.as_ref())
            .unwrap();
        rank.calls(Duration::ZERO);
        rank.close();
    });
}

fn host(_: usize) -> (Host, Option<u32>) {
    (Host::new(), None)
}

#[test]
fn every_world_multiplies_the_rows_of_its_own_call() {
    for world in 1..=8 {
        for (m, n, k, chunk_rows) in [
            (19 * world + 5, 7, 18, 4),
            (8 * world, 9, 16, 8),
            (3, 5, 7, 1),
        ] {
            let case = Case::new(m, n, k, DType::Bf16, chunk_rows);
            calls(world, &host, case);
            calls(world, &host, case.transposed().biased());
            calls(world, &host, case.pushing(1));
            calls(world, &host, case.pushing(100));
            calls(world, &host, case.eager());
            let scaled = case.scaled(Scaling::Row);
            calls(world, &host, scaled);
            calls(world, &host, scaled.biased().pushing(1));
            calls(world, &host, scaled.biased().eager());
            calls(world, &host, case.scaled(Scaling::Tensor));
            calls(world, &host, case.scaled(Scaling::Tensor).eager());
        }
    }
}

#[test]
fn a_captured_call_gathers_at_each_launch() {
    let case = Case::new(70, 9, 21, DType::F16, 10);
    replays(3, &host, case);
    replays(3, &host, case.pushing(2));
    replays(3, &host, case.eager());
}

#[test]
fn a_rank_that_stays_away_is_named_and_the_pad_recovers() {
    let case = Case::new(70, 9, 21, DType::F16, 10);
    silence(3, &host, case);
    silence(3, &host, case.pushing(2));
    silence(3, &host, case.eager());
}

#[test]
fn contradictions_are_refused_before_the_launch() {
    on_ranks(2, &host, Case::new(8, 8, 8, DType::F16, 2), |rank| {
        let mut gemm = rank.gemm.clone();
        gemm.shards[1].end = 7;
        let prepare = |gemm: &AllGatherMatmul| rank.backend.prepare_all_gather(&rank.handle, gemm);
        let error = prepare(&gemm).unwrap_err();
        assert!(matches!(error, Error::InvalidProblem { .. }), "{error}");
        // SAFETY: each launch is refused before anything is enqueued.
        let launch = |prepared, operands: &AllGatherOperands| unsafe {
            rank.backend
                .all_gather_matmul(&rank.stream, prepared, operands)
        };
        let mut operands = rank.operands;
        operands.a = [rank.operands.a[0], DevicePtr(1)].into_iter().collect();
        let error = launch(&rank.prepared, &operands).unwrap_err();
        assert!(matches!(error, Error::Operand { .. }), "{error}");
        operands = rank.operands;
        operands.pad.rank = 1 - operands.pad.rank;
        let error = launch(&rank.prepared, &operands).unwrap_err();
        assert!(matches!(error, Error::InvalidProblem { .. }), "{error}");
        gemm = rank.gemm.clone();
        gemm.problem.bias = true;
        let biased = prepare(&gemm).unwrap();
        for nowhere in [DevicePtr::NULL, DevicePtr(1)] {
            operands = rank.operands;
            operands.bias = nowhere;
            let error = launch(&biased, &operands).unwrap_err();
            let named = matches!(error, Error::Operand { operand, .. } if operand == "bias");
            assert!(named, "{error}");
        }
        rank.close();
    });
}
