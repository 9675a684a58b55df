//! Schedules on the host: every algorithm, with the caller's own operands and another M on each call, on one
//! arena.

use std::sync::Arc;
use std::time::Duration;

use crate::fixtures::{Rank, on_ranks};
use crate::gathers::stored;
use crate::host;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::{
    DeviceSlice, ExecuteBackend, ExecuteError, Executor, NormOperands, Operands, Prepared,
};
use warpweave_overlap::plan::{Problem, Role, Scaling};
use warpweave_overlap::schedule::Schedule;
use warpweave_symm_mem::{
    Backend, Cuda, DType, Exchange, Host, Memory, SubExchange, SymmetricBuffer,
};

/// The memory of the operands of a call, by name, each of exactly the bytes that it needs.
pub struct Call<B: Backend> {
    memory: Vec<(&'static str, B::Memory)>,
    /// By output.
    wanted: Vec<(&'static str, Vec<u8>)>,
    pub m: usize,
}

impl<B: ExecuteBackend> Call<B> {
    /// Inputs of call `number`, and a result of another value.
    pub fn new(rank: &Rank<B>, schedule: &Schedule, m: usize, number: usize) -> Self {
        let (backend, stream) = (rank.backend(), rank.stream());
        let problem = schedule.problem_of(m).unwrap();
        let operands = schedule.operands(rank.place().0, m).unwrap();
        let mut wanted = Vec::new();
        let memory = operands.iter().map(|operand| {
            let bytes = stored(operand, &operands, &problem, number);
            let image = match operand.role() {
                Role::Output => {
                    let poison = vec![0xff; bytes.len()];
                    wanted.push((operand.buffer, bytes));
                    poison
                }
                _ => bytes,
            };
            let memory = backend.allocate(image.len().max(1)).unwrap();
            // SAFETY: the memory is as large as the image and nobody else knows it.
            unsafe { backend.upload(stream, memory.address(), &image).unwrap() };
            (operand.buffer, memory)
        });
        let memory = memory.collect();
        Call { memory, wanted, m }
    }

    pub fn named(&self, name: &str) -> Option<DeviceSlice<'_>> {
        let found = self.memory.iter().find(|(known, _)| *known == name);
        found.map(|(_, memory)| DeviceSlice::of(memory))
    }

    pub fn operands(&self) -> Operands<'_> {
        let of = |name| self.named(name).unwrap();
        let operands = Operands::new(of("a"), of("b"), of("c"));
        let operands = match self.named("bias") {
            Some(bias) => operands.with_bias(bias),
            None => operands,
        };
        let operands = match (self.named("scales_a"), self.named("scales_b")) {
            (Some(of_a), Some(of_b)) => operands.with_scales(of_a, of_b),
            _ => operands,
        };
        let operands = match self.named("residual") {
            Some(residual) => operands.with_norm(NormOperands {
                residual,
                weight: of("norm_weight"),
                residual_out: of("residual_out"),
            }),
            None => operands,
        };
        match (self.named("x"), self.named("y")) {
            (Some(x), Some(y)) => operands.with_gathered(x, y),
            _ => operands,
        }
    }

    /// C as it must be.
    pub fn wanted(&self) -> &[u8] {
        let c = self.wanted.iter().find(|(name, _)| *name == "c");
        &c.expect("every operation has C").1
    }

    /// Whether every output is.
    pub fn is_right(&self, rank: &Rank<B>) -> bool {
        self.wanted.iter().all(|(name, wanted)| {
            let at = self.named(name).unwrap().address(0);
            let mut got = vec![0; wanted.len()];
            // SAFETY: the output has so many bytes.
            unsafe {
                rank.backend()
                    .download(rank.stream(), at, &mut got)
                    .unwrap()
            };
            got == *wanted
        })
    }
}

/// Prepares them all, largest M `most`; those that this machine cannot do are left out.
fn prepare(rank: &Rank<Host>, some: &[Configuration], problem: &Problem) -> Vec<Prepared<Host>> {
    let world = rank.place().1;
    let prepared = some.iter().map(|configuration| {
        let schedule = Schedule::new(configuration.clone(), world, *problem).unwrap();
        rank.executor.prepare(&schedule).unwrap()
    });
    prepared.collect()
}

#[test]
fn every_schedule_computes_at_any_m_with_the_callers_operands() {
    let problem = Problem::new(36, 10, 18, DType::F32);
    for world in 1..=4 {
        compute_at_any_m(world, problem.with_multicast(true));
    }
}

