//! Symmetric memory on the host backend, ranks as threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::descriptors;
use warpweave_symm_mem::host::{HostStream, send_signal};
use warpweave_symm_mem::{
    Backend, Error, Exchange, FaultCause, Host, SignalPad, SymmetricBuffer, ThreadExchange,
};

/// Runs `body` on every rank of a group of threads and returns the results by rank.
fn ranks<T: Send + 'static>(
    world: usize,
    body: impl Fn(Arc<dyn Exchange>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let threads: Vec<_> = ThreadExchange::group_with_timeout(world, Duration::from_secs(20))
        .into_iter()
        .map(|exchange| {
            let body = body.clone();
            std::thread::spawn(move || body(Arc::new(exchange)))
        })
        .collect();
    threads
        .into_iter()
        .map(|t| t.join().expect("a rank panicked"))
        .collect()
}

fn read(device: &Host, at: warpweave_symm_mem::DevicePtr, bytes: usize) -> Vec<u8> {
    let stream = device.stream(Default::default()).unwrap();
    let mut out = vec![0; bytes];
    // SAFETY: the tests pass ranges that they checked with `SymmetricBuffer::range`.
    unsafe { device.download(&stream, at, &mut out).unwrap() };
    out
}

#[test]
fn every_rank_sees_every_part_at_any_size() {
    for bytes in [1, 3, 4095, 4096, 4097, 1 << 20] {
        ranks(3, move |exchange| {
            let device = Host::new();
            let stream = device.stream(Default::default()).unwrap();
            let buffer = SymmetricBuffer::new(&device, &exchange, "parts", bytes).unwrap();
            let me = exchange.rank();
            assert_eq!(
                read(&device, buffer.local(), bytes),
                vec![0; bytes],
                "new memory is zero"
            );
            // The last byte is written through the own mapping, the first one by the next rank.
            exchange.barrier("zero seen").unwrap();
            let next = buffer.range((me + 1) % 3, 0, 1).unwrap();
            let last = buffer.range(me, bytes - 1, 1).unwrap();
            // SAFETY: both ranges were checked; the barriers synchronize the ranks.
            unsafe {
                device.upload(&stream, next, &[me as u8 + 10]).unwrap();
                exchange.barrier("first written").unwrap();
                device.upload(&stream, last, &[me as u8 + 100]).unwrap();
            }
            exchange.barrier("written").unwrap();
            for peer in 0..3 {
                let part = read(&device, buffer.range(peer, 0, bytes).unwrap(), bytes);
                assert_eq!(part[bytes - 1], peer as u8 + 100);
                if bytes > 1 {
                    assert_eq!(part[0], ((peer + 2) % 3) as u8 + 10);
                }
            }
            let all = read(&device, buffer.contiguous(), 3 * buffer.stride());
            assert_eq!(all[2 * buffer.stride() + bytes - 1], 102);
            buffer.close(exchange.as_ref()).unwrap();
        });
    }
}

#[test]
fn ranges_are_checked() {
    ranks(1, |exchange| {
        let buffer = SymmetricBuffer::new(&Host::new(), &exchange, "b", 10).unwrap();
        assert!(buffer.range(0, 3, 7).is_ok() && buffer.range(0, 10, 0).is_ok());
        for (rank, offset, bytes) in [(0, 4, 7), (1, 0, 1), (0, usize::MAX, 2)] {
            let error = buffer.range(rank, offset, bytes).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        }
    });
}

#[test]
fn different_sizes_are_an_error_on_every_rank() {
    let errors = ranks(3, |exchange| {
        let bytes = if exchange.rank() == 1 { 2048 } else { 1024 };
        SymmetricBuffer::new(&Host::new(), &exchange, "b", bytes)
            .unwrap_err()
            .to_string()
    });
    assert!(errors[0].contains("2048 bytes on rank 1"), "{}", errors[0]);
    assert!(errors[1].contains("1024 bytes on rank 0"), "{}", errors[1]);
}

#[test]
fn more_than_the_address_space_is_a_typed_error() {
    // The last is too much for all ranks together.
    for (world, bytes) in [(2, usize::MAX), (4, 1 << 62)] {
        ranks(world, move |exchange| {
            let error = SymmetricBuffer::new(&Host::new(), &exchange, "b", bytes).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        });
    }
}

#[test]
fn a_missing_descriptor_names_the_rank() {
    descriptors::a_missing_descriptor_names_the_rank(|_| Host::new());
}

