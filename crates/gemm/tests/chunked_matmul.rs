//! The GEMM that waits, with one rank that is its own peer: a second stream brings rows late and publishes
//! them.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweave_gemm::chunked_matmul::Arrival;
use warpweave_gemm::{
    ChunkedGemmBackend, ChunkedMatmul, ChunkedOperands, Error, GemmProblem, Scaling,
};
use warpweave_symm_mem::{
    Cuda, DType, DevicePtr, Exchange, Host, Memory, SignalPad, ThreadExchange,
};

const READY: usize = 1;
const CALLS: usize = 6;

/// A GEMM whose rows before and after `own` arrive in chunks of `chunk` rows, those after first.
struct Job<B: ChunkedGemmBackend> {
    backend: B,
    exchange: Arc<dyn Exchange>,
    main: B::Stream,
    side: B::Stream,
    pad: SignalPad<B>,
    gemm: ChunkedMatmul,
    operands: ChunkedOperands,
    handle: B::GemmHandle,
    prepared: B::PreparedChunked,
    /// All of A for each call, then a, staging, B and C.
    memory: B::Memory,
}

fn value(which: usize, i: usize) -> f32 {
    let mixed = (which * 7919 + i * 31).wrapping_mul(2_654_435_761);
    ((mixed >> 13) % 3) as f32 - 1.0
}

fn encode(dtype: DType, values: impl Iterator<Item = f32>) -> Vec<u8> {
    warpweave_symm_mem::host::encode(dtype, &Vec::from_iter(values))
}

impl<B: ChunkedGemmBackend> Job<B> {
    fn new(backend: B, problem: GemmProblem, own: Range<usize>, chunk: usize) -> Self {
        let exchange = ThreadExchange::group(1).pop().unwrap();
        let exchange: Arc<dyn Exchange> = Arc::new(exchange);
        let mut pad = SignalPad::new(&backend, &exchange, "test", 2).unwrap();
        pad.set_timeout(Duration::from_secs(5));
        let GemmProblem { m, n, k, dtype, .. } = problem;
        let starts = (own.end..m)
            .step_by(chunk)
            .chain((0..own.start).step_by(chunk));
        let arrivals = starts.map(|start| Arrival {
            rows: start..(start + chunk).min(if start < own.start { own.start } else { m }),
            from: 0,
        });
        let (a_bytes, b_bytes, c_bytes) = (2 * m * k, 2 * k * n, 2 * m * n);
        // Each part begins at a multiple of 256 bytes.
        let part = |bytes: usize| bytes.next_multiple_of(256);
        let all = (CALLS + 2) * part(a_bytes) + part(b_bytes) + part(c_bytes);
        let memory = backend.allocate(all).unwrap();
        let a = memory.address().add(CALLS * part(a_bytes));
        let staging = a.add(part(a_bytes));
        let b = staging.add(part(a_bytes));
        let gemm = ChunkedMatmul {
            problem,
            own: own.clone(),
            arrivals: arrivals.collect(),
            rank: 0,
            world: 1,
            ready: READY,
        };
        let operands = ChunkedOperands {
            a,
            staging,
            b,
            c: b.add(part(b_bytes)),
            pad: pad.view(),
        };
        let handle = backend.gemm_handle().unwrap();
        let prepared = backend.prepare_chunked(&handle, &gemm).unwrap();
        let job = Job {
            main: backend.stream(Default::default()).unwrap(),
            side: backend.stream(Default::default()).unwrap(),
            exchange,
            pad,
            gemm,
            operands,
            handle,
            prepared,
            memory,
            backend,
        };
        // SAFETY: the ranges lie in the job's memory, which nothing else uses yet.
        unsafe {
            for call in 0..CALLS {
                let rows = encode(dtype, (0..m * k).map(|i| value(call, i)));
                job.backend
                    .upload(&job.main, job.source(call, 0), &rows)
                    .unwrap();
            }
            let weight = encode(dtype, (0..k * n).map(|i| value(CALLS, i)));
            job.backend.upload(&job.main, b, &weight).unwrap();
            // Rows that are read before they have arrived spoil C.
            job.backend.fill(&job.main, staging, 0xff, a_bytes).unwrap();
            job.backend.synchronize(&job.main).unwrap();
        }
        job
    }

