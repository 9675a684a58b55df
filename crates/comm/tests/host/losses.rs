//! Ranks that die or are stopped in the middle of their work: real processes, which this test binary starts.
//!
//! The ranks only use their devices and request nothing from the store, so the store must notify them of a
//! loss.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use warpweave_comm::collective::{Call, CollectiveOptions, Operation, Variant};
use warpweave_comm::host::HostCollectives;
use warpweave_comm::p2p::{MemoryRange, Options, PointToPoint, TransferMethod};
use warpweave_comm::{
    AddRmsNorm, CollectiveKernels, Collectives, CommError, Communicator, Operand,
};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DeviceSlice, Exchange, Host, Memory, Result as MemoryResult, SignalPad,
    SubExchange, SymmetricBuffer,
};

/// The work of a child.
const WORK: &str = "WARPWEAVE_TEST_WORK";
/// How long its device waits, in milliseconds.
const DEADLINE: &str = "WARPWEAVE_TEST_DEADLINE";

const WORLD: usize = 4;
const ELEMENTS: usize = 100;

/// Kinds of work, each with its own waits.
const WORKS: [&str; 14] = [
    "packets",
    "sentinel",
    "push",
    "pull",
    "two-shot",
    "copy engine",
    "scatter",
    "replays",
    "library",
    "get",
    "put",
    "signals",
    "halves",
    "idle",
];

/// "replays" on a GPU for each rank.
const GPU_REPLAYS: &str = "replays on GPUs";

/// One call of a kind of work.
type Turn = Box<dyn FnMut() -> Result<(), CommError>>;

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Ok(work) = std::env::var(WORK) else {
        return;
    };
    let deadline = std::env::var(DEADLINE).expect("the parent gives one");
    let deadline = Duration::from_millis(deadline.parse().expect("milliseconds"));
    let comm = Communicator::init().expect("the parent starts all ranks");
    let mut turn = work_of(&work, &comm, deadline);
    turn().expect("all are here");
    comm.barrier().expect("all are here");
    say("ready");
    let error = loop {
        if let Err(error) = turn() {
            break error;
        }
    };
    say(&error.to_string());
    // As the bench does after an error: without a goodbye.
    std::process::exit(1);
}

fn say(line: &str) {
    println!("\nchild: {line}");
    let _ = std::io::stdout().flush();
}

/// The work, and what it needs for as long as the process lives.
fn work_of(work: &str, comm: &Communicator, deadline: Duration) -> Turn {
    let exchange = comm.shared_exchange();
    if work == GPU_REPLAYS {
        let backend = Cuda::new(exchange.rank()).expect("a GPU for each rank");
        return replays(backend.with_timeout(deadline), exchange);
    }
    let backend = Host::with_timeout(deadline);
    let (operation, variant) = match work {
        "packets" => (Operation::AllReduce, Variant::Packets),
        "sentinel" => (Operation::AllReduce, Variant::Sentinel),
        "push" => (Operation::AllToAll, Variant::Push),
        "pull" => (Operation::ReduceScatter, Variant::Pull),
        "two-shot" => (Operation::AllReduce, Variant::TwoShotTma),
        "copy engine" => (Operation::AllReduce, Variant::PushCopyEngine),
        "scatter" => (Operation::Broadcast, Variant::ScatterAllGather),
        "replays" => return replays(backend, exchange),
        "library" => return library(backend, exchange),
        "get" => return transfers(backend, exchange, TransferMethod::Sm),
        "put" => return transfers(backend, exchange, TransferMethod::CopyEngine),
        "signals" => return signals(backend, exchange),
        "halves" => return halves(backend, exchange),
        "idle" => return idle(backend, exchange),
        other => panic!("unknown work {other}"),
    };
    collectives(backend, exchange, operation, variant)
}

type Peers = std::sync::Arc<dyn Exchange>;

