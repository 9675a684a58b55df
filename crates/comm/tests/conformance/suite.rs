//! The scripts that every backend plays.

use warpweave_comm::CollectiveKernels;
use warpweave_comm::collective::{Operation, Variant};
use warpweave_symm_mem::host::{decode, encode};
use warpweave_symm_mem::{DType, Error};

use crate::case::{Case, DTYPES, Limits, OPERATIONS, Reach};
use crate::play::{Played, Step};
use crate::random::{Draw, Random};
use crate::rank::{Rank, message};

/// The fewest operands that peers must reach for this variant; both where it has nothing to work with here.
pub fn least_reach(operation: Operation, variant: Variant, limits: &Limits) -> Reach {
    let applies =
        |reach: &Reach| Case::new(operation, variant, DType::F32, 1, *reach).applies(limits);
    Reach::ALL.into_iter().find(applies).unwrap_or(Reach::BOTH)
}

pub fn every_variant() -> impl Iterator<Item = (Operation, Variant)> {
    OPERATIONS.into_iter().flat_map(|operation| {
        let variants = Variant::of(operation).iter();
        variants.map(move |&variant| (operation, variant))
    })
}

/// Every variant, type and small length, aligned and not, in and out of place, with every choice of what
/// peers reach.
pub fn small(limits: &Limits) -> Vec<Step> {
    let mut steps = Vec::new();
    for (operation, variant) in every_variant() {
        let least = least_reach(operation, variant, limits);
        for dtype in DTYPES {
            for (turn, count) in [0, 1, 2, 3, 5, 6, 7, 8, 13, 64, 97].into_iter().enumerate() {
                let root = turn % limits.world;
                for (offset, in_place) in [(0, false), (1, false), (0, true), (1, true)] {
                    let reach = if in_place { Reach::BOTH } else { least };
                    steps.push(Step::Call(Case {
                        root,
                        offset,
                        in_place,
                        ..Case::new(operation, variant, dtype, count, reach)
                    }));
                }
            }
            for (reach, in_place) in Reach::ALL.into_iter().zip([false, true, true, false]) {
                steps.push(Step::Call(Case {
                    in_place,
                    ..Case::new(operation, variant, dtype, 10, reach)
                }));
            }
        }
    }
    steps
}

/// Every variant at a few lengths, in all types in turn, in and out of place: for groups of so many ranks
/// that more would take long.
pub fn few(limits: &Limits) -> Vec<Step> {
    let turns = every_variant().zip(DTYPES.into_iter().cycle()).enumerate();
    let cases = turns.flat_map(|(turn, ((operation, variant), dtype))| {
        let least = least_reach(operation, variant, limits);
        [(1, false), (97, true), (900, false)].map(|(count, in_place)| Case {
            root: (turn + count) % limits.world,
            in_place,
            ..Case::new(
                operation,
                variant,
                dtype,
                count,
                if in_place { Reach::BOTH } else { least },
            )
        })
    });
    cases.map(Step::Call).collect()
}

/// Lengths around those at which a variant changes its ways or ends.
pub fn boundaries(limits: &Limits) -> Vec<Step> {
    let mut steps = Vec::new();
    let Limits {
        world,
        packet_bytes,
        sentinel_bytes,
        staging_bytes,
        ..
    } = *limits;
    for (turn, (operation, variant)) in every_variant().enumerate() {
        let reach = least_reach(operation, variant, limits);
        for (dtype, offset) in DTYPES.into_iter().zip([0, 1, 0]) {
            let mut at = |count: usize| {
                steps.push(Step::Call(Case {
                    root: turn % world,
                    offset,
                    in_place: count % 2 == 1,
                    ..Case::new(operation, variant, dtype, count, reach)
                }));
            };
            let size = dtype.size();
            let vectors = 16 / size * 512;
            let packets = packet_bytes / size;
            for count in [
                vectors - 1,
                vectors,
                vectors + 1,
                packets - 1,
                packets,
                packets + 1,
            ] {
                at(count);
            }
            if operation == Operation::AllReduce {
                let staging = staging_bytes / size;
                let sentinels = sentinel_bytes / size;
                for count in [staging, staging + 8 * world + 1, sentinels, sentinels + 1] {
                    at(count);
                }
            }
            if operation == Operation::ReduceScatter {
                let staging = staging_bytes / world / size;
                at(staging);
                at(staging + 1);
            }
        }
    }
    steps
}

/// Every variant with as much as there is room for.
pub fn large(limits: &Limits, room: usize) -> Vec<Step> {
    every_variant()
        .zip(DTYPES.into_iter().cycle())
        .map(|((operation, variant), dtype)| {
            let (input, output) = operation.elements(1, limits.world);
            let count = room / dtype.size() / input.max(output);
            let reach = least_reach(operation, variant, limits);
            Step::Call(Case::new(operation, variant, dtype, count - 3, reach))
        })
        .collect()
}

