//! The host references, with threads of one process as ranks.

mod support;

use std::sync::Mutex;
use std::time::Duration;

use support::{Job, Pace, READY, Random, Shape, Variant, ranks, silent_peer};
use warpweave_kernels::{Error, KernelBackend, NaiveRemoteRead, reference};
use warpweave_symm_mem::host::{decode, encode};
use warpweave_symm_mem::{DType, DevicePtr, Host};

const LONG: Duration = Duration::from_secs(20);
const SHAPES: [(usize, usize, usize); 4] = [(16, 16, 32), (13, 37, 41), (2, 5, 7), (67, 19, 1)];

const VARIANTS: [Variant; 5] = [
    Variant::NaiveRemoteRead,
    Variant::Threadload,
    Variant::ThreadloadGather,
    Variant::Multimem,
    Variant::MultimemGather,
];

fn host(_rank: usize) -> Host {
    Host::with_timeout(LONG)
}

#[test]
fn calls_that_follow_each_other_are_exact() {
    for world in 1..=4 {
        ranks(world, host, |backend, exchange| {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                for (m, n, k) in SHAPES {
                    let shape = Shape { m, n, k, dtype };
                    let job = Job::new(backend.clone(), exchange.clone(), shape, None, LONG);
                    for variant in VARIANTS {
                        job.exact(variant, 5, Pace::Late);
                    }
                    job.close();
                }
            }
        });
    }
}

#[test]
fn captured_calls_replay() {
    ranks(3, host, |backend, exchange| {
        let shape = Shape {
            m: 11,
            n: 6,
            k: 9,
            dtype: DType::Bf16,
        };
        let job = Job::new(backend, exchange, shape, None, LONG);
        for variant in VARIANTS {
            job.replays(variant, 4);
        }
        job.close();
    });
}

#[test]
fn bits_depend_on_neither_world_nor_kernel() {
    let (m, n, k) = (23, 18, 129);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let mut random = Random(5);
        let a: Vec<_> = (0..m * k).map(|_| random.real()).collect();
        let b: Vec<_> = (0..k * n).map(|_| random.real()).collect();
        let bytes = |values: &[f32]| encode(dtype, values);
        let wanted = reference::matmul(&bytes(&a), &bytes(&b), m, n, k, dtype).unwrap();
        let first = Mutex::new(None::<Vec<u8>>);
        for world in [1, 3, 4] {
            ranks(world, host, |backend, exchange| {
                let shape = Shape { m, n, k, dtype };
                let job = Job::new(backend, exchange, shape, None, LONG);
                for variant in [
                    Variant::NaiveRemoteRead,
                    Variant::Threadload,
                    Variant::Multimem,
                ] {
                    let result = job
                        .calls(variant, &b, std::slice::from_ref(&a), Pace::Prompt)
                        .remove(0);
                    for (got, wanted) in decode(dtype, &result).iter().zip(&wanted) {
                        // One rounding of a sum whose terms are below 1, and f32 sums of 129 terms.
                        let bound = dtype.epsilon() * wanted.abs() + 1e-5 * k as f64;
                        assert!(
                            (f64::from(*got) - wanted).abs() <= bound,
                            "{variant:?} {dtype}: {got}, not {wanted}"
                        );
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
    let shape = Shape {
        m: 14,
        n: 9,
        k: 10,
        dtype: DType::F16,
    };
    silent_peer(host, shape, None, &VARIANTS);
}

#[test]
fn descriptors_that_contradict_themselves_are_refused() {
    ranks(1, host, |backend, exchange| {
        let shape = Shape {
            m: 4,
            n: 4,
            k: 4,
            dtype: DType::F32,
        };
        let job = Job::new(backend, exchange, shape, None, LONG);
        let good = job.naive_remote_read();
        let mut no_blocks = good;
        no_blocks.max_blocks = Some(0);
        let mut same_slot = good;
        same_slot.done = READY;
        let mut no_slot = good;
        no_slot.ready = 99;
        let mut null = good;
        null.b = DevicePtr::NULL;
        let mut huge = good;
        huge.m = usize::MAX;
        let mut outsider = good;
        outsider.pad.rank = 1;
        let refused = |launch: &NaiveRemoteRead| {
            // SAFETY: a refused launch accesses nothing.
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