fn collectives(backend: Host, exchange: Peers, operation: Operation, variant: Variant) -> Turn {
    let make = || -> MemoryResult<_> {
        let bytes = 4 * ELEMENTS * WORLD;
        let input = SymmetricBuffer::new(&backend, &exchange, "input", bytes)?;
        let output = SymmetricBuffer::new(&backend, &exchange, "output", bytes)?;
        let options = CollectiveOptions::default();
        let collectives = Collectives::new(&backend, &exchange, "losses", options)?;
        let call = Call {
            operation,
            dtype: DType::F32,
            count: ELEMENTS,
            root: 1,
            input: Operand::symmetric(&input, 0, bytes)?,
            output: Operand::symmetric(&output, 0, bytes)?,
        };
        let stream = backend.stream(Default::default())?;
        Ok((input, output, collectives, call, stream))
    };
    let (input, output, collectives, call, stream) = make().expect("memory");
    Box::new(move || {
        let _alive = (&input, &output);
        for _ in 0..4 {
            // SAFETY: both operands live as long as this closure; all ranks make the same calls.
            unsafe { collectives.enqueue(&stream, &call, variant)? };
        }
        backend.synchronize(&stream)?;
        Ok(collectives.check(&stream)?)
    })
}

/// Launches of a graph of what decoding calls: all-reduces of a message, by itself and with what follows it.
/// Some are in flight at a time. After they have failed the device still does what this rank alone asks of
/// it.
fn replays<B: CollectiveKernels + 'static>(backend: B, exchange: Peers) -> Turn {
    let options = CollectiveOptions::default();
    let collectives = Collectives::new(&backend, &exchange, "replays", options).expect("memory");
    let memory = backend.allocate(16 * ELEMENTS).expect("memory");
    let stream = backend.stream(Default::default()).expect("a thread");
    let captured = backend.capture(&stream, || -> MemoryResult<()> {
        let [input, residual, weight, normalized] = [0, 1, 2, 3].map(|place| {
            let part = DeviceSlice::of(&memory).slice(4 * place * ELEMENTS, 4 * ELEMENTS);
            part.expect("a quarter of the memory")
        });
        let norm = AddRmsNorm {
            dtype: DType::F32,
            hidden: ELEMENTS,
            epsilon: 1e-5,
            input,
            residual,
            weight,
            residual_out: residual,
            normalized: Some(normalized),
            quantized: None,
        };
        for _ in 0..4 {
            collectives.all_reduce(&stream, DType::F32, input, input)?;
            collectives.all_reduce_add_rms_norm(&stream, &norm)?;
        }
        Ok(())
    });
    let graph = captured.expect("all can be captured");
    Box::new(move || {
        let replay = || -> MemoryResult<()> {
            for _ in 0..8 {
                // SAFETY: the memory and the collectives live as long as this closure; all ranks launch their
                // graphs.
                unsafe { backend.launch_graph(&graph, &stream)? };
            }
            backend.synchronize(&stream)?;
            collectives.check(&stream)
        };
        let replayed = replay();
        if replayed.is_err() {
            does_its_own_work(&backend, &memory);
        }
        Ok(replayed?)
    })
}

/// What is written to the memory can be read on another stream.
fn does_its_own_work<B: Backend>(backend: &B, memory: &B::Memory) {
    let stream = backend.stream(Default::default()).expect("a stream");
    let written: Vec<u8> = (0..memory.bytes()).map(|byte| byte as u8).collect();
    let mut read = vec![0; written.len()];
    // SAFETY: all of the memory, which nothing else uses any more.
    unsafe {
        let address = memory.address();
        backend.upload(&stream, address, &written).expect("a write");
        backend
            .download(&stream, address, &mut read)
            .expect("a read");
    }
    assert_eq!(read, written);
}

fn library(backend: Host, exchange: Peers) -> Turn {
    let bytes = 4 * ELEMENTS;
    let made = HostCollectives::new(&backend, &exchange, "library", bytes).expect("memory");
    let memory = backend.allocate(bytes * (WORLD + 1)).expect("memory");
    let stream = backend.stream(Default::default()).expect("a thread");
    let (own, all) = (memory.address(), memory.address().add(bytes));
    Box::new(move || {
        let _alive = &memory;
        // SAFETY: parts of the memory that lives as long as this closure.
        unsafe {
            made.all_gather(&stream, (own, all), &[bytes; WORLD])?;
            made.all_reduce(&stream, DType::F32, (own, own), ELEMENTS)?;
        }
        backend.synchronize(&stream)?;
        Ok(made.check(&stream)?)
    })
}

