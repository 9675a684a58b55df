//! All-reduce along two trees on the host backend: every world, type and length, with the sums in the order
//! that the trees say, bit by bit.

use std::sync::Arc;

use half::{bf16, f16};
use warpweave_comm::collective::tree::{NOBODY, Neighbours};
use warpweave_comm::collective::{Call, Operation, Variant};
use warpweave_comm::{CollectiveOptions, Collectives, Operand};
use warpweave_symm_mem::{Backend, DType, Exchange, Host, Memory, Priority, ThreadExchange};

/// Elements of a type in memory, and the f32 that they stand for.
trait Element: Copy + PartialEq + std::fmt::Debug + Send + 'static {
    const DTYPE: DType;
    fn of(value: f32) -> Self;
    fn value(self) -> f32;
    fn bytes(self) -> Vec<u8>;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $of:expr, $value:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            fn of(value: f32) -> Self {
                $of(value)
            }
            fn value(self) -> f32 {
                $value(self)
            }
            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        }
    };
}

element!(f32, F32, std::convert::identity, std::convert::identity);
element!(f16, F16, f16::from_f32, f16::to_f32);
element!(bf16, Bf16, bf16::from_f32, bf16::to_f32);

/// The input of `rank`: values of many magnitudes, so that the order of a reduction shows.
fn given<T: Element>(rank: usize, call: usize, index: usize) -> T {
    let mut bits = (index + 7919 * rank + 104_729 * call) as u32;
    for _ in 0..3 {
        bits = (bits ^ bits >> 15).wrapping_mul(0x2c1b_3c6d);
    }
    let value = (bits >> 8) as f32 / (1 << 23) as f32 - 1.0;
    T::of(value * [1.0, 0.01, 30.0][bits as usize % 3])
}

/// The sum of what hangs below `rank`, as partial sums climb.
fn sum(tree: usize, rank: usize, world: usize, values: &dyn Fn(usize) -> f32) -> f32 {
    let children = Neighbours::of(tree, rank, world).children;
    let children = children.into_iter().filter(|&child| child != NOBODY);
    children.fold(values(rank), |total, child| {
        total + sum(tree, child as usize, world, values)
    })
}

fn expected<T: Element>(world: usize, call: usize, count: usize, piece: usize) -> Vec<T> {
    let root = |tree| {
        let is_root = |&rank: &usize| Neighbours::of(tree, rank, world).parent == NOBODY;
        (0..world).find(is_root).unwrap()
    };
    let roots = [root(0), root(1)];
    let element = |index: usize| {
        let unit = index * size_of::<T>() % piece / 12;
        let tree = unit / 32 % 2;
        let values = |rank| given::<T>(rank, call, index).value();
        T::of(sum(tree, roots[tree], world, &values))
    };
    (0..count).map(element).collect()
}

/// Runs `rank` on a thread for every rank.
fn ranks(world: usize, rank: impl Fn(Arc<dyn Exchange>) + Send + Sync) {
    let rank = &rank;
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            scope.spawn(move || rank(Arc::new(exchange)));
        }
    });
}

fn bytes<T: Element>(values: &[T]) -> Vec<u8> {
    values.iter().flat_map(|value| value.bytes()).collect()
}

/// Calls back to back, of several launches where they are long, in and out of place, other collectives
/// between them.
fn calls<T: Element>(exchange: Arc<dyn Exchange>) {
    const LENGTHS: [usize; 10] = [0, 1, 5, 6, 7, 191, 192, 193, 1000, 2049];
    const MOST: usize = 2049;
    let (rank, world) = (exchange.rank(), exchange.world());
    let backend = Host::new();
    let options = CollectiveOptions {
        packet_bytes: 1500,
        staging_bytes: 4096,
        ..CollectiveOptions::default()
    };
    let collectives = Collectives::new(&backend, &exchange, "tree", options).unwrap();
    let packets = collectives.packet_bytes() / 12;
    let piece = packets * size_of::<T>() / 4 * 12 / 192 * 192;
    let stream = backend.stream(Priority::Normal).unwrap();
    let size = size_of::<T>();
    let [input, output] = [(); 2].map(|()| backend.allocate(MOST * size + 16).unwrap());
    for (call, count) in LENGTHS.into_iter().chain(LENGTHS).enumerate() {
        // Operands that are aligned to an element only.
        let shift = call % 3 * size;
        let mine: Vec<T> = (0..count).map(|index| given(rank, call, index)).collect();
        let from = input.address().add(shift);
        let to = if call % 2 == 0 {
            output.address().add(shift)
        } else {
            from
        };
        let sums = |variant, count| {
            let call = Call {
                operation: Operation::AllReduce,
                dtype: T::DTYPE,
                count,
                root: 0,
                input: Operand::local(from),
                output: Operand::local(to),
            };
            // SAFETY: both operands hold the longest call; all ranks make these calls.
            unsafe { collectives.enqueue(&stream, &call, variant) }.unwrap();
        };
        // SAFETY: both ranges are this rank's own.
        unsafe { backend.upload(&stream, from, &bytes(&mine)) }.unwrap();
        sums(Variant::Tree, count);
        let mut result = vec![0; count * size];
        // SAFETY: as above.
        unsafe { backend.download(&stream, to, &mut result) }.unwrap();
        collectives.check(&stream).unwrap();
        let wanted = expected::<T>(world, call, count, piece);
        assert!(
            result == bytes(&wanted),
            "{count} {} on {world} ranks, call {call}, rank {rank}",
            T::DTYPE
        );
        // Packets of other calls lie where this one's do.
        sums(
            if call % 4 == 0 {
                Variant::Packets
            } else {
                Variant::Tree
            },
            7,
        );
        sums(Variant::Tree, 100);
    }
    collectives.close(&stream, exchange.as_ref()).unwrap();
}

#[test]
fn sums_climb_and_results_descend() {
    for world in 1..=8 {
        ranks(world, calls::<f32>);
        ranks(world, calls::<f16>);
        ranks(world, calls::<bf16>);
    }
}

/// A rank that stays away is a fault on every rank that waits for it, by whatever way, and the others end as
/// well.
#[test]
fn a_missing_rank_is_a_fault_and_no_result() {
    ranks(4, |exchange| {
        let rank = exchange.rank();
        let backend = Host::with_timeout(std::time::Duration::from_millis(300));
        let options = CollectiveOptions {
            packet_bytes: 1500,
            staging_bytes: 4096,
            ..CollectiveOptions::default()
        };
        let collectives = Collectives::new(&backend, &exchange, "tree", options).unwrap();
        let stream = backend.stream(Priority::Normal).unwrap();
        let memory = backend.allocate(4096).unwrap();
        let call = Call {
            operation: Operation::AllReduce,
            dtype: DType::F32,
            count: 1000,
            root: 0,
            input: Operand::local(memory.address()),
            output: Operand::local(memory.address()),
        };
        let sum = || {
            // SAFETY: the operand holds the call.
            unsafe { collectives.enqueue(&stream, &call, Variant::Tree) }.unwrap();
            backend.synchronize(&stream).unwrap();
        };
        if rank != 2 {
            sum();
            let fault = collectives.check(&stream).unwrap_err();
            assert!(fault.to_string().contains("rank"), "{fault}");
        }
        collectives.recover(&stream, exchange.as_ref()).unwrap();
        sum();
        collectives.check(&stream).unwrap();
        collectives.close(&stream, exchange.as_ref()).unwrap();
    });
}
