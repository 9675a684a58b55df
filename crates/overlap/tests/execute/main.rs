//! Plans run by the executor, ranks being threads of this process: on the host backend, and in [`cuda`] on
//! GPUs.

mod chunked_matmul;
mod collectives;
mod cuda;
mod fixtures;
mod fused;
mod gathers;
mod host_time;
mod late;
mod layers;
mod local_reduce;
mod nodes;
mod norms;
mod pool;
mod prepared;
mod reductions;
mod replays;
mod timed;
mod twins;

use std::time::Duration;

use fixtures::{calls, element, gemm, matrix, on_ranks};
use warpweave_gemm::Scaling;
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::{ExecuteBackend, ExecuteError};
use warpweave_overlap::kernels::AnyKernel;
use warpweave_overlap::plan::{
    Collective, MulticastRegion, OpKind, Placement, Plan, PlanBuilder, Problem, Role, StreamId,
    Transport,
};
use warpweave_symm_mem::{Backend, DType, Host};

pub(crate) fn host(_rank: usize) -> Host {
    Host::with_timeout(Duration::from_secs(20))
}

/// Runs five calls on every rank, alternately run and replayed, and compares every element of every call.
fn computes_the_gemm(algorithm: &Configuration, world: usize, problem: Problem) {
    computes_the_gemm_on(host, algorithm, world, problem);
}

fn computes_the_gemm_on<B: ExecuteBackend>(
    device: impl Fn(usize) -> B + Sync,
    algorithm: &Configuration,
    world: usize,
    problem: Problem,
) {
    let got = on_ranks(world, device, move |rank| {
        let (me, world) = rank.place();
        let plan = algorithm.plan(me, world, &problem).unwrap();
        let mut bound = rank.bind(plan).unwrap();
        let outputs = calls(&mut bound, &problem, 5).unwrap();
        rank.exchange.barrier("end").unwrap();
        outputs
    });
    for (rank, outputs) in got.iter().enumerate() {
        for (call, c) in outputs.iter().enumerate() {
            let right = *c == gemm(&problem, call);
            assert!(
                right,
                "{}, rank {rank} of {world}, call {call}",
                algorithm.name()
            );
        }
    }
}

#[test]
fn every_algorithm_computes_the_gemm_call_after_call() {
    for (world, problem) in [
        (1, Problem::new(5, 3, 7, DType::F32)),
        (2, Problem::new(9, 20, 18, DType::F16)),
        (3, Problem::new(10, 17, 33, DType::Bf16)),
        // More ranks than rows: two shards are empty.
        (5, Problem::new(3, 4, 5, DType::F32)),
    ] {
        for algorithm in &algorithms::table() {
            for multicast in [false, true] {
                computes_the_gemm(algorithm, world, problem.with_multicast(multicast));
            }
        }
    }
}

/// All-gather + matmul by one collective over symmetric memory, and by pipelines.
fn pipelines() -> Vec<Configuration> {
    let mut all = algorithms::every().split_off(algorithms::table().len());
    all.retain(|c| c.operation() == Operation::AllGatherMatmul);
    all
}

#[test]
fn every_pipeline_computes_the_gemm_at_every_world() {
    for algorithm in &pipelines() {
        for world in 1..=8 {
            for m in rows_at(world) {
                computes_the_gemm(algorithm, world, Problem::new(m, 7, 18, DType::F32));
            }
        }
    }
}

/// Ragged, from two ranks on one shard that is empty, and up to four ranks even.
pub fn rows_at(world: usize) -> impl Iterator<Item = usize> {
    let even = (world <= 4).then_some(4 * world);
    [9 * world + 5, world.max(2) - 1].into_iter().chain(even)
}

