//! Transfers of the device code, ranks as threads of one process: a GPU each where there are enough, else all
//! on the first with grids small enough to wait side by side. Ranks that share a GPU need a queue for each
//! stream: `CUDA_DEVICE_MAX_CONNECTIONS=32`.

mod transfers;

use std::time::Duration;

use transfers::ring::{DIRECTIONS, Kind, Ring};
use transfers::{OWN, bytes, faults, flood, ranks, streams};
use warpweave_comm::p2p::{Options, TransferMethod};
use warpweave_comm::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::Cuda;

/// A GPU for each of `world` ranks, or the first for all.
fn gpu(world: usize) -> impl Fn(usize) -> Cuda + Sync {
    let devices = Cuda::device_count().unwrap();
    move |rank| {
        let ordinal = if devices >= world { rank } else { 0 };
        Cuda::new(ordinal)
            .unwrap()
            .with_timeout(Duration::from_secs(20))
    }
}

/// What the GPUs have: bulk copies are Hopper's.
fn own() -> Vec<TransferMethod> {
    let hopper = Cuda::new(0).unwrap().compute_capability().0 == 9;
    OWN.into_iter()
        .filter(|method| hopper || *method != TransferMethod::Tma)
        .collect()
}

/// Small enough for eight ranks of one GPU that all wait at once.
fn options(lanes: usize) -> Options {
    Options {
        lanes,
        max_blocks: Some(4),
        ..Options::default()
    }
}

/// The worlds for which there are GPUs, and those that share one.
fn worlds() -> impl Iterator<Item = usize> {
    [1, 2, 3, 4, 8].into_iter()
}

#[test]
#[ignore = "needs a GPU"]
fn a_ring_of_gets_or_puts_needs_no_barrier() {
    for world in worlds() {
        ranks(world, options(1), gpu(world), |rank| {
            for direction in DIRECTIONS {
                for method in own() {
                    for shard in [1003, 65536] {
                        Ring::new(rank, direction, method, shard).exact(300, 100, false);
                    }
                }
            }
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_ring_over_memory_shared_by_ipc() {
    for world in [2, 4] {
        ranks(world, options(1), gpu(world), |rank| {
            for direction in DIRECTIONS {
                for method in own() {
                    for kind in [Kind::Symmetric, Kind::Registered] {
                        Ring::over(rank, kind, direction, method, 5001).exact(200, 100, false);
                    }
                }
            }
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_captured_ring_replays() {
    for world in worlds() {
        ranks(world, options(1), gpu(world), |rank| {
            for direction in DIRECTIONS {
                for method in own() {
                    Ring::new(rank, direction, method, 40_960).exact(200, 50, true);
                }
            }
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn large_shards_fill_the_rings_of_stages() {
    ranks(2, Options::default(), gpu(2), |rank| {
        for direction in DIRECTIONS {
            for method in own() {
                Ring::new(rank, direction, method, (24 << 20) + 48).exact(6, 100, false);
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn many_in_flight_in_both_directions() {
    for (world, lanes) in [(1, 2), (2, 3), (4, 2)] {
        ranks(world, options(lanes), gpu(world), |rank| {
            for method in own() {
                for size in [77, 8192] {
                    flood::exact(rank, method, 20, size);
                }
            }
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_was_posted_on_one_stream_is_waited_for_on_another() {
    ranks(2, options(1), gpu(2), |rank| {
        for method in own() {
            streams::exact(rank, method);
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn any_alignment_and_length() {
    for max_blocks in [Some(2), None] {
        let options = Options {
            max_blocks,
            ..Options::default()
        };
        ranks(2, options, gpu(2), |rank| {
            for method in own() {
                bytes::exact(rank, method, 12);
            }
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn refusals_and_dropped_tokens() {
    ranks(2, options(1), gpu(2), |rank| {
        faults::refusals(rank);
        faults::dropped_tokens(rank);
        faults::failed_captures(rank);
        faults::waits_across_a_capture(rank);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_silent_peer_is_named_and_the_endpoint_recovers() {
    let options = Options {
        timeout: Some(Duration::from_secs(1)),
        ..options(2)
    };
    for method in own() {
        ranks(2, options, gpu(2), |rank| {
            faults::silent_peer(rank, method);
        });
    }
}

#[test]
#[ignore = "needs a GPU for each rank, and NCCL"]
fn a_ring_by_nccl() {
    let world = Cuda::device_count().unwrap().min(4);
    let library = NcclLibrary::load().unwrap();
    ranks(world, Options::default(), gpu(world), |rank| {
        rank.backend.bind().unwrap();
        let options = NcclOptions::default();
        let nccl = NcclComm::init(&library, rank.exchange.as_ref(), options).unwrap();
        rank.p2p.attach_nccl(nccl).unwrap();
        for direction in DIRECTIONS {
            Ring::new(rank, direction, TransferMethod::Nccl, 65_537).exact(100, 100, false);
        }
    });
}
