//! Pieces, what is predicted for them, and the order of their copies.

use std::sync::Arc;
use std::time::Duration;

use warpweave_symm_mem::{Backend, Cuda, DType, Exchange, Host, Memory, ThreadExchange};

use super::*;
use crate::collective::CollectiveOptions;

/// From 1 to 256 MiB, four to an octave.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=32).map(|step| ((1 << 20) as f64 * 2f64.powf(f64::from(step) / 4.0)) as usize)
}

/// Packets and sentinels are left out: they take operands of any memory, so that they serve both alike.
#[test]
fn an_all_reduce_of_local_operands_is_predicted_within_three_tenths_of_the_symmetric_one() {
    let costs = Costs::built_in::<Cuda>();
    let slot = bounce_bytes(CollectiveOptions::default().staging_bytes) / PIECES;
    for size in sizes() {
        let staged = costs.predict_staged(Operation::AllReduce, size, 4, slot);
        let symmetric = Variant::of(Operation::AllReduce)
            .iter()
            .filter(|variant| !matches!(variant, Variant::Packets | Variant::Sentinel))
            .filter_map(|&variant| costs.predict(Operation::AllReduce, variant, 4, size))
            .fold(f64::INFINITY, f64::min);
        let ratio = staged.expect("a prediction") / symmetric;
        assert!((1.0..=1.3).contains(&ratio), "{size} bytes: {ratio:.2}");
    }
}

#[test]
fn pieces_are_even_cover_the_message_and_fit_in_a_slot() {
    let slot = bounce_bytes(128 << 10) / PIECES;
    for operation in Operation::ALL {
        for world in 2..=8 {
            for bytes in [
                1,
                15,
                16,
                4095,
                slot / world,
                slot - 1,
                slot,
                slot + 2,
                9 * slot + 6,
            ] {
                let cut = Pieces::of(operation, bytes, world, slot).expect("room");
                let of_all = operation.size(cut.bytes, world);
                let of_all = match operation {
                    Operation::AllGather => world * of_all,
                    _ => of_all,
                };
                assert!(of_all <= slot, "{operation} {world} {bytes}: {cut:?}");
                assert!(cut.bytes.is_multiple_of(16));
                let covered = (cut.count - 1) * cut.bytes..=cut.count * cut.bytes;
                assert!(
                    covered.contains(&bytes) && *covered.start() < bytes,
                    "{cut:?}"
                );
            }
        }
    }
    assert_eq!(Pieces::of(Operation::AllReduce, 1, 8, 100), None);
}

const COUNT: usize = 5000;

/// Element `index` of the input of `rank` in a call: small whole numbers, whose reductions are exact.
fn given(call: usize, rank: usize, index: usize) -> f32 {
    ((31 * call + 7 * rank + index) % 1000) as f32
}

/// The result at `index` of rank 1 of two.
fn wanted(operation: Operation, call: usize, index: usize) -> f32 {
    let (part, at) = (index / COUNT, index % COUNT);
    match operation {
        Operation::AllReduce => given(call, 0, index) + given(call, 1, index),
        Operation::ReduceScatter => given(call, 0, COUNT + at) + given(call, 1, COUNT + at),
        Operation::AllGather => given(call, part, at),
        Operation::AllToAll => given(call, part, COUNT + at),
        _ => given(call, 0, at),
    }
}

/// Three calls of an operation back to back on rank 1 of two, whose local copies are held up.
fn call_with_late_copies(exchange: Arc<dyn Exchange>, operation: Operation) -> Result<()> {
    let backend = Host::new();
    let stream = backend.stream(Default::default())?;
    let options = CollectiveOptions {
        packet_bytes: 1 << 10,
        staging_bytes: 16 << 10,
        ..CollectiveOptions::default()
    };
    let collectives = Collectives::new(&backend, &exchange, "late copies", options)?;
    let (given_count, got_count) = operation.elements(COUNT, 2);
    let input = backend.allocate(4 * given_count)?;
    let output = backend.allocate(4 * got_count)?;
    let call = Call {
        operation,
        dtype: DType::F32,
        count: COUNT,
        root: 0,
        input: Operand::local(input.address()),
        output: Operand::local(output.address()),
    };
    let late = Duration::from_millis(u64::from(exchange.rank() == 1) * 30);
    for index in 0..3 {
        let values = (0..given_count).map(|at| given(index, exchange.rank(), at));
        let values: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
        let mut got = vec![0; 4 * got_count];
        // SAFETY: the operands are this rank's, as large as the call needs, and used on one stream alone.
        unsafe {
            backend.upload(&stream, input.address(), &values)?;
            backend.delay(&collectives.side, late)?;
            collectives.enqueue(&stream, &call, Variant::Staged)?;
            backend.download(&stream, output.address(), &mut got)?;
        }
        collectives.check(&stream)?;
        let got = got
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let wrong = got
            .enumerate()
            .find(|&(at, got)| got != wanted(operation, index, at));
        assert!(
            exchange.rank() == 0 || wrong.is_none(),
            "{operation} {index}: {wrong:?}"
        );
    }
    collectives.close(&stream, exchange.as_ref())
}

#[test]
fn no_slot_is_written_or_read_before_the_copies_that_are_held_up() {
    for operation in Operation::ALL {
        if operation == Operation::Barrier {
            continue;
        }
        std::thread::scope(|scope| {
            for exchange in ThreadExchange::group(2) {
                scope.spawn(move || call_with_late_copies(Arc::new(exchange), operation).unwrap());
            }
        });
    }
}
