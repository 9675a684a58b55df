//! Real NCCL among all GPUs of this machine: ranks are threads, values change with every call, every element
//! is compared.

mod number;
mod operations;
mod rank;

use std::time::{Duration, Instant};

use half::{bf16, f16};
use number::Number;
use operations::{Operation, Setting, moves, reductions};
use rank::{Rank, library, ranks};
use warpweave_comm::nccl::{
    Collective, CtaPolicy, Launch, NcclComm, NcclMemory, NcclOptions, NcclVersion, NoZeroCta,
    ReduceOp, WindowKind,
};
use warpweave_symm_mem::{Backend, Exchange, Memory};

const CALLS: usize = 3;
const OPS: [ReduceOp; 5] = [
    ReduceOp::Sum,
    ReduceOp::Prod,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Avg,
];

fn options(launch: Launch) -> NcclOptions {
    NcclOptions {
        launch,
        deadline: Duration::from_secs(60),
        ..NcclOptions::default()
    }
}

fn setting<T: Number>(rank: &Rank, count: usize) -> Setting {
    Setting {
        rank: rank.comm.rank(),
        world: rank.comm.world(),
        count,
        element: T::ELEMENT,
        stream: rank.raw() as usize,
    }
}

/// The bytes that any operation of `setting` may need on one side.
fn room(setting: Setting) -> usize {
    2 * setting.world * setting.count * setting.element.size()
}

fn all<'a>(setting: Setting) -> Vec<Operation<'a>> {
    let reduced = OPS.into_iter().flat_map(|by| reductions(setting, by));
    moves(setting).into_iter().chain(reduced).collect()
}

/// A few calls of `op`, with inputs of their own.
fn check<T: Number>(rank: &Rank, op: &Operation, (send, recv): (u64, u64)) {
    for call in 0..CALLS {
        rank.prepare::<T>(op, (send, recv), call);
        (op.run)(&rank.comm, send, recv).unwrap_or_else(|e| panic!("{}: {e}", op.name));
        rank.verify::<T>(op, recv, call);
    }
}

