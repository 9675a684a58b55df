//! The host references, with threads of one process as ranks.

mod support;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use support::{Job, READY, Random, Shape, Variant, ranks};
use warpweave_kernels::{Error, KernelBackend, NaiveRemoteRead, reference};
use warpweave_symm_mem::host::HostStream;
use warpweave_symm_mem::{Backend, DType, Host};

const LONG: Duration = Duration::from_secs(20);
const SHAPES: [(usize, usize, usize); 4] = [(16, 16, 32), (13, 37, 41), (2, 5, 7), (67, 19, 1)];

/// A stream that is late by up to two milliseconds, differently on each rank.
fn dawdle(random: &Mutex<Random>) -> impl Fn(&Host, &HostStream) {
    move |host, stream| {
        let pause = Duration::from_micros(random.lock().unwrap().next() % 2000);
        host.launch(stream, "dawdle", move || {
            std::thread::sleep(pause);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn calls_that_follow_each_other_are_exact() {
    for world in 1..=4 {
        ranks(world, |_| Host::with_timeout(LONG), |backend, exchange| {
            let random = Mutex::new(Random(exchange.rank() as u64 + 77));
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                for (m, n, k) in SHAPES {
                    let shape = Shape { m, n, k, dtype };
                    let job = Job::new(backend.clone(), exchange.clone(), shape, None, LONG);
                    for variant in Variant::ALL {
                        job.exact(variant, 5, dawdle(&random));
                    }
                    job.close();
                }
            }
        });
    }
}

#[test]
fn bits_depend_on_neither_world_nor_kernel() {
    let (m, n, k) = (23, 18, 129);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let mut random = Random(5);
        let a: Vec<_> = (0..m * k).map(|_| random.real()).collect();
        let b: Vec<_> = (0..k * n).map(|_| random.real()).collect();
        let bytes = |values: &[f32]| support::to_bytes(values, dtype);
        let wanted = reference::matmul(&bytes(&a), &bytes(&b), m, n, k, dtype).unwrap();
        let first = Mutex::new(None::<Vec<u8>>);
        for world in [1, 3, 4] {
            ranks(world, |_| Host::with_timeout(LONG), |backend, exchange| {
                let shape = Shape { m, n, k, dtype };
                let job = Job::new(backend, exchange, shape, None, LONG);
                for variant in [Variant::NaiveRemoteRead, Variant::Threadload, Variant::Multimem] {
                    let result = job.calls(variant, &b, std::slice::from_ref(&a), |_, _| ()).remove(0);
                    for (got, wanted) in support::from_bytes(&result, dtype).iter().zip(&wanted) {
                        // One rounding of a sum whose terms are below 1, and f32 sums of 129 terms.
                        let bound = dtype.epsilon() * wanted.abs() + 1e-5 * k as f64;
                        assert!((got - wanted).abs() <= bound, "{variant:?} {dtype}: {got}, not {wanted}");
                    }
                    assert_eq!(first.lock().unwrap().get_or_insert(result.clone()), &result);
                }
                job.close();
            });
        }
    }
}

#[test]
fn a_silent_peer_is_named_and_the_pad_recovers() {
    let silent = 2;
    let shape = Shape { m: 14, n: 9, k: 10, dtype: DType::F16 };
    for variant in Variant::ALL {
        ranks(3, |_| Host::with_timeout(LONG), |backend, exchange| {
            let job = Job::new(backend, exchange, shape, None, Duration::from_millis(200));
            // So that the fault strikes at epochs that are not the first.
            job.exact(variant, 2, |_, _| ());
            let start = Instant::now();
            if job.rank() != silent {
                job.launch(variant).unwrap();
                job.backend.synchronize(&job.stream).unwrap();
                assert!(start.elapsed() < Duration::from_secs(10), "{variant:?} ended late");
                match job.pad.check(&job.stream) {
                    Err(warpweave_symm_mem::Error::SignalTimeout(fault)) => {
                        assert_eq!((fault.rank, fault.peer), (job.rank(), silent), "{variant:?}: {fault}");
                        assert_eq!(fault.slot, READY, "{variant:?}: {fault}");
                        assert!(fault.waited >= Duration::from_millis(200), "{fault}");
                    }
                    other => panic!("{variant:?} saw no fault: {other:?}"),
                }
            }
            job.pad.recover(&job.stream, job.exchange.as_ref()).unwrap();
            job.exact(variant, 3, |_, _| ());
            job.close();
        });
    }
}

#[test]
fn descriptors_that_contradict_themselves_are_refused() {
    ranks(1, |_| Host::with_timeout(LONG), |backend, exchange| {
        let shape = Shape { m: 4, n: 4, k: 4, dtype: DType::F32 };
        let job = Job::new(backend, exchange, shape, None, LONG);
        let good = job.naive_remote_read();
        let mut no_blocks = good;
        no_blocks.max_blocks = Some(0);
        let mut same_slot = good;
        same_slot.done = READY;
        let mut no_slot = good;
        no_slot.ready = 99;
        let mut null = good;
        null.b = warpweave_symm_mem::DevicePtr::NULL;
        let mut huge = good;
        huge.m = usize::MAX;
        let mut outsider = good;
        outsider.pad.rank = 1;
        let refused = |launch: &NaiveRemoteRead| {
            // SAFETY: a refused launch touches nothing.
            match unsafe { job.backend.naive_remote_read(&job.stream, launch) } {
                Err(Error::InvalidLaunch { what, .. }) => what,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(&no_blocks), "max_blocks");
        assert_eq!(refused(&same_slot), "done");
        assert_eq!(refused(&no_slot), "ready");
        assert_eq!(refused(&null), "b");
        assert_eq!(refused(&huge), "m");
        assert_eq!(refused(&outsider), "pad");
        job.close();
    });
}
