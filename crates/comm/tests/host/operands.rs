//! Where the operands of calls on the caller's memory lie, and on which streams the calls.

use std::sync::Arc;
use std::time::Duration;

use warpweave_comm::collective::{AddRmsNorm, Call, Operand, Operation, Variant};
use warpweave_comm::{CollectiveOptions, Collectives};
use warpweave_symm_mem::host::HostStream;
use warpweave_symm_mem::{
    Backend, DType, DevicePtr, DeviceSlice, Error, Exchange, FaultCause, Host, Memory, SubExchange,
    SymmetricBuffer, ThreadExchange,
};

const BYTES: usize = 4000;

struct Rank {
    host: Host,
    world: Arc<dyn Exchange>,
    collectives: Collectives<Host>,
    stream: HostStream,
}

impl Rank {
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn fill(&self, at: DevicePtr, value: f32, bytes: usize) {
        let bytes = value.to_ne_bytes().repeat(bytes / 4);
        // SAFETY: live memory that no work uses.
        unsafe { self.host.upload(&self.stream, at, &bytes).unwrap() }
    }

    /// The value that all elements have.
    fn value(&self, at: DevicePtr, bytes: usize) -> f32 {
        let mut read = vec![0; bytes];
        // SAFETY: live memory, once its work has ended.
        unsafe { self.host.download(&self.stream, at, &mut read).unwrap() };
        let (elements, _) = read.as_chunks();
        assert!(elements.iter().all(|element| *element == elements[0]));
        f32::from_ne_bytes(elements[0])
    }
}

/// Runs `body` on ranks that are threads, with collectives of the group that `group` gives each.
fn ranks(world: usize, group: fn(usize) -> Vec<usize>, body: impl Fn(Rank) + Sync) {
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            let body = &body;
            scope.spawn(move || {
                let world: Arc<dyn Exchange> = Arc::new(exchange);
                let group = SubExchange::new(world.clone(), group(world.rank())).unwrap();
                let host = Host::with_timeout(Duration::from_secs(5));
                let options = CollectiveOptions::default();
                let collectives =
                    Collectives::new(&host, &(Arc::new(group) as _), "calls", options);
                let mut collectives = collectives.unwrap();
                let pulled = ["all-gather 2 pull 4000=1", "all-reduce 2 two-shot 4000=1"];
                collectives.set_costs(pulled.join("\n").parse().unwrap());
                body(Rank {
                    stream: host.stream(Default::default()).unwrap(),
                    host,
                    world: world.clone(),
                    collectives,
                });
                // Nothing is freed while a peer may use it.
                world.barrier("end").unwrap();
            });
        }
    });
}

fn both(_: usize) -> Vec<usize> {
    vec![0, 1]
}

#[test]
fn an_all_gather_in_place_pulls_the_parts_of_peers() {
    ranks(2, both, |rank| {
        let me = rank.rank();
        let buffer = SymmetricBuffer::new(&rank.host, &rank.world, "all", 2 * BYTES).unwrap();
        rank.fill(buffer.local(), -1.0, 2 * BYTES);
        rank.fill(buffer.local().add(me * BYTES), 1.0 + me as f32, BYTES);
        rank.world.barrier("filled").unwrap();
        let all = DeviceSlice::symmetric(&buffer);
        let mine = all.slice(me * BYTES, BYTES).unwrap();
        let variant = rank.collectives.all_gather(&rank.stream, mine, all);
        assert_eq!(variant.unwrap(), Variant::Pull);
        rank.host.synchronize(&rank.stream).unwrap();
        rank.collectives.check(&rank.stream).unwrap();
        let got = [0, BYTES].map(|at| rank.value(buffer.local().add(at), BYTES));
        assert_eq!(got, [1.0, 2.0]);
    });
}

/// Peers would read and write another range than this rank means.
#[test]
fn symmetric_operands_at_different_offsets_are_different_calls() {
    ranks(2, both, |rank| {
        let me = rank.rank();
        let buffer = SymmetricBuffer::new(&rank.host, &rank.world, "all", 4 * BYTES).unwrap();
        let all = DeviceSlice::symmetric(&buffer);
        let at = |offset, bytes| all.slice(offset, bytes).unwrap();
        let (stream, collectives) = (&rank.stream, &rank.collectives);
        let enqueue = |call: usize| match call {
            0 => collectives.all_gather(stream, at(me * BYTES, BYTES), at(2 * BYTES, 2 * BYTES)),
            _ => {
                let output = at((1 + me) * BYTES, BYTES);
                collectives.all_reduce(stream, DType::F32, at(0, BYTES), output)
            }
        };
        for call in 0..2 {
            enqueue(call).unwrap();
            rank.host.synchronize(stream).unwrap();
            let error = collectives.check(stream).unwrap_err();
            let other = matches!(&error, Error::SignalFault(fault) if matches!(
                fault.cause,
                FaultCause::OtherCall | FaultCause::PeerGaveUp { .. }
            ));
            assert!(other, "{error}");
            rank.world.barrier("checked").unwrap();
            collectives.recover(stream, rank.world.as_ref()).unwrap();
        }
    });
}

