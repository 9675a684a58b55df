//! The operations that are measured, and what a size means for each.

use warpweave_comm::collective::{Call, Operand, Operation};
use warpweave_report::Bytes;
use warpweave_symm_mem::{BackendKind, DType, DevicePtr};

/// What is measured where the command line names nothing, in the order of the report.
pub const DEFAULT_OPERATIONS: [Operation; 5] = [
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllReduce,
    Operation::Broadcast,
    Operation::AllToAll,
];

/// The operation of this name.
pub fn operation(name: &str) -> Result<Operation, String> {
    let found = DEFAULT_OPERATIONS.into_iter().find(|o| o.name() == name);
    found.ok_or_else(|| {
        let names = DEFAULT_OPERATIONS.map(Operation::name).join(", ");
        format!("there is no operation `{name}` to measure; known are {names}")
    })
}

/// What the suite measures where the command line names nothing.
pub fn sizes(kind: BackendKind) -> Vec<Bytes> {
    let sizes: &[usize] = match kind {
        BackendKind::Cuda => &[12, 14, 16, 18, 20, 22, 24, 26, 28],
        BackendKind::Host => &[12, 16, 20],
    };
    sizes.iter().map(|&log| Bytes(1 << log)).collect()
}

/// The position of its table in the report.
pub(super) fn place(operation: Operation) -> usize {
    let found = DEFAULT_OPERATIONS.iter().position(|&o| o == operation);
    found.unwrap_or(DEFAULT_OPERATIONS.len())
}

/// Elements to which chunks are rounded down: whole vectors of 16 bytes, whatever the type.
const VECTOR: usize = 8;

/// The count of a call whose rank brings `bytes`, rounded down to what divides among the ranks; one element
/// at least.
fn count(operation: Operation, dtype: DType, bytes: usize, world: usize) -> usize {
    let elements = bytes / dtype.size();
    let count = match operation {
        Operation::ReduceScatter | Operation::AllToAll => match elements / world {
            chunk if !elements.is_multiple_of(world) && chunk > VECTOR => chunk / VECTOR * VECTOR,
            chunk => chunk,
        },
        _ => elements,
    };
    count.max(1)
}

/// The rank whose data broadcasts spread.
const ROOT: usize = 0;

/// A call of a rank that brings `size` bytes, rounded down to what divides among the ranks; without operands.
pub(super) fn call_of(operation: Operation, dtype: DType, size: usize, world: usize) -> Call {
    let nothing = Operand::local(DevicePtr::NULL);
    Call {
        operation,
        dtype,
        count: count(operation, dtype, size, world),
        root: ROOT,
        input: nothing,
        output: nothing,
    }
}

/// Bytes of input and output.
pub(super) fn bytes_of(call: &Call, world: usize) -> [usize; 2] {
    let (input, output) = call.operation.elements(call.count, world);
    [input, output].map(|elements| elements * call.dtype.size())
}

/// The fewest bytes that come into some rank where each brings `input`; none into a rank alone.
pub(super) fn least_bytes(operation: Operation, input: usize, world: usize) -> usize {
    match world {
        1 => 0,
        _ => operation.incoming(input, world),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Operation::*;
    use warpweave_report::Limit;

    #[test]
    fn a_size_is_what_a_rank_brings() {
        let count = |operation, world| count(operation, DType::Bf16, 4096, world);
        assert_eq!(
            [AllGather, AllReduce, Broadcast].map(|o| count(o, 4)),
            [2048; 3]
        );
        assert_eq!([ReduceScatter, AllToAll].map(|o| count(o, 4)), [512; 2]);
        // Three ranks cannot share 2048 elements: 682 become whole vectors.
        assert_eq!([ReduceScatter, AllToAll].map(|o| count(o, 3)), [680; 2]);
        assert_eq!(super::count(AllToAll, DType::F32, 4, 8), 1);
    }

    #[test]
    fn the_fewest_bytes_are_those_that_a_rank_lacks() {
        let bytes = |operation| least_bytes(operation, 4000, 4);
        assert_eq!(
            DEFAULT_OPERATIONS.map(bytes),
            [12_000, 3000, 6000, 4000, 3000]
        );
        assert_eq!(DEFAULT_OPERATIONS.map(|o| least_bytes(o, 4000, 1)), [0; 5]);
        // The limit is bytes over bandwidth.
        let limit = |operation| Limit::of_transfer(least_bytes(operation, 400_000_000, 4), 400.0);
        assert_eq!(
            (limit(AllGather).bytes, limit(AllGather).ms),
            (1_200_000_000, 3.0)
        );
        assert_eq!(limit(AllReduce).ms, 1.5);
    }

    #[test]
    fn gpus_measure_from_4k_to_256m_in_steps_of_four() {
        let text = |kind| sizes(kind).iter().map(Bytes::to_string).collect::<Vec<_>>();
        assert_eq!(
            text(BackendKind::Cuda),
            ["4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M"]
        );
        assert_eq!(text(BackendKind::Host), ["4K", "64K", "1M"]);
    }
}