#[test]
fn schedules_of_e4m3_compute_at_any_m_with_the_callers_scales() {
    let problem = Problem::new(36, 10, 18, DType::E4m3);
    for (world, scaling) in [(2, Scaling::Tensor), (3, Scaling::Row)] {
        compute_at_any_m(world, problem.with_scaling(scaling));
    }
}

/// Every schedule that takes the operands of `problem`, up to its M.
fn compute_at_any_m(world: usize, problem: Problem) {
    let mut all: Vec<Configuration> = algorithms::every();
    all.retain(|configuration| configuration.takes(&problem));
    for some in all.chunks(12) {
        on_ranks(world, host, |rank| {
            let prepared = prepare(&rank, some, &problem);
            // Calls of all schedules follow each other, each with another M.
            let ms = [36, 1, 9, 35, 2, 23, 5, 36];
            let mut number = 0;
            let mut calls = Vec::new();
            for (round, _) in ms.iter().enumerate() {
                for (index, one) in prepared.iter().enumerate() {
                    let m = ms[(round + index) % ms.len()];
                    if !divides(one.schedule(), m, world) {
                        continue;
                    }
                    number += 1;
                    let call = Call::new(&rank, one.schedule(), m, number);
                    one.run(rank.stream(), &call.operands(), m).unwrap();
                    calls.push((one, call));
                }
            }
            for (one, call) in &calls {
                rank.executor.synchronize(rank.stream()).unwrap();
                let name = one.schedule().configuration().name();
                assert!(
                    call.is_right(&rank),
                    "{name} at M = {} of {world} ranks",
                    call.m
                );
            }
            rank.exchange.barrier("end").unwrap();
        });
    }
}

/// Whether there is a collective for it: over symmetric memory a reduce-scatter has shards of one size.
fn divides(schedule: &Schedule, m: usize, world: usize) -> bool {
    let name = schedule.configuration().name();
    name != "matmulThenReduceScatter:transport=symmetric" || m.is_multiple_of(world)
}

/// A schedule of this name for problems up to `problem`.
pub fn schedule(name: &str, world: usize, problem: Problem) -> Schedule {
    let configuration = algorithms::find(name).unwrap();
    Schedule::new(configuration, world, problem).unwrap()
}