#[test]
fn symmetric_memory_of_another_group_is_refused() {
    let groups: [fn(usize) -> Vec<usize>; 2] = [
        |rank| vec![rank / 2 * 2, rank / 2 * 2 + 1],
        |_| vec![1, 2, 3, 0],
    ];
    for group in groups {
        ranks(4, group, |rank| {
            let buffer = SymmetricBuffer::new(&rank.host, &rank.world, "all", BYTES).unwrap();
            let value = 1.0 + rank.rank() as f32;
            rank.fill(buffer.local(), value, BYTES);
            rank.world.barrier("filled").unwrap();
            let all = DeviceSlice::symmetric(&buffer);
            let error = rank
                .collectives
                .all_reduce(&rank.stream, DType::F32, all, all);
            refused(error.unwrap_err());
            let operand = Operand::symmetric(&buffer, 0, BYTES).unwrap();
            let call = Call {
                operation: Operation::AllReduce,
                dtype: DType::F32,
                count: BYTES / 4,
                root: 0,
                input: operand,
                output: operand,
            };
            refused(rank.collectives.select(&call).unwrap_err());
            rank.host.synchronize(&rank.stream).unwrap();
            rank.world.barrier("all have called").unwrap();
            assert_eq!(rank.value(buffer.local(), BYTES), value);
        });
    }
}

fn refused(error: Error) {
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("allocate it with"), "{error}");
}

#[test]
fn lengths_whose_sum_overflows_are_refused() {
    ranks(2, both, |rank| {
        let (input, output) = (rank.host.allocate(64), rank.host.allocate(64));
        let (input, output) = (input.unwrap(), output.unwrap());
        let (input, output) = (DeviceSlice::of(&input), DeviceSlice::of(&output));
        let huge = [(1 << 63) + 32; 2];
        let call = |sent: &[usize], received: &[usize]| {
            let operands = ((input, sent), (output, received));
            rank.collectives
                .all_to_all_uneven(&rank.stream, operands.0, operands.1, huge[0])
        };
        for (sent, received) in [(huge, [32; 2]), ([32; 2], huge), (huge, huge)] {
            let error = call(&sent, &received).unwrap_err();
            assert!(
                error.to_string().contains("of 64 bytes is not of"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_row_whose_bytes_overflow_is_refused() {
    ranks(2, both, |rank| {
        let memory = [(); 3].map(|()| rank.host.allocate(64).unwrap());
        let [input, residual, weight] = memory.each_ref().map(DeviceSlice::of);
        let norm = AddRmsNorm {
            dtype: DType::F16,
            hidden: (1 << 63) + 32,
            epsilon: 1e-5,
            input,
            residual,
            weight,
            residual_out: residual,
            normalized: Some(input),
            quantized: None,
        };
        let call = rank.collectives.add_rms_norm(&rank.stream, &norm);
        let error = call.unwrap_err().to_string();
        assert!(error.contains("rows of 9223372036854775840"), "{error}");
    });
}

#[test]
fn sizes_beyond_what_kernels_count_are_refused() {
    let options = CollectiveOptions::default();
    for options in [
        CollectiveOptions {
            packet_bytes: usize::MAX,
            ..options
        },
        CollectiveOptions {
            sentinel_bytes: isize::MAX as usize,
            ..options
        },
        CollectiveOptions {
            sentinel_bytes: 16 << 32,
            ..options
        },
    ] {
        let group = ThreadExchange::group(2);
        std::thread::scope(|scope| {
            for exchange in group {
                scope.spawn(move || {
                    let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                    let made = Collectives::new(&Host::new(), &exchange, "huge", options);
                    let error = made.map(drop).expect_err("too large");
                    assert!(
                        matches!(&error, Error::InvalidArgument { what, .. } if what.ends_with("_bytes")),
                        "{error}"
                    );
                });
            }
        });
    }
}

/// Rank 0 makes its calls on two streams, the first of which is late.
#[test]
fn calls_on_streams_that_do_not_wait_for_each_other_keep_their_order() {
    ranks(2, both, |rank| {
        let memory = rank.host.allocate(2 * BYTES).unwrap();
        let [x, y] = [0, BYTES].map(|at| memory.address().add(at));
        rank.fill(x, 1.0, BYTES);
        rank.fill(y, 10.0, BYTES);
        let all = DeviceSlice::of(&memory);
        let [one, other] = [0, BYTES].map(|at| all.slice(at, BYTES).unwrap());
        let second = rank.host.stream(Default::default()).unwrap();
        if rank.rank() == 0 {
            let late = Duration::from_millis(200);
            rank.host.delay(&rank.stream, late).unwrap();
        }
        let reduce = |stream, operand| {
            let reduced = rank
                .collectives
                .all_reduce(stream, DType::F32, operand, operand);
            reduced.unwrap();
        };
        reduce(&rank.stream, one);
        if rank.rank() == 1 {
            let event = rank.host.event().unwrap();
            rank.host.record(&event, &rank.stream).unwrap();
            rank.host.wait_event(&second, &event).unwrap();
        }
        reduce(&second, other);
        rank.host.synchronize(&rank.stream).unwrap();
        rank.host.synchronize(&second).unwrap();
        rank.collectives.check(&rank.stream).unwrap();
        assert_eq!([x, y].map(|at| rank.value(at, BYTES)), [2.0, 20.0]);
    });
}