/// A call that some variant can do, of `most` elements at most.
pub fn any_case(random: &mut Random, limits: &Limits, most: usize) -> Case {
    loop {
        let operation = random.of(&OPERATIONS);
        let case = Case {
            root: random.usize(..limits.world),
            offset: random.of(&[0, 0, 1, 3]),
            in_place: random.once_in(3),
            ..Case::new(
                operation,
                random.of(Variant::of(operation)),
                random.of(&DTYPES),
                random.size(most),
                random.of(&Reach::ALL),
            )
        };
        if case.applies(limits) {
            return case;
        }
    }
}

/// A random mixture of calls.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    pub calls: usize,
    /// Elements of the largest call.
    pub most: usize,
    /// The longest delay of a rank.
    pub micros: u64,
    /// One step in so many is a graph with three replays.
    pub graphs: usize,
}

/// Calls of all kinds and sizes in any order, ranks held up at random, graphs replayed among them.
pub fn mixed(random: &mut Random, limits: &Limits, mixture: &Mixture) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut calls = 0;
    while calls < mixture.calls {
        let rank = random.usize(..limits.world);
        let micros = random.usize(..mixture.micros as usize + 1) as u64;
        if random.once_in(mixture.graphs) {
            let cases: Vec<_> = (0..1 + random.usize(..4))
                .map(|_| any_case(random, limits, mixture.most))
                .collect();
            calls += 3 * cases.len();
            steps.push(Step::Replay { cases, times: 3 });
            continue;
        }
        match random.usize(..16) {
            0..3 => steps.push(Step::Delay { rank, micros }),
            3 => steps.push(Step::Sleep { rank, micros }),
            4 => steps.push(Step::Barrier),
            _ => {
                steps.push(Step::Call(any_case(random, limits, mixture.most)));
                calls += 1;
            }
        }
    }
    steps
}

/// Mixtures in groups whose counters are about to wrap around, or to look as if they had.
pub fn epochs_wrap_around<B: CollectiveKernels>(rank: &Rank<B>) -> Played {
    let mixture = Mixture {
        calls: 40,
        most: 300,
        micros: 100,
        graphs: 10,
    };
    for epoch in [u32::MAX - 20, i32::MAX as u32 - 20, u32::MAX / 4 - 20] {
        let begun = rank
            .collectives
            .begin_at(&rank.stream, rank.exchange.as_ref(), (epoch, epoch));
        begun.map_err(message)?;
        let steps = mixed(
            &mut Random::with_seed(u64::from(epoch)),
            &rank.limits(),
            &mixture,
        );
        rank.play(&steps, u64::from(epoch))
            .map_err(|why| format!("from epoch {epoch}: {why}"))?;
    }
    Ok(())
}

/// The same after so many launches without barriers that flags of the last one seem to be ahead.
pub fn barriers_order_work_after_half_a_turn<B: CollectiveKernels>(
    rank: &Rank<B>,
) -> warpweave_symm_mem::Result<()> {
    let (stream, exchange) = (&rank.stream, rank.exchange.as_ref());
    rank.collectives.begin_at(stream, exchange, (1 << 31, 0))?;
    barriers_order_work(rank)
}

/// Work after a barrier runs after all work that every rank enqueued before it.
pub fn barriers_order_work<B: CollectiveKernels>(rank: &Rank<B>) -> warpweave_symm_mem::Result<()> {
    use warpweave_symm_mem::{Memory, SymmetricBuffer};
    const CALLS: usize = 24;
    const BYTES: usize = 4096;
    let (backend, stream) = (&rank.backend, &rank.stream);
    let (me, world) = (rank.rank(), rank.world());
    let board = SymmetricBuffer::new(backend, &rank.exchange, "board", BYTES)?;
    let log = backend.allocate(CALLS * BYTES)?;
    let value = |rank: usize, call: usize| (16 * call + rank) as u8;
    for call in 0..CALLS {
        if me == call % world {
            backend.delay(stream, std::time::Duration::from_micros(300))?;
        }
        let to = log.address().add(call * BYTES);
        // SAFETY: a rank writes the board of the next one and reads its own, with barriers between; the
        // memory lives.
        unsafe {
            backend.fill(stream, board.peer((me + 1) % world), value(me, call), BYTES)?;
            rank.collectives.barrier(stream)?;
            backend.copy(stream, to, board.local(), BYTES)?;
        }
        rank.collectives.barrier(stream)?;
    }
    let mut seen = vec![0; CALLS * BYTES];
    // SAFETY: the whole of the log.
    unsafe { backend.download(stream, log.address(), &mut seen)? };
    rank.collectives.check(stream)?;
    for (call, seen) in seen.chunks(BYTES).enumerate() {
        let wanted = value((me + world - 1) % world, call);
        assert!(
            seen.iter().all(|&byte| byte == wanted),
            "rank {me}, call {call}"
        );
    }
    board.close(rank.exchange.as_ref())
}