/// Problems of e4m3, with rows that travel with their scales.
fn narrow(algorithm: &Configuration, m: usize) -> Vec<Problem> {
    let of = |(k, scaling)| Problem::new(m, 8, k, DType::E4m3).with_scaling(scaling);
    // Where K is sharded, as many scales by block for the rows of each rank as for those of B, which are
    // multiples of 4.
    let long = match algorithm.operation() {
        Operation::RowParallelLinearNorm => 2048,
        _ => 300,
    };
    let all = [
        (32, Scaling::Row),
        (32, Scaling::Tensor),
        (long, Scaling::Block),
    ]
    .map(of);
    all.into_iter().filter(|p| algorithm.takes(p)).collect()
}

/// What takes them.
fn narrow_algorithms() -> Vec<Configuration> {
    let mut all = algorithms::every();
    all.retain(|configuration| {
        narrow(configuration, 1).len() > 1
            && configuration.operation() == Operation::AllGatherMatmul
    });
    assert!(all.len() > 8, "{all:?}");
    all
}

#[test]
fn rows_of_e4m3_travel_with_their_scales() {
    for algorithm in &narrow_algorithms() {
        for world in [1, 2, 4] {
            for m in [5 * world + 3, world.max(2) - 1] {
                for problem in narrow(algorithm, m) {
                    computes_the_gemm(algorithm, world, problem);
                }
            }
        }
    }
    let baseline = algorithms::find("baselineCudaAllgatherMatmul").unwrap();
    for problem in narrow(&baseline, 11) {
        computes_the_gemm(&baseline, 3, problem.with_multicast(true));
    }
}

#[test]
fn pipelines_are_right_when_ranks_drift_apart() {
    let problem = Problem::new(13, 5, 9, DType::F32);
    for algorithm in &pipelines() {
        let wrong = on_ranks(4, host, |rank| {
            let (me, world) = rank.place();
            let plan = algorithm.plan(me, world, &problem).unwrap();
            let bound = rank.bind(plan).unwrap();
            let (own, all) = (problem.shard(me, world), problem.m * problem.n * 4);
            let b = matrix(DType::F32, (1, 0), 0..problem.k, problem.n);
            bound.write("b", &b).unwrap();
            let wrong = (0..60).find(|&call| {
                // In each eight calls another rank dawdles, so that the others are as far ahead as they can
                // be.
                if call / 8 % world == me {
                    std::thread::sleep(Duration::from_micros(300));
                }
                let a = matrix(DType::F32, (0, call), own.clone(), problem.k);
                bound.write("a", &a).unwrap();
                bound.run().unwrap();
                let mut c = vec![0xff; all];
                bound.read("c", &mut c).unwrap();
                c != gemm(&problem, call)
            });
            bound.synchronize().unwrap();
            rank.exchange.barrier("end").unwrap();
            wrong
        });
        assert_eq!(wrong, [None; 4], "{}", algorithm.name());
    }
}

#[test]
fn rings_keep_calls_back_to_back_apart() {
    let problem = Problem::new(4 * 2 + 3, 5, 9, DType::Bf16);
    chunked_matmul::computes_every_call(&cuda::RINGS, 4, host, (problem, 250));
}

/// A plan whose output is put together from boxes narrower than its rows: own columns, and the next rank's,
/// by a second stream.
fn boxes(rank: usize, world: usize) -> Plan {
    let mut plan = PlanBuilder::new("boxes", rank, world);
    let a = plan.buffer("a", Placement::Symmetric, Role::Input, DType::F32, (4, 6));
    let c = plan.buffer("c", Placement::Local, Role::Output, DType::F32, (3, 5));
    let (ready, done) = (plan.slot("ready"), plan.slot("done"));
    let next = (rank + 1) % world;
    let main = StreamId::MAIN;
    let (others, peers) = (plan.peers(), plan.peers());
    plan.signal(main, ready, others.clone())
        .wait(main, ready, others.clone());
    let side = plan.fork();
    let (from, to) = (plan.on(next, a, 1..4, 2..5), plan.own(c, 0..3, 0..3));
    plan.copy(side, from, to);
    let (from, to) = (plan.own(a, 0..3, 4..6), plan.own(c, 0..3, 3..5));
    plan.copy(main, from, to);
    plan.join(side);
    plan.signal(main, done, peers).wait(main, done, others);
    plan.finish().unwrap()
}

