//! The kernels that a plan can launch: their operands, and what each of them does.

mod lanes;
mod one_shot;
mod reduction;

use super::{BufferId, SlotId, Transport, chunks, shard};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use warpweave_gemm::Layout;
use warpweave_symm_mem::DType;

pub use one_shot::OneShot;
pub use reduction::Reduction;

/// Sizes of a kernel's problem: C\[m,n\] = A\[m,k\] · B\[k,n\], A sharded by rows, or by columns where products are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelShape {
    /// Rows over all ranks.
    pub m: usize,
    /// Columns of B; 0 for a gather.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Element type.
    pub dtype: DType,
}

/// How a weight is stored.
pub(crate) fn layout_of(transposed: bool) -> Layout {
    match transposed {
        false => Layout::RowMajor,
        true => Layout::Transposed,
    }
}

/// A kernel with the buffers and slots it is launched with.
///
/// `a` is the rank's own shard, in rows 0 .. shard length; `staging` holds all M rows; `b` and `c` are local. [`Reduction`]
/// and [`OneShot`] say what their own are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kernel {
    /// Computes C, each element reading its row of A from the rank that holds it.
    NaiveRemoteRead {
        /// Sizes.
        shape: KernelShape,
        /// Symmetric.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// "My A may be read."
        ready: SlotId,
        /// "I have read your A."
        done: SlotId,
    },
    /// Gathers A into staging by loads from its owners and computes C from there.
    ThreadloadGatherMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Symmetric.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// Local.
        staging: BufferId,
        /// "My A may be read."
        ready: SlotId,
        /// "I have read your A."
        done: SlotId,
    },
    /// Each owner stores its rows of A to every rank's staging by the multicast address; all compute C from their own
    /// staging.
    MultimemGatherMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Local.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// Multicast.
        staging: BufferId,
        /// "My rows are in your staging."
        ready: SlotId,
        /// "I have read your rows from my staging."
        free: SlotId,
    },
    /// Gathers A into staging by loads from its owners.
    ThreadloadGather {
        /// Sizes, with n = 0.
        shape: KernelShape,
        /// Symmetric.
        a: BufferId,
        /// Local.
        staging: BufferId,
        /// "My A may be read."
        ready: SlotId,
        /// "I have read your A."
        done: SlotId,
    },
    /// Each owner stores its rows of A to every rank's staging by the multicast address. The plan signals `free`.
    MultimemGather {
        /// Sizes, with n = 0.
        shape: KernelShape,
        /// Local.
        a: BufferId,
        /// Multicast.
        staging: BufferId,
        /// "My rows are in your staging."
        ready: SlotId,
        /// "I have read your rows from my staging."
        free: SlotId,
    },
    /// Computes C from this rank's rows where they lie and from the others' in staging, in the order of
    /// [`Kernel::arrivals`], each chunk of rows behind the signal of its owner.
    WaitingMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Local.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// Symmetric: the peers write their rows.
        staging: BufferId,
        /// "The next chunk of my rows is in your staging."
        ready: SlotId,
        /// Chunks of a shard, less those that are empty.
        chunks: usize,
    },
    /// Gathers the rows of the others in staging, chunk after chunk, and computes C meanwhile: from this rank's rows where they lie
    /// and from the others' in staging, each chunk once it is there. How they come is the protocol's affair.
    AllGatherMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Symmetric where peers fetch, else local.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Whether `b` is stored n × k.
        b_transposed: bool,
        /// Local: what is added to each row of C.
        bias: Option<BufferId>,
        /// Local.
        c: BufferId,
        /// Symmetric where peers write, else local. Alternating where rows come eagerly.
        staging: BufferId,
        /// What a rank says of its rows: see [`GatherProtocol`].
        ready: SlotId,
        /// Rows of a chunk; the last of a shard may have fewer.
        chunk_rows: usize,
        /// How rows come.
        protocol: GatherProtocol,
    },
    /// Computes this rank's part of all of C, K being sharded, and sums the parts of its rows, for itself or for everyone.
    ReducingMatmul(Reduction),
    /// The same, for everyone, where each rank sums all of C by itself.
    OneShotMatmul(OneShot),
}

/// No kernel has more slots.
const MOST_SLOTS: usize = 1 << 16;

