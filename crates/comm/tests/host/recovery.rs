//! After a late rank: all recover, whatever they waited for.

use std::sync::Arc;
use std::time::Duration;

use warpweave_comm::collective::{Call, CollectiveOptions, Operation, Variant};
use warpweave_comm::host::HostCollectives;
use warpweave_comm::p2p::{MemoryRange, Options, PointToPoint, TransferMethod};
use warpweave_comm::{Collectives, CommError, Operand};
use warpweave_symm_mem::host::{HostMemory, HostStream};
use warpweave_symm_mem::{
    Backend, DType, DevicePtr, Exchange, Host, Memory, Result as MemoryResult, SymmetricBuffer,
    ThreadExchange,
};

const ELEMENTS: usize = 100;

/// Three kinds of waits on one device, which stops for all of them.
struct Calls {
    backend: Host,
    exchange: Arc<dyn Exchange>,
    stream: HostStream,
    input: SymmetricBuffer<Host>,
    output: SymmetricBuffer<Host>,
    collectives: Collectives<Host>,
    library: HostCollectives,
    p2p: PointToPoint<Host>,
    /// This rank's memory: the library's result, and what was read from the left.
    own: HostMemory,
}

impl Calls {
    const BYTES: usize = 4 * ELEMENTS;

    fn new(exchange: Arc<dyn Exchange>, deadline: Duration) -> MemoryResult<Self> {
        let backend = Host::with_timeout(deadline);
        let options = CollectiveOptions::default();
        let p2p = PointToPoint::new(&backend, &exchange, "transfers", Options::default());
        Ok(Calls {
            stream: backend.stream(Default::default())?,
            input: SymmetricBuffer::new(&backend, &exchange, "input", Self::BYTES)?,
            output: SymmetricBuffer::new(&backend, &exchange, "output", Self::BYTES)?,
            collectives: Collectives::new(&backend, &exchange, "late", options)?,
            library: HostCollectives::new(&backend, &exchange, "library", Self::BYTES)?,
            p2p: p2p.expect("memory"),
            own: backend.allocate(2 * Self::BYTES)?,
            backend,
            exchange,
        })
    }

    fn write(&self, at: DevicePtr, value: f32) -> MemoryResult<()> {
        let bytes = value.to_ne_bytes().repeat(ELEMENTS);
        // SAFETY: memory of this value, which no work uses.
        unsafe { self.backend.upload(&self.stream, at, &bytes) }
    }

    /// Reduces `value` over all ranks by two methods and reads the left rank's; returns the first fault of
    /// each kind of wait.
    fn call(&self, value: f32) -> Result<Vec<CommError>, CommError> {
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let (stream, bytes) = (&self.stream, Self::BYTES);
        let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
        let sums = self.own.address();
        self.write(self.input.local(), value)?;
        self.write(sums, value)?;
        self.exchange.barrier("inputs")?;
        if value == LATE && rank == world - 1 {
            std::thread::sleep(3 * self.backend.timeout());
        }
        let call = Call {
            operation: Operation::AllReduce,
            dtype: DType::F32,
            count: ELEMENTS,
            root: 0,
            input: Operand::symmetric(&self.input, 0, bytes)?,
            output: Operand::symmetric(&self.output, 0, bytes)?,
        };
        let got = MemoryRange::new(rank, sums.add(bytes), bytes);
        let to = self.p2p.channel(right, 0, TransferMethod::Sm)?;
        let from = self.p2p.channel(left, 0, TransferMethod::Sm)?;
        let part = |of| MemoryRange::of(&self.input, of, 0, bytes);
        // SAFETY: memory of this value, whose uses the stream orders; all ranks make the same calls.
        unsafe {
            let variant = Variant::TwoShotPush;
            self.collectives.enqueue(stream, &call, variant)?;
            let exposed = to.expose(stream, part(rank)?)?;
            from.get(stream, part(left)?, got)?.wait(stream)?;
            exposed.wait(stream)?;
            let sums = (sums, sums);
            self.library
                .all_reduce(stream, DType::F32, sums, ELEMENTS)?;
        }
        self.backend.synchronize(stream)?;
        let checks = [
            self.collectives.check(stream).map_err(CommError::from),
            self.p2p.check(stream),
            self.library.check(stream).map_err(CommError::from),
        ];
        Ok(checks.into_iter().filter_map(Result::err).collect())
    }

    /// The two results, and what was read.
    fn results(&self) -> MemoryResult<[f32; 3]> {
        let mut all = vec![0; 3 * Self::BYTES];
        let (output, own) = all.split_at_mut(Self::BYTES);
        // SAFETY: memory of this value, which no work uses.
        unsafe {
            let stream = &self.stream;
            self.backend.download(stream, self.output.local(), output)?;
            self.backend.download(stream, self.own.address(), own)?;
        }
        let (values, _) = all.as_chunks();
        let of = |kind: usize| {
            let values = &values[kind * ELEMENTS..][..ELEMENTS];
            assert!(values.iter().all(|value| *value == values[0]));
            f32::from_ne_bytes(values[0])
        };
        Ok(std::array::from_fn(of))
    }

    fn recover(&self) -> Result<(), CommError> {
        let (stream, exchange) = (&self.stream, self.exchange.as_ref());
        self.collectives.recover(stream, exchange)?;
        self.p2p.recover(stream, exchange)?;
        self.library.recover(stream, exchange)?;
        Ok(())
    }
}

/// The value of the call for which the last rank is late.
const LATE: f32 = 100.0;

#[test]
fn after_a_late_rank_all_recover_and_what_they_compute_is_right_again() {
    const WORLD: usize = 3;
    let right = |value: f32| [WORLD as f32 * value, value, WORLD as f32 * value];
    let deadline = Duration::from_millis(400);
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(WORLD) {
            scope.spawn(move || {
                let calls = Calls::new(Arc::new(exchange), deadline).expect("memory");
                for turn in 0..3 {
                    for value in [1.0, 2.0, 3.0].map(|value| value + turn as f32) {
                        let faults = calls.call(value).expect("calls");
                        assert!(faults.is_empty(), "{faults:?}");
                        let [sum, library, read] = calls.results().expect("results");
                        assert_eq!([sum, read, library], right(value));
                        calls.exchange.barrier("read").expect("all");
                    }
                    let faults = calls.call(LATE).expect("calls");
                    assert!(!faults.is_empty(), "a late rank and no fault");
                    calls.recover().expect("all recover");
                }
            });
        }
    });
}
