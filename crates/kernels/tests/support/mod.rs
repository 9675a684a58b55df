//! Ranks as threads, and the checks that every kernel must pass on every backend.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweave_kernels::{
    GatherMatmul, GatherMode, KernelBackend, NaiveRemoteRead, reference, shard,
};
use warpweave_symm_mem::host::{decode, encode};
use warpweave_symm_mem::{
    DType, DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer, ThreadExchange,
};

pub const READY: usize = 1;
const DONE: usize = 4;
const FREE: usize = 2;
const SLOTS: usize = 5;

/// The kernel to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    NaiveRemoteRead,
    Threadload,
    ThreadloadGather,
    Multimem,
    MultimemGather,
}

impl Variant {
    fn gathers_only(self) -> bool {
        matches!(self, Variant::ThreadloadGather | Variant::MultimemGather)
    }
}

/// When the ranks launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as the stream reaches it.
    Prompt,
    /// Delayed by up to two milliseconds before and after each launch, differently on each rank.
    Late,
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub dtype: DType,
}

/// Runs `body` on a thread for each rank. A rank that panics fails the test.
///
/// The ranks may share a context. Then a rank that loads a kernel, instantiates a graph, allocates or frees
/// may wait for the kernels of the others. So the kernels are loaded first, and a [`Job`] puts a barrier
/// between such calls and the launches.
pub fn ranks<B: KernelBackend>(
    world: usize,
    backend: impl Fn(usize) -> B + Sync,
    body: impl Fn(B, Arc<dyn Exchange>) + Sync,
) {
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            let (backend, body) = (&backend, &body);
            scope.spawn(move || {
                let backend = backend(exchange.rank());
                backend.preload().unwrap();
                exchange.barrier("preloaded").unwrap();
                body(backend, Arc::new(exchange));
            });
        }
    });
}

/// A small generator: ranks agree on inputs, but delays differ.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    /// An integer within `bound` of 0.
    pub fn integer(&mut self, bound: i64) -> f32 {
        (self.next() as i64 % (2 * bound + 1) - bound) as f32
    }

    /// A real in -1 .. 1.
    pub fn real(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
}

/// One rank's buffers for one shape.
pub struct Job<B: KernelBackend> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub stream: B::Stream,
    pub pad: SignalPad<B>,
    pub shape: Shape,
    max_blocks: Option<u32>,
    a: SymmetricBuffer<B>,
    staging: SymmetricBuffer<B>,
    b: B::Memory,
    c: B::Memory,
}

impl<B: KernelBackend> Job<B> {
    pub fn new(
        backend: B,
        exchange: Arc<dyn Exchange>,
        shape: Shape,
        max_blocks: Option<u32>,
        timeout: Duration,
    ) -> Self {
        let Shape { m, n, k, dtype } = shape;
        let size = dtype.size();
        let world = exchange.world();
        let shard_bytes = m.div_ceil(world) * k * size;
        let mut pad = SignalPad::new(&backend, &exchange, "test", SLOTS).unwrap();
        pad.set_timeout(timeout);
        Job {
            stream: backend.stream(Default::default()).unwrap(),
            a: SymmetricBuffer::new(&backend, &exchange, "a", shard_bytes).unwrap(),
            staging: SymmetricBuffer::new(&backend, &exchange, "staging", m * k * size).unwrap(),
            b: backend.allocate((k * n * size).max(1)).unwrap(),
            c: backend.allocate((m * n * size).max(1)).unwrap(),
            pad,
            backend,
            exchange,
            shape,
            max_blocks,
        }
    }

    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    pub fn world(&self) -> usize {
        self.exchange.world()
    }

    /// A descriptor of this job.
    pub fn naive_remote_read(&self) -> NaiveRemoteRead {
        let Shape { m, n, k, dtype } = self.shape;
        NaiveRemoteRead {
            a_peers: self.a.peer_table(),
            b: self.b.address(),
            c: self.c.address(),
            m,
            n,
            k,
            dtype,
            pad: self.pad.view(),
            ready: READY,
            done: DONE,
            max_blocks: self.max_blocks,
        }
    }

    /// Enqueues one call of `variant`.
    pub fn launch(&self, variant: Variant) -> warpweave_kernels::Result<()> {
        let Shape { m, n, k, dtype } = self.shape;
        let (pad, max_blocks) = (self.pad.view(), self.max_blocks);
        let threadload = GatherMode::ThreadLoad {
            a_peers: self.a.peer_table(),
            done: DONE,
        };
        let multimem = |signal_free| GatherMode::Multimem {
            address: DevicePtr::NULL,
            staging_peers: self.staging.peer_table(),
            free: FREE,
            signal_free,
        };
        let gather = |mode, n| GatherMatmul {
            mode,
            a: self.a.local(),
            staging: self.staging.local(),
            b: self.b.address(),
            c: self.c.address(),
            m,
            n,
            k,
            dtype,
            pad,
            ready: READY,
            max_blocks,
        };
        // SAFETY: the job owns all buffers, sized for the shape, and drains the stream before it drops them.
        unsafe {
            let (backend, stream) = (&self.backend, &self.stream);
            match variant {
                Variant::NaiveRemoteRead => {
                    backend.naive_remote_read(stream, &self.naive_remote_read())
                }
                Variant::Threadload => backend.gather_matmul(stream, &gather(threadload, n)),
                Variant::ThreadloadGather => backend.gather_matmul(stream, &gather(threadload, 0)),
                Variant::Multimem => backend.gather_matmul(stream, &gather(multimem(true), n)),
                Variant::MultimemGather => {
                    backend.gather_matmul(stream, &gather(multimem(false), 0))
                }
            }
        }
    }

