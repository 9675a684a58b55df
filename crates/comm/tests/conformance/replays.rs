//! Graphs of calls, replayed many times on two streams that wait for each other, while ranks are late now and
//! then. What each graph does adds up: one replay too many or too few shows.

use std::thread::sleep;
use std::time::Duration;

use warpweave_comm::CollectiveKernels;
use warpweave_comm::collective::AddRmsNorm;
use warpweave_comm::collective::norm::arithmetic;
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::{DType, DeviceSlice, Priority};

use crate::norm::EPSILON;
use crate::play::Played;
use crate::rank::{Rank, message};

/// Replays `graph` `times` times in each of `rounds` rounds, the calls of a round with no synchronization.
/// Before a replay this rank sleeps for what `late` says of its number; after each round `verify` is asked
/// with the number of replays so far.
fn in_rounds<B: CollectiveKernels>(
    rank: &Rank<B>,
    graph: &B::Graph,
    (rounds, times): (usize, usize),
    mut late: impl FnMut(usize) -> Option<Duration>,
    verify: impl Fn(usize) -> Played,
) -> Played {
    let (backend, stream) = (&rank.backend, &rank.stream);
    let other = backend.stream(Priority::Normal).map_err(message)?;
    let event = backend.event().map_err(message)?;
    rank.meet()?;
    for round in 1..=rounds {
        for replay in 0..times {
            if let Some(late) = late(replay) {
                sleep(late);
            }
            let [from, to] = match replay % 2 {
                0 => [stream, &other],
                _ => [&other, stream],
            };
            // SAFETY: the memory and the collectives outlive the work, and the streams wait for each other.
            unsafe { backend.launch_graph(graph, from).map_err(message)? };
            backend.record(&event, from).map_err(message)?;
            backend.wait_event(to, &event).map_err(message)?;
        }
        backend.synchronize(&other).map_err(message)?;
        rank.finish()?;
        verify(round * times)?;
    }
    Ok(())
}

fn compare<B: CollectiveKernels>(
    rank: &Rank<B>,
    what: &str,
    memory: &B::Memory,
    wanted: &[f32],
) -> Played {
    match rank.read(memory)? == encode(DType::F32, wanted) {
        true => Ok(()),
        false => Err(format!("rank {}: wrong {what}", rank.rank())),
    }
}

/// `replays` of an exchange in place, which the second time undoes, and of an all-reduce. One rank after the
/// other is late.
pub fn of_collectives<B: CollectiveKernels>(rank: &Rank<B>, replays: usize) -> Played {
    const COUNT: usize = 60;
    let (world, me) = (rank.world(), rank.rank());
    let chunks = |value: &dyn Fn(usize) -> f32| -> Vec<f32> {
        (0..world).flat_map(|chunk| [value(chunk); COUNT]).collect()
    };
    let value = |rank: usize, chunk: usize| (10 * rank + chunk) as f32;
    let x = rank.filled(&chunks(&|chunk| value(me, chunk)))?;
    let sum = rank.filled(&vec![0.0; COUNT * world])?;
    let [values, sums] = [&x, &sum].map(DeviceSlice::of);
    let graph = rank.backend.capture(&rank.stream, || {
        let collectives = &rank.collectives;
        collectives.all_to_all(&rank.stream, values, values)?;
        collectives
            .all_reduce(&rank.stream, DType::F32, values, sums)
            .map(drop)
    });
    // An odd number, so that each round ends in the other state.
    let rounds = (10, (replays / 10) | 1);
    let late = |replay: usize| {
        (replay.is_multiple_of(200) && replay / 200 % world == me)
            .then_some(Duration::from_millis(1))
    };
    in_rounds(rank, &graph.map_err(message)?, rounds, late, |replays| {
        let state = |rank, chunk| match replays % 2 {
            0 => value(rank, chunk),
            _ => value(chunk, rank),
        };
        let reduced = |chunk| (0..world).map(|rank| state(rank, chunk)).sum();
        let after = |what| format!("{what} after {replays} replays");
        compare(
            rank,
            &after("values"),
            &x,
            &chunks(&|chunk| state(me, chunk)),
        )?;
        compare(rank, &after("sums"), &sum, &chunks(&reduced))
    })
}

/// `replays` of an all-reduce and of the fused norm of its result, of 8 to 256 KiB together. The residual
/// grows with each. Rank 0 is late at random.
pub fn of_norms<B: CollectiveKernels>(rank: &Rank<B>, replays: usize) -> Played {
    const HIDDEN: usize = 1024;
    const SIZES: [usize; 6] = [2, 4, 8, 16, 32, 64];
    const ROUNDS: usize = 5;
    let (stream, world) = (&rank.stream, rank.world());
    // Multiples of a half, so that residuals are exact.
    let given = |rank: usize, index: usize| ((index + rank) % 3) as f32 - 0.5;
    let mut random = 1u32;
    for rows in SIZES {
        let count = rows * HIDDEN;
        let mine: Vec<f32> = (0..count).map(|index| given(rank.rank(), index)).collect();
        let (zeros, ones) = (vec![0.0; count], vec![1.0f32; HIDDEN]);
        let (x, sum) = (rank.filled(&mine)?, rank.filled(&zeros)?);
        let (residual, out) = (rank.filled(&zeros)?, rank.filled(&zeros)?);
        let weight = rank.filled(&ones)?;
        let norm = AddRmsNorm {
            dtype: DType::F32,
            hidden: HIDDEN,
            epsilon: EPSILON,
            input: DeviceSlice::of(&sum),
            residual: DeviceSlice::of(&residual),
            weight: DeviceSlice::of(&weight),
            residual_out: DeviceSlice::of(&residual),
            normalized: Some(DeviceSlice::of(&out)),
            quantized: None,
        };
        let graph = rank.backend.capture(stream, || {
            let collectives = &rank.collectives;
            collectives.all_reduce(stream, DType::F32, DeviceSlice::of(&x), norm.input)?;
            collectives.all_reduce_add_rms_norm(stream, &norm).map(drop)
        });
        let late = |_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let micros = u64::from(random >> 12 & 0x3ff);
            (rank.rank() == 0 && random >> 24 == 0).then_some(Duration::from_micros(micros))
        };
        let rounds = (ROUNDS, replays / SIZES.len() / ROUNDS);
        in_rounds(rank, &graph.map_err(message)?, rounds, late, |replays| {
            let each = |index| (0..world).map(|rank| given(rank, index)).sum::<f32>();
            let grown = (replays * world) as f32;
            let residuals: Vec<f32> = (0..count).map(|index| grown * each(index)).collect();
            let normal = |row: &[f32]| arithmetic::normalize(row, &ones, EPSILON);
            let normalized: Vec<f32> = residuals.chunks(HIDDEN).flat_map(normal).collect();
            let after = |what| format!("{what} of {rows} rows after {replays} replays");
            compare(rank, &after("residual"), &residual, &residuals)?;
            compare(rank, &after("normalized rows"), &out, &normalized)
        })?;
    }
    Ok(())
}
