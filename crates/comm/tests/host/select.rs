//! Selection of variants: which can do the call, which was measured fastest, and the same on every rank.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use warpweave_comm::collective::{Call, Costs, Operation, ReductionOrder, Variant};
use warpweave_comm::{CollectiveOptions, Collectives, Operand};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Error, Exchange, ExchangeError, Host, Memory, SymmetricBuffer,
    ThreadExchange,
};

/// Runs `body` on two ranks that are threads, with little memory.
fn ranks(body: impl Fn(Arc<dyn Exchange>, &mut Collectives<Host>) + Sync) {
    let options = CollectiveOptions {
        packet_bytes: 4096,
        staging_bytes: 64 << 10,
        ..CollectiveOptions::default()
    };
    ranks_with(options, body);
}

fn ranks_with(
    options: CollectiveOptions,
    body: impl Fn(Arc<dyn Exchange>, &mut Collectives<Host>) + Sync,
) {
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(2) {
            let body = &body;
            scope.spawn(move || {
                let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                let mut collectives =
                    Collectives::new(&Host::new(), &exchange, "select", options).unwrap();
                body(exchange, &mut collectives);
            });
        }
    });
}

/// An exchange on which no descriptor reaches rank 1.
struct WithoutDescriptors(Arc<dyn Exchange>);

impl Exchange for WithoutDescriptors {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world(&self) -> usize {
        self.0.world()
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.0.all_gather(tag, bytes)
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        let mut all = self.0.all_gather_fds(tag, fds)?;
        if tag == "multicast.fd" && self.rank() == 1 {
            all[0].clear();
        }
        Ok(all)
    }
}

#[test]
fn a_multicast_object_that_fails_on_one_rank_ends_the_measurement_on_all() {
    ranks(|exchange, collectives| {
        let stream = collectives.backend().setup_stream().unwrap();
        let rank = exchange.rank();
        let exchange: Arc<dyn Exchange> = Arc::new(WithoutDescriptors(exchange));
        let error = collectives
            .measure(&stream, &exchange, &[Operation::AllReduce], &[256])
            .unwrap_err();
        let is_named = match rank {
            0 => matches!(error, Error::PeerFailed { rank: 1, .. }),
            _ => matches!(error, Error::Exchange(_)),
        };
        assert!(is_named, "rank {rank}: {error}");
        exchange.barrier("end").unwrap();
    });
}

fn call(operation: Operation, count: usize, input: Operand, output: Operand) -> Call {
    Call {
        operation,
        dtype: DType::F32,
        count,
        root: 1,
        input,
        output,
    }
}

#[test]
fn what_is_picked_can_do_the_call() {
    ranks(|exchange, collectives| {
        let host = Host::new();
        let shared = SymmetricBuffer::new(&host, &exchange, "shared", 1 << 20).unwrap();
        let symmetric = Operand::symmetric(&shared, 0, 1 << 20).unwrap();
        let private = host.allocate(1 << 20).unwrap();
        let local = Operand::local(private.address());
        for operation in Operation::ALL {
            for count in [0, 1, 500, 5000, 60_000] {
                for (input, output) in [(symmetric, local), (local, symmetric), (local, local)] {
                    let call = call(operation, count, input, output);
                    match collectives.select(&call) {
                        Ok(variant) => collectives.validate(&call, variant).unwrap(),
                        Err(error) => {
                            assert!(error.is_unavailable(), "{error}");
                            let none = Variant::of(operation)
                                .iter()
                                .all(|&variant| collectives.validate(&call, variant).is_err());
                            assert!(none, "{operation} of {count}: {error}");
                        }
                    }
                }
            }
        }
        let misaligned = Operand::local(DevicePtr(private.address().0 + 2));
        let error = collectives
            .select(&call(Operation::AllReduce, 8, misaligned, local))
            .unwrap_err();
        assert!(!error.is_unavailable(), "{error}");
        exchange.barrier("end").unwrap();
    });
}

#[test]
fn local_operands_of_any_size_can_be_served() {
    ranks(|_, collectives| {
        let local = Operand::local(DevicePtr(4096));
        let operations = Operation::ALL.into_iter();
        for operation in operations.filter(|&operation| operation != Operation::Barrier) {
            for count in [1, 5000, 60_000, 100 << 20] {
                let call = call(operation, count, local, local);
                let variant = collectives.select(&call);
                assert!(variant.is_ok(), "{operation} of {count}: {variant:?}");
            }
        }
    });
}