    /// Enqueues a call for each of `inputs` (all of A each), synchronized across ranks only by the kernel.
    /// Returns the result of each call: C, or staging for a gather without a GEMM.
    pub fn calls(
        &self,
        variant: Variant,
        b: &[f32],
        inputs: &[Vec<f32>],
        pace: Pace,
    ) -> Vec<Vec<u8>> {
        let Shape { m, k, dtype, .. } = self.shape;
        let size = dtype.size();
        let (result, result_bytes) = self.result(variant);
        let rows = shard(m, self.rank(), self.world());
        let shard_bytes = rows.len() * k * size;
        let sources = self
            .backend
            .allocate((inputs.len() * shard_bytes).max(1))
            .unwrap();
        let results = self
            .backend
            .allocate((inputs.len() * result_bytes).max(1))
            .unwrap();
        let peers: Vec<_> = (0..self.world()).filter(|&p| p != self.rank()).collect();
        let mut bytes = vec![0; inputs.len() * result_bytes];
        let mut random = Random(77 + self.rank() as u64);
        let mut delay = || {
            if pace == Pace::Late {
                let time = Duration::from_micros(random.next() % 2000);
                self.backend.delay(&self.stream, time).unwrap();
            }
        };
        // SAFETY: all ranges lie in the buffers of this job and of this call, which downloads after all work
        // on the stream before it drops them.
        unsafe {
            self.backend
                .upload(&self.stream, self.b.address(), &encode(dtype, b))
                .unwrap();
            for (call, input) in inputs.iter().enumerate() {
                let own = encode(dtype, &input[rows.start * k..rows.end * k]);
                let at = sources.address().add(call * shard_bytes);
                self.backend.upload(&self.stream, at, &own).unwrap();
            }
            self.exchange.barrier("allocated").unwrap();
            for call in 0..inputs.len() {
                let source = sources.address().add(call * shard_bytes);
                if shard_bytes > 0 {
                    self.backend
                        .copy(&self.stream, self.a.local(), source, shard_bytes)
                        .unwrap();
                }
                if !variant.gathers_only() && result_bytes > 0 {
                    self.backend
                        .fill(&self.stream, result, 0xff, result_bytes)
                        .unwrap();
                }
                delay();
                self.launch(variant).unwrap();
                delay();
                let to = results.address().add(call * result_bytes);
                if result_bytes > 0 {
                    self.backend
                        .copy(&self.stream, to, result, result_bytes)
                        .unwrap();
                }
                if variant == Variant::MultimemGather {
                    self.pad.signal(&self.stream, FREE, &peers).unwrap();
                }
            }
            self.backend
                .download(&self.stream, results.address(), &mut bytes)
                .unwrap();
        }
        self.pad.check(&self.stream).unwrap();
        // The next variant may store to a staging that this one has just read.
        self.exchange.barrier("calls").unwrap();
        drop((sources, results));
        self.exchange.barrier("freed").unwrap();
        match result_bytes {
            0 => vec![Vec::new(); inputs.len()],
            _ => bytes
                .chunks_exact(result_bytes)
                .map(<[u8]>::to_vec)
                .collect(),
        }
    }

    /// Several calls of `variant` with changing integers, compared element by element.
    pub fn exact(&self, variant: Variant, calls: usize, pace: Pace) {
        let Shape { m, n, k, .. } = self.shape;
        let mut random = Random((m * 31 + n * 7 + k) as u64);
        let b: Vec<_> = (0..k * n).map(|_| random.integer(1)).collect();
        let inputs: Vec<Vec<_>> = (0..calls)
            .map(|_| (0..m * k).map(|_| random.integer(2)).collect())
            .collect();
        let results = self.calls(variant, &b, &inputs, pace);
        for (call, (input, result)) in inputs.iter().zip(&results).enumerate() {
            self.compare(variant, call, input, &b, result);
        }
    }