#[test]
fn graphs_of_the_caller_replay_calls_of_several_schedules_and_ms() {
    on_ranks(3, host, |rank| {
        let problem = Problem::new(24, 6, 9, DType::F32);
        let names = [
            "ringPut",
            "fusedAllGather:protocol=eager",
            "fusedAllReduce:shots=1",
            "fusedAllReduce:reduce=multimem",
        ];
        let prepared = names.map(|name| {
            let schedule = schedule(name, rank.place().1, problem);
            rank.executor.prepare(&schedule).unwrap()
        });
        let (backend, stream) = (rank.backend(), rank.stream());
        let calls: Vec<_> = [
            (0, 7),
            (1, 24),
            (3, 24),
            (2, 1),
            (0, 24),
            (3, 2),
            (1, 5),
            (2, 13),
        ]
        .map(|(which, m)| {
            (
                &prepared[which],
                Call::new(&rank, prepared[which].schedule(), m, m),
            )
        })
        .into();
        // Two graphs of three calls each: an odd number, so that consecutive graphs begin with different
        // stagings.
        let graphs = [0, 3].map(|first| {
            let capture = || {
                let calls = &mut calls[first..first + 3].iter();
                calls.try_for_each(|(one, call)| one.run(stream, &call.operands(), call.m))
            };
            backend.capture(stream, capture).unwrap()
        });
        for round in 0..200 {
            // SAFETY: operands and schedules live until the stream is synchronised below.
            unsafe {
                backend
                    .launch_graph(&graphs[usize::from(round % 3 == 0)], stream)
                    .unwrap()
            };
            // Calls that are not captured come between.
            let (prepared, call) = &calls[round % calls.len()];
            prepared.run(stream, &call.operands(), call.m).unwrap();
        }
        rank.executor.synchronize(stream).unwrap();
        for (prepared, call) in &calls {
            assert!(call.is_right(&rank), "{prepared:?} at M = {}", call.m);
        }
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn operands_that_a_schedule_cannot_take_are_errors_that_name_them() {
    on_ranks(1, host, |rank| {
        let problem = Problem::new(8, 4, 6, DType::F32);
        let prepared = rank
            .executor
            .prepare(&schedule("ringPut", 1, problem))
            .unwrap();
        let call = Call::new(&rank, prepared.schedule(), 8, 0);
        let run = |operands: &Operands<'_>, m| {
            prepared
                .run(rank.stream(), operands, m)
                .unwrap_err()
                .to_string()
        };
        let good = call.operands();
        let short = Operands {
            a: good.a.slice(0, 8 * 6 * 4 - 1).unwrap(),
            ..good
        };
        assert_eq!(
            run(&short, 8),
            "`ringPut`, operand `a`: 191 bytes, and 192 are needed"
        );
        let aliased = Operands { c: good.a, ..good };
        assert_eq!(run(&aliased, 8), "`ringPut`, operand `c`: it overlaps `a`");
        assert!(run(&good, 9).contains("takes M from 1 to 8, not 9"));
        assert!(run(&good, 0).contains("takes M from 1 to 8, not 0"));
        assert!(good.a.slice(190, 3).is_none() && good.a.slice(usize::MAX, 2).is_none());

        let schedule = schedule("columnParallelLinear", 1, problem);
        let layer = rank.executor.prepare(&schedule).unwrap();
        let error = layer.run(rank.stream(), &good, 8).unwrap_err().to_string();
        assert!(error.contains("operand `bias`: it is missing"), "{error}");
        prepared.run(rank.stream(), &good, 8).unwrap();
        rank.executor.synchronize(rank.stream()).unwrap();
    });
}

/// The peers' signals of such a call are not waited for.
#[test]
fn a_call_that_fails_while_it_is_enqueued_stops_the_next() {
    on_ranks(2, host, |rank| {
        let problem = Problem::new(8, 4, 6, DType::F32);
        let schedule = schedule("columnParallelLinear:gather=push", 2, problem);
        let prepared = rank.executor.prepare(&schedule).unwrap();
        let run = |call: &Call<Host>, c| {
            let operands = Operands {
                c,
                ..call.operands()
            };
            prepared.run(rank.stream(), &operands, 8)
        };
        let [first, second] = [0, 1].map(|number| Call::new(&rank, &schedule, 8, number));
        let bytes = first.wanted().len();
        let memory = rank.backend().allocate(bytes + 1).unwrap();
        let misaligned = DeviceSlice::of(&memory).slice(1, bytes).unwrap();
        run(&first, misaligned).unwrap_err();
        if rank.place().0 == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        let refused = run(&second, second.operands().c).unwrap_err();
        assert!(matches!(refused, ExecuteError::Stopped { .. }), "{refused}");
        rank.exchange.barrier("stopped").unwrap();
        rank.executor.recover(rank.stream()).unwrap();
        run(&second, second.operands().c).unwrap();
        rank.executor.synchronize(rank.stream()).unwrap();
        assert!(second.is_right(&rank));
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn a_call_of_which_nothing_was_enqueued_stops_nothing() {
    on_ranks(1, host, |rank| {
        let schedule = schedule("ringPut", 1, Problem::new(8, 4, 6, DType::F32));
        let prepared = rank.executor.prepare(&schedule).unwrap();
        let call = Call::new(&rank, &schedule, 8, 0);
        let bytes = call.wanted().len();
        let memory = rank.backend().allocate(bytes + 1).unwrap();
        let misaligned = Operands {
            c: DeviceSlice::of(&memory).slice(1, bytes).unwrap(),
            ..call.operands()
        };
        prepared.run(rank.stream(), &misaligned, 8).unwrap_err();
        prepared.run(rank.stream(), &call.operands(), 8).unwrap();
        rank.executor.synchronize(rank.stream()).unwrap();
        assert!(call.is_right(&rank));
    });
}

#[test]
fn faults_of_a_process_group_are_seen_after_a_larger_one_took_its_place() {
    let device = |_| Host::with_timeout(Duration::from_millis(300));
    on_ranks(2, device, |rank| {
        let of = |m| {
            let problem = Problem::new(m, 128, 8, DType::F32);
            schedule("matmulThenAllReduce:transport=symmetric", 2, problem)
        };
        let small = rank.executor.prepare(&of(64)).unwrap();
        let large = rank.executor.prepare(&of(512)).unwrap();
        let call = Call::new(&rank, small.schedule(), 64, 0);
        let run = |one: &Prepared<Host>, call: &Call<Host>| {
            one.run(rank.stream(), &call.operands(), call.m).unwrap();
            rank.executor.synchronize(rank.stream())
        };
        if rank.place().0 == 0 {
            let error = run(&small, &call).unwrap_err();
            assert_eq!(error.signal_fault().map(|fault| fault.peer), Some(1));
        }
        rank.exchange.barrier("failed").unwrap();
        rank.executor.recover(rank.stream()).unwrap();
        for one in [&small, &large] {
            let call = Call::new(&rank, one.schedule(), one.schedule().problem().m, 1);
            run(one, &call).unwrap();
            assert!(call.is_right(&rank), "{one:?}");
        }
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn a_schedule_of_another_number_of_ranks_is_an_error() {
    on_ranks(2, host, |rank| {
        for world in [1, 3] {
            let other = schedule("ringPut", world, Problem::new(8, 4, 6, DType::F32));
            let error = rank.executor.prepare(&other).unwrap_err();
            assert!(matches!(error, ExecuteError::InvalidPlan { .. }), "{error}");
        }
    });
}

/// Where fewer rows have more chunks or units than more rows have, or staging of another kind.
#[test]
fn every_m_is_foreseen() {
    for (world, name, (m, n), most) in [
        (3, "fusedAllGather:protocol=eager", (384, 1), 512),
        (2, "fusedAllReduce:shots=1", (768, 5120), 1000),
        (3, "fusedAllGather:pulled=3", (768, 1), 900),
    ] {
        on_ranks(world, host, |rank| {
            let schedule = schedule(name, world, Problem::new(most, n, 2, DType::F32));
            let prepared = rank.executor.prepare(&schedule).unwrap();
            let warmed = prepared.warm(rank.stream(), [m]);
            warmed.unwrap_or_else(|error| panic!("{name}: {error}"));
            rank.exchange.barrier("end").unwrap();
        });
    }
}

/// Two groups of two, and memory of all four: each rank's own part serves it, peers' parts none of them.
#[test]
fn symmetric_memory_of_other_ranks_is_not_taken_for_that_of_the_group() {
    on_ranks(4, host, |all| {
        let half = all.exchange.rank() / 2;
        let pair = SubExchange::new(all.exchange.clone(), [2 * half, 2 * half + 1]).unwrap();
        let pair: Arc<dyn Exchange> = Arc::new(pair);
        let rank = Rank {
            executor: Executor::new(all.backend(), &pair).unwrap(),
            exchange: pair,
            stream: all.stream().clone(),
        };
        let local = schedule("naiveRemoteRead", 2, Problem::new(10, 4, 6, DType::F32));
        let in_place = local.clone().symmetric("a").unwrap();
        let [local, in_place] = [local, in_place].map(|one| rank.executor.prepare(&one).unwrap());
        let call = Call::new(&rank, local.schedule(), 10, half);
        let a = call.operands().a;
        let buffer = SymmetricBuffer::new(rank.backend(), &all.exchange, "a", a.bytes()).unwrap();
        // SAFETY: both have so many bytes, and no call is under way.
        unsafe {
            let (backend, stream) = (rank.backend(), rank.stream());
            backend
                .copy(stream, buffer.local(), a.own(), a.bytes())
                .unwrap();
        }
        rank.backend().synchronize(rank.stream()).unwrap();
        all.exchange.barrier("copied").unwrap();
        let operands = Operands {
            a: DeviceSlice::symmetric(&buffer),
            ..call.operands()
        };
        local.run(rank.stream(), &operands, 10).unwrap();
        rank.executor.synchronize(rank.stream()).unwrap();
        assert!(call.is_right(&rank));
        let error = in_place.run(rank.stream(), &operands, 10).unwrap_err();
        assert!(error.to_string().contains("Prepared::node()"), "{error}");
        all.exchange.barrier("end").unwrap();
    });
}

#[test]
fn an_operand_in_symmetric_memory_is_used_where_it_lies() {
    on_ranks(2, host, |rank| {
        let problem = Problem::new(10, 4, 6, DType::F32);
        let local = schedule("naiveRemoteRead", 2, problem);
        let in_place = local.clone().symmetric("a").unwrap();
        let bytes = |schedule: &Schedule| {
            let before = rank.executor.arena_bytes().0;
            let prepared = rank.executor.prepare(schedule).unwrap();
            (prepared, rank.executor.arena_bytes().0 - before)
        };
        let (in_place, none) = bytes(&in_place);
        assert_eq!(none, 0, "nothing is staged");
        let call = Call::new(&rank, &local, 10, 3);
        let error = in_place
            .run(rank.stream(), &call.operands(), 10)
            .unwrap_err();
        assert!(matches!(error, ExecuteError::Operand { .. }), "{error}");

        let buffer = SymmetricBuffer::new(rank.backend(), &rank.exchange, "a", 5 * 6 * 4).unwrap();
        let mut image = vec![0; 5 * 6 * 4];
        let a = call.operands().a;
        // SAFETY: both have so many bytes, and no call is under way.
        unsafe {
            rank.backend()
                .download(rank.stream(), a.address(0), &mut image)
                .unwrap();
            rank.backend()
                .upload(rank.stream(), buffer.local(), &image)
                .unwrap();
        }
        let operands = Operands {
            a: DeviceSlice::symmetric(&buffer),
            ..call.operands()
        };
        in_place.run(rank.stream(), &operands, 10).unwrap();
        rank.executor.synchronize(rank.stream()).unwrap();
        assert!(call.is_right(&rank));
        // The same memory serves a schedule that stages it.
        let (staged, some) = bytes(&local);
        assert!(some > 0);
        staged.run(rank.stream(), &operands, 10).unwrap();
        rank.executor.synchronize(rank.stream()).unwrap();
        assert!(call.is_right(&rank));
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn one_arena_serves_many_schedules_and_is_as_large_as_the_largest() {
    on_ranks(2, host, |rank| {
        let of = |m, n| schedule("ringPut", 2, Problem::new(m, n, 64, DType::F32));
        let large = rank.executor.prepare(&of(4096, 8)).unwrap();
        let (bytes, _) = rank.executor.arena_bytes();
        // Staging has all rows of A.
        assert_eq!(bytes, 4096 * 64 * 4);
        let small: Vec<_> = (1..60)
            .map(|n| rank.executor.prepare(&of(64 + n, n)).unwrap())
            .collect();
        assert_eq!(rank.executor.arena_bytes(), (bytes, 0));
        assert_eq!(
            large.own_bytes() + small.iter().map(Prepared::own_bytes).sum::<usize>(),
            0
        );
        // A larger one replaces it. No graph was captured, so the former is gone.
        let larger = rank.executor.prepare(&of(8192, 8)).unwrap();
        assert_eq!(rank.executor.arena_bytes(), (2 * bytes, 0));
        for (number, prepared) in small.iter().chain([&large, &larger]).enumerate() {
            let m = prepared.schedule().problem().m - number % 3;
            let call = Call::new(&rank, prepared.schedule(), m, number);
            prepared.run(rank.stream(), &call.operands(), m).unwrap();
            rank.executor.synchronize(rank.stream()).unwrap();
            assert!(call.is_right(&rank), "{prepared:?}");
        }
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn after_a_fault_calls_are_refused_until_all_recover_and_graphs_stay_good() {
    let device = |_| Host::with_timeout(Duration::from_millis(300));
    on_ranks(2, device, |rank| {
        let problem = Problem::new(12, 4, 6, DType::F32);
        let names = ["ringPut", "fusedAllReduce", "baselineNcclAllgatherMatmul"];
        let prepared =
            names.map(|name| rank.executor.prepare(&schedule(name, 2, problem)).unwrap());
        let (backend, stream) = (rank.backend(), rank.stream());
        let calls = prepared
            .each_ref()
            .map(|one| Call::new(&rank, one.schedule(), 11, 5));
        let run = |index: usize| prepared[index].run(stream, &calls[index].operands(), 11);
        let graph = backend.capture(stream, || run(0).and_then(|()| run(1)));
        let graph = graph.unwrap();
        // Rank 1 stays away.
        if rank.place().0 == 0 {
            run(0).unwrap();
            let error = rank.executor.synchronize(stream).unwrap_err();
            assert_eq!(
                error.signal_fault().map(|fault| fault.peer),
                Some(1),
                "{error}"
            );
            let refused = run(1).unwrap_err();
            assert!(matches!(refused, ExecuteError::Stopped { .. }), "{refused}");
            assert!(rank.executor.is_stopped());
        }
        rank.exchange.barrier("failed").unwrap();
        rank.executor.recover(stream).unwrap();
        assert!(!rank.executor.is_stopped());
        // SAFETY: what was captured lives until the stream is synchronised.
        unsafe { backend.launch_graph(&graph, stream).unwrap() };
        run(2).unwrap();
        rank.executor.synchronize(stream).unwrap();
        assert!(calls.iter().all(|call| call.is_right(&rank)));
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn ranks_that_prepare_different_schedules_are_told() {
    let message = on_ranks(2, host, |rank| {
        let n = 4 + rank.place().0;
        let schedule = schedule("ringPut", 2, Problem::new(12, n, 6, DType::F32));
        rank.executor.prepare(&schedule).unwrap_err().to_string()
    });
    assert!(
        message[0].contains("the schedule differs between ranks"),
        "{}",
        message[0]
    );
}

#[test]
fn steps_of_more_ms_than_are_kept_are_made_anew() {
    on_ranks(1, host, |rank| {
        let problem = Problem::new(1100, 1, 2, DType::F32);
        let prepared = rank
            .executor
            .prepare(&schedule("ringPut", 1, problem))
            .unwrap();
        prepared.warm(rank.stream(), 1..=1100).unwrap();
        for m in [1, 1100, 2, 600] {
            let call = Call::new(&rank, prepared.schedule(), m, m);
            prepared.run(rank.stream(), &call.operands(), m).unwrap();
            rank.executor.synchronize(rank.stream()).unwrap();
            assert!(call.is_right(&rank), "M = {m}");
        }
    });
}

/// Ranks as threads of the first GPU, which divide its SMs.
pub fn one_gpu(_: usize) -> Cuda {
    Cuda::new(0).unwrap()
}

/// What ranks of one GPU can run: no NCCL, and no GEMM that fills the device while peers wait.
fn of_one_gpu() -> Vec<Configuration> {
    let names = [
        "naiveRemoteRead",
        "threadloadGatherScalarCompute",
        "fusedAllGather",
        "fusedAllGather:protocol=eager",
        "fusedColumnParallelLinear",
        "fusedReduceScatter",
        "fusedAllReduce",
        "fusedAllReduce:shots=1",
        "fusedRowParallelLinear",
        "fusedRowParallelLinear:shots=1",
        "ringPut",
        "reduceScatterPipeline",
    ];
    names.map(|name| algorithms::find(name).unwrap()).to_vec()
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn gpus_compute_at_any_m_with_the_callers_operands() {
    // Rows of 16 bytes, for tensor maps. GEMMs of many columns do not wait for rows of others: then the fused
    // all-gather copies local rows itself.
    for (world, n, k) in [(1, 64, 128), (2, 64, 128), (2, 1600, 32)] {
        let problem = Problem::new(300, n, k, DType::Bf16);
        let wrong = on_ranks(world, one_gpu, |rank| {
            let stream = rank.stream();
            let prepared: Vec<_> = of_one_gpu()
                .into_iter()
                .map(|configuration| {
                    let schedule = Schedule::new(configuration, world, problem).unwrap();
                    rank.executor.prepare(&schedule.batch_invariant()).unwrap()
                })
                .collect();
            let ms = [300, 1, 9, 128, 2, 129, 64, 257];
            let mut wrong = Vec::new();
            for round in 0..ms.len() {
                let calls: Vec<_> = prepared
                    .iter()
                    .enumerate()
                    .map(|(index, one)| {
                        let m = ms[(round + index) % ms.len()];
                        (
                            one,
                            Call::new(&rank, one.schedule(), m, round * 100 + index),
                        )
                    })
                    .collect();
                rank.exchange.barrier("inputs").unwrap();
                let enqueue = || {
                    let mut calls = calls.iter();
                    calls.try_for_each(|(one, call)| one.run(stream, &call.operands(), call.m))
                };
                let graph = match round % 2 {
                    0 => None,
                    _ => Some(rank.backend().capture(stream, enqueue).unwrap()),
                };
                // A capture may wait for the device, and so for a peer that waits for this rank.
                rank.exchange.barrier("captured").unwrap();
                match &graph {
                    None => enqueue().unwrap(),
                    // SAFETY: what was captured lives until the stream is synchronised.
                    Some(graph) => unsafe { rank.backend().launch_graph(graph, stream).unwrap() },
                }
                rank.executor.synchronize(stream).unwrap();
                let bad = calls.iter().filter(|(_, call)| !call.is_right(&rank));
                wrong.extend(bad.map(|(one, call)| format!("{one:?} at M = {}", call.m)));
            }
            rank.exchange.barrier("end").unwrap();
            wrong
        });
        let wrong: Vec<_> = wrong.concat();
        assert!(wrong.is_empty(), "{world} ranks: {}", wrong.join("; "));
    }
}
