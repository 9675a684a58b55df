//! A call of a script.

use warpweave_comm::collective::{Operation, Variant};
use warpweave_symm_mem::DType;

/// The types that collectives know.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// The operations that have operands.
pub const OPERATIONS: [Operation; 5] = [
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllReduce,
    Operation::Broadcast,
    Operation::AllToAll,
];

/// Which operands peers can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub input: bool,
    pub output: bool,
}

impl Reach {
    pub const NONE: Reach = Reach::of(false, false);
    pub const INPUT: Reach = Reach::of(true, false);
    pub const OUTPUT: Reach = Reach::of(false, true);
    pub const BOTH: Reach = Reach::of(true, true);
    pub const ALL: [Reach; 4] = [Reach::NONE, Reach::INPUT, Reach::OUTPUT, Reach::BOTH];

    const fn of(input: bool, output: bool) -> Self {
        Reach { input, output }
    }
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub operation: Operation,
    pub variant: Variant,
    pub dtype: DType,
    pub count: usize,
    pub root: usize,
    pub reach: Reach,
    /// Elements by which operands miss the alignment of vectors. If there are any, operands that no peer
    /// reaches miss it by one more on every other rank.
    pub offset: usize,
    pub in_place: bool,
}

/// Limits of the variants of a group.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub world: usize,
    pub packet_bytes: usize,
    pub sentinel_bytes: usize,
    pub staging_bytes: usize,
    pub multicast: bool,
}

impl Case {
    /// A call with aligned operands in places of their own, which peers reach if `reach` says so.
    pub fn new(
        operation: Operation,
        variant: Variant,
        dtype: DType,
        count: usize,
        reach: Reach,
    ) -> Self {
        Case {
            operation,
            variant,
            dtype,
            count,
            root: 0,
            reach,
            offset: 0,
            in_place: false,
        }
    }

    /// Bytes of the input and of the output.
    pub fn bytes(&self, world: usize) -> (usize, usize) {
        let (input, output) = self.operation.elements(self.count, world);
        (input * self.dtype.size(), output * self.dtype.size())
    }

    pub fn reduces(&self) -> bool {
        matches!(
            self.operation,
            Operation::AllReduce | Operation::ReduceScatter
        )
    }

    /// Whether the variant can do it, as its documentation says.
    pub fn applies(&self, limits: &Limits) -> bool {
        let Limits {
            world,
            packet_bytes,
            sentinel_bytes,
            staging_bytes,
            multicast,
        } = *limits;
        let Reach { input, output } = self.reach;
        let bytes = self.count * self.dtype.size();
        let chunk = match self.operation {
            Operation::AllReduce => bytes.div_ceil(world).next_multiple_of(16),
            _ => bytes,
        };
        let in_place = self.in_place && world > 1;
        let shuffles_in_place = self.operation == Operation::AllToAll && in_place;
        let is_staged = chunk * world <= staging_bytes;
        let has_places = match self.variant {
            Variant::Packets => bytes <= packet_bytes,
            Variant::Sentinel => chunk <= sentinel_bytes / world,
            Variant::Staged => true,
            Variant::Push | Variant::PushCopyEngine
                if self.operation == Operation::ReduceScatter =>
            {
                is_staged
            }
            Variant::PushCopyEngine | Variant::TwoShotPush
                if self.operation == Operation::AllReduce =>
            {
                output && is_staged
            }
            Variant::Push
            | Variant::PushTma
            | Variant::PushCopyEngine
            | Variant::PushBatched
            | Variant::ScatterAllGather => output,
            Variant::Pull | Variant::PullTma | Variant::PullCopyEngine => input,
            Variant::OneShot => input && !in_place,
            Variant::TwoShot | Variant::TwoShotTma => input && output,
            Variant::Multimem => {
                multicast
                    && (input || !self.reduces())
                    && (output || self.operation == Operation::ReduceScatter)
            }
            Variant::MulticastCopy => multicast && output && !self.in_place,
            other => panic!("the suite does not know the variant {other}"),
        };
        has_places
            && (!shuffles_in_place || matches!(self.variant, Variant::Packets | Variant::Staged))
    }
}