    /// Captures a call and replays it with changing integers. Each result is compared element by element.
    pub fn replays(&self, variant: Variant, replays: usize) {
        let Shape { m, n, k, dtype } = self.shape;
        let mut random = Random(3);
        let b: Vec<_> = (0..k * n).map(|_| random.integer(1)).collect();
        let rows = shard(m, self.rank(), self.world());
        let (result, result_bytes) = self.result(variant);
        let peers: Vec<_> = (0..self.world()).filter(|&p| p != self.rank()).collect();
        // SAFETY: the job owns all buffers, sized for the shape, and drains the stream before it drops them.
        let graph = unsafe {
            self.backend
                .upload(&self.stream, self.b.address(), &encode(dtype, &b))
                .unwrap();
            self.backend
                .capture(&self.stream, || self.launch(variant))
                .unwrap()
        };
        self.exchange.barrier("captured").unwrap();
        // SAFETY: all ranges lie in the buffers of this job; everything is on one stream, and a replay has
        // ended when its result is here.
        unsafe {
            for replay in 0..replays {
                let input: Vec<_> = (0..m * k).map(|_| random.integer(2)).collect();
                let own = encode(dtype, &input[rows.start * k..rows.end * k]);
                self.backend
                    .upload(&self.stream, self.a.local(), &own)
                    .unwrap();
                self.backend.launch_graph(&graph, &self.stream).unwrap();
                let mut bytes = vec![0; result_bytes];
                self.backend
                    .download(&self.stream, result, &mut bytes)
                    .unwrap();
                if variant == Variant::MultimemGather {
                    self.pad.signal(&self.stream, FREE, &peers).unwrap();
                }
                // Rows of a peer that timed out would be wrong for that reason.
                self.pad.check(&self.stream).unwrap();
                self.compare(variant, replay, &input, &b, &bytes);
            }
            self.backend.synchronize(&self.stream).unwrap();
        }
        self.exchange.barrier("replays").unwrap();
        drop(graph);
        self.exchange.barrier("freed").unwrap();
    }

    /// Address and size of the result of `variant`.
    fn result(&self, variant: Variant) -> (DevicePtr, usize) {
        let Shape { m, n, k, dtype } = self.shape;
        if variant.gathers_only() {
            (self.staging.local(), m * k * dtype.size())
        } else {
            (self.c.address(), m * n * dtype.size())
        }
    }

    fn compare(&self, variant: Variant, call: usize, input: &[f32], b: &[f32], result: &[u8]) {
        let Shape { m, n, k, dtype } = self.shape;
        let (wanted, columns) = if variant.gathers_only() {
            (input.iter().map(|&v| f64::from(v)).collect(), k)
        } else {
            let (a, b) = (encode(dtype, input), encode(dtype, b));
            (reference::matmul(&a, &b, m, n, k, dtype).unwrap(), n)
        };
        for (i, (got, wanted)) in decode(dtype, result).iter().zip(&wanted).enumerate() {
            assert!(
                f64::from(*got) == *wanted,
                "{variant:?} {:?} rank {} of {}, call {call}, row {} column {}: {got}, not {wanted}",
                self.shape,
                self.rank(),
                self.world(),
                i / columns,
                i % columns
            );
        }
    }

    /// Ends the job when all ranks have called this.
    pub fn close(self) {
        self.backend.synchronize(&self.stream).unwrap();
        let exchange = self.exchange;
        self.pad.close(&self.stream, exchange.as_ref()).unwrap();
        self.a.close(exchange.as_ref()).unwrap();
        self.staging.close(exchange.as_ref()).unwrap();
    }
}

/// Launches on all ranks but the last of three. Each must end in time with a fault that names the last, and
/// after [`SignalPad::recover`] the same pads and buffers must work again.
pub fn silent_peer<B: KernelBackend>(
    backend: impl Fn(usize) -> B + Sync,
    shape: Shape,
    max_blocks: Option<u32>,
    variants: &[Variant],
) {
    let (world, silent) = (3, 2);
    let patience = Duration::from_millis(200);
    for &variant in variants {
        ranks(world, &backend, |backend, exchange| {
            let job = Job::new(backend, exchange, shape, max_blocks, patience);
            // So that the fault happens at later epochs than the first.
            job.exact(variant, 2, Pace::Prompt);
            let start = Instant::now();
            if job.rank() != silent {
                job.launch(variant).unwrap();
                job.backend.synchronize(&job.stream).unwrap();
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "{variant:?} ended late"
                );
                match job.pad.check(&job.stream) {
                    Err(warpweave_symm_mem::Error::SignalFault(fault)) => {
                        assert_eq!(
                            (fault.rank, fault.peer),
                            (job.rank(), silent),
                            "{variant:?}: {fault}"
                        );
                        assert!([READY, DONE].contains(&fault.slot), "{variant:?}: {fault}");
                        // A rank that another rank notifies ends before its own deadline.
                        let notified = matches!(
                            fault.cause,
                            warpweave_symm_mem::FaultCause::PeerGaveUp { .. }
                        );
                        assert!(notified || fault.waited >= patience, "{fault}");
                    }
                    other => panic!("{variant:?} saw no fault: {other:?}"),
                }
            }
            job.pad.recover(&job.stream, job.exchange.as_ref()).unwrap();
            job.exact(variant, 3, Pace::Late);
            job.close();
        });
    }
}
