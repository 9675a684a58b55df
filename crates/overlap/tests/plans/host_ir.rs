//! The direct exchange is the pipeline to which nvFuser lowers a stream-parallel all-gather and matmul with
//! its CUDA backend.
//!
//! Source: NVIDIA/Fuser, csrc/host_ir/pass/stream_parallel_type.cpp, and AG_matmul_P2p in
//! tests/cpp/test_multidevice_stream_parallel_type.cpp. There the container is a loop that makes the streams
//! of all steps follow the caller's, then the loop over the steps. Step j sets stream j mod S; if it is the
//! rank's own step it takes its own shard, else it posts a send and a receive, by the get protocol in this
//! order, and waits for what it receives; then it multiplies the slice, waits for its send, and makes the
//! caller's stream follow.
//!
//! What is different here: handles are exchanged when a plan is bound, and the own shard is multiplied in
//! place. The signals and waits of a rank as the owner are on the caller's stream, before all steps and after
//! them, since A may be read from the beginning of the call to its end.

use crate::fixtures::problem;
use std::fmt;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::{OpKind, Plan, StreamId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The receiver may have this rank's shard.
    Send { to: usize },
    /// A stream of the pool begins after the caller's.
    Fork { stream: usize },
    /// On a stream: the owner's shard is there for the taking.
    Receive { stream: usize, from: usize },
    /// On a stream: it is taken to its slice of the gathered A.
    Take {
        stream: usize,
        from: usize,
        slice: usize,
    },
    /// On a stream: its owner is told so.
    Taken { stream: usize, from: usize },
    /// On a stream: a slice is multiplied to the same one of C.
    Multiply { stream: usize, slice: usize },
    /// The caller's stream goes on after one of the pool.
    Join { stream: usize },
    /// The receiver has this rank's shard.
    Sent { to: usize },
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Send { to } => write!(f, "send to {to}"),
            Line::Fork { stream } => write!(f, "stream {stream} follows the caller's"),
            Line::Receive { stream, from } => write!(f, "[{stream}] receive from {from}"),
            Line::Take {
                stream,
                from,
                slice,
            } => write!(f, "[{stream}] take slice {slice} from {from}"),
            Line::Taken { stream, from } => write!(f, "[{stream}] taken from {from}"),
            Line::Multiply { stream, slice } => write!(f, "[{stream}] multiply slice {slice}"),
            Line::Join { stream } => write!(f, "the caller's follows stream {stream}"),
            Line::Sent { to } => write!(f, "sent to {to}"),
        }
    }
}

/// What nvFuser's formulas say, with D ranks and a pool of S streams.
fn lowered(rank: usize, d: usize, s: usize) -> Vec<Line> {
    let send_peer = |j: usize| (d + rank - j) % d;
    let recv_peer = |j: usize| (rank + j) % d;
    let steps = || (0..d).map(|j| (j % s, send_peer(j), recv_peer(j)));
    // Steps later than the S-th set streams that follow already.
    let pool = || 0..s.min(d);

    let mut lines = Vec::new();
    let others = || steps().filter(|step| step.1 != rank);
    lines.extend(others().map(|(_, to, _)| Line::Send { to }));
    lines.extend(pool().map(|stream| Line::Fork { stream }));
    for (stream, send_peer, from) in steps() {
        let slice = from;
        if send_peer != rank {
            lines.push(Line::Receive { stream, from });
            lines.push(Line::Take {
                stream,
                from,
                slice,
            });
            lines.push(Line::Taken { stream, from });
        }
        lines.push(Line::Multiply { stream, slice });
    }
    lines.extend(pool().map(|stream| Line::Join { stream }));
    lines.extend(others().map(|(_, to, _)| Line::Sent { to }));
    lines
}

/// What the plan says, with `rows` rows in each shard.
fn planned(plan: &Plan, rows: usize) -> Vec<Line> {
    let mut recorded = vec![StreamId::MAIN; plan.events];
    let mut lines = Vec::new();
    for op in &plan.ops {
        let caller = op.stream == StreamId::MAIN;
        // The pool's streams stand after the caller's.
        let stream = op.stream.0.wrapping_sub(1);
        match &op.kind {
            OpKind::Signal { to, .. } if caller => {
                lines.extend(to.iter().map(|&to| Line::Send { to }));
            }
            OpKind::Signal { to, .. } => {
                lines.extend(to.iter().map(|&from| Line::Taken { stream, from }));
            }
            OpKind::Wait { from, lag: 0, .. } if caller => {
                lines.extend(from.iter().map(|&to| Line::Sent { to }));
            }
            OpKind::Wait { from, lag: 0, .. } => {
                lines.extend(from.iter().map(|&from| Line::Receive { stream, from }));
            }
            OpKind::Record { event } => recorded[event.0] = op.stream,
            OpKind::WaitEvent { event } => {
                let after = recorded[event.0];
                lines.push(match after {
                    StreamId::MAIN => Line::Fork { stream },
                    StreamId(after) => {
                        assert!(caller, "streams of the pool do not wait for each other");
                        Line::Join { stream: after - 1 }
                    }
                });
            }
            OpKind::Copy { src, dst, .. } => {
                assert_eq!((src.rows.clone(), dst.rank), (0..rows, plan.rank));
                lines.push(Line::Take {
                    stream,
                    from: src.rank,
                    slice: slice(dst.rows.clone(), rows),
                });
            }
            OpKind::Gemm { a, c, .. } => {
                let slice = slice(c.rows.clone(), rows);
                // Its own shard where it lies, another one where it was taken to.
                let lies = if slice == plan.rank {
                    0..rows
                } else {
                    c.rows.clone()
                };
                assert_eq!(a.rows, lies);
                lines.push(Line::Multiply { stream, slice });
            }
            other => panic!("{other:?} is not in nvFuser's container"),
        }
    }
    lines
}

fn slice(rows: std::ops::Range<usize>, each: usize) -> usize {
    assert_eq!((rows.start % each, rows.len()), (0, each));
    rows.start / each
}

#[test]
fn the_direct_exchange_is_nvfusers_container() {
    let rows = 2;
    for world in [2, 4, 8] {
        for streams in [1, 2, 4, 8] {
            let name = format!("directExchangePipeline:streams={streams}");
            let algorithm = algorithms::find(&name).unwrap();
            for rank in 0..world {
                let plan = algorithm.plan(rank, world, &problem(rows * world)).unwrap();
                assert_eq!(planned(&plan, rows), lowered(rank, world, streams));
            }
        }
    }
}

#[test]
fn the_container_of_rank_1_of_4_is_printed() {
    let algorithm = algorithms::find("directExchangePipeline:streams=2").unwrap();
    let plan = algorithm.plan(1, 4, &problem(8)).unwrap();
    insta::assert_debug_snapshot!(planned(&plan, 2));
}