#[test]
fn narrow_boxes_and_second_streams_land_where_they_should() {
    let got = on_ranks(3, host, |rank| {
        let (me, world) = rank.place();
        let bound = rank.bind(boxes(me, world)).unwrap();
        bound
            .write("a", &matrix(DType::F32, (me, 0), 0..4, 6))
            .unwrap();
        bound.run().unwrap();
        let mut c = vec![0; 60];
        bound.read("c", &mut c).unwrap();
        bound.synchronize().unwrap();
        rank.exchange.barrier("end").unwrap();
        c
    });
    for (me, c) in got.iter().enumerate() {
        for row in 0..3 {
            for col in 0..5 {
                let wanted = match col {
                    0..3 => element((me + 1) % 3, 0, row + 1, col + 2),
                    _ => element(me, 0, row, col + 1),
                };
                let at = 4 * (5 * row + col);
                let got = f32::from_ne_bytes(c[at..at + 4].try_into().unwrap());
                assert_eq!(got, wanted, "rank {me}, ({row}, {col})");
            }
        }
    }
}

#[test]
fn a_multicast_copy_reaches_every_rank() {
    let got = on_ranks(3, host, |rank| {
        let (me, world) = rank.place();
        let mut plan = PlanBuilder::new("multicast", me, world);
        let a = plan.buffer("a", Placement::Local, Role::Input, DType::F32, (1, 2));
        let c = plan.buffer("c", Placement::Multicast, Role::Output, DType::F32, (3, 4));
        let (ready, free) = (plan.slot("ready"), plan.slot("free"));
        let (main, peers) = (StreamId::MAIN, plan.peers());
        plan.signal(main, free, peers.clone())
            .wait(main, free, peers.clone());
        let src = plan.whole(a);
        plan.multicast_copy(
            main,
            src,
            MulticastRegion {
                buffer: c,
                rows: me..me + 1,
                cols: 1..3,
            },
        );
        plan.signal(main, ready, peers.clone())
            .wait(main, ready, peers);
        let bound = rank.bind(plan.finish().unwrap()).unwrap();
        bound
            .write("a", &[me as f32 + 1.0, -1.0].map(f32::to_ne_bytes).concat())
            .unwrap();
        bound.run().unwrap();
        let mut c = vec![0; 48];
        bound.read("c", &mut c).unwrap();
        rank.exchange.barrier("end").unwrap();
        c
    });
    let rows = [1.0f32, 2.0, 3.0].map(|r| [0.0, r, -1.0, 0.0]);
    let wanted: Vec<u8> = rows
        .iter()
        .flatten()
        .flat_map(|v| v.to_ne_bytes())
        .collect();
    assert!(got.iter().all(|c| *c == wanted), "{got:?}");
}

