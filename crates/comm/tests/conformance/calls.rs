//! Calls on the caller's memory: any length and alignment, in graphs, on several streams, and what becomes of
//! ranks that make different calls.

use warpweave_comm::CollectiveKernels;
use warpweave_comm::collective::{Operation, Variant};
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::{DType, DeviceSlice, Error, FaultCause, Memory};

use crate::case::{Case, DTYPES, OPERATIONS, Reach};
use crate::play::Played;
use crate::rank::{Rank, message};
use crate::suite::every_variant;
use crate::values::{given, result};

/// What memory holds before a call.
const POISON: u8 = 0xa5;
/// Bytes on either side of an operand that a call must leave alone.
const MARGIN: usize = 64;

/// Calls `operation` on slices.
fn call<B: CollectiveKernels>(
    rank: &Rank<B>,
    stream: &B::Stream,
    case: &Case,
    [input, output]: [DeviceSlice<'_>; 2],
) -> Result<Variant, Error> {
    let collectives = &rank.collectives;
    match case.operation {
        Operation::AllReduce => collectives.all_reduce(stream, case.dtype, input, output),
        Operation::ReduceScatter => collectives.reduce_scatter(stream, case.dtype, input, output),
        Operation::AllGather => collectives.all_gather(stream, input, output),
        Operation::Broadcast => collectives.broadcast(stream, case.root, input, output),
        Operation::AllToAll => collectives.all_to_all(stream, input, output),
        Operation::Barrier => panic!("no operands"),
    }
}

/// Every operation at lengths that take each of its variants, at addresses that differ between ranks.
pub fn any_memory<B: CollectiveKernels>(rank: &Rank<B>, counts: &[usize]) -> Played {
    let (world, me) = (rank.world(), rank.rank());
    let mut seed = 7000;
    for operation in OPERATIONS {
        for dtype in DTYPES {
            for &count in counts {
                for (skew, in_place) in [(0, false), (1, false), (3, true)] {
                    seed += 1;
                    let root = seed as usize % world;
                    let case = Case {
                        root,
                        in_place,
                        ..Case::new(operation, Variant::Packets, dtype, count, Reach::NONE)
                    };
                    let skew = skew * (me + 1) * dtype.size();
                    one(rank, &case, skew, seed)
                        .map_err(|why| format!("rank {me}: {case:?}: {why}"))?;
                }
            }
        }
    }
    Ok(())
}

fn one<B: CollectiveKernels>(rank: &Rank<B>, case: &Case, skew: usize, seed: u64) -> Played {
    let (world, me) = (rank.world(), rank.rank());
    let (given_bytes, taken_bytes) = case.bytes(world);
    let room = given_bytes.max(taken_bytes);
    let part = me * case.count * case.dtype.size();
    // Where the smaller operand lies in the larger one.
    let (input_at, output_at) = match (case.in_place, case.operation) {
        (true, Operation::AllGather) => (part, 0),
        (true, Operation::ReduceScatter) => (0, part),
        (true, _) => (0, 0),
        (false, _) => (0, room + MARGIN),
    };
    let start = MARGIN + skew;
    let memory = rank
        .backend
        .allocate(start + 2 * (room + MARGIN))
        .map_err(message)?;
    let all = DeviceSlice::of(&memory);
    let slice = |at: usize, bytes: usize| all.slice(start + at, bytes).expect("inside");
    let values = given(case.dtype, seed, me, 0..given_bytes / case.dtype.size());
    let values = encode(case.dtype, &values);
    let mut expected = vec![POISON; memory.bytes()];
    // SAFETY: the whole of new memory.
    unsafe {
        let (backend, stream) = (&rank.backend, &rank.stream);
        backend
            .fill(stream, memory.address(), POISON, memory.bytes())
            .map_err(message)?;
        let at = memory.address().add(start + input_at);
        backend.upload(stream, at, &values).map_err(message)?;
    }
    expected[start + input_at..][..given_bytes].copy_from_slice(&values);
    let wanted = encode(case.dtype, &result(case, &rank.limits(), seed, me));
    expected[start + output_at..][..taken_bytes].copy_from_slice(&wanted);
    let operands = [slice(input_at, given_bytes), slice(output_at, taken_bytes)];
    rank.meet()?;
    let variant = call(rank, &rank.stream, case, operands).map_err(message)?;
    rank.finish()?;
    let got = rank.read(&memory)?;
    match got
        .iter()
        .zip(&expected)
        .position(|(got, wanted)| got != wanted)
    {
        None => Ok(()),
        Some(at) => Err(format!(
            "{variant}: byte {} differs",
            at as i64 - (start + output_at) as i64
        )),
    }
}

/// Chunks of lengths that differ by pair, empty ones among them, in one piece and in several.
pub fn uneven<B: CollectiveKernels>(rank: &Rank<B>) -> Played {
    let (world, me) = (rank.world(), rank.rank());
    let piece = rank.collectives.packet_bytes();
    for (turn, most) in [0, 2, 12, 14, 100, 1000, piece + 2, 3 * piece]
        .into_iter()
        .enumerate()
    {
        for skew in [0, 2, 6] {
            let length = |from: usize, to: usize| match (5 * from + 3 * to + turn) % 4 {
                0 => 0,
                1 => most,
                2 => most / 4 * 2,
                _ => most.min(26),
            };
            let value = |from: usize, to: usize, index: usize| {
                (31 * from + 7 * to + 3 * turn + index) as u8
            };
            let bytes = |from, to| (0..length(from, to)).map(move |index| value(from, to, index));
            let sent: Vec<usize> = (0..world).map(|to| length(me, to)).collect();
            let received: Vec<usize> = (0..world).map(|from| length(from, me)).collect();
            let given: Vec<u8> = (0..world).flat_map(|to| bytes(me, to)).collect();
            let wanted: Vec<u8> = (0..world).flat_map(|from| bytes(from, me)).collect();
            let room = |bytes: usize| rank.backend.allocate(bytes + 2 * MARGIN).map_err(message);
            let (input, output) = (room(given.len())?, room(wanted.len())?);
            let start = MARGIN / 2 + skew * (me % 2);
            // SAFETY: new memory, within its bounds.
            unsafe {
                let (backend, stream) = (&rank.backend, &rank.stream);
                backend
                    .fill(stream, output.address(), POISON, output.bytes())
                    .map_err(message)?;
                backend
                    .upload(stream, input.address().add(start), &given)
                    .map_err(message)?;
            }
            let slice = |memory, bytes| DeviceSlice::slice(memory, start, bytes).expect("inside");
            let input = (slice(DeviceSlice::of(&input), given.len()), &sent[..]);
            let taken = (slice(DeviceSlice::of(&output), wanted.len()), &received[..]);
            rank.meet()?;
            let called = rank
                .collectives
                .all_to_all_uneven(&rank.stream, input, taken, most);
            called.map_err(message)?;
            rank.finish()?;
            let mut expected = vec![POISON; output.bytes()];
            expected[start..][..wanted.len()].copy_from_slice(&wanted);
            if rank.read(&output)? != expected {
                return Err(format!(
                    "rank {me} of {world}: {most} bytes at most, skewed by {skew}"
                ));
            }
        }
    }
    Ok(())
}

/// Two ranks that disagree about the length of a chunk, in the same number of packets or not.
pub fn lengths_that_differ_are_told<B: CollectiveKernels>(rank: &Rank<B>) -> Played {
    assert_eq!(rank.world(), 2);
    let (me, peer) = (rank.rank(), 1 - rank.rank());
    let memory = rank.backend.allocate(256).map_err(message)?;
    for (sent, expected) in [(2, 12), (0, 12), (12, 10), (12, 24), (36, 12)] {
        let mut lengths = [[0; 2]; 2];
        if me == 0 {
            lengths[0][peer] = sent;
        } else {
            lengths[1][peer] = expected;
        }
        let [given, taken] = lengths;
        let slice = |at, bytes: &[usize]| {
            let all = DeviceSlice::of(&memory);
            all.slice(at, bytes.iter().sum()).expect("inside")
        };
        rank.meet()?;
        let (input, output) = (
            (slice(0, &given), &given[..]),
            (slice(128, &taken), &taken[..]),
        );
        let called = rank
            .collectives
            .all_to_all_uneven(&rank.stream, input, output, 100);
        called.map_err(message)?;
        rank.backend.synchronize(&rank.stream).map_err(message)?;
        let told = rank.collectives.check(&rank.stream);
        let exchange = rank.exchange.as_ref();
        rank.collectives
            .recover(&rank.stream, exchange)
            .map_err(message)?;
        // The one that sends may have ended before it is told.
        if me == 1
            && !matches!(&told, Err(Error::SignalFault(fault)) if fault.cause == FaultCause::OtherCall)
        {
            return Err(format!("{sent} bytes for {expected}: {told:?}"));
        }
    }
    Ok(())
}

/// What the last rank makes of a call that the others make.
const ODD: [fn(&Case) -> Case; 4] = [
    |case| Case {
        count: case.count + 1,
        ..*case
    },
    |case| Case {
        dtype: DType::Bf16,
        count: 2 * case.count,
        ..*case
    },
    |case| Case {
        count: case.count / 100,
        ..*case
    },
    |case| Case {
        operation: Operation::AllToAll,
        ..*case
    },
];

/// One rank calls with another size, element type or operation: an error on every rank, which says so and
/// names a rank on either side of the disagreement, long before the deadline. Afterwards the group goes on.
pub fn different_calls_are_told<B: CollectiveKernels>(
    rank: &Rank<B>,
    timeout: std::time::Duration,
) -> Played {
    let last = rank.world() - 1;
    let memory = rank.backend.allocate(1 << 16).map_err(message)?;
    for (index, odd) in ODD.into_iter().enumerate() {
        let alike = Case::new(
            Operation::AllReduce,
            Variant::Packets,
            DType::F32,
            480,
            Reach::NONE,
        );
        let case = if rank.rank() == last {
            odd(&alike)
        } else {
            alike
        };
        let (given, taken) = case.bytes(rank.world());
        let slice = |at, bytes| DeviceSlice::of(&memory).slice(at, bytes).expect("inside");
        // After a call that is alike.
        let operands = [slice(0, 1920), slice(1 << 15, 1920)];
        rank.meet()?;
        call(rank, &rank.stream, &alike, operands).map_err(message)?;
        rank.finish()?;
        rank.meet()?;
        let start = std::time::Instant::now();
        call(
            rank,
            &rank.stream,
            &case,
            [slice(0, given), slice(1 << 15, taken)],
        )
        .map_err(message)?;
        rank.backend.synchronize(&rank.stream).map_err(message)?;
        let waited = start.elapsed();
        is_told(rank, waited, timeout).map_err(|why| format!("odd call {index}: {why}"))?;
        rank.meet()?;
        rank.collectives
            .recover(&rank.stream, rank.exchange.as_ref())
            .map_err(message)?;
        one(rank, &alike, 0, 9000 + index as u64)?;
    }
    Ok(())
}

/// After a call in which the last rank differed: the error says so and names a rank on either side.
fn is_told<B: CollectiveKernels>(
    rank: &Rank<B>,
    waited: std::time::Duration,
    timeout: std::time::Duration,
) -> Played {
    let (me, last) = (rank.rank(), rank.world() - 1);
    match rank.collectives.check(&rank.stream) {
        Err(Error::SignalFault(fault)) => {
            let names_last = me == last || fault.peer == last;
            let is_told = match fault.cause {
                FaultCause::OtherCall => names_last,
                FaultCause::PeerGaveUp { reporter } => names_last || reporter == last,
                _ => false,
            };
            match is_told && waited < timeout / 2 {
                true => Ok(()),
                false => Err(format!("rank {me} after {waited:?}: {fault}")),
            }
        }
        other => Err(format!("rank {me}: {other:?}")),
    }
}

/// Every variant, with another size, element type, root or variant on the last rank: as
/// [`different_calls_are_told`], whether the ranks meet by packets or at barriers.
pub fn every_variant_tells_other_calls<B: CollectiveKernels>(
    rank: &Rank<B>,
    timeout: std::time::Duration,
) -> Played {
    let last = rank.world() - 1;
    for (operation, variant) in every_variant() {
        let alike = Case::new(operation, variant, DType::F32, 480, Reach::BOTH);
        let longer = Case {
            count: 484,
            ..alike
        };
        let retyped = Case {
            dtype: DType::Bf16,
            count: 960,
            ..alike
        };
        let rerooted = Case { root: 1, ..alike };
        let transported = Case {
            // One that meets at the same barriers.
            variant: match variant {
                Variant::Push if !alike.reduces() => Variant::Pull,
                Variant::Pull => Variant::PullTma,
                Variant::TwoShot => Variant::TwoShotTma,
                Variant::PushCopyEngine if !alike.reduces() => Variant::PullCopyEngine,
                same => same,
            },
            ..alike
        };
        for odd in [longer, retyped, rerooted, transported] {
            let is_other = odd != alike && (odd.root == 0 || operation == Operation::Broadcast);
            if !is_other || !alike.applies(&rank.limits()) {
                continue;
            }
            let case = if rank.rank() == last { odd } else { alike };
            let story = |why| format!("{alike:?}, and {odd:?}: {why}");
            let place = rank.place(&case).map_err(message)?;
            rank.meet()?;
            let start = std::time::Instant::now();
            // SAFETY: both places are live, and nobody uses what they hold afterwards.
            let called = unsafe {
                rank.collectives
                    .enqueue(&rank.stream, &place.call, case.variant)
            };
            called.map_err(message)?;
            rank.backend.synchronize(&rank.stream).map_err(message)?;
            is_told(rank, start.elapsed(), timeout).map_err(story)?;
            rank.meet()?;
            rank.collectives
                .recover(&rank.stream, rank.exchange.as_ref())
                .map_err(message)?;
            if let Some(error) = rank.call(&alike, 2, 9500).map_err(story)? {
                return Err(story(message(error)));
            }
        }
    }
    Ok(())
}
