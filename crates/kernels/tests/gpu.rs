//! The device code, with threads of one process as ranks: one device each if there are enough, else all on
//! device 0 with grids small enough to be resident together.

mod support;

use std::time::Duration;

use support::{Job, Pace, Random, Shape, Variant, ranks, silent_peer};
use warpweave_kernels::{Error, reference};
use warpweave_symm_mem::host::{decode, encode};
use warpweave_symm_mem::{Cuda, DType};

const LONG: Duration = Duration::from_secs(10);
/// Ragged rows, aligned and unaligned, smaller and larger than a tile in each direction, more rows than the
/// blocks take at once.
const SHAPES: [(usize, usize, usize); 6] = [
    (64, 64, 64),
    (37, 132, 40),
    (2, 5, 7),
    (131, 19, 1),
    (250, 1161, 67),
    (515, 260, 96),
];

/// Variants without multicast, which these tests never use.
const VARIANTS: [Variant; 3] = [
    Variant::NaiveRemoteRead,
    Variant::Threadload,
    Variant::ThreadloadGather,
];

fn gpu(rank: usize) -> Cuda {
    let devices = Cuda::device_count().unwrap();
    Cuda::new(if devices >= 3 { rank } else { 0 }).unwrap()
}

/// A third of the smallest device that runs the kernels, whatever registers they use.
const MAX_BLOCKS: Option<u32> = Some(16);

#[test]
#[ignore = "needs a GPU"]
fn calls_that_follow_each_other_are_exact() {
    for world in 1..=3 {
        ranks(world, gpu, |backend, exchange| {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                for (m, n, k) in SHAPES {
                    let shape = Shape { m, n, k, dtype };
                    let job = Job::new(backend.clone(), exchange.clone(), shape, MAX_BLOCKS, LONG);
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
#[ignore = "needs a GPU"]
fn captured_calls_replay() {
    ranks(2, gpu, |backend, exchange| {
        let shape = Shape {
            m: 101,
            n: 72,
            k: 88,
            dtype: DType::F16,
        };
        let job = Job::new(backend, exchange, shape, MAX_BLOCKS, LONG);
        for variant in VARIANTS {
            job.replays(variant, 4);
        }
        job.close();
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_silent_peer_is_named_and_the_pad_recovers() {
    let shape = Shape {
        m: 70,
        n: 40,
        k: 24,
        dtype: DType::F16,
    };
    silent_peer(gpu, shape, MAX_BLOCKS, &VARIANTS);
}

#[test]
#[ignore = "needs a GPU"]
fn a_whole_device_computes_reals() {
    // Large enough for chunks of sixteen rows, and several tiles in columns and depth.
    for (m, n, k, dtype) in [
        (4608, 1536, 1096, DType::F16),
        (4608, 1041, 1031, DType::Bf16),
        (300, 2052, 2100, DType::F32),
    ] {
        let mut random = Random(5);
        let a: Vec<_> = (0..m * k).map(|_| random.real()).collect();
        let b: Vec<_> = (0..k * n).map(|_| random.real()).collect();
        let wanted =
            reference::matmul(&encode(dtype, &a), &encode(dtype, &b), m, n, k, dtype).unwrap();
        ranks(1, gpu, |backend, exchange| {
            let job = Job::new(backend, exchange, Shape { m, n, k, dtype }, None, LONG);
            let mut first = None;
            for variant in [Variant::NaiveRemoteRead, Variant::Threadload] {
                let result = job
                    .calls(variant, &b, std::slice::from_ref(&a), Pace::Prompt)
                    .remove(0);
                for (i, (got, wanted)) in decode(dtype, &result).iter().zip(&wanted).enumerate() {
                    // One rounding, and k additions in f32 of terms below 1.
                    let bound = dtype.epsilon() * wanted.abs() + 1e-6 * k as f64;
                    assert!(
                        (f64::from(*got) - wanted).abs() <= bound,
                        "{variant:?} {dtype}, element {i}: {got}, not {wanted}"
                    );
                }
                // All kernels add in the same order.
                assert!(
                    first.get_or_insert(result.clone()) == &result,
                    "{variant:?} {dtype} has other bits"
                );
            }
            job.close();
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn multimem_needs_an_address() {
    ranks(1, gpu, |backend, exchange| {
        let shape = Shape {
            m: 4,
            n: 4,
            k: 4,
            dtype: DType::F32,
        };
        let job = Job::new(backend, exchange, shape, MAX_BLOCKS, LONG);
        for variant in [Variant::Multimem, Variant::MultimemGather] {
            assert!(matches!(
                job.launch(variant),
                Err(Error::InvalidLaunch {
                    what: "address",
                    ..
                })
            ));
        }
        job.close();
    });
}
