//! Random small plans of two ranks, sound and unsound ones.

use proptest::prelude::*;
use warpweave_overlap::kernels::{AnyKernel, KernelShape, NaiveRemoteRead};
use warpweave_overlap::plan::{
    Collective, Effect, OpKind, Placement, Plan, PlanBuilder, Region, Role, SlotId, StreamId,
    Transport,
};
use warpweave_symm_mem::DType;

/// An operation before it has a place.
#[derive(Clone, Debug)]
pub enum Draft {
    /// From the input of `src` to the mailbox of `dst`, one row.
    Send {
        src: usize,
        dst: usize,
        row: usize,
    },
    /// From the mailbox of `src` to the own output, one row.
    Take {
        src: usize,
        row: usize,
    },
    Kernel(Vec<Vec<Touch>>),
    Collective,
}

#[derive(Clone, Debug)]
pub enum Touch {
    Read(usize, usize),
    Write(usize, usize),
    Signal,
    Wait(u32),
}

/// A signal and its wait, each put at some place of its rank's list.
#[derive(Clone, Debug)]
pub struct Message {
    slot: usize,
    src: usize,
    /// To the other rank, or to itself.
    to_peer: bool,
    lag: u32,
    signal_at: prop::sample::Index,
    wait_at: prop::sample::Index,
    streams: (usize, usize),
    /// Leave one of the two out.
    lost: Option<bool>,
}

fn draft() -> impl Strategy<Value = Draft> {
    let touch = prop_oneof![
        3 => (0..2usize, 0..2usize).prop_map(|(rank, row)| Touch::Read(rank, row)),
        2 => (0..2usize, 0..2usize).prop_map(|(rank, row)| Touch::Write(rank, row)),
        1 => Just(Touch::Signal),
        1 => (0..2u32).prop_map(Touch::Wait),
    ];
    let lane = prop::collection::vec(touch, 1..=2);
    prop_oneof![
        4 => (0..2usize, 0..2usize, 0..2usize).prop_map(|(src, dst, row)| Draft::Send { src, dst, row }),
        4 => (0..2usize, 0..2usize).prop_map(|(src, row)| Draft::Take { src, row }),
        2 => prop::collection::vec(lane, 1..=2).prop_map(Draft::Kernel),
        1 => Just(Draft::Collective),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    (
        (0..2usize, 0..2usize, prop::bool::weighted(0.8), 0..2u32),
        (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        (0..2usize, 0..2usize),
        prop_oneof![8 => Just(None), 1 => any::<bool>().prop_map(Some)],
    )
        .prop_map(
            |((slot, src, to_peer, lag), (signal_at, wait_at), streams, lost)| Message {
                slot,
                src,
                to_peer,
                lag,
                signal_at,
                wait_at,
                streams,
                lost,
            },
        )
}

/// What two ranks do: their own operations with their streams, the messages between them, forks and joins.
pub type Sketch = ([Vec<(usize, Draft)>; 2], Vec<Message>, [(bool, bool); 2]);

pub fn sketch() -> impl Strategy<Value = Sketch> {
    let ops = || {
        prop::collection::vec(
            (prop_oneof![3 => Just(0usize), 1 => Just(1usize)], draft()),
            0..=2,
        )
    };
    let ends = || (prop::bool::weighted(0.8), prop::bool::weighted(0.8));
    (
        [ops(), ops()],
        prop::collection::vec(message(), 0..=3),
        [ends(), ends()],
    )
}

pub fn plans((drafts, messages, ends): &Sketch) -> Vec<Plan> {
    (0..2)
        .map(|rank| plan(rank, &drafts[rank], messages, ends[rank]))
        .collect()
}

fn plan(
    rank: usize,
    drafts: &[(usize, Draft)],
    messages: &[Message],
    (fork, join): (bool, bool),
) -> Plan {
    let mut builder = PlanBuilder::new("random", rank, 2);
    let dtype = DType::F32;
    let mut buffer = |name, role| builder.buffer(name, Placement::Symmetric, role, dtype, (2, 1));
    let input = buffer("in", Role::Input);
    let mailbox = buffer("box", Role::Staging);
    let output = buffer("out", Role::Output);
    let gathered = buffer("all", Role::Staging);
    for name in ["s0", "s1", "lanes"] {
        builder.slot(name);
    }
    let row = |rank, buffer, row: usize| Region {
        rank,
        buffer,
        rows: row..row + 1,
        cols: 0..1,
    };

    let mut ops: Vec<(usize, OpKind)> = Vec::new();
    for (stream, draft) in drafts {
        let kind = match draft {
            Draft::Send { src, dst, row: r } => OpKind::Copy {
                src: row(*src, input, *r),
                dst: row(*dst, mailbox, *r),
            },
            Draft::Take { src, row: r } => OpKind::Copy {
                src: row(*src, mailbox, *r),
                dst: row(rank, output, *r),
            },
            Draft::Collective => OpKind::Collective {
                collective: Collective::AllGather,
                ranks: vec![0, 1],
                src: row(rank, input, 0),
                dst: Region {
                    rank,
                    buffer: gathered,
                    rows: 0..2,
                    cols: 0..1,
                },
                transport: Transport::Nccl,
                then: None,
            },
            Draft::Kernel(lanes) => OpKind::Kernel {
                // Which kernel it is does not matter to the proof: its lanes do.
                kernel: AnyKernel::NaiveRemoteRead(NaiveRemoteRead {
                    shape: KernelShape {
                        m: 2,
                        n: 1,
                        k: 1,
                        dtype,
                    },
                    a: input,
                    b: mailbox,
                    c: output,
                    ready: SlotId(2),
                    done: SlotId(2),
                }),
                lanes: lanes
                    .iter()
                    .map(|lane| {
                        let effect = |touch: &Touch| match *touch {
                            Touch::Read(rank, r) => Effect::Read(row(rank, mailbox, r)),
                            Touch::Write(rank, r) => Effect::Write(row(rank, mailbox, r)),
                            Touch::Signal => Effect::Signal {
                                slot: SlotId(2),
                                to: vec![1 - rank],
                            },
                            Touch::Wait(lag) => Effect::Wait {
                                slot: SlotId(2),
                                from: vec![1 - rank],
                                lag,
                            },
                        };
                        lane.iter().map(effect).collect()
                    })
                    .collect(),
            },
        };
        ops.push((*stream, kind));
    }
    for message in messages {
        let dst = if message.to_peer {
            1 - message.src
        } else {
            message.src
        };
        let slot = SlotId(message.slot);
        if rank == message.src && message.lost != Some(true) {
            let at = message.signal_at.index(ops.len() + 1);
            ops.insert(
                at,
                (
                    message.streams.0,
                    OpKind::Signal {
                        slot,
                        to: vec![dst],
                    },
                ),
            );
        }
        if rank == dst && message.lost != Some(false) {
            let at = message.wait_at.index(ops.len() + 1);
            let (from, lag) = (vec![message.src], message.lag);
            ops.insert(at, (message.streams.1, OpKind::Wait { slot, from, lag }));
        }
    }
    let side = ops.iter().any(|(stream, _)| *stream == 1);
    let forked = builder.fork();
    for (stream, kind) in ops {
        builder.push(StreamId(stream), kind);
    }
    if side && join {
        builder.join(forked);
    }
    let mut plan = builder.finish().expect("a sound plan");
    if !(side && fork) {
        // The record on one stream and the wait on the other.
        plan.ops.drain(..2);
    }
    plan
}
