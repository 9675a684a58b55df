//! The ways in which an operation can be done.

use std::fmt;
use std::str::FromStr;

use super::call::Operation;

/// A way to do a collective operation. Each names its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Variant {
    /// Data travels with its epoch through this library's own memory: one launch, no signals, any operands. An all-reduce
    /// sends everything to everybody.
    Packets,
    /// An all-reduce by packets in two shots: chunks to their ranks, sums to everybody.
    PacketsTwoShot,
    /// SMs store to symmetric outputs; where elements are reduced, to staging memory.
    Push,
    /// SMs load from symmetric inputs; where elements are reduced, each rank sums its chunk.
    Pull,
    /// As [`Variant::TwoShot`], but chunks are pushed to staging memory: stores leave more of the links to data than loads.
    TwoShotPush,
    /// Bulk copies of the tensor memory accelerator, to symmetric outputs.
    PushTma,
    /// Copy engines write to symmetric outputs; where elements are reduced, to staging memory.
    PushCopyEngine,
    /// As [`Variant::PushCopyEngine`], handed to the driver as one batch. Cannot be captured in a graph: there it is enqueued
    /// copy by copy.
    PushBatched,
    /// Every rank loads and sums all symmetric inputs.
    OneShot,
    /// Every rank loads and sums one chunk of all symmetric inputs and stores the sum to all symmetric outputs.
    TwoShot,
    /// Bulk copies of the tensor memory accelerator, from symmetric inputs; where elements are reduced, from shared memory.
    PullTma,
    /// As [`Variant::TwoShot`], by bulk copies in and out of shared memory.
    TwoShotTma,
    /// A broadcast whose root scatters the message over the other ranks, each of which passes its chunk on to the rest.
    ScatterAllGather,
    /// Along two binary trees, each of which carries half of the message, by packets: partial sums climb in f32, the result
    /// descends. Any operands. The order of a sum is that of the trees, not of ranks.
    Tree,
    /// Any operands of any size: pieces are pushed to symmetric memory of this library's own and copied from
    /// there, each while the next one is on its way. The kernels, and so the bits of a sum, are those of
    /// [`Variant::TwoShotPush`] (an all-reduce), [`Variant::ScatterAllGather`] (a broadcast) and
    /// [`Variant::Push`].
    Staged,
    /// SMs store and load through multicast addresses: the switch copies and sums, in f32 and in an order of its
    /// own.
    Multimem,
    /// One copy by copy engine to a multicast address.
    MulticastCopy,
}

impl Variant {
    /// The variants of an operation.
    pub const fn of(operation: Operation) -> &'static [Variant] {
        use Variant::*;
        match operation {
            Operation::AllGather => &[
                Packets,
                Push,
                Pull,
                PushTma,
                PullTma,
                PushCopyEngine,
                PushBatched,
                Staged,
                Multimem,
                MulticastCopy,
            ],
            Operation::Broadcast => &[
                Packets,
                Push,
                Pull,
                ScatterAllGather,
                PushTma,
                PullTma,
                PushCopyEngine,
                PushBatched,
                Staged,
                Multimem,
                MulticastCopy,
            ],
            Operation::AllToAll => &[
                Packets,
                Push,
                Pull,
                PushTma,
                PullTma,
                PushCopyEngine,
                PushBatched,
                Staged,
            ],
            Operation::ReduceScatter => &[
                Packets,
                Push,
                Pull,
                PullTma,
                PushCopyEngine,
                Staged,
                Multimem,
            ],
            Operation::AllReduce => &[
                Packets,
                PacketsTwoShot,
                OneShot,
                TwoShot,
                TwoShotPush,
                TwoShotTma,
                Tree,
                PushCopyEngine,
                Staged,
                Multimem,
            ],
            Operation::Barrier => &[Packets],
        }
    }

    /// All of them.
    pub const ALL: [Variant; 17] = [
        Variant::Packets,
        Variant::PacketsTwoShot,
        Variant::Push,
        Variant::Pull,
        Variant::PushTma,
        Variant::PushCopyEngine,
        Variant::PushBatched,
        Variant::OneShot,
        Variant::TwoShot,
        Variant::PullTma,
        Variant::TwoShotPush,
        Variant::TwoShotTma,
        Variant::ScatterAllGather,
        Variant::Tree,
        Variant::Staged,
        Variant::Multimem,
        Variant::MulticastCopy,
    ];

    /// Whether it takes sums in the order of ranks, as most do, so that they have the same bits in any such variant.
    pub const fn reduces_in_rank_order(self) -> bool {
        !matches!(self, Variant::Tree | Variant::Multimem)
    }

    /// Whether it is known to give the same sums in every run. Nobody says whether the switch does.
    pub const fn is_deterministic(self) -> bool {
        !matches!(self, Variant::Multimem)
    }

    /// The name in tables and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Packets => "packets",
            Variant::PacketsTwoShot => "packets-two-shot",
            Variant::Push => "push",
            Variant::Pull => "pull",
            Variant::PushTma => "push-tma",
            Variant::PushCopyEngine => "push-copy-engine",
            Variant::PushBatched => "push-batched",
            Variant::OneShot => "one-shot",
            Variant::TwoShot => "two-shot",
            Variant::PullTma => "pull-tma",
            Variant::TwoShotPush => "two-shot-push",
            Variant::TwoShotTma => "two-shot-tma",
            Variant::ScatterAllGather => "scatter-all-gather",
            Variant::Tree => "tree",
            Variant::Staged => "staged",
            Variant::Multimem => "multimem",
            Variant::MulticastCopy => "multicast-copy",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Variant {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|variant| variant.name() == name);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|variant| variant.name()).collect();
            format!("unknown variant `{name}`: one of {}", names.join(", "))
        })
    }
}
