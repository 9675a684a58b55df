//! GEMM + reduction over the ranks, which are threads of this process: on the host, and on GPUs, one for
//! each rank where there are enough, else all on device 0 with grids that are resident together.

mod cuda;
mod job;

use std::time::{Duration, Instant};

use half::bf16;
use job::{Case, INPUTS, Job, PATIENCE, To, on_ranks};
use warpweave_gemm::host::Element;
use warpweave_gemm::{GemmReduceBackend, Layout, Scaling};
use warpweave_symm_mem::{Backend, DType, DevicePtr, Error, Host, with_element};

fn exact<B: GemmReduceBackend>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    case: &Case,
    count: usize,
) {
    with_element!(case.dtype, T => exact_in::<B, T>(world, device, case, count))
}

fn exact_in<B: GemmReduceBackend, T: Element>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    case: &Case,
    count: usize,
) {
    let wanted = case.wanted::<T>(world);
    on_ranks(world, device, |backend, exchange| {
        let job = Job::new::<T>(backend, exchange, case, PATIENCE);
        job.calls(case, &wanted, count);
        job.close();
    });
}

fn replays<B: GemmReduceBackend>(world: usize, device: impl Fn(usize) -> B + Sync, case: &Case) {
    let wanted = case.wanted::<bf16>(world);
    on_ranks(world, device, |backend, exchange| {
        let job = Job::new::<bf16>(backend, exchange, case, PATIENCE);
        job.calls(case, &wanted, 2);
        // A graph for each input, which are replayed in another order, without a stop between them.
        let graphs: Vec<_> = (0..INPUTS)
            .map(|input| {
                job.backend
                    .capture(&job.stream, || job.enqueue(input))
                    .unwrap()
            })
            .collect();
        job.barrier("captured");
        for call in 0..10 {
            let input = call * 3 % INPUTS;
            for graph in [&graphs[input], &graphs[(input + 1) % INPUTS]] {
                // SAFETY: the job owns what was captured, and drains the stream.
                unsafe { job.backend.launch_graph(graph, &job.stream).unwrap() };
            }
            let input = (input + 1) % INPUTS;
            let mut got = vec![0; job.c_bytes];
            // SAFETY: the range is that of C.
            unsafe {
                job.backend
                    .download(&job.stream, job.c(input), &mut got)
                    .unwrap()
            };
            job.pad.check(&job.stream).unwrap();
            // C is read before any rank goes on to write it.
            job.compare(case, &wanted, input, &got, &format!("replay {call}"));
        }
        job.barrier("replayed");
        drop(graphs);
        job.close();
    });
}

/// The last rank stays away from a call: the others end in time, with a fault, and the pad recovers.
fn silence<B: GemmReduceBackend>(world: usize, device: impl Fn(usize) -> B + Sync, case: &Case) {
    let wanted = case.wanted::<bf16>(world);
    let patience = Duration::from_millis(500);
    on_ranks(world, device, |backend, exchange| {
        let (rank, away) = (exchange.rank(), exchange.world() - 1);
        let job = Job::new::<bf16>(backend, exchange, case, patience);
        job.calls(case, &wanted, 3);
        if rank != away {
            let start = Instant::now();
            job.enqueue(0).unwrap();
            job.backend.synchronize(&job.stream).unwrap();
            assert!(start.elapsed() < PATIENCE, "ended late");
            let fault = job.pad.check(&job.stream).unwrap_err();
            let Error::SignalFault(fault) = fault else {
                panic!("{fault}");
            };
            assert_eq!((fault.rank, fault.peer), (rank, away), "{fault}");
            // Whoever is told by another rank ends before its own deadline.
            let told = matches!(
                fault.cause,
                warpweave_symm_mem::FaultCause::PeerGaveUp { .. }
            );
            assert!(told || fault.waited >= patience, "{fault}");
        }
        job.barrier("silence");
        job.pad.recover(&job.stream, job.exchange.as_ref()).unwrap();
        job.barrier("recovered");
        job.calls(case, &wanted, 3);
        job.close();
    });
}

fn small(to: To, group_rows: usize) -> Case {
    Case {
        m: 610,
        n: 264,
        k: 128,
        dtype: DType::Bf16,
        scaling: Scaling::None,
        b: Layout::RowMajor,
        group_rows,
        to,
        bias: false,
    }
}

#[test]
fn every_rank_gets_its_result() {
    for world in 1..=8 {
        for group_rows in [16, 100] {
            for to in To::ALL {
                for (m, b, scaling) in [
                    (37, Layout::RowMajor, Scaling::None),
                    (8 * world, Layout::Transposed, Scaling::None),
                    (3, Layout::RowMajor, Scaling::None),
                    (37, Layout::Transposed, Scaling::Row),
                    (8 * world, Layout::Transposed, Scaling::Tensor),
                    (3, Layout::RowMajor, Scaling::Row),
                ] {
                    let (n, k, dtype) = (10, 21, DType::F16);
                    let case = Case {
                        m,
                        n,
                        k,
                        dtype,
                        scaling,
                        b,
                        group_rows,
                        to,
                        // By multimem it would be rounded once more.
                        bias: b == Layout::Transposed && to != To::Multimem,
                    };
                    exact(world, |_| Host::new(), &case, 8);
                }
            }
        }
    }
}

#[test]
fn captured_calls_are_replayed() {
    for to in To::ALL {
        replays(3, |_| Host::new(), &small(to, 50));
    }
}

#[test]
fn a_rank_that_stays_away_is_a_fault_and_the_pad_recovers() {
    for to in To::ALL {
        silence(3, |_| Host::new(), &small(to, 50));
    }
}

/// A wait on another pad has failed: that is no fault of this one, which would not report results that
/// lack partials.
#[test]
fn a_stopped_rank_that_waits_for_nobody_has_its_result() {
    for to in To::ALL {
        let case = small(to, 50);
        let wanted = case.wanted::<bf16>(1);
        on_ranks(
            1,
            |_| Host::new(),
            |backend, exchange| {
                let job = Job::new::<bf16>(backend, exchange, &case, PATIENCE);
                job.backend.stop_waits();
                job.calls(&case, &wanted, 3);
                job.close();
            },
        );
    }
}

#[test]
fn a_bias_that_lies_nowhere_is_refused() {
    on_ranks(
        2,
        |_| Host::new(),
        |backend, exchange| {
            let job = Job::new::<bf16>(backend, exchange, &small(To::Everyone, 128), PATIENCE);
            let mut gemm = job.gemm.clone();
            gemm.problem.bias = true;
            let prepared = job.backend.prepare_reduce(&job.handle, &gemm).unwrap();
            for nowhere in [DevicePtr::NULL, DevicePtr(1)] {
                let mut operands = job.operands;
                operands.bias = nowhere;
                // SAFETY: the launch is refused before anything is enqueued.
                let refused =
                    unsafe { job.backend.matmul_reduce(&job.stream, &prepared, &operands) };
                let error = refused.unwrap_err();
                let warpweave_gemm::Error::Operand { operand, .. } = error else {
                    panic!("{error}");
                };
                assert_eq!(operand, "bias");
            }
            job.close();
        },
    );
}
