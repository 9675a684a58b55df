//! Ranks that are threads of this process, a GPU each, and what they verify.

use std::sync::{Once, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::CUstream;
use warpweave_comm::nccl::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Exchange, ThreadExchange, multicast};

use crate::number::Number;
use crate::operations::Operation;

/// What memory holds before a call that is to write it.
const POISON: u8 = 0xa5;

pub struct Rank {
    pub cuda: Cuda,
    pub exchange: ThreadExchange,
    pub comm: NcclComm,
    pub stream: <Cuda as Backend>::Stream,
}

/// Where multicast is not allowed, it is not for NCCL either.
fn guard() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if multicast::guard_process().is_err() {
            // SAFETY: the tests run one at a time, and no thread of another has begun to read the
            // environment.
            unsafe { std::env::set_var("NCCL_NVLS_ENABLE", "0") };
        }
    });
}

pub fn library() -> &'static std::sync::Arc<NcclLibrary> {
    static LIBRARY: OnceLock<std::sync::Arc<NcclLibrary>> = OnceLock::new();
    LIBRARY.get_or_init(|| NcclLibrary::load().expect("NCCL"))
}

/// One for each GPU.
pub fn ranks(options: &NcclOptions, body: impl Fn(&Rank) + Sync) {
    guard();
    let world = Cuda::device_count().expect("GPUs").min(8);
    std::thread::scope(|s| {
        for exchange in ThreadExchange::group(world) {
            let body = &body;
            s.spawn(move || {
                let cuda = Cuda::new(exchange.rank()).expect("a GPU");
                let cuda = cuda.with_timeout(Duration::from_secs(30));
                cuda.bind().expect("a context");
                let comm = NcclComm::init(library(), &exchange, options.clone());
                let rank = Rank {
                    stream: cuda.stream(Default::default()).expect("a stream"),
                    comm: comm.expect("comes up"),
                    cuda,
                    exchange,
                };
                body(&rank);
                rank.cuda.synchronize(&rank.stream).expect("drains");
                rank.exchange.barrier("done").expect("all are");
                rank.comm.close().expect("closes");
            });
        }
    });
}

impl Rank {
    pub fn raw(&self) -> CUstream {
        self.stream.raw()
    }

    /// Puts the inputs of `call` at `send` and poison at `recv`.
    pub fn prepare<T: Number>(&self, op: &Operation, (send, recv): (u64, u64), call: usize) {
        let me = self.comm.rank();
        let mut bytes = Vec::new();
        for i in 0..op.send {
            T::of((op.input)(me, i, call)).put(&mut bytes);
        }
        // SAFETY: the tests pass buffers that are large enough, and this stream's work on them is in order.
        unsafe {
            let size = op.recv * T::ELEMENT.size();
            let recv = DevicePtr(recv);
            self.cuda
                .fill(&self.stream, recv, POISON, size)
                .expect("fills");
            self.cuda
                .upload(&self.stream, DevicePtr(send), &bytes)
                .expect("uploads");
        }
    }

    /// Every element at `recv` is what `call` should have left there.
    pub fn verify<T: Number>(&self, op: &Operation, recv: u64, call: usize) {
        let mut bytes = vec![0; op.recv * T::ELEMENT.size()];
        // SAFETY: as in `prepare`.
        unsafe {
            self.cuda
                .download(&self.stream, DevicePtr(recv), &mut bytes)
                .expect("downloads")
        };
        let me = self.comm.rank();
        let Some(expected) = (op.expected)(me, call) else {
            let untouched = bytes.iter().all(|byte| *byte == POISON);
            assert!(untouched, "{}: rank {me} receives nothing", op.name);
            return;
        };
        assert_eq!(expected.len(), op.recv);
        for (i, (got, expected)) in bytes.chunks(T::ELEMENT.size()).zip(expected).enumerate() {
            let got = T::take(got).value();
            let exact = T::of(expected).value();
            assert!(
                (got - exact).abs() <= op.tolerance * exact.abs(),
                "{} of {:?}, rank {me}, call {call}: element {i} of {} is {got}, not {exact}",
                op.name,
                T::ELEMENT,
                op.recv
            );
        }
    }
}