/// How rows come from their owners in [`Kernel::AllGatherMatmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GatherProtocol {
    /// They are fetched behind `ready`, "my A may be read", which a symmetric `a` is for. Copies of the plan may bring the first of
    /// them; then the plan signals `ready`, from each rank that has any rows, behind those.
    Rendezvous {
        /// "I have read your A", and what you pushed.
        done: SlotId,
        /// The chunks of a shard, from its first, that copies of the plan bring.
        pushed: usize,
    },
    /// Their owner writes them into the staging of all others as soon as its launch begins, and says of each chunk that it is there, in
    /// `ready` and behind it, a slot for each. To a plan those words are one, that of the first chunk: a tile that waits for less than
    /// all of them reads no other rows.
    Eager {
        /// Chunks of the largest shard.
        chunks: usize,
    },
}

impl Kernel {
    /// The kernel's name, the same as that of its host reference; in one shot that is the one of all products that sum.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::NaiveRemoteRead { .. } => "naive_remote_read",
            Kernel::ThreadloadGatherMatmul { .. } => "threadload_gather_matmul",
            Kernel::MultimemGatherMatmul { .. } => "multimem_gather_matmul",
            Kernel::ThreadloadGather { .. } => "threadload_gather",
            Kernel::MultimemGather { .. } => "multimem_gather",
            Kernel::WaitingMatmul { .. } => "waiting_matmul",
            Kernel::AllGatherMatmul { .. } => "all_gather_matmul",
            Kernel::ReducingMatmul(_) => "reducing_matmul",
            Kernel::OneShotMatmul(_) => "one_shot_matmul",
        }
    }

    /// Sizes of the problem.
    pub fn shape(&self) -> KernelShape {
        match *self {
            Kernel::NaiveRemoteRead { shape, .. }
            | Kernel::ThreadloadGatherMatmul { shape, .. }
            | Kernel::MultimemGatherMatmul { shape, .. }
            | Kernel::ThreadloadGather { shape, .. }
            | Kernel::MultimemGather { shape, .. }
            | Kernel::WaitingMatmul { shape, .. }
            | Kernel::AllGatherMatmul { shape, .. }
            | Kernel::ReducingMatmul(Reduction { shape, .. })
            | Kernel::OneShotMatmul(OneShot { shape, .. }) => shape,
        }
    }

    /// The buffers it is launched with, in the order of the variant's fields.
    pub fn buffers(&self) -> Vec<BufferId> {
        match *self {
            Kernel::NaiveRemoteRead { a, b, c, .. } => vec![a, b, c],
            Kernel::ThreadloadGatherMatmul {
                a, b, c, staging, ..
            }
            | Kernel::MultimemGatherMatmul {
                a, b, c, staging, ..
            }
            | Kernel::WaitingMatmul {
                a, b, c, staging, ..
            } => vec![a, b, c, staging],
            Kernel::AllGatherMatmul {
                a,
                b,
                bias,
                c,
                staging,
                ..
            } => [a, b].into_iter().chain(bias).chain([c, staging]).collect(),
            Kernel::ReducingMatmul(Reduction {
                a,
                b,
                c,
                staging,
                pulled,
                ..
            }) => vec![a, b, c, staging, pulled],
            Kernel::OneShotMatmul(OneShot {
                a, b, c, staging, ..
            }) => vec![a, b, c, staging],
            Kernel::ThreadloadGather { a, staging, .. }
            | Kernel::MultimemGather { a, staging, .. } => vec![a, staging],
        }
    }

    /// The buffer of the product that it computes, if it computes one.
    pub fn result(&self) -> Option<BufferId> {
        match *self {
            Kernel::NaiveRemoteRead { c, .. }
            | Kernel::ThreadloadGatherMatmul { c, .. }
            | Kernel::MultimemGatherMatmul { c, .. }
            | Kernel::WaitingMatmul { c, .. }
            | Kernel::AllGatherMatmul { c, .. }
            | Kernel::ReducingMatmul(Reduction { c, .. })
            | Kernel::OneShotMatmul(OneShot { c, .. }) => Some(c),
            Kernel::ThreadloadGather { .. } | Kernel::MultimemGather { .. } => None,
        }
    }

    /// The slots it signals or waits on: first the one that says that data may be read, then, where the kernel has it,
    /// the one that says that it has been read. Where several say the former, they are all there. In
    /// one shot the latter is one in which the launch counts its calls.
    pub fn slots(&self) -> Vec<SlotId> {
        match *self {
            Kernel::NaiveRemoteRead { ready, done, .. }
            | Kernel::ThreadloadGatherMatmul { ready, done, .. }
            | Kernel::ThreadloadGather { ready, done, .. }
            | Kernel::AllGatherMatmul {
                ready,
                protocol: GatherProtocol::Rendezvous { done, .. },
                ..
            } => vec![ready, done],
            Kernel::MultimemGatherMatmul { ready, free, .. }
            | Kernel::MultimemGather { ready, free, .. } => vec![ready, free],
            Kernel::AllGatherMatmul {
                ready,
                protocol: GatherProtocol::Eager { chunks },
                ..
            } => (ready.0..ready.0.saturating_add(chunks.min(MOST_SLOTS)))
                .map(SlotId)
                .collect(),
            Kernel::WaitingMatmul { ready, .. } => vec![ready],
            Kernel::ReducingMatmul(reduction) => reduction.slots(),
            Kernel::OneShotMatmul(one_shot) => one_shot.slots(),
        }
    }

    /// Whether its words carry the number of its call, to which no signal of a plan adds.
    pub(crate) fn counts_calls(&self) -> bool {
        matches!(
            self,
            Kernel::AllGatherMatmul {
                protocol: GatherProtocol::Eager { .. },
                ..
            } | Kernel::OneShotMatmul(_)
        )
    }

    /// Whether its calls take two copies of a buffer in turn.
    pub(crate) fn alternates(&self, buffer: BufferId) -> bool {
        match *self {
            Kernel::AllGatherMatmul { staging, .. }
            | Kernel::OneShotMatmul(OneShot { staging, .. }) => {
                self.counts_calls() && staging == buffer
            }
            _ => false,
        }
    }

    /// What all ranks must have chosen alike, beside the shape.
    pub(crate) fn agreed(&self) -> String {
        match *self {
            Kernel::WaitingMatmul { chunks, .. } => format!("{chunks} chunks"),
            Kernel::AllGatherMatmul {
                chunk_rows,
                protocol,
                ..
            } => {
                let how = match protocol {
                    GatherProtocol::Rendezvous { pushed, .. } => format!("{pushed} pushed"),
                    GatherProtocol::Eager { .. } => "eagerly".into(),
                };
                format!("chunks of {chunk_rows} rows, {how}")
            }
            Kernel::ReducingMatmul(Reduction { rows, summed, .. }) => {
                let to = if summed.is_some() { "all" } else { "owners" };
                format!("groups of {rows} rows, sums to {to}")
            }
            _ => "nothing chosen".into(),
        }
    }

    /// How the kernel moves data between ranks, or has it moved.
    pub fn transport(&self) -> Transport {
        match self {
            Kernel::NaiveRemoteRead { .. }
            | Kernel::ThreadloadGatherMatmul { .. }
            | Kernel::ThreadloadGather { .. }
            | Kernel::AllGatherMatmul { .. }
            | Kernel::ReducingMatmul(_)
            | Kernel::OneShotMatmul(_) => Transport::ThreadLoads,
            Kernel::MultimemGatherMatmul { .. } | Kernel::MultimemGather { .. } => {
                Transport::Multimem
            }
            Kernel::WaitingMatmul { .. } => Transport::CopyEngine,
        }
    }

    /// About how many effects its lanes have, without making them.
    pub(crate) fn about_effects(&self, world: usize) -> usize {
        let rows = self.shape().m.div_ceil(world.max(1));
        let pieces = match *self {
            Kernel::WaitingMatmul { chunks, .. } => chunks.min(rows),
            Kernel::ReducingMatmul(Reduction { rows: of, .. }) => rows.div_ceil(of.max(1)),
            _ => 1,
        };
        // Of each piece of each rank: what is waited for, read, written and signalled.
        pieces.saturating_mul(world).saturating_mul(8)
    }

    /// The chunks of rows that [`Kernel::WaitingMatmul`] waits for, with their owners: those of rank r − 1 first, which
    /// has this rank as the first of its peers, then those of r − 2 and so on. None for other kernels.
    pub fn arrivals(&self, rank: usize, world: usize) -> Vec<(usize, Range<usize>)> {
        let Kernel::WaitingMatmul {
            shape,
            chunks: count,
            ..
        } = *self
        else {
            return Vec::new();
        };
        (1..world)
            .map(|step| (rank + world - step) % world)
            .flat_map(|owner| {
                chunks(shard(shape.m, owner, world), count).map(move |rows| (owner, rows))
            })
            .collect()
    }
}
