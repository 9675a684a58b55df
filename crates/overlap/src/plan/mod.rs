//! A schedule as plain data.
//!
//! A [`Plan`] is the program of **one rank**: its buffers, its streams, its signal slots and an ordered list
//! of operations, each with the regions it reads and writes. The plans of all ranks together are a schedule.
//! Nothing in this module runs anything; see [`check`](mod@crate::check) for what is proved about plans.
//!
//! # What a plan means
//!
//! **Buffers.** A [`Placement::Symmetric`] buffer has the same shape on every rank and every rank may name
//! every copy of it; a [`Placement::Multicast`] buffer is symmetric and also bound to a multicast object, so
//! that one store reaches all copies; a [`Placement::Local`] buffer is its rank's own.
//!
//! **Streams.** Operations of one stream run in the order of the list. Stream 0 is the caller's; another
//! stream must be forked from it (record on 0, wait on the other) and joined to it again within the call.
//! [`OpKind::WaitEvent`] waits for the latest [`OpKind::Record`] of the event that precedes it in the
//! list.
//!
//! **Signals.** A flag lives at (destination rank, slot, source rank), starts at 0 and only ever grows. A
//! signal adds one to the sender's counter of that flag and stores it there (release). A wait adds one to the
//! waiter's own counter and lasts until the flag has reached that counter minus `lag` (acquire). So the
//! *m*-th wait needs the first signal whose value is at least *m − lag*: with `lag` 0 the peer's signal of
//! this call, with `lag` 1 the one of the previous call, which is a credit that the first call has for
//! nothing. Counters live with the pad and never restart, hence calls and graph replays may follow each other
//! with no reset.
//!
//! **Kernels.** The lanes of a kernel run concurrently, the effects of one lane in order; one may come after
//! other lanes. All lanes begin after the operations before the kernel on its stream; the kernel ends when
//! every lane has ended.
//!
//! **Collectives.** Each rank reads its own source and writes its own destination; no rank leaves before all
//! ranks that take part have entered. Ranks that take part in several must enter them in the same order.
//!
//! **Nodes.** Consecutive ranks share a node; symmetric memory and signals reach no further. Between nodes
//! there are collectives.
//!
//! **Calls.** One execution of the list is a call. Between calls the caller's own work runs on stream 0: it
//! overwrites every [`Role::Input`] buffer of its rank before each call and reads every [`Role::Output`]
//! buffer of its rank after it, which is its own until the next: it may overwrite that, too. It does not
//! synchronise with other ranks.

mod buffer;
mod builder;
mod op;
mod problem;
mod region;

use serde::{Deserialize, Serialize};
use std::ops::Range;
use warpweave_comm::collective::launch::MAX_WORLD;
use warpweave_symm_mem::Priority;

pub use buffer::{Buffer, BufferId, EventId, Placement, Role, Slot, SlotId, StreamId};
pub use builder::PlanBuilder;
pub(crate) use op::{ActivationName, ScalingName, is_none, layout_of};
pub use op::{AddRmsNorm, Batch, Collective, Effect, Op, OpKind, Quantized, Scales, Transport};
pub use problem::{Problem, chunks, shard};
pub(crate) use problem::{chunk, output_of};
pub use region::{MulticastRegion, Region};
pub use warpweave_gemm::{Activation, GATE_COLUMNS, Provider, Scaling};

/// The program of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the algorithm.
    pub name: String,
    /// The rank whose program this is.
    pub rank: usize,
    /// How many ranks take part.
    pub world: usize,
    /// How many ranks share a node; the last node may have fewer.
    pub node_size: usize,
    /// Buffers, indexed by [`BufferId`].
    pub buffers: Vec<Buffer>,
    /// Streams, indexed by [`StreamId`]; stream 0 is the caller's, with whatever urgency that has.
    pub streams: Vec<Priority>,
    /// Number of events.
    pub events: usize,
    /// Rows of the signal pad, indexed by [`SlotId`].
    pub slots: Vec<Slot>,
    /// Operations in the order in which they are enqueued.
    pub ops: Vec<Op>,
}

/// The caller's own in a call: it overwrites its inputs, and reads its outputs.
pub(crate) const CALLER_STEPS: usize = 2;

impl Plan {
    /// The most steps of a plan, and of the plans of all ranks.
    pub const MOST_STEPS: usize = 1 << 20;