#[test]
fn a_wrong_descriptor_names_the_rank() {
    descriptors::a_wrong_descriptor_names_the_rank(|_| Host::new());
}

#[test]
fn signals_order_data_back_to_back_and_in_graphs() {
    ranks(4, |exchange| {
        let device = Host::new();
        let stream = device.stream(Default::default()).unwrap();
        let (me, world) = (exchange.rank(), 4);
        let peers: Vec<_> = (0..world).filter(|&p| p != me).collect();
        let buffer = SymmetricBuffer::new(&device, &exchange, "b", 8 * world).unwrap();
        let pad = SignalPad::new(&device, &exchange, "p", 2).unwrap();
        let counter = device.allocate(8).unwrap();
        let sums = device.allocate(8).unwrap();
        use warpweave_symm_mem::Memory;
        let (counter_at, sums_at) = (counter.address(), sums.address());
        // One call: wait for credits, write the counter to every peer, signal; wait for all, add up, give
        // credit.
        let call = |stream: &_| -> warpweave_symm_mem::Result<()> {
            pad.wait(stream, 1, &peers, 1)?;
            let to: Vec<_> = (0..world).map(|p| buffer.peer(p).add(8 * me)).collect();
            device.launch(stream, "put", move || {
                // SAFETY: the test keeps the memory; the signals synchronize the ranks.
                unsafe {
                    let value = counter_at.as_host::<u64>();
                    *value += 1;
                    to.iter()
                        .for_each(|p| p.as_host::<u64>().write_volatile(*value));
                }
                Ok(())
            })?;
            pad.signal(stream, 0, &peers)?;
            pad.wait(stream, 0, &peers, 0)?;
            let parts = buffer.local();
            device.launch(stream, "sum", move || {
                // SAFETY: as above.
                unsafe {
                    let parts = std::slice::from_raw_parts(parts.as_host::<u64>(), 4);
                    assert!(parts.iter().all(|p| *p == parts[0]), "{parts:?}");
                    *sums_at.as_host::<u64>() += parts[0];
                }
                Ok(())
            })?;
            pad.signal(stream, 1, &peers)
        };
        for _ in 0..50 {
            call(&stream).unwrap();
        }
        let graph = device.capture(&stream, || call(&stream)).unwrap();
        for _ in 0..50 {
            // SAFETY: what was captured lives until the stream is empty.
            unsafe { device.launch_graph(&graph, &stream).unwrap() };
        }
        device.synchronize(&stream).unwrap();
        pad.check(&stream).unwrap();
        let sum = read(&device, sums_at, 8);
        assert_eq!(u64::from_ne_bytes(sum.try_into().unwrap()), 100 * 101 / 2);
        exchange.barrier("end").unwrap();
    });
}

