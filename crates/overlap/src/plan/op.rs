//! Operations, and the effects of a kernel's lanes.

use super::{EventId, Kernel, MulticastRegion, Region, SlotId, StreamId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One operation on one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// The stream it is enqueued on.
    pub stream: StreamId,
    /// What it does.
    pub kind: OpKind,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpKind {
    /// Copies a box to a box of the same shape. A source on a peer makes it a get, a destination on a peer a put.
    Copy {
        /// What is read.
        src: Region,
        /// What is written.
        dst: Region,
        /// What moves the bytes.
        transport: Transport,
    },
    /// Copies one of this rank's boxes to the same box of every rank, this one included, by the multicast address.
    MulticastCopy {
        /// What is read.
        src: Region,
        /// What is written, on every rank.
        dst: MulticastRegion,
    },
    /// Signals each rank of `to` once.
    Signal {
        /// The row of the pad.
        slot: SlotId,
        /// Destination ranks.
        to: Vec<usize>,
    },
    /// Waits for a signal of each rank of `from`.
    Wait {
        /// The row of the pad.
        slot: SlotId,
        /// Source ranks.
        from: Vec<usize>,
        /// How many calls' signals may be outstanding: 0 for this call's signal, 1 for a credit.
        lag: u32,
    },
    /// Records an event.
    Record {
        /// The event.
        event: EventId,
    },
    /// Waits for the latest record of an event that stands before this operation in the list.
    WaitEvent {
        /// The event.
        event: EventId,
    },
    /// A collective: every rank's rows, one shard after the other, on every rank.
    ///
    /// `dst` is split over the ranks by [`shard`](super::shard), so shards may differ by one row; `src` is this
    /// rank's shard. With equal shards it is one all-gather, otherwise a group of broadcasts.
    AllGather {
        /// This rank's shard.
        src: Region,
        /// All shards.
        dst: Region,
        /// What moves the bytes.
        transport: Transport,
    },
    /// A matrix product, c = a · b, with sums in f32.
    Gemm {
        /// m × k.
        a: Region,
        /// k × n.
        b: Region,
        /// m × n.
        c: Region,
        /// Whose kernel.
        provider: GemmProvider,
    },
    /// One kernel that declares what it does.
    Kernel {
        /// Which kernel, with its buffers and slots.
        kernel: Kernel,
        /// What it does, lane by lane; see [`Kernel::lanes`].
        lanes: Vec<Vec<Effect>>,
    },
}

/// One step of a kernel's lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// Reads a box, of this rank or of a peer.
    Read(Region),
    /// Writes a box, of this rank or of a peer.
    Write(Region),
    /// Writes the same box of every rank by the multicast address.
    WriteMulticast(MulticastRegion),
    /// Signals each rank of `to` once, after the lane's steps so far.
    Signal {
        /// The row of the pad.
        slot: SlotId,
        /// Destination ranks.
        to: Vec<usize>,
    },
    /// Waits for a signal of each rank of `from`, before the lane's next steps.
    Wait {
        /// The row of the pad.
        slot: SlotId,
        /// Source ranks.
        from: Vec<usize>,
        /// As in [`OpKind::Wait`].
        lag: u32,
    },
}

/// What moves bytes from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Transport {
    /// A collective of NCCL; on the host backend the host's own collective.
    Nccl,
    /// A copy engine, driven by the stream.
    CopyEngine,
    /// Loads and stores of the SMs.
    ThreadLoads,
    /// `multimem` stores of the SMs.
    Multimem,
    /// A copy whose destination is a multicast address.
    MulticastCopy,
}

/// Whose matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GemmProvider {
    /// cuBLASLt; on the host backend the host's own product.
    CublasLt,
    /// The CUTLASS SM90 kernel; on the host backend the host's own product.
    Cutlass,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Nccl => "nccl",
            Transport::CopyEngine => "copy-engine",
            Transport::ThreadLoads => "thread-loads",
            Transport::Multimem => "multimem",
            Transport::MulticastCopy => "multicast-copy",
        })
    }
}

impl fmt::Display for GemmProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GemmProvider::CublasLt => "cublaslt",
            GemmProvider::Cutlass => "cutlass",
        })
    }
}