/// Each rank reads from its left neighbour, with two calls in flight.
fn transfers(backend: Host, exchange: Peers, method: TransferMethod) -> Turn {
    let bytes = 4 * ELEMENTS;
    let p2p = PointToPoint::new(&backend, &exchange, "transfers", Options::default());
    let p2p = p2p.expect("memory");
    let parts = SymmetricBuffer::new(&backend, &exchange, "parts", bytes).expect("memory");
    let memory = backend.allocate(bytes).expect("memory");
    let stream = backend.stream(Default::default()).expect("a thread");
    let rank = exchange.rank();
    let (left, right) = ((rank + WORLD - 1) % WORLD, (rank + 1) % WORLD);
    Box::new(move || {
        let mine = MemoryRange::new(rank, memory.address(), bytes);
        let to = p2p.channel(right, 0, method)?;
        let from = p2p.channel(left, 0, method)?;
        for _ in 0..2 {
            // SAFETY: the ranges live as long as this closure, and the stream orders their uses.
            unsafe {
                let exposed = to.expose(&stream, MemoryRange::of(&parts, rank, 0, bytes)?)?;
                let got = from.get(&stream, MemoryRange::of(&parts, left, 0, bytes)?, mine)?;
                got.wait(&stream)?;
                exposed.wait(&stream)?;
            }
        }
        backend.synchronize(&stream)?;
        p2p.check(&stream)
    })
}

/// Many waits on several streams, each with its own deadline.
fn signals(backend: Host, exchange: Peers) -> Turn {
    let pad = SignalPad::new(&backend, &exchange, "signals", 3).expect("memory");
    let streams: Vec<_> = (0..3)
        .map(|_| backend.stream(Default::default()).expect("a thread"))
        .collect();
    let peers: Vec<_> = (0..WORLD).filter(|&r| r != exchange.rank()).collect();
    Box::new(move || {
        for (slot, stream) in streams.iter().enumerate() {
            for _ in 0..4 {
                pad.signal(stream, slot, &peers)?;
                pad.wait(stream, slot, &peers, 0)?;
            }
        }
        for stream in &streams {
            backend.synchronize(stream)?;
        }
        Ok(pad.check(&streams[0])?)
    })
}

/// Work among two ranks of four: the other two are notified of the loss too, since the job has failed.
fn halves(backend: Host, exchange: Peers) -> Turn {
    let first = exchange.rank() / 2 * 2;
    let half = SubExchange::new(exchange, [first, first + 1]).expect("a part");
    let half: Peers = std::sync::Arc::new(half);
    let pad = SignalPad::new(&backend, &half, "half", 1).expect("memory");
    let stream = backend.stream(Default::default()).expect("a thread");
    let peer = [1 - half.rank()];
    Box::new(move || {
        pad.signal(&stream, 0, &peer)?;
        pad.wait(&stream, 0, &peer, 0)?;
        backend.synchronize(&stream)?;
        Ok(pad.check(&stream)?)
    })
}

/// A wait, once, for what rank 0 never signals.
fn idle(backend: Host, exchange: Peers) -> Turn {
    let pad = SignalPad::new(&backend, &exchange, "idle", 1).expect("memory");
    let stream = backend.stream(Default::default()).expect("a thread");
    let mut is_first = true;
    Box::new(move || {
        if !std::mem::take(&mut is_first) {
            pad.wait(&stream, 0, &[0], 0)?;
            backend.synchronize(&stream)?;
        }
        Ok(pad.check(&stream)?)
    })
}

/// A rank whose output is read by a thread, so that the time of each line is right.
struct Rank {
    process: Child,
    message: Receiver<(Instant, String)>,
}

impl Rank {
    fn hears(&self, limit: Duration) -> Option<(Instant, String)> {
        self.message.recv_timeout(limit).ok()
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a process");
        kill_process(pid, signal).expect("a process of this test");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(work: &str, world: usize, deadline: Duration) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    let ranks: Vec<Rank> = (0..world)
        .map(|rank| {
            let mut process = Command::new(std::env::current_exe().expect("this binary"))
                .args(["--exact", "losses::child", "--nocapture"])
                .env(WORK, work)
                .env(DEADLINE, deadline.as_millis().to_string())
                .env("WARPWEAVE_RANK", rank.to_string())
                .env("WARPWEAVE_WORLD_SIZE", world.to_string())
                .env("WARPWEAVE_STORE", format!("127.0.0.1:{port}"))
                .env("WARPWEAVE_JOB_TOKEN", "test job token")
                .env("WARPWEAVE_TIMEOUT", "60")
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("starting this binary");
            let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
            let (sender, message) = channel();
            std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    if let Some(message) = line.strip_prefix("child: ") {
                        let _ = sender.send((Instant::now(), message.to_owned()));
                    }
                }
            });
            Rank { process, message }
        })
        .collect();
    for rank in &ranks {
        let (_, message) = rank.hears(Duration::from_secs(60)).expect("a rank");
        assert_eq!(message, "ready");
    }
    ranks
}