#[test]
fn launches_of_one_graph_are_ordered_on_two_streams() {
    let device = Host::new();
    let streams = [(); 2].map(|()| device.stream(Default::default()).unwrap());
    let (running, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let work = {
        let most = most.clone();
        move || {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    };
    let enqueue = || device.launch(&streams[0], "work", work);
    let graph = device.capture(&streams[0], enqueue).unwrap();
    for stream in streams.iter().chain(&streams) {
        // SAFETY: the captured work uses no memory of the device.
        unsafe { device.launch_graph(&graph, stream).unwrap() };
    }
    for stream in &streams {
        device.synchronize(stream).unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// Each rank of a ring waits for the previous one, and all wait for the silent one.
#[test]
fn the_rank_at_the_root_of_a_chain_of_waits_is_named() {
    ranks(4, |exchange| {
        let me = exchange.rank();
        // The last of the chain gives up first, and knows only its neighbour.
        let deadline = if me == 3 { 100 } else { 20_000 };
        let device = Host::with_timeout(Duration::from_millis(deadline));
        let stream = device.stream(Default::default()).unwrap();
        let pad = SignalPad::new(&device, &exchange, "ring", 1).unwrap();
        if me > 0 {
            pad.wait(&stream, 0, &[me - 1], 0).unwrap();
            device.synchronize(&stream).unwrap();
        }
        exchange.barrier("all have given up").unwrap();
        let Err(Error::SignalFault(fault)) = pad.check(&stream) else {
            panic!("rank {me} has no fault");
        };
        let named = fault.root.unwrap_or(fault.peer);
        assert_eq!(named, 0, "rank {me}: {fault}");
        exchange.barrier("checked").unwrap();
        pad.recover(&stream, exchange.as_ref()).unwrap();
        pad.check(&stream).unwrap();
    });
}

#[test]
fn a_peer_that_never_signals_is_named_and_the_pad_recovers() {
    ranks(3, |exchange| {
        let device = Host::with_timeout(Duration::from_millis(100));
        let stream = device.stream(Default::default()).unwrap();
        let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
        let me = exchange.rank();
        let all = [0, 1, 2];
        if me != 1 {
            pad.signal(&stream, 0, &all).unwrap();
            for _ in 0..20 {
                pad.wait(&stream, 0, &all, 0).unwrap();
            }
            let start = std::time::Instant::now();
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
                (fault.rank, fault.peer, fault.expected, fault.seen),
                (me, 1, 1, 0)
            );
            assert!(fault.waited >= Duration::from_millis(100));
        }
        pad.recover(&stream, exchange.as_ref()).unwrap();
        for _ in 0..3 {
            pad.signal(&stream, 0, &all).unwrap();
            pad.wait(&stream, 0, &all, 0).unwrap();
        }
        device.synchronize(&stream).unwrap();
        pad.check(&stream).unwrap();
        pad.close(&stream, exchange.as_ref()).unwrap();
    });
}

/// A copy was skipped while waits were stopped. The signal after it runs only once the device would signal
/// again.
#[test]
fn recovery_of_one_pad_sends_no_signal_that_follows_a_skipped_copy_on_another() {
    ranks(2, |exchange| {
        let device = Host::with_timeout(Duration::from_millis(100));
        let failing = device.stream(Default::default()).unwrap();
        let other = device.stream(Default::default()).unwrap();
        let pad = SignalPad::new(&device, &exchange, "failing", 1).unwrap();
        let bystander = SignalPad::new(&device, &exchange, "bystander", 1).unwrap();
        let data = SymmetricBuffer::new(&device, &exchange, "data", 8).unwrap();
        if exchange.rank() == 0 {
            pad.wait(&failing, 0, &[1], 0).unwrap();
            let failed = device.event().unwrap();
            device.record(&failed, &failing).unwrap();
            device.wait_event(&other, &failed).unwrap();
            // SAFETY: both ranges live until the end, and only this copy uses them.
            unsafe { device.copy_unless_stopped(&other, data.peer(1), data.local(), 8) }.unwrap();
            device.delay(&other, Duration::from_millis(200)).unwrap();
            bystander.signal(&other, 0, &[1]).unwrap();
        }
        pad.recover(&failing, exchange.as_ref()).unwrap();
        device.synchronize(&other).unwrap();
        exchange.barrier("ended").unwrap();
        let flag = bystander.flag(1, 0, 0).unwrap();
        assert_eq!(
            read(&device, flag, 4),
            [0; 4],
            "rank 1 takes old data for new"
        );
        exchange.barrier("seen").unwrap();
    });
}

/// Of two pads one recovers. A rank that had not come to the step of the other yet must not take the signal
/// of the next step for that of the first, whose data were never copied. Kernels signal by themselves.
#[test]
fn a_pad_whose_signal_was_withheld_is_refused_until_it_recovers() {
    for by_kernel in [false, true] {
        ranks(2, move |exchange| {
            a_signal_is_withheld(&exchange, by_kernel)
        });
    }
}

fn a_signal_is_withheld(exchange: &Arc<dyn Exchange>, by_kernel: bool) {
    let device = Host::with_timeout(Duration::from_millis(100));
    let stream = device.stream(Default::default()).unwrap();
    let pad = SignalPad::new(&device, exchange, "failing", 1).unwrap();
    let bystander = SignalPad::new(&device, exchange, "bystander", 1).unwrap();
    let view = bystander.view();
    let signal = || match by_kernel {
        false => bystander.signal(&stream, 0, &[1]),
        true => device.launch(&stream, "kernel", move || {
            // SAFETY: the view of a live pad with this slot and rank, on which nothing else signals.
            unsafe { send_signal(&view, 0, 1) };
            Ok(())
        }),
    };
    let sends = exchange.rank() == 0;
    if sends {
        pad.wait(&stream, 0, &[1], 0).unwrap();
        signal().unwrap();
    }
    pad.recover(&stream, exchange.as_ref()).unwrap();
    let step = || {
        match sends {
            true => signal().unwrap(),
            false => bystander.wait(&stream, 0, &[0], 0).unwrap(),
        }
        device.synchronize(&stream).unwrap();
        bystander.check(&stream)
    };
    let Err(Error::SignalFault(fault)) = step() else {
        panic!("a signal that was withheld is forgotten")
    };
    match sends {
        true => assert_eq!((fault.peer, fault.cause), (1, FaultCause::Stopped)),
        false => assert_eq!(fault.cause, FaultCause::PeerGaveUp { reporter: 0 }),
    }
    bystander.recover(&stream, exchange.as_ref()).unwrap();
    step().unwrap();
    exchange.barrier("ended").unwrap();
}

#[test]
fn events_order_streams() {
    let device = Host::new();
    let (a, b) = (
        device.stream(Default::default()).unwrap(),
        device.stream(Default::default()).unwrap(),
    );
    let (start, mid) = (device.event().unwrap(), device.event().unwrap());
    assert!(device.elapsed(&start, &mid).is_err(), "not recorded yet");
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    for pass in 0..20 {
        let (first, second) = (seen.clone(), seen.clone());
        device.record(&start, &a).unwrap();
        device.delay(&a, Duration::from_millis(2)).unwrap();
        device
            .launch(&a, "first", move || {
                first.lock().unwrap().push(2 * pass);
                Ok(())
            })
            .unwrap();
        device.record(&mid, &a).unwrap();
        device.wait_event(&b, &mid).unwrap();
        device
            .launch(&b, "second", move || {
                second.lock().unwrap().push(2 * pass + 1);
                Ok(())
            })
            .unwrap();
        device.record(&start, &b).unwrap();
        device.wait_event(&a, &start).unwrap();
    }
    device.synchronize(&a).unwrap();
    device.synchronize(&b).unwrap();
    assert_eq!(*seen.lock().unwrap(), (0..40).collect::<Vec<_>>());
}

#[test]
fn a_failing_kernel_is_reported_once_and_the_stream_goes_on() {
    let device = Host::new();
    let stream = device.stream(Default::default()).unwrap();
    device
        .launch(&stream, "boom", || panic!("on purpose"))
        .unwrap();
    let error = device.synchronize(&stream).unwrap_err().to_string();
    assert!(error.contains("boom panicked: on purpose"), "{error}");
    device.launch(&stream, "fine", || Ok(())).unwrap();
    device.synchronize(&stream).unwrap();
}

#[test]
fn the_longest_timeout_is_as_good_as_any() {
    ranks(2, |exchange| {
        let device = Host::with_timeout(Duration::MAX);
        let stream = device.stream(Default::default()).unwrap();
        let mut pad = SignalPad::new(&device, &exchange, "longest", 1).unwrap();
        pad.set_timeout(Duration::MAX);
        pad.signal(&stream, 0, &[0, 1]).unwrap();
        pad.wait(&stream, 0, &[0, 1], 0).unwrap();
        // Unmapping waits for the streams, in a drop.
        drop(pad);
        device.synchronize(&stream).unwrap();
        exchange.barrier("end").unwrap();
    });
}

#[test]
fn unmapping_waits_for_the_streams_of_other_devices_that_work_was_put_on() {
    let (device, other) = (Host::new(), Host::new());
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
    let stream = other.stream(Default::default()).unwrap();
    let slept = Arc::new(AtomicBool::new(false));
    let after = slept.clone();
    let sleep = move || {
        std::thread::sleep(Duration::from_millis(100));
        after.store(true, Ordering::Release);
        Ok(())
    };
    other.launch(&stream, "sleep", sleep).unwrap();
    pad.signal(&stream, 0, &[0]).unwrap();
    drop(pad);
    assert!(slept.load(Ordering::Acquire), "the signal is still to come");
    other.synchronize(&stream).unwrap();
}

#[test]
fn a_slot_that_two_streams_use_is_used_in_the_order_of_the_calls() {
    let device = Host::new();
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
    let streams = [(); 2].map(|()| device.stream(Default::default()).unwrap());
    let uses: [&dyn Fn(&HostStream); 2] =
        [&|stream| pad.signal(stream, 0, &[0]).unwrap(), &|stream| {
            pad.wait(stream, 0, &[0], 0).unwrap()
        }];
    for one in uses {
        let slept = Arc::new(AtomicBool::new(false));
        let after = slept.clone();
        let sleep = move || {
            std::thread::sleep(Duration::from_millis(100));
            after.store(true, Ordering::Release);
            Ok(())
        };
        one(&streams[1]);
        device.launch(&streams[0], "sleep", sleep).unwrap();
        one(&streams[0]);
        one(&streams[1]);
        device.synchronize(&streams[1]).unwrap();
        assert!(slept.load(Ordering::Acquire), "two streams at one counter");
    }
    pad.check(&streams[0]).unwrap();
}