    fn source(&self, call: usize, row: usize) -> DevicePtr {
        let GemmProblem { m, k, .. } = self.gemm.problem;
        let call = call * (2 * m * k).next_multiple_of(256);
        self.memory.address().add(call + 2 * row * k)
    }

    /// Enqueues a call on the main stream; the side stream is forked and joined.
    fn enqueue(&self, call: usize, late: Duration) -> warpweave_symm_mem::Result<()> {
        let Self {
            backend,
            main,
            side,
            gemm,
            operands,
            ..
        } = self;
        let GemmProblem { m, n, k, .. } = gemm.problem;
        let (fork, join) = (backend.event()?, backend.event()?);
        // SAFETY: all ranges lie in the job's memory; the side stream writes staging after the call before
        // and ahead of the call's end.
        unsafe {
            if !gemm.own.is_empty() {
                let own = self.source(call, gemm.own.start);
                backend.copy(main, operands.a, own, 2 * gemm.own.len() * k)?;
            }
            backend.fill(main, operands.c, 0xff, 2 * m * n)?;
            backend.record(&fork, main)?;
            backend.wait_event(side, &fork)?;
            for Arrival { rows, .. } in &gemm.arrivals {
                backend.delay(side, late)?;
                let to = operands.staging.add(2 * rows.start * k);
                backend.copy(side, to, self.source(call, rows.start), 2 * rows.len() * k)?;
                self.pad.signal(side, READY, &[0])?;
            }
            backend
                .chunked_matmul(main, &self.prepared, operands)
                .unwrap();
            backend.record(&join, side)?;
            backend.wait_event(main, &join)
        }
    }

    fn check(&self, call: usize) {
        let GemmProblem { m, n, k, dtype, .. } = self.gemm.problem;
        let mut bytes = vec![0; 2 * m * n];
        // SAFETY: C lies in the job's memory.
        unsafe {
            let c = self.operands.c;
            self.backend.download(&self.main, c, &mut bytes).unwrap();
        }
        self.pad.check(&self.main).unwrap();
        for row in 0..m {
            let sum = |col| {
                (0..k)
                    .map(|i| value(call, row * k + i) * value(CALLS, i * n + col))
                    .sum()
            };
            let wanted = encode(dtype, (0..n).map(sum));
            let got = &bytes[2 * row * n..2 * (row + 1) * n];
            assert!(
                got == wanted,
                "{}, call {call}, row {row}",
                self.gemm.problem
            );
        }
    }

    fn calls(&self, late: Duration) {
        for call in 0..CALLS {
            self.enqueue(call, late).unwrap();
            self.check(call);
        }
    }

    fn close(self) {
        self.backend.synchronize(&self.main).unwrap();
        self.pad.close(&self.main, self.exchange.as_ref()).unwrap();
    }
}

/// m, n, k, own rows, rows of a chunk: aligned, ragged, without own rows, with nothing but own rows, in small
/// chunks.
const SHAPES: [(usize, usize, usize, Range<usize>, usize); 6] = [
    (512, 256, 128, 128..256, 128),
    (700, 264, 72, 300..450, 77),
    (300, 520, 64, 0..0, 100),
    (130, 136, 256, 0..130, 64),
    (65, 8, 8, 64..65, 3),
    (1536, 1032, 192, 512..1024, 256),
];

fn every_shape<B: ChunkedGemmBackend>(
    backend: &B,
    shapes: &[(usize, usize, usize, Range<usize>, usize)],
) {
    for (m, n, k, own, chunk) in shapes {
        for dtype in [DType::F16, DType::Bf16] {
            let problem = GemmProblem::new(*m, *n, *k, dtype);
            let job = Job::new(backend.clone(), problem, own.clone(), *chunk);
            job.calls(Duration::ZERO);
            job.calls(Duration::from_micros(300));
            job.close();
        }
    }
}