/// Calls that no variant can do are the same error on all ranks, and leave the group as it was.
pub fn bad_calls_are_refused<B: CollectiveKernels>(rank: &Rank<B>) -> Played {
    let good = Case::new(
        Operation::AllGather,
        Variant::Push,
        DType::F32,
        8,
        Reach::BOTH,
    );
    let place = rank.place(&good).map_err(message)?;
    let mut bad = place.call;
    bad.root = rank.world();
    let refused = rank.collectives.validate(&bad, Variant::Push);
    assert!(
        matches!(refused, Err(Error::InvalidArgument { what: "root", .. })),
        "{refused:?}"
    );
    let mut bad = place.call;
    bad.output = warpweave_comm::Operand::local(bad.output.address().add(2));
    let refused = rank.collectives.validate(&bad, Variant::Packets);
    assert!(
        matches!(
            refused,
            Err(Error::InvalidArgument {
                what: "operand",
                ..
            })
        ),
        "{refused:?}"
    );
    for (operation, variant) in [
        (Operation::AllGather, Variant::OneShot),
        (Operation::ReduceScatter, Variant::OneShot),
        (Operation::Broadcast, Variant::Sentinel),
    ] {
        let call = warpweave_comm::collective::Call {
            operation,
            ..place.call
        };
        let refused = rank.collectives.validate(&call, variant);
        assert!(
            matches!(refused, Err(Error::Unavailable { .. })),
            "{refused:?}"
        );
    }
    rank.play(&[Step::Call(good)], 1)
}

/// Reductions of infinities and NaNs, whose bits a protocol may take for something else: each element is what
/// it would be with nothing around it.
pub fn nans_and_infinities<B: CollectiveKernels>(
    rank: &Rank<B>,
    plays: impl Fn(Variant) -> bool,
) -> Played {
    const COUNT: usize = 601;
    let (world, me) = (rank.world(), rank.rank());
    let value = |rank: usize, index: usize| match (index + 3 * rank) % 7 {
        0 if index.is_multiple_of(2) => f32::from_bits(u32::MAX),
        1 => f32::INFINITY,
        2 if index.is_multiple_of(5) => f32::NEG_INFINITY,
        _ => (index % 9) as f32 - 4.0,
    };
    let sum = |index: usize| (0..world).map(|rank| value(rank, index)).sum::<f32>();
    let is_same = |got: f32, wanted: f32| got == wanted || (got.is_nan() && wanted.is_nan());
    let reduces = |(operation, variant): &(Operation, _)| operation.reduces() && plays(*variant);
    for (operation, variant) in every_variant().filter(reduces) {
        for dtype in DTYPES {
            let reach = least_reach(operation, variant, &rank.limits());
            let case = Case::new(operation, variant, dtype, COUNT, reach);
            if !case.applies(&rank.limits()) {
                continue;
            }
            let failed = |why: Error| format!("rank {me}: {operation} {variant} {dtype}: {why}");
            let (given, first) = match operation {
                Operation::ReduceScatter => (world * COUNT, me * COUNT),
                _ => (COUNT, 0),
            };
            let place = rank.place(&case).map_err(failed)?;
            let values: Vec<_> = (0..given).map(|index| value(me, index)).collect();
            // The NaN whose bits are all ones, which no conversion would give.
            let mut bytes = encode(dtype, &values);
            let size = dtype.size();
            for (element, value) in bytes.chunks_exact_mut(size).zip(&values) {
                if value.is_nan() {
                    element.fill(u8::MAX);
                }
            }
            let mut got = vec![0; COUNT * size];
            let (backend, stream, call) = (&rank.backend, &rank.stream, &place.call);
            // SAFETY: the operands of a place have these elements, and nothing else touches them.
            unsafe {
                let uploaded = backend.upload(stream, call.input.address(), &bytes);
                uploaded.map_err(failed)?;
                let enqueued = rank.collectives.enqueue(stream, call, variant);
                enqueued.map_err(failed)?;
                let downloaded = backend.download(stream, call.output.address(), &mut got);
                downloaded.map_err(failed)?;
            }
            rank.collectives.check(stream).map_err(failed)?;
            for (index, got) in decode(dtype, &got).into_iter().enumerate() {
                let wanted = sum(first + index);
                if !is_same(got, wanted) {
                    let what = format!("element {index} is {got}, not {wanted}");
                    return Err(format!("rank {me}: {operation} {variant} {dtype}: {what}"));
                }
            }
            rank.meet()?;
        }
    }
    Ok(())
}

/// Grids of every size: sizes up and down, one call after the other.
pub fn sizes_up_and_down(limits: &Limits) -> Vec<Step> {
    let sizes = [1, 4000, 17, 900, 2, 6000, 300, 1, 2000];
    every_variant()
        .flat_map(|(operation, variant)| {
            let reach = least_reach(operation, variant, limits);
            sizes.map(|count| Step::Call(Case::new(operation, variant, DType::F16, count, reach)))
        })
        .collect()
}
