//! The variants of an operation.

use std::fmt;
use std::str::FromStr;

use super::operation::Operation;

/// An implementation of a collective operation. Each names its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Variant {
    /// Data is sent with its epoch through this library's own memory: one launch, no signals, any operands.
    /// An all-reduce sends everything to every rank.
    Packets,
    /// A two-shot all-reduce in one launch of data without flags, as NVIDIA's "Lamport" all-reduces: a word
    /// has arrived when it differs from the sentinel that was there before. Any operands.
    Sentinel,
    /// SMs store to symmetric outputs; for reductions, to staging memory.
    Push,
    /// SMs load from symmetric inputs; for reductions, each rank reduces its chunk.
    Pull,
    /// As [`Variant::TwoShot`], but chunks are pushed to staging memory: stores use the links more
    /// efficiently than loads.
    TwoShotPush,
    /// TMA bulk copies to symmetric outputs.
    PushTma,
    /// Copy engines write to symmetric outputs; for reductions, to staging memory. See
    /// [`Variant::pushes_outputs_by_engine`].
    PushCopyEngine,
    /// As [`Variant::PushCopyEngine`], as one batch of the driver. In a graph capture, where batches are not
    /// supported, it is enqueued copy by copy.
    PushBatched,
    /// Copy engines read from symmetric inputs.
    PullCopyEngine,
    /// Every rank loads and reduces all symmetric inputs.
    OneShot,
    /// Every rank loads and reduces one chunk of all symmetric inputs and stores the result to all symmetric
    /// outputs.
    TwoShot,
    /// TMA bulk copies from symmetric inputs; reductions read shared memory.
    PullTma,
    /// As [`Variant::TwoShot`], by bulk copies to and from shared memory.
    TwoShotTma,
    /// A broadcast whose root scatters the message over the other ranks, each of which forwards its chunk to
    /// the rest.
    ScatterAllGather,
    /// Any operands of any size: pieces are pushed to a symmetric bounce buffer and copied from there, in an
    /// all-reduce by the same launch, else while the next one is sent. The kernels, and so the bits of a
    /// reduction, are those of [`Variant::TwoShotPush`] (an all-reduce), [`Variant::ScatterAllGather`] (a
    /// broadcast) and [`Variant::Push`].
    Staged,
    /// SMs store and load through multicast addresses: the switch copies and reduces, in f32 and in its own
    /// order.
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
                PullCopyEngine,
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
                PullCopyEngine,
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
                PullCopyEngine,
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
                Sentinel,
                OneShot,
                TwoShot,
                TwoShotPush,
                TwoShotTma,
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
        Variant::Sentinel,
        Variant::Push,
        Variant::Pull,
        Variant::PushTma,
        Variant::PushCopyEngine,
        Variant::PushBatched,
        Variant::PullCopyEngine,
        Variant::OneShot,
        Variant::TwoShot,
        Variant::PullTma,
        Variant::TwoShotPush,
        Variant::TwoShotTma,
        Variant::ScatterAllGather,
        Variant::Staged,
        Variant::Multimem,
        Variant::MulticastCopy,
    ];

    /// Whether peers access the inputs of `operation` and whether they access the outputs.
    pub(super) const fn reaches(self, operation: Operation) -> [bool; 2] {
        use Variant::*;
        // The result of a reduce-scatter stays where it is reduced.
        let spreads = !matches!(operation, Operation::ReduceScatter);
        match self {
            Packets | Sentinel | Staged => [false, false],
            Pull | PullTma | PullCopyEngine | OneShot => [true, false],
            Push | PushTma | PushCopyEngine | PushBatched | MulticastCopy => [false, spreads],
            TwoShotPush | ScatterAllGather => [false, true],
            TwoShot | TwoShotTma => [true, true],
            Multimem => [operation.reduces(), spreads],
        }
    }

    /// Whether it reduces in the order of ranks, so that its results have the same bits as those of other
    /// such variants, in every run. For the switch not even the latter is documented.
    pub const fn reduces_in_rank_order(self) -> bool {
        !matches!(self, Variant::Multimem)
    }

    /// Whether copy engines of other ranks write the outputs of `operation`.
    ///
    /// On a GPU nothing stops a copy that is in the queue of a copy engine. So after a wait of a rank has
    /// failed, its copies that were enqueued before still write outputs of peers, which may not have given
    /// them: a peer that is between two calls can find the output of an earlier call overwritten, and its
    /// next wait or check reports the fault. [`Collectives::select`](super::Collectives::select) leaves such
    /// variants out. Name them where outputs are not used after their check.
    pub const fn pushes_outputs_by_engine(self, operation: Operation) -> bool {
        match self {
            Variant::PushCopyEngine => !matches!(operation, Operation::ReduceScatter),
            Variant::PushBatched | Variant::MulticastCopy => true,
            _ => false,
        }
    }

    /// The name in tables and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Packets => "packets",
            Variant::Sentinel => "sentinel",
            Variant::Push => "push",
            Variant::Pull => "pull",
            Variant::PushTma => "push-tma",
            Variant::PushCopyEngine => "push-copy-engine",
            Variant::PushBatched => "push-batched",
            Variant::PullCopyEngine => "pull-copy-engine",
            Variant::OneShot => "one-shot",
            Variant::TwoShot => "two-shot",
            Variant::PullTma => "pull-tma",
            Variant::TwoShotPush => "two-shot-push",
            Variant::TwoShotTma => "two-shot-tma",
            Variant::ScatterAllGather => "scatter-all-gather",
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