    /// The steps of a call, as [`check`](mod@crate::check) counts them: one of most operations, two of a
    /// collective, and of a kernel two and one for each effect of its lanes; and the caller's two.
    pub fn steps(&self) -> usize {
        CALLER_STEPS + self.ops.iter().map(|op| op.kind.steps()).sum::<usize>()
    }

    /// The buffer of this id, if the plan has it.
    pub fn buffer(&self, id: BufferId) -> Option<&Buffer> {
        self.buffers.get(id.0)
    }

    /// The id of the buffer of this name.
    pub fn buffer_named(&self, name: &str) -> Option<BufferId> {
        self.buffers
            .iter()
            .position(|b| b.name == name)
            .map(BufferId)
    }

    /// Whether ranks of a node reach each other's memory, or signal each other.
    pub fn shares_memory(&self) -> bool {
        let shared = |buffer: &Buffer| buffer.placement != Placement::Local;
        !self.slots.is_empty() || self.buffers.iter().any(shared)
    }

    /// The first kernel or collective over symmetric memory that serves fewer ranks on GPUs than take part in
    /// it, if there is one, and how many it serves.
    pub fn overcrowded(&self) -> Option<(String, usize)> {
        self.ops.iter().find_map(|op| {
            let (what, ranks, most) = match &op.kind {
                OpKind::Kernel { kernel, .. } => {
                    (kernel.name().to_owned(), self.world, kernel.most_ranks())
                }
                OpKind::Collective {
                    collective,
                    ranks,
                    transport: transport @ Transport::SymmetricMemory,
                    ..
                } => (
                    format!("{collective} by {transport}"),
                    ranks.len(),
                    MAX_WORLD,
                ),
                _ => return None,
            };
            (ranks > most).then_some((what, most))
        })
    }

    /// The ranks of the node of `rank`.
    pub fn node_of(&self, rank: usize) -> Range<usize> {
        let size = self.node_size.max(1);
        let first = rank / size * size;
        first..first.saturating_add(size).min(self.world)
    }

    /// How many kernels, GEMMs, reductions and collectives a call launches; copies, signals and events are
    /// not counted. What follows an all-reduce over symmetric memory is counted with it, and after NCCL's by
    /// itself.
    pub fn launches(&self) -> usize {
        let of = |op: &Op| match &op.kind {
            OpKind::Collective {
                transport, then, ..
            } => 1 + usize::from(then.is_some() && *transport == Transport::Nccl),
            OpKind::Kernel { .. } | OpKind::Gemm { .. } | OpKind::Reduce { .. } => 1,
            _ => 0,
        };
        self.ops.iter().map(of).sum()
    }

    /// What makes a copy to this region: a copy engine, or SMs if it is an operand of a peer. Such an operand
    /// is the peer's own until it gives it for the call, so that a failed wait must be able to stop the copy.
    pub fn copies_by(&self, dst: &Region) -> Transport {
        let buffer = self.buffer(dst.buffer);
        let is_staging = buffer.is_some_and(|buffer| buffer.role == Role::Staging);
        match dst.rank == self.rank || is_staging {
            true => Transport::CopyEngine,
            false => Transport::ThreadLoads,
        }
    }

    /// The transports by which this plan moves data between ranks, each once, in order of first use.
    pub fn transports(&self) -> Vec<Transport> {
        let mut found = Vec::new();
        for op in &self.ops {
            let transport = match &op.kind {
                OpKind::Copy { src, dst } if src.rank != dst.rank => self.copies_by(dst),
                OpKind::Collective { transport, .. } => *transport,
                OpKind::Reduce { srcs, .. } if srcs.iter().any(|src| src.rank != self.rank) => {
                    Transport::ThreadLoads
                }
                OpKind::MulticastCopy { .. } => Transport::MulticastCopy,
                OpKind::Kernel { kernel, .. } => kernel.transport(),
                _ => continue,
            };
            if !found.contains(&transport) {
                found.push(transport);
            }
        }
        found
    }

    /// Whether every kernel declares exactly its [lanes](crate::kernels::AnyKernel::lanes) on this rank.
    ///
    /// The lanes of a plan are what [`check`](crate::check::check()) proves, the kernel is what runs: an
    /// executor should refuse a plan of which this is not true.
    pub fn kernels_do_what_they_declare(&self) -> bool {
        self.ops.iter().all(|op| match &op.kind {
            OpKind::Kernel { kernel, lanes } => *lanes == kernel.lanes(self.rank, self.world),
            _ => true,
        })
    }
}
