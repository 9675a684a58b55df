//! Collectives on operands with a multicast address, on the host backend, where a store through it goes to
//! every mapping: in place, and the errors of the variants without such an address. The conformance suite has
//! the rest.

use std::sync::Arc;

use warpweave_comm::collective::{Call, Costs, Operation, ReductionOrder, Variant};
use warpweave_comm::{CollectiveOptions, Collectives, Operand};
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{
    Backend, Cuda, DType, Error, Exchange, Host, Priority, SymmetricBuffer, ThreadExchange,
};

const BYTES: usize = 1 << 16;

/// One rank's collectives with two symmetric buffers.
struct Rank {
    backend: Host,
    exchange: Arc<dyn Exchange>,
    stream: <Host as Backend>::Stream,
    collectives: Collectives<Host>,
    buffers: [(SymmetricBuffer<Host>, MulticastBuffer<Host>); 2],
}

impl Rank {
    fn new(exchange: Arc<dyn Exchange>) -> Self {
        let backend = Host::new();
        let options = CollectiveOptions {
            packet_bytes: 1 << 13,
            staging_bytes: BYTES,
            ..CollectiveOptions::default()
        };
        let buffers = ["a", "b"].map(|name| {
            let buffer = SymmetricBuffer::new(&backend, &exchange, name, BYTES).unwrap();
            let multicast = MulticastBuffer::new(&backend, &exchange, &buffer).unwrap();
            (buffer, multicast)
        });
        Rank {
            stream: backend.stream(Priority::Normal).unwrap(),
            collectives: Collectives::new(&backend, &exchange, "multicast", options).unwrap(),
            backend,
            exchange,
            buffers,
        }
    }

    fn operand(&self, buffer: usize, offset: usize) -> Operand {
        let (buffer, multicast) = &self.buffers[buffer];
        Operand::multicast(buffer, multicast, offset, BYTES - offset).unwrap()
    }

    fn close(self) {
        let exchange = self.exchange.as_ref();
        self.collectives.close(&self.stream, exchange).unwrap();
        for (buffer, multicast) in self.buffers {
            multicast.close(exchange).unwrap();
            buffer.close(exchange).unwrap();
        }
    }
}

fn ranks(world: usize, rank: impl Fn(Rank) + Send + Sync) {
    let rank = &rank;
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            scope.spawn(move || rank(Rank::new(Arc::new(exchange))));
        }
    });
}

/// Element `index` of the input of `rank`: small, so that reductions are exact in any order.
fn given(rank: usize, call: usize, index: usize) -> f32 {
    ((index * 7 + rank * 3 + call) % 13) as f32
}

/// The expected result on every rank of `world`.
fn expected(operation: Operation, world: usize, call: usize, count: usize) -> Vec<f32> {
    let from = |rank: usize| (0..count).map(move |index| given(rank, call, index));
    match operation {
        Operation::AllGather => (0..world).flat_map(from).collect(),
        _ => (0..count)
            .map(|index| (0..world).map(|rank| given(rank, call, index)).sum())
            .collect(),
    }
}

#[test]
fn in_place() {
    ranks(3, |rank| {
        let (me, world) = (rank.exchange.rank(), rank.exchange.world());
        for (call, operation) in [Operation::AllReduce, Operation::AllGather]
            .into_iter()
            .enumerate()
        {
            let count = 500;
            let mine = match operation {
                Operation::AllGather => 4 * me * count,
                _ => 0,
            };
            let asked = Call {
                operation,
                dtype: DType::F32,
                count,
                root: 0,
                input: rank.operand(0, mine),
                output: rank.operand(0, 0),
            };
            let input: Vec<u8> = (0..count)
                .flat_map(|index| given(me, call, index).to_ne_bytes())
                .collect();
            let wanted = expected(operation, world, call, count);
            let mut output = vec![0; 4 * wanted.len()];
            // SAFETY: the buffers hold the call.
            unsafe {
                let (from, to) = (asked.input.address(), asked.output.address());
                rank.backend.upload(&rank.stream, from, &input).unwrap();
                let sum = rank
                    .collectives
                    .enqueue(&rank.stream, &asked, Variant::Multimem);
                sum.unwrap();
                rank.backend
                    .download(&rank.stream, to, &mut output)
                    .unwrap();
            }
            let wanted: Vec<u8> = wanted.into_iter().flat_map(f32::to_ne_bytes).collect();
            assert!(output == wanted, "{operation}, rank {me}");
            if operation == Operation::AllGather {
                let refused = rank.collectives.validate(&asked, Variant::MulticastCopy);
                assert!(refused.unwrap_err().is_unavailable());
            }
        }
        rank.close();
    });
}

