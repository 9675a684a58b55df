//! Symmetric memory on GPUs, ranks as threads: on one device each where there are enough, else all on the
//! first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::descriptors;
use warpweave_symm_mem::{
    Backend, Cuda, DevicePtr, Error, Exchange, Memory, SignalPad, SymmetricBuffer, ThreadExchange,
};

fn ranks<T: Send + 'static>(
    world: usize,
    timeout: Duration,
    body: impl Fn(Cuda, Arc<dyn Exchange>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let devices = Cuda::device_count().expect("a GPU");
    let body = Arc::new(body);
    let threads: Vec<_> = ThreadExchange::group(world)
        .into_iter()
        .map(|exchange| {
            let body = body.clone();
            std::thread::spawn(move || {
                let device = Cuda::new(exchange.rank() % devices)
                    .unwrap()
                    .with_timeout(timeout);
                body(device, Arc::new(exchange))
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|t| t.join().expect("a rank panicked"))
        .collect()
}

fn read(device: &Cuda, at: DevicePtr, bytes: usize) -> Vec<u8> {
    let stream = device.setup_stream().unwrap();
    let mut out = vec![0; bytes];
    // SAFETY: the tests pass ranges of live buffers.
    unsafe { device.download(&stream, at, &mut out).unwrap() };
    out
}

fn write(device: &Cuda, at: DevicePtr, bytes: &[u8]) {
    let stream = device.setup_stream().unwrap();
    // SAFETY: the tests pass ranges of live buffers.
    unsafe { device.upload(&stream, at, bytes).unwrap() };
}

#[test]
#[ignore = "needs a GPU"]
fn every_rank_sees_every_part() {
    for bytes in [1, 4097, (2 << 20) + 1] {
        ranks(4, Duration::from_secs(10), move |device, exchange| {
            let me = exchange.rank();
            let buffer = SymmetricBuffer::new(&device, &exchange, "parts", bytes).unwrap();
            assert!(
                read(&device, buffer.local(), bytes).iter().all(|b| *b == 0),
                "new memory is zero"
            );
            exchange.barrier("zero seen").unwrap();
            write(
                &device,
                buffer.range((me + 1) % 4, 0, 1).unwrap(),
                &[me as u8 + 10],
            );
            exchange.barrier("first written").unwrap();
            write(
                &device,
                buffer.range(me, bytes - 1, 1).unwrap(),
                &[me as u8 + 100],
            );
            exchange.barrier("written").unwrap();
            for peer in 0..4 {
                let part = read(&device, buffer.range(peer, 0, bytes).unwrap(), bytes);
                assert_eq!(part[bytes - 1], peer as u8 + 100);
                if bytes > 1 {
                    assert_eq!(part[0], ((peer + 3) % 4) as u8 + 10);
                }
            }
            let table = read(&device, buffer.peer_table(), 32);
            let third = u64::from_ne_bytes(table[16..24].try_into().unwrap());
            assert_eq!(third, buffer.peer(2).0);
            buffer.close(exchange.as_ref()).unwrap();
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn signals_order_copies_back_to_back_and_in_graphs() {
    ranks(2, Duration::from_secs(10), |device, exchange| {
        let (me, peer) = (exchange.rank(), 1 - exchange.rank());
        let bytes = 1 << 20;
        let stream = device.stream(Default::default()).unwrap();
        let recv = SymmetricBuffer::new(&device, &exchange, "recv", bytes).unwrap();
        let pad = SignalPad::new(&device, &exchange, "p", 2).unwrap();
        let send = device.allocate(bytes).unwrap();
        let log = device.allocate(bytes * 64).unwrap();
        exchange.barrier("ready").unwrap();
        // One call copies `send` to the peer's `recv` and keeps what arrived in this rank's own.
        let call = |i: usize| -> warpweave_symm_mem::Result<()> {
            pad.wait(&stream, 1, &[peer], 1)?;
            // SAFETY: both ranges are live; credits and signals synchronize the ranks.
            unsafe { device.copy(&stream, recv.peer(peer), send.address(), bytes)? };
            pad.signal(&stream, 0, &[peer])?;
            pad.wait(&stream, 0, &[peer], 0)?;
            // SAFETY: as above.
            unsafe { device.copy(&stream, log.address().add(i * bytes), recv.local(), bytes)? };
            pad.signal(&stream, 1, &[peer])
        };
        let value = |rank: usize, i: usize| (rank * 100 + i) as u8;
        for i in 0..32 {
            // SAFETY: the send is this rank's own.
            unsafe {
                device
                    .fill(&stream, send.address(), value(me, i), bytes)
                    .unwrap()
            };
            if me == i % 2 {
                device.delay(&stream, Duration::from_micros(300)).unwrap();
            }
            call(i).unwrap();
        }
        let graphs: Vec<_> = (32..64)
            .map(|i| device.capture(&stream, || call(i)).unwrap())
            .collect();
        // On a shared context a graph may be instantiated only while no peer waits for this rank.
        exchange.barrier("captured").unwrap();
        for (i, graph) in graphs.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                device
                    .fill(&stream, send.address(), value(me, 32 + i), bytes)
                    .unwrap()
            };
            // SAFETY: what was captured lives until the stream is empty.
            unsafe { device.launch_graph(graph, &stream).unwrap() };
        }
        device.synchronize(&stream).unwrap();
        pad.check(&stream).unwrap();
        let log = read(&device, log.address(), bytes * 64);
        for (i, got) in log.chunks(bytes).enumerate() {
            assert!(got.iter().all(|b| *b == value(peer, i)), "call {i}");
        }
        exchange.barrier("end").unwrap();
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_peer_that_never_signals_is_named_and_the_context_survives() {
    ranks(2, Duration::from_millis(200), |device, exchange| {
        let stream = device.stream(Default::default()).unwrap();
        let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
        if exchange.rank() == 0 {
            let start = Instant::now();
            for _ in 0..10 {
                pad.wait(&stream, 0, &[1], 0).unwrap();
            }
            device.synchronize(&stream).unwrap();
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "later waits end at once"
            );
            let error = pad.check(&stream).unwrap_err();
            let Error::SignalFault(fault) = &error else {
                panic!("{error}")
            };
            assert_eq!(
                (
                    fault.rank,
                    fault.peer,
                    fault.slot,
                    fault.expected,
                    fault.seen
                ),
                (0, 1, 0, 1, 0)
            );
            assert!(fault.waited >= Duration::from_millis(200), "{fault}");
        }
        pad.recover(&stream, exchange.as_ref()).unwrap();
        for _ in 0..3 {
            pad.signal(&stream, 0, &[0, 1]).unwrap();
            pad.wait(&stream, 0, &[0, 1], 0).unwrap();
        }
        device.synchronize(&stream).unwrap();
        pad.check(&stream).unwrap();
        pad.close(&stream, exchange.as_ref()).unwrap();
    });
}

/// Rank 0 waits until rank 1 gives its memory, and copies to it: eagerly, and in a graph captured before.
/// Rank 1 gives it only in the last call.
#[test]
#[ignore = "needs a GPU"]
fn a_copy_after_a_failed_wait_does_not_arrive_and_the_context_survives() {
    ranks(2, Duration::from_millis(200), |device, exchange| {
        let bytes = (3 << 20) + 5;
        let (me, theirs, mine) = (exchange.rank(), 1u8, 9u8);
        let stream = device.stream(Default::default()).unwrap();
        let recv = SymmetricBuffer::new(&device, &exchange, "recv", bytes).unwrap();
        let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
        let send = device.allocate(bytes).unwrap();
        write(&device, recv.local(), &vec![theirs; bytes]);
        write(&device, send.address(), &vec![mine; bytes]);
        exchange.barrier("ready").unwrap();
        let call = || {
            pad.wait(&stream, 0, &[1], 0)?;
            // SAFETY: the ranges live, and rank 1 gives its own before the copy or never.
            unsafe { device.copy_unless_stopped(&stream, recv.peer(1), send.address(), bytes) }
        };
        let graph = (me == 0).then(|| device.capture(&stream, call).unwrap());
        // SAFETY: what was captured lives until the stream is empty.
        let replay = |graph| unsafe { device.launch_graph(graph, &stream).unwrap() };
        let all = |value| {
            read(&device, recv.local(), bytes)
                .iter()
                .all(|b| *b == value)
        };
        exchange.barrier("captured").unwrap();
        for captured in [false, true] {
            if let Some(graph) = &graph {
                // The copy is enqueued long before the wait fails.
                if captured {
                    replay(graph)
                } else {
                    call().unwrap()
                };
                device.synchronize(&stream).unwrap();
                let error = pad.check(&stream).unwrap_err();
                assert!(matches!(error, Error::SignalFault(_)), "{error}");
            }
            exchange.barrier("given up").unwrap();
            assert!(me == 0 || all(theirs), "captured: {captured}");
            exchange.barrier("seen").unwrap();
            pad.recover(&stream, exchange.as_ref()).unwrap();
        }
        match &graph {
            Some(graph) => replay(graph),
            None => pad.signal(&stream, 0, &[0]).unwrap(),
        }
        device.synchronize(&stream).unwrap();
        pad.check(&stream).unwrap();
        exchange.barrier("copied").unwrap();
        assert!(me == 0 || all(mine));
        pad.close(&stream, exchange.as_ref()).unwrap();
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_copy_that_could_be_stopped_copies_all_and_no_more() {
    ranks(1, Duration::from_secs(10), |device, exchange| {
        // Its flag is what the copy looks at.
        let _pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
        let stream = device.stream(Default::default()).unwrap();
        let room = (5 << 20) + 64;
        let (from, to) = (
            device.allocate(room).unwrap(),
            device.allocate(room).unwrap(),
        );
        let given: Vec<u8> = (0..room).map(|i| (i * 7 % 251) as u8).collect();
        write(&device, from.address(), &given);
        for bytes in [1, 15, 16, 100, 4096, 65_537, 1 << 20, 5 << 20] {
            for (there, here) in [(0, 0), (1, 1), (3, 8), (16, 5)] {
                // SAFETY: all ranges lie in the two allocations, and the stream orders the work.
                unsafe {
                    device.fill(&stream, to.address(), 0xfe, room).unwrap();
                    let (dst, src) = (to.address().add(there), from.address().add(here));
                    device
                        .copy_unless_stopped(&stream, dst, src, bytes)
                        .unwrap();
                }
                device.synchronize(&stream).unwrap();
                let got = read(&device, to.address(), room);
                let case = format!("{bytes} bytes, {here} to {there}");
                assert!(got[there..][..bytes] == given[here..][..bytes], "{case}");
                let around = got[..there].iter().chain(&got[there + bytes..]);
                assert!(around.into_iter().all(|b| *b == 0xfe), "{case}");
            }
        }
    });
}

fn device(rank: usize) -> Cuda {
    let devices = Cuda::device_count().expect("a GPU");
    Cuda::new(rank % devices).unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn a_missing_descriptor_names_the_rank() {
    descriptors::a_missing_descriptor_names_the_rank(device);
}

#[test]
#[ignore = "needs a GPU"]
fn a_wrong_descriptor_names_the_rank() {
    descriptors::a_wrong_descriptor_names_the_rank(device);
}

#[test]
#[ignore = "needs a GPU"]
fn events_time_and_order_streams() {
    let device = Cuda::new(0).unwrap();
    let (a, b) = (
        device.stream(Default::default()).unwrap(),
        device.stream(Default::default()).unwrap(),
    );
    let (start, end) = (device.event().unwrap(), device.event().unwrap());
    device.record(&start, &a).unwrap();
    device.delay(&a, Duration::from_millis(5)).unwrap();
    device.record(&end, &a).unwrap();
    device.wait_event(&b, &end).unwrap();
    device.synchronize(&b).unwrap();
    let took = device.elapsed(&start, &end).unwrap();
    assert!(
        took >= Duration::from_millis(5) && took < Duration::from_millis(100),
        "{took:?}"
    );
}

#[test]
#[ignore = "needs a GPU"]
fn a_failed_capture_leaves_the_stream_usable() {
    let device = Cuda::new(0).unwrap();
    let stream = device.stream(Default::default()).unwrap();
    let memory = device.allocate(16).unwrap();
    // SAFETY: the memory outlives the stream's work, here and below.
    let fill = |value| unsafe { device.fill(&stream, memory.address(), value, 16) };
    let refused = device.capture(&stream, || {
        fill(1)?;
        Err(Error::InvalidArgument {
            what: "x",
            why: "on purpose".into(),
        })
    });
    assert!(refused.unwrap_err().to_string().contains("on purpose"));
    let synchronized = device.capture(&stream, || device.synchronize(&stream));
    assert!(
        synchronized
            .unwrap_err()
            .to_string()
            .contains("cannot be captured")
    );
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.capture::<Error>(&stream, || panic!("on purpose"))
    }));
    assert!(panicked.is_err());
    let graph = device.capture(&stream, || fill(7)).unwrap();
    device.synchronize(&stream).unwrap();
    assert_eq!(
        read(&device, memory.address(), 16),
        [0; 16],
        "a capture runs nothing"
    );
    // SAFETY: as in `fill`.
    unsafe { device.launch_graph(&graph, &stream).unwrap() };
    device.synchronize(&stream).unwrap();
    assert_eq!(read(&device, memory.address(), 16), [7; 16]);
}

#[test]
#[ignore = "needs a GPU"]
fn memory_waits_for_the_work_on_it_before_it_goes() {
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let device = Cuda::new(0).unwrap();
    for _ in 0..20 {
        let stream = device.stream(Default::default()).unwrap();
        let buffer = SymmetricBuffer::new(&device, &exchange, "b", 1 << 20).unwrap();
        device.delay(&stream, Duration::from_millis(5)).unwrap();
        // SAFETY: what this test is about: dropping the buffer waits for the stream, which is dropped before
        // it.
        unsafe { device.fill(&stream, buffer.local(), 1, 1 << 20).unwrap() };
        drop(stream);
        drop(buffer);
    }
    let memory = device.allocate(1).unwrap();
    assert_eq!(
        read(&device, memory.address(), 1),
        [0],
        "the context is well"
    );
}

#[test]
#[ignore = "needs a GPU"]
fn contexts_and_streams_of_cudarc_can_be_adopted() {
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let theirs = context.new_stream().unwrap();
    let device = Cuda::adopt(context.clone()).unwrap();
    let stream = device.adopt_stream(theirs.clone()).unwrap();
    let memory = device.allocate(64).unwrap();
    // SAFETY: the memory outlives the stream's work.
    unsafe { device.fill(&stream, memory.address(), 3, 64).unwrap() };
    theirs.synchronize().unwrap();
    assert_eq!(read(&device, memory.address(), 64), [3; 64]);
}

#[test]
#[ignore = "needs a GPU"]
fn too_much_memory_is_a_typed_error() {
    let device = Cuda::new(0).unwrap();
    let error = device.allocate(1 << 45).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    let error = Cuda::new(1000).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
}