/// Another in every run.
fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

/// The last lines of all but `culprit`, and how long after `since`.
fn last_words(ranks: &[Rank], culprit: usize, since: Instant) -> Vec<(usize, Duration, String)> {
    let limit = Duration::from_secs(30);
    ranks
        .iter()
        .enumerate()
        .filter(|(rank, _)| *rank != culprit)
        .map(|(rank, process)| {
            let heard = process.hears(limit.saturating_sub(since.elapsed()));
            let (at, message) = heard.unwrap_or_else(|| panic!("rank {rank} goes on"));
            (rank, at.saturating_duration_since(since), message)
        })
        .collect()
}

/// Kills `culprit` at any moment; how long after it the last of the others has ended.
fn killed(work: &str, (world, culprit): (usize, usize)) -> Duration {
    let ranks = start(work, world, Duration::from_secs(10));
    let moment = Duration::from_micros(random(60_000));
    std::thread::sleep(moment);
    let killed = Instant::now();
    ranks[culprit].send(Signal::KILL);
    let mut longest = Duration::ZERO;
    for (rank, after, message) in last_words(&ranks, culprit, killed) {
        let story = format!("{work}, {moment:?}, rank {rank} after {after:?}: {message}");
        // A job of processes on a loaded machine; alone they take milliseconds.
        assert!(after < Duration::from_secs(3), "{story}");
        // A half counts its own ranks, and the ranks of the other half are of the larger group.
        let name = match work {
            "halves" if rank / 2 == culprit / 2 => format!("rank {} is lost", culprit % 2),
            "halves" => format!("lost rank {culprit} of the larger group"),
            _ => format!("rank {culprit} is lost"),
        };
        assert!(message.contains(&name), "{story}");
        longest = longest.max(after);
    }
    longest
}

/// Stops `culprit` at any moment, until the others have given up.
fn stopped(work: &str, (world, culprit): (usize, usize)) {
    let deadline = Duration::from_secs(2);
    let ranks = start(work, world, deadline);
    std::thread::sleep(Duration::from_micros(random(100_000)));
    ranks[culprit].send(Signal::STOP);
    let stopped = Instant::now();
    for (rank, after, message) in last_words(&ranks, culprit, stopped) {
        let story = format!("{work}, rank {rank} after {after:?}: {message}");
        assert!(after < 2 * deadline, "{story}");
        let words = ["waited", "gave up waiting", "is lost", "since another wait"];
        assert!(words.iter().any(|word| message.contains(word)), "{story}");
    }
    let going_on = Instant::now();
    ranks[culprit].send(Signal::CONT);
    let (at, message) = ranks[culprit]
        .hears(Duration::from_secs(30))
        .unwrap_or_else(|| panic!("{work}: rank {culprit} goes on"));
    let after = at.saturating_duration_since(going_on);
    let story = format!("{work}, rank {culprit}, going on, after {after:?}: {message}");
    assert!(after < 2 * deadline, "{story}");
}

#[test]
fn a_killed_rank_is_named_by_all_others_at_once() {
    let turns = WORKS.into_iter().enumerate().map(|(place, work)| {
        // Rank 0 serves the store.
        let culprit = match work {
            "idle" => 1 + place % 3,
            _ => place % WORLD,
        };
        killed(work, (WORLD, culprit))
    });
    println!("after {:?} at most", turns.max());
}

#[test]
fn a_stopped_rank_costs_the_others_one_deadline_and_fails_when_it_goes_on() {
    for (work, culprit) in [
        ("signals", 0),
        ("two-shot", 2),
        ("copy engine", 1),
        ("get", 3),
        ("replays", 1),
    ] {
        stopped(work, (WORLD, culprit));
    }
}

/// Killed and stopped in the middle of replays, a few times each.
#[test]
#[ignore = "needs two GPUs"]
fn a_gpu_that_is_lost_between_replays_is_named_by_all_others() {
    let world = Cuda::device_count().expect("GPUs").min(8);
    assert!(world > 1, "needs two GPUs");
    for turn in 0..4 {
        let culprit = (world, turn % world);
        println!("killed: {:?}", killed(GPU_REPLAYS, culprit));
        stopped(GPU_REPLAYS, culprit);
    }
}