fn replays<B: ChunkedGemmBackend>(backend: &B) {
    let problem = GemmProblem::new(400, 136, 64, DType::F16);
    let job = Job::new(backend.clone(), problem, 100..200, 90);
    job.enqueue(0, Duration::ZERO).unwrap();
    job.check(0);
    let enqueue = || job.enqueue(1, Duration::from_micros(50));
    let graph = backend.capture(&job.main, enqueue).unwrap();
    for call in [3, 1, 4] {
        let rows = encode(DType::F16, (0..400 * 64).map(|i| value(call, i)));
        // SAFETY: the rows are what the captured call copies from; the stream is drained. The job owns what
        // was captured.
        unsafe {
            backend.upload(&job.main, job.source(1, 0), &rows).unwrap();
            backend.launch_graph(&graph, &job.main).unwrap()
        };
        job.check(call);
    }
    job.close();
}

fn silence<B: ChunkedGemmBackend>(backend: &B) {
    let problem = GemmProblem::new(400, 136, 64, DType::F16);
    let mut job = Job::new(backend.clone(), problem, 100..200, 90);
    let patience = Duration::from_millis(200);
    job.pad.set_timeout(patience);
    job.operands.pad = job.pad.view();
    job.calls(Duration::ZERO);
    let start = Instant::now();
    // SAFETY: the operands are the job's; no rows come, and what becomes of C is not looked at.
    unsafe {
        backend
            .chunked_matmul(&job.main, &job.prepared, &job.operands)
            .unwrap()
    };
    backend.synchronize(&job.main).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "ended late");
    let fault = job.pad.check(&job.main).unwrap_err();
    let warpweave_symm_mem::Error::SignalFault(fault) = fault else {
        panic!("{fault}");
    };
    assert_eq!((fault.rank, fault.peer, fault.slot), (0, 0, READY));
    assert!(fault.waited >= patience, "{fault}");
    job.pad.recover(&job.main, job.exchange.as_ref()).unwrap();
    job.calls(Duration::ZERO);
    job.close();
}

#[test]
fn rows_are_multiplied_when_they_have_arrived() {
    every_shape(&Host::new(), &SHAPES[1..5]);
}

#[test]
fn a_captured_call_waits_at_each_launch() {
    replays(&Host::new());
}

#[test]
fn rows_that_never_come_are_a_fault_and_the_pad_recovers() {
    silence(&Host::new());
}

#[test]
fn contradictions_are_refused_before_the_launch() {
    let host = Host::new();
    let job = Job::new(host.clone(), GemmProblem::new(8, 8, 8, DType::F16), 0..4, 2);
    let mut gemm = job.gemm.clone();
    gemm.arrivals.pop();
    let error = host.prepare_chunked(&job.handle, &gemm).unwrap_err();
    assert!(matches!(error, Error::InvalidProblem { .. }), "{error}");
    // Launches are given no scales.
    let narrow = ChunkedMatmul {
        problem: GemmProblem::e4m3(8, 8, 8, Scaling::Row, DType::F16),
        ..job.gemm.clone()
    };
    let error = host.prepare_chunked(&job.handle, &narrow).unwrap_err();
    assert!(matches!(error, Error::InvalidProblem { .. }), "{error}");
    let mut operands = job.operands;
    operands.staging = DevicePtr(1);
    // SAFETY: the launch is refused before anything is enqueued.
    let refused = unsafe { host.chunked_matmul(&job.main, &job.prepared, &operands) };
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Operand { .. }), "{error}");
    job.close();
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `cutlass`"]
fn a_gpu_multiplies_rows_when_they_have_arrived() {
    every_shape(&Cuda::new(0).unwrap(), &SHAPES);
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `cutlass`"]
fn a_gpu_waits_at_each_launch_of_a_captured_call() {
    replays(&Cuda::new(0).unwrap());
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `cutlass`"]
fn on_a_gpu_rows_that_never_come_are_a_fault_and_the_pad_recovers() {
    silence(&Cuda::new(0).unwrap());
}