#[test]
fn plans_of_different_problems_are_told_apart_on_every_rank() {
    let errors = on_ranks(3, host, |rank| {
        let (me, world) = rank.place();
        let problem = Problem::new(8, 8, if me == 1 { 16 } else { 24 }, DType::F16);
        let algorithm = algorithms::find("threadloadGatherScalarCompute").unwrap();
        rank.bind(algorithm.plan(me, world, &problem).unwrap())
            .unwrap_err()
    });
    for (me, error) in errors.iter().enumerate() {
        let text = error.to_string();
        assert!(matches!(error, ExecuteError::Disagreement { .. }), "{text}");
        assert!(!error.is_unavailable());
        let other = if me == 1 { 0 } else { 1 };
        for part in [
            "3x16",
            "3x24",
            &format!("on rank {me}"),
            &format!("on rank {other}"),
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn a_plan_that_is_wrong_on_one_rank_is_refused_on_all() {
    let spoil: [fn(&mut Plan); 6] = [
        |plan| plan.rank = 0,
        |plan| plan.slots.clear(),
        |plan| plan.buffers[0].rows -= 1,
        |plan| plan.ops[0].stream = StreamId(4),
        |plan| plan.buffers[1].name = plan.buffers[0].name.clone(),
        |plan| {
            for op in &mut plan.ops {
                if let OpKind::Gemm { c, .. } = &mut op.kind {
                    c.cols.end += 1;
                }
            }
        },
    ];
    for (i, spoil) in spoil.into_iter().enumerate() {
        let errors = on_ranks(2, host, move |rank| {
            let (me, world) = rank.place();
            let problem = Problem::new(8, 8, 8, DType::F16);
            let algorithm = algorithms::find("baselineCudaAllgatherMatmul").unwrap();
            let mut plan = algorithm.plan(me, world, &problem).unwrap();
            if me == 1 {
                spoil(&mut plan);
            }
            rank.bind(plan).unwrap_err()
        });
        assert!(
            matches!(errors[1], ExecuteError::InvalidPlan { .. }),
            "{i}: {}",
            errors[1]
        );
        let peer = ExecuteError::to_string(&errors[0]);
        assert!(
            peer.starts_with("rank 1 failed at `plan validation`: plan `baseline"),
            "{i}: {peer}"
        );
    }
}

#[test]
fn a_peer_that_stays_away_is_named_and_the_plan_recovers() {
    let impatient = |_| Host::with_timeout(Duration::from_millis(300));
    for name in [
        "baselineNcclAllgatherMatmul",
        "threadloadGatherThenCutlass",
        "allGatherThenMatmul",
        "directExchangePipeline",
        "ringGet",
        "ringPut",
        "pushChunks",
        "pushChunksWaitingGemm",
        "fusedAllGather",
        "fusedAllGather:protocol=eager",
        "broadcastPipeline",
    ] {
        let problem = Problem::new(6, 4, 5, DType::F32);
        let outcomes = on_ranks(2, impatient, move |rank| {
            let (me, world) = rank.place();
            let algorithm = algorithms::find(name).unwrap();
            let mut bound = rank
                .bind(algorithm.plan(me, world, &problem).unwrap())
                .unwrap();
            let fault = (me == 0).then(|| {
                bound.run().unwrap();
                bound.synchronize().unwrap_err()
            });
            rank.exchange.barrier("after the fault").unwrap();
            bound.recover().unwrap();
            let outputs = calls(&mut bound, &problem, 3).unwrap();
            rank.exchange.barrier("end").unwrap();
            (fault, outputs)
        });
        let timeout = outcomes[0].0.as_ref().unwrap().signal_fault().unwrap();
        assert_eq!((timeout.rank, timeout.peer), (0, 1), "{name}");
        for (_, outputs) in outcomes {
            let wanted: Vec<_> = (0..3).map(|call| gemm(&problem, call)).collect();
            assert_eq!(outputs, wanted, "{name}");
        }
    }
}

#[test]
fn nothing_is_replayed_after_a_fault() {
    on_ranks(2, host, |rank| {
        let (me, world) = rank.place();
        let problem = Problem::new(6, 4, 5, DType::F32);
        let algorithm = algorithms::find("pushChunks").unwrap();
        let plan = algorithm.plan(me, world, &problem).unwrap();
        let mut bound = rank.bind(plan).unwrap();
        bound.capture().unwrap();
        rank.executor.backend().stop_waits();
        let error = bound.replay().unwrap_err();
        assert!(matches!(error, ExecuteError::Stopped { .. }), "{error}");
        bound.synchronize().unwrap();
        rank.exchange.barrier("stopped").unwrap();
        bound.recover().unwrap();
        bound.capture().unwrap();
        bound.replay().unwrap();
        bound.synchronize().unwrap();
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn what_a_bound_plan_cannot_do_is_an_error() {
    on_ranks(1, host, |rank| {
        let problem = Problem::new(2, 2, 2, DType::F32);
        let algorithm = algorithms::find("naiveRemoteRead").unwrap();
        let bound = rank.bind(algorithm.plan(0, 1, &problem).unwrap()).unwrap();
        assert!(matches!(
            bound.replay(),
            Err(ExecuteError::NotCaptured { .. })
        ));
        let error = bound.write("d", &[0]).unwrap_err().to_string();
        assert!(error.contains("`d`"), "{error}");
        let error = bound.read("c", &mut [0; 17]).unwrap_err().to_string();
        assert!(error.contains("17 bytes in a buffer of 16"), "{error}");
    });
}

/// What makes a sound plan one that is refused when it is bound, and what the error says.
type Spoil = fn(&mut Plan);

fn is_refused(name: &'static str, problem: Problem, spoil: [(Spoil, &str); 2]) {
    for (spoil, needle) in spoil {
        let errors = on_ranks(2, host, move |rank| {
            let (me, world) = rank.place();
            let algorithm = algorithms::find(name).unwrap();
            let mut plan = algorithm.plan(me, world, &problem).unwrap();
            spoil(&mut plan);
            rank.bind(plan).unwrap_err().to_string()
        });
        assert!(errors[0].contains(needle), "{}", errors[0]);
    }
}

#[test]
fn rows_come_eagerly_into_two_stagings_in_the_chunks_that_there_are() {
    let spoil: [(Spoil, &str); 2] = [
        (
            |plan| plan.buffers.iter_mut().for_each(|b| b.alternating = false),
            "alternates between two stagings of 8 rows, `staging` is 1 of 8",
        ),
        (
            |plan| {
                let OpKind::Kernel { kernel, .. } = &mut plan.ops[0].kind else {
                    panic!("{:?}", plan.ops[0]);
                };
                if let AnyKernel::AllGatherMatmul(of) = kernel {
                    of.chunk_rows = 3;
                }
            },
            "2 chunks of 3 rows, not 4",
        ),
    ];
    is_refused(
        "fusedAllGather:protocol=eager",
        Problem::new(8, 8, 8, DType::F16),
        spoil,
    );
}

#[test]
fn parts_go_to_everyone_in_two_stagings_and_the_units_that_there_are() {
    let spoil: [(Spoil, &str); 2] = [
        (
            |plan| plan.buffers.iter_mut().for_each(|b| b.alternating = false),
            "alternates between two stagings of 140 rows, `staging` is 1 of 140",
        ),
        (
            |plan| {
                let OpKind::Kernel { kernel, .. } = &mut plan.ops[0].kind else {
                    panic!("{:?}", plan.ops[0]);
                };
                if let AnyKernel::OneShotMatmul(of) = kernel {
                    of.units = 3;
                }
            },
            "4 units, not 3",
        ),
    ];
    is_refused(
        "fusedAllReduce:shots=1",
        Problem::new(70, 72, 8, DType::F16),
        spoil,
    );
}

#[test]
fn shards_of_an_odd_number_of_bytes_are_for_nccl() {
    let problem = Problem::new(2, 8, 9, DType::E4m3).with_scaling(Scaling::Tensor);
    let algorithm = algorithms::find("allGatherThenMatmul").unwrap();
    on_ranks(2, host, |rank| {
        let (me, world) = rank.place();
        let plan = algorithm.plan(me, world, &problem).unwrap();
        let error = rank.bind(plan).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().contains("use NCCL"), "{error}");
    });
}

#[test]
fn an_all_gather_of_parts_of_rows_is_refused() {
    on_ranks(1, host, |rank| {
        let mut plan = PlanBuilder::new("parts", 0, 1);
        let a = plan.buffer("a", Placement::Local, Role::Input, DType::F32, (2, 4));
        let c = plan.buffer("c", Placement::Local, Role::Output, DType::F32, (2, 4));
        let (src, dst) = (plan.own(a, 0..2, 0..4), plan.own(c, 0..2, 0..4));
        plan.collective(
            StreamId::MAIN,
            Collective::AllGather,
            src,
            dst,
            Transport::Nccl,
        );
        let mut plan = plan.finish().unwrap();
        if let OpKind::Collective { src, dst, .. } = &mut plan.ops[0].kind {
            (src.cols, dst.cols) = (0..2, 0..2);
        }
        let error = rank.bind(plan).unwrap_err().to_string();
        assert!(error.contains("whole rows"), "{error}");
    });
}