#[test]
fn large_local_operands_are_staged_on_gpus() {
    ranks_with(CollectiveOptions::default(), |_, collectives| {
        collectives.set_costs(Costs::built_in::<Cuda>());
        let local = Operand::local(DevicePtr(4096));
        let large = call(Operation::AllReduce, 16 << 20, local, local);
        assert_eq!(collectives.select(&large).unwrap(), Variant::Staged);
        let small = call(Operation::AllReduce, 16 << 10, local, local);
        assert_eq!(collectives.select(&small).unwrap(), Variant::Packets);
    });
}

/// A copy engine that goes on after a failed wait would overwrite outputs that nobody has given.
#[test]
fn copy_engines_are_not_picked_to_write_outputs() {
    ranks(|exchange, collectives| {
        let host = Host::new();
        let shared = SymmetricBuffer::new(&host, &exchange, "shared", 1 << 20).unwrap();
        let [symmetric, output] =
            [0, 1 << 19].map(|at| Operand::symmetric(&shared, at, 1 << 19).unwrap());
        let private = host.allocate(1 << 20).unwrap();
        let local = Operand::local(private.address());
        let text = "all-gather 2 push-copy-engine 4000=1\nall-gather 2 push-batched 4000=1\n\
            all-gather 2 pull-copy-engine 4000=2\nall-gather 2 push 4000=3\nall-gather 2 packets 4000=4\n\
            all-reduce 2 push-copy-engine 4000=1\nall-reduce 2 two-shot-push 4000=2\n\
            reduce-scatter 2 push-copy-engine 8000=1\nreduce-scatter 2 push 8000=2\n";
        collectives.set_costs(text.parse().unwrap());
        for (operation, input, wanted) in [
            (Operation::AllGather, symmetric, Variant::PullCopyEngine),
            (Operation::AllGather, local, Variant::Push),
            (Operation::AllReduce, local, Variant::TwoShotPush),
            // Into staging memory, which nobody reads between calls.
            (Operation::ReduceScatter, local, Variant::PushCopyEngine),
        ] {
            let call = call(operation, 1000, input, output);
            let picked = collectives.select_in(&call, ReductionOrder::Any).unwrap();
            assert_eq!(picked, wanted, "{operation}");
            assert_eq!(collectives.select(&call).unwrap(), wanted, "{operation}");
        }
        exchange.barrier("end").unwrap();
    });
}

#[test]
fn what_was_measured_decides() {
    ranks(|_, collectives| {
        let local = Operand::local(DevicePtr(4096));
        let small = call(Operation::AllReduce, 100, local, local);
        let slower = "all-reduce 2 packets 400=9\nall-reduce 2 sentinel 400=8\n";
        let faster = "all-reduce 2 packets 400=7\nall-reduce 2 sentinel 400=8\n";
        // A variant that cannot do the call does not count, however fast.
        let out_of_reach = "all-reduce 2 two-shot 400=0.1\n";
        for (text, wanted) in [(slower, Variant::Sentinel), (faster, Variant::Packets)] {
            let costs: Costs = format!("{text}{out_of_reach}").parse().unwrap();
            collectives.set_costs(costs);
            assert_eq!(collectives.select(&small).unwrap(), wanted);
        }
    });
}

#[test]
fn measuring_gives_costs_that_are_the_same_everywhere() {
    ranks(|exchange, collectives| {
        let stream = Host::new().stream(Default::default()).unwrap();
        let operations = [
            Operation::AllGather,
            Operation::ReduceScatter,
            Operation::AllReduce,
            Operation::AllToAll,
        ];
        let costs = collectives
            .measure(&stream, &exchange, &operations, &[256, 4096])
            .unwrap();
        for operation in operations {
            for variant in [Variant::Packets, Variant::PushCopyEngine] {
                let time = costs.predict(operation, variant, 2, 1000);
                assert!(time.is_some_and(|time| time > 0.0), "{operation} {variant}");
            }
        }
        let mine = costs.to_string();
        let all = exchange.all_gather("costs", mine.as_bytes()).unwrap();
        assert!(all.iter().all(|theirs| theirs == mine.as_bytes()));
        collectives.set_costs(costs);
        exchange.barrier("end").unwrap();
    });
}
