//! Transfers of the host backend, ranks as threads.

use std::time::Duration;

use crate::transfers::ring::{DIRECTIONS, Kind, Ring};
use crate::transfers::{OWN, bytes, faults, flood, ranks, streams};
use warpweave_comm::p2p::Options;
use warpweave_symm_mem::Host;

fn host(_rank: usize) -> Host {
    Host::with_timeout(Duration::from_secs(30))
}

#[test]
fn a_ring_of_gets_or_puts_needs_no_barrier() {
    for world in 1..=8 {
        ranks(world, Options::default(), host, |rank| {
            for direction in DIRECTIONS {
                for method in OWN {
                    Ring::new(rank, direction, method, 1003).exact(60, 300, false);
                }
            }
        });
    }
}

#[test]
fn a_ring_over_memory_shared_by_ipc() {
    for world in [1, 2, 5] {
        ranks(world, Options::default(), host, |rank| {
            for direction in DIRECTIONS {
                for method in OWN {
                    Ring::over(rank, Kind::Registered, direction, method, 777)
                        .exact(60, 100, false);
                    Ring::over(rank, Kind::Registered, direction, method, 512).exact(40, 0, true);
                }
            }
        });
    }
}

#[test]
fn hundreds_of_rings_follow_each_other() {
    ranks(4, Options::default(), host, |rank| {
        for direction in DIRECTIONS {
            for method in OWN {
                Ring::new(rank, direction, method, 261).exact(400, 0, false);
            }
        }
    });
}

#[test]
fn a_captured_ring_replays() {
    for world in [2, 3, 5] {
        ranks(world, Options::default(), host, |rank| {
            for direction in DIRECTIONS {
                for method in OWN {
                    Ring::new(rank, direction, method, 515).exact(50, 200, true);
                }
            }
        });
    }
}

#[test]
fn many_in_flight_in_both_directions() {
    for (world, lanes) in [(1, 2), (2, 3), (3, 2), (4, 1)] {
        let options = Options {
            lanes,
            ..Options::default()
        };
        ranks(world, options, host, |rank| {
            for method in OWN {
                flood::exact(rank, method, 12, 77);
            }
        });
    }
}

#[test]
fn what_was_posted_on_one_stream_is_waited_for_on_another() {
    ranks(2, Options::default(), host, |rank| {
        for method in OWN {
            streams::exact(rank, method);
        }
    });
}

#[test]
fn any_alignment_and_length() {
    ranks(2, Options::default(), host, |rank| {
        for method in OWN {
            bytes::exact(rank, method, 9);
        }
    });
}

#[test]
fn posts_that_contradict_themselves_are_refused() {
    ranks(2, Options::default(), host, faults::refusals);
}

#[test]
fn a_dropped_token_is_missed_and_loses_no_epoch() {
    ranks(2, Options::default(), host, faults::dropped_tokens);
}

#[test]
fn posts_of_a_capture_that_failed_are_taken_back() {
    ranks(2, Options::default(), host, faults::failed_captures);
}

#[test]
fn a_wait_in_a_capture_leaves_eager_posts_alone() {
    ranks(2, Options::default(), host, faults::waits_across_a_capture);
}

#[test]
fn a_silent_peer_is_named_and_the_endpoint_recovers() {
    let options = Options {
        lanes: 2,
        timeout: Some(Duration::from_secs(1)),
        ..Options::default()
    };
    for method in OWN {
        ranks(2, options, host, |rank| {
            faults::silent_peer(rank, method);
        });
    }
}

#[test]
fn a_late_peer_is_told_and_overwrites_nothing() {
    let deadline = Duration::from_millis(250);
    let options = Options {
        timeout: Some(deadline),
        ..Options::default()
    };
    for method in OWN {
        ranks(2, options, host, |rank| {
            faults::late_peer(rank, method, deadline);
        });
    }
}