fn check_all<T: Number>(rank: &Rank, counts: &[usize]) {
    for &count in counts {
        let setting = setting::<T>(rank, count);
        let send = rank.cuda.allocate(room(setting)).expect("memory");
        let recv = rank.cuda.allocate(room(setting)).expect("memory");
        for op in all(setting) {
            check::<T>(rank, &op, (send.address().0, recv.address().0));
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn every_call_is_right_for_every_type() {
    for launch in [Launch::NonBlocking, Launch::Blocking] {
        ranks(&options(launch), |rank| {
            check_all::<f32>(rank, &[1, 1003, 65537]);
            check_all::<f16>(rank, &[1, 1003, 65536]);
            check_all::<bf16>(rank, &[1, 1003, 65536]);
            check_all::<f64>(rank, &[5]);
            check_all::<i8>(rank, &[513]);
            check_all::<u8>(rank, &[513]);
            check_all::<i32>(rank, &[513]);
            check_all::<u32>(rank, &[513]);
            check_all::<i64>(rank, &[513]);
            check_all::<u64>(rank, &[513]);
        });
    }
}

#[test]
#[ignore = "needs GPUs"]
fn captured_calls_replay_with_new_inputs() {
    ranks(&options(Launch::Blocking), |rank| {
        let setting = setting::<bf16>(rank, 4096);
        let send = rank.cuda.allocate(room(setting)).expect("memory");
        let recv = rank.cuda.allocate(room(setting)).expect("memory");
        let at = (send.address().0, recv.address().0);
        for op in all(setting) {
            // The first call connects the ranks, which allocates.
            check::<bf16>(rank, &op, at);
            let run = || (op.run)(&rank.comm, at.0, at.1);
            let graph = rank.cuda.capture(&rank.stream, run).expect(&op.name);
            for call in 10..20 {
                rank.prepare::<bf16>(&op, at, call);
                // SAFETY: what was captured lives until the result has been read.
                unsafe { rank.cuda.launch_graph(&graph, &rank.stream) }.expect("launches");
                rank.verify::<bf16>(&op, at.1, call);
            }
            rank.exchange.barrier("replayed").expect("all have");
        }
    });
}

/// Runs `body` with windows over memory for `count` elements of `T`, on a library that has them.
fn with_windows<T: Number>(
    options: &NcclOptions,
    count: usize,
    body: impl Fn(&Rank, Setting, (u64, u64)) + Sync,
) {
    if library().version() < NcclVersion::of(2, 27) {
        println!("{:?} has no windows", library());
        return;
    }
    ranks(options, |rank| {
        let setting = setting::<T>(rank, count);
        let memory = [(); 2].map(|()| NcclMemory::new(&rank.comm, room(setting)).expect("memory"));
        let windows = [&memory[0], &memory[1]].map(|memory| {
            rank.comm
                .window(&rank.exchange, memory, WindowKind::Symmetric)
                .expect("registers")
        });
        body(rank, setting, (windows[0].address(), windows[1].address()));
        rank.cuda.synchronize(&rank.stream).expect("drains");
        let [first, second] = windows;
        first.close(&rank.exchange).expect("closes");
        // The other is just dropped, after this test's share of its memory.
        drop(memory);
        rank.exchange.barrier("half closed").expect("all are here");
        drop(second);
    });
}

#[test]
#[ignore = "needs GPUs"]
fn windows_serve_every_call() {
    for launch in [Launch::NonBlocking, Launch::Blocking] {
        for count in [64, 100_000] {
            with_windows::<f32>(&options(launch), count, |rank, setting, at| {
                for op in all(setting) {
                    check::<f32>(rank, &op, at);
                }
            });
        }
        with_windows::<bf16>(&options(launch), 8192, |rank, setting, at| {
            for op in all(setting) {
                check::<bf16>(rank, &op, at);
            }
        });
    }
}

#[test]
#[ignore = "needs GPUs"]
fn registered_memory_serves_every_call() {
    ranks(&options(Launch::Blocking), |rank| {
        let setting = setting::<f32>(rank, 10_000);
        let memory = [(); 2].map(|()| NcclMemory::new(&rank.comm, room(setting)).expect("memory"));
        let held = [&memory[0], &memory[1]].map(|m| rank.comm.register(m).expect("registers"));
        for op in all(setting) {
            check::<f32>(rank, &op, (held[0].address(), held[1].address()));
        }
        rank.exchange.barrier("used").expect("all have");
    });
}

#[test]
#[ignore = "needs GPUs"]
fn copy_engines_do_what_they_can() {
    let zero = NcclOptions {
        cta_policy: CtaPolicy::ZeroCta,
        ..options(Launch::Blocking)
    };
    if library().version() < NcclVersion::of(2, 28) {
        println!("{:?} has no zero-CTA policy", library());
        return;
    }
    for count in [1024, 1 << 20] {
        with_windows::<f32>(&zero, count, |rank, setting, (send, recv)| {
            let copied = [
                Collective::AllGather,
                Collective::AllToAll,
                Collective::Gather,
                Collective::Scatter,
            ];
            for op in moves(setting) {
                let answer = rank.comm.zero_cta(op.collective, send, recv);
                let expected = match copied.contains(&op.collective) {
                    false => Err(NoZeroCta::Collective(op.collective)),
                    true if setting.world == 1 => Err(NoZeroCta::Alone),
                    true => Ok(()),
                };
                assert_eq!(answer, expected, "{}", op.name);
                check::<f32>(rank, &op, (send, recv));
                if answer.is_err() {
                    continue;
                }
                let run = || (op.run)(&rank.comm, send, recv);
                let graph = rank.cuda.capture(&rank.stream, run).expect(&op.name);
                for call in 20..24 {
                    rank.prepare::<f32>(&op, (send, recv), call);
                    rank.exchange.barrier("prepared").expect("all have");
                    // SAFETY: as above.
                    unsafe { rank.cuda.launch_graph(&graph, &rank.stream) }.expect("launches");
                    rank.verify::<f32>(&op, recv, call);
                    rank.exchange.barrier("verified").expect("all have");
                }
            }
        });
    }
}

#[test]
#[ignore = "needs GPUs"]
fn an_abort_from_another_thread_frees_a_stuck_stream_and_the_device_goes_on() {
    ranks(&options(Launch::NonBlocking), |rank| {
        let (me, world) = (rank.comm.rank(), rank.comm.world());
        let setting = setting::<f32>(rank, 1000);
        let send = rank.cuda.allocate(room(setting)).expect("memory");
        let recv = rank.cuda.allocate(room(setting)).expect("memory");
        let at = (send.address().0, recv.address().0);
        let op = &reductions(setting, ReduceOp::Sum)[0];
        check::<f32>(rank, op, at);

        let mut fresh = NcclComm::init(library(), &rank.exchange, options(Launch::NonBlocking))
            .expect("comes up");
        rank.prepare::<f32>(op, at, 5);
        (op.run)(&fresh, at.0, at.1).expect("launches");
        rank.verify::<f32>(op, at.1, 5);
        rank.exchange.barrier("connected").expect("all are");
        if me == 0 && world > 1 {
            // Nobody follows.
            (op.run)(&fresh, at.0, at.1).expect("launches");
            let stuck = rank
                .cuda
                .drained_within(&rank.stream, Duration::from_millis(300));
            assert!(!stuck.expect("a look at the stream"), "it waits for peers");
        }
        let start = Instant::now();
        let aborter = fresh.aborter();
        let aborting = std::thread::spawn(move || aborter.abort());
        aborting.join().expect("no panic");
        assert!(start.elapsed() < Duration::from_secs(11));
        rank.cuda.synchronize(&rank.stream).expect("drains");
        (op.run)(&fresh, at.0, at.1).expect_err("it has ended");
        rank.exchange.barrier("aborted").expect("all have");

        fresh = NcclComm::init(library(), &rank.exchange, options(Launch::NonBlocking))
            .expect("comes up again");
        rank.prepare::<f32>(op, at, 7);
        (op.run)(&fresh, at.0, at.1).expect("launches");
        rank.verify::<f32>(op, at.1, 7);
        rank.exchange.barrier("recovered").expect("all have");
        fresh.close().expect("closes");
    });
}