#[test]
fn without_an_address_there_is_an_answer() {
    ranks(2, |rank| {
        let plain = |buffer: usize| Operand::symmetric(&rank.buffers[buffer].0, 0, BYTES).unwrap();
        for (operation, variant) in [
            (Operation::AllGather, Variant::Multimem),
            (Operation::AllGather, Variant::MulticastCopy),
            (Operation::Broadcast, Variant::MulticastCopy),
            (Operation::AllReduce, Variant::Multimem),
            (Operation::ReduceScatter, Variant::Multimem),
        ] {
            let asked = Call {
                operation,
                dtype: DType::F32,
                count: 16,
                root: 0,
                input: plain(0),
                output: plain(1),
            };
            let refused = rank.collectives.validate(&asked, variant).unwrap_err();
            assert!(refused.is_unavailable(), "{refused}");
            assert!(
                refused.to_string().contains("multicast address"),
                "{refused}"
            );
        }
        let other = Operand::multicast(&rank.buffers[0].0, &rank.buffers[1].1, 0, 16);
        assert!(matches!(other, Err(Error::InvalidArgument { .. })));
        rank.close();
    });
}

#[test]
fn the_switch_reduces_where_any_order_is_accepted() {
    ranks(4, |mut rank| {
        rank.collectives.set_costs(Costs::built_in::<Cuda>());
        let plain = |buffer: usize| Operand::symmetric(&rank.buffers[buffer].0, 0, BYTES).unwrap();
        let call = |count, input, output| Call {
            operation: Operation::AllReduce,
            dtype: DType::F32,
            count,
            root: 0,
            input,
            output,
        };
        // Large enough that bytes decide; nothing is enqueued.
        let large = call(16 << 20, rank.operand(0, 0), rank.operand(1, 0));
        let select = |call, order| rank.collectives.select_in(call, order).unwrap();
        assert_eq!(select(&large, ReductionOrder::Any), Variant::Multimem);
        let by_rank = select(&large, ReductionOrder::Rank);
        assert!(by_rank.reduces_in_rank_order(), "{by_rank}");
        assert_eq!(rank.collectives.select(&large).unwrap(), by_rank);
        let out_of_reach = call(16 << 20, plain(0), plain(1));
        assert_eq!(select(&out_of_reach, ReductionOrder::Any), by_rank);
        // A measurement takes precedence over a prediction.
        let measured = "all-reduce 4 two-shot 1000000=5\nall-reduce 4 multimem 1000000=6\n";
        rank.collectives.set_costs(measured.parse().unwrap());
        let large = call(250_000, rank.operand(0, 0), rank.operand(1, 0));
        let variant = rank.collectives.select_in(&large, ReductionOrder::Any);
        assert_eq!(variant.unwrap(), Variant::TwoShot);
        rank.close();
    });
}

/// An all-gather reduces nothing: every variant gives the same bits.
#[test]
fn the_switch_copies_in_any_case() {
    ranks(2, |mut rank| {
        let measured = "all-gather 2 push 1000=5\nall-gather 2 multimem 1000=4\n";
        rank.collectives.set_costs(measured.parse().unwrap());
        let call = Call {
            operation: Operation::AllGather,
            dtype: DType::F32,
            count: 250,
            root: 0,
            input: rank.operand(0, 0),
            output: rank.operand(1, 0),
        };
        assert_eq!(rank.collectives.select(&call).unwrap(), Variant::Multimem);
        rank.close();
    });
}

#[test]
fn what_goes_through_multicast_addresses_is_measured() {
    ranks(2, |rank| {
        let operations = [Operation::AllReduce, Operation::AllGather];
        let costs = rank
            .collectives
            .measure(&rank.stream, &rank.exchange, &operations, &[4096])
            .unwrap();
        for operation in operations {
            assert!(
                costs
                    .predict(operation, Variant::Multimem, 2, 4096)
                    .is_some()
            );
        }
        rank.close();
    });
}
