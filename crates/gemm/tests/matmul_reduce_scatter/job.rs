//! One rank's part of a case, which it computes call after call, every element of which is compared.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warpweave_gemm::host::{Element, multiply_with_bias};
use warpweave_gemm::matmul_reduce::{ReduceOutput, Units};
use warpweave_gemm::{GemmProblem, GemmReduceBackend, Layout, MatmulReduce, ReduceOperands};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer, ThreadExchange,
};

/// Different inputs; calls cycle through them.
pub const INPUTS: usize = 4;
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Slots before the first that the GEMM uses.
const FIRST: usize = 3;
/// Bytes after the parts that nothing may write.
const GUARD: usize = 256;

/// Who gets the sums, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Owner,
    Everyone,
    Each,
}

impl To {
    pub const ALL: [To; 3] = [To::Owner, To::Everyone, To::Each];
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    /// Over all ranks.
    pub k: usize,
    pub dtype: DType,
    pub b: Layout,
    pub group_rows: usize,
    pub to: To,
    pub bias: bool,
}

fn shard(total: usize, rank: usize, world: usize) -> Range<usize> {
    let start = |rank: usize| rank * (total / world) + rank.min(total % world);
    start(rank)..start(rank + 1)
}

/// Integers of at most 1: all partial sums of these cases are exact in every type.
fn value(which: usize, row: usize, col: usize) -> f32 {
    let mixed = (which * 7919 + row * 104_729 + col * 31).wrapping_mul(2_654_435_761);
    ((mixed >> 13) % 3) as f32 - 1.0
}

fn matrix<T: Element>(which: usize, rows: Range<usize>, cols: Range<usize>) -> Vec<T> {
    let places = rows.flat_map(|row| cols.clone().map(move |col| (row, col)));
    let wide: Vec<f32> = places.map(|(row, col)| value(which, row, col)).collect();
    let mut values = vec![T::default(); wide.len()];
    T::round(&wide, &mut values);
    values
}

pub fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

impl Case {
    /// The rows of C that a rank gets.
    fn rows(&self, rank: usize, world: usize) -> Range<usize> {
        match self.to {
            To::Owner => shard(self.m, rank, world),
            To::Everyone | To::Each => 0..self.m,
        }
    }

    /// C for each input, as bytes.
    pub fn wanted<T: Element>(&self) -> Vec<Vec<u8>> {
        let b = matrix::<T>(INPUTS, 0..self.k, 0..self.n);
        let problem = GemmProblem {
            bias: self.bias,
            ..GemmProblem::new(self.m, self.n, self.k, T::DTYPE)
        };
        let bias = matrix::<T>(INPUTS + 1, 0..1, 0..self.n);
        let gemm = |input| {
            let a = matrix::<T>(input, 0..self.m, 0..self.k);
            let mut c = vec![T::default(); self.m * self.n];
            multiply_with_bias(&problem, &a, &b, &bias, &mut c).unwrap();
            bytes(&c).to_vec()
        };
        (0..INPUTS).map(gemm).collect()
    }
}

/// One rank's part of a case.
pub struct Job<B: GemmReduceBackend> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub stream: B::Stream,
    pub pad: SignalPad<B>,
    pub prepared: B::PreparedReduce,
    pub gemm: MatmulReduce,
    pub operands: ReduceOperands,
    pub handle: B::GemmHandle,
    /// Where C, or this rank's rows of it, lies.
    pub c: DevicePtr,
    pub c_bytes: usize,
    pub a_bytes: usize,
    /// A, B, the bias, C and the parts pulled, then this rank's columns of A for each input.
    pub memory: B::Memory,
    pub inputs: DevicePtr,
    /// What lies after the parts of others' rows, and after those pulled.
    pub guards: [DevicePtr; 2],
    pub staging: SymmetricBuffer<B>,
    pub copies: SymmetricBuffer<B>,
}

impl<B: GemmReduceBackend> Job<B> {
    pub fn new<T: Element>(
        backend: B,
        exchange: Arc<dyn Exchange>,
        case: &Case,
        timeout: Duration,
    ) -> Self {
        let (rank, world) = (exchange.rank(), exchange.world());
        let Case { m, n, k, b, .. } = *case;
        let depth = shard(k, rank, world);
        let problem =
            GemmProblem::new(m, n, depth.len(), case.dtype).with_layouts(Layout::RowMajor, b);
        let problem = GemmProblem {
            bias: case.bias,
            ..problem
        };
        let most = m.div_ceil(world);
        let groups = most.div_ceil(case.group_rows);
        let slots = match case.to {
            To::Each => Units::of(m, n).count(),
            _ => 2 * groups,
        };
        let mut pad = SignalPad::new(&backend, &exchange, "test", FIRST + slots + 1).unwrap();
        pad.set_timeout(timeout);
        let part = |bytes: usize| bytes.next_multiple_of(256).max(256);
        let (a_bytes, b_bytes) = (2 * m * depth.len(), 2 * n * depth.len());
        let c_bytes = 2 * n * case.rows(rank, world).len();
        // The second of two stagings does not follow the partials of the first.
        let staging_stride = part(2 * n * world * m) + 512;
        let staging_bytes = match case.to {
            To::Each => staging_stride + 2 * n * world * m,
            _ => 2 * n * most * (world - 1),
        };
        let guarded = staging_bytes + GUARD;
        let all = (1 + INPUTS) * part(a_bytes)
            + part(b_bytes)
            + part(2 * n)
            + part(c_bytes)
            + part(guarded);
        let memory = backend.allocate(all).unwrap();
        let a = memory.address();
        let b_at = a.add(part(a_bytes));
        let bias = b_at.add(part(b_bytes));
        let c = bias.add(part(2 * n));
        let pulled = c.add(part(c_bytes));
        let inputs = pulled.add(part(guarded));
        let shared = |name: &str, bytes: usize| {
            SymmetricBuffer::new(&backend, &exchange, name, bytes.max(256)).unwrap()
        };
        let staging = shared("staging", guarded);
        let copies = shared(
            "c",
            if case.to == To::Everyone {
                2 * n * m
            } else {
                0
            },
        );
        let gemm = MatmulReduce {
            problem,
            shards: (0..world).map(|rank| shard(m, rank, world)).collect(),
            c: match case.to {
                To::Owner => ReduceOutput::Owner,
                To::Everyone => ReduceOutput::Everyone,
                To::Each => ReduceOutput::Each,
            },
            rank,
            world,
            ready: FIRST + if case.to == To::Everyone { groups } else { 0 },
            summed: FIRST,
            done: FIRST + slots,
            group_rows: case.group_rows,
            tiling: None,
            max_blocks: max_blocks(&backend, world),
        };
        let operands = ReduceOperands {
            a,
            b: b_at,
            bias,
            c: match case.to {
                To::Owner | To::Each => c.into(),
                To::Everyone => copies.addresses().into(),
            },
            staging: staging.addresses().into(),
            staging_stride,
            pulled,
            pad: pad.view(),
        };
        let stream = backend.stream(Default::default()).unwrap();
        let weight = match b {
            Layout::RowMajor => matrix::<T>(INPUTS, depth.clone(), 0..n),
            Layout::Transposed => {
                let rows = (0..n).flat_map(|col| depth.clone().map(move |row| (row, col)));
                let wide: Vec<f32> = rows.map(|(row, col)| value(INPUTS, row, col)).collect();
                let mut values = vec![T::default(); wide.len()];
                T::round(&wide, &mut values);
                values
            }
        };
        // SAFETY: the ranges lie in memory of this job, which nothing else uses yet; parts that are read
        // before they have come spoil C, since all bits set are no number.
        unsafe {
            backend.upload(&stream, b_at, bytes(&weight)).unwrap();
            let elements = matrix::<T>(INPUTS + 1, 0..1, 0..n);
            backend.upload(&stream, bias, bytes(&elements)).unwrap();
            for input in 0..INPUTS {
                let columns = matrix::<T>(input, 0..m, depth.clone());
                let at = inputs.add(input * part(a_bytes));
                backend.upload(&stream, at, bytes(&columns)).unwrap();
            }
            for parts in [staging.local(), pulled] {
                backend.fill(&stream, parts, 0xff, guarded).unwrap();
            }
        }
        backend.synchronize(&stream).unwrap();
        let handle = backend.gemm_handle().unwrap();
        let prepared = backend.prepare_reduce(&handle, &gemm).unwrap();
        let job = Job {
            c: match case.to {
                To::Everyone => copies.local(),
                To::Owner | To::Each => c,
            },
            backend,
            stream,
            pad,
            prepared,
            gemm,
            operands,
            handle,
            c_bytes,
            a_bytes,
            memory,
            inputs,
            guards: [staging.local(), pulled].map(|parts| parts.add(staging_bytes)),
            staging,
            copies,
            exchange,
        };
        // Ranks may share a context, in which nothing is loaded or allocated while one of them waits for
        // another.
        job.barrier("made");
        job
    }

    pub fn barrier(&self, place: &str) {
        self.exchange.barrier(place).unwrap();
    }

    /// Enqueues a call: A of `input`, nonsense in C, the launch. Every second input is read where it is:
    /// operands are a launch's own.
    pub fn enqueue(&self, input: usize) -> warpweave_symm_mem::Result<()> {
        let from = self
            .inputs
            .add(input * self.a_bytes.next_multiple_of(256).max(256));
        let mut operands = self.operands;
        // SAFETY: the ranges lie in the job's memory; all ranks launch as often as this one, and work on C is
        // on the stream of the launches.
        unsafe {
            match input % 2 {
                0 => self
                    .backend
                    .copy(&self.stream, operands.a, from, self.a_bytes)?,
                _ => operands.a = from,
            }
            if self.c_bytes > 0 {
                self.backend
                    .fill(&self.stream, self.c, 0xff, self.c_bytes)?;
            }
            self.backend
                .matmul_reduce(&self.stream, &self.prepared, &operands)
                .unwrap();
        }
        Ok(())
    }

    /// Compares `got` with this rank's rows of C for `input`.
    pub fn compare(&self, case: &Case, wanted: &[Vec<u8>], input: usize, got: &[u8], what: &str) {
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let row = 2 * case.n;
        let rows = case.rows(rank, world);
        for (at, got) in rows.zip(got.chunks_exact(row)) {
            let wanted = &wanted[input][at * row..(at + 1) * row];
            let col = got
                .chunks(2)
                .zip(wanted.chunks(2))
                .position(|(got, wanted)| got != wanted);
            assert_eq!(
                col, None,
                "{what}, rank {rank} of {world}, row {at}, {case:?}"
            );
        }
    }

    /// `count` calls with nothing between them that waits on the host; every element of every call.
    pub fn calls(&self, case: &Case, wanted: &[Vec<u8>], count: usize) {
        let rank = self.exchange.rank();
        let results = self
            .backend
            .allocate((count * self.c_bytes).max(1))
            .unwrap();
        let mut got = vec![0; count * self.c_bytes];
        self.barrier("allocated");
        for call in 0..count {
            let late = (call * 7 + rank * 3) % 5;
            if late < 2 {
                let time = Duration::from_micros(150 * late as u64 + 50);
                self.backend.delay(&self.stream, time).unwrap();
            }
            self.enqueue(call % INPUTS).unwrap();
            let to = results.address().add(call * self.c_bytes);
            if self.c_bytes > 0 {
                // SAFETY: the ranges lie in the job's memory and in the results.
                unsafe {
                    self.backend
                        .copy(&self.stream, to, self.c, self.c_bytes)
                        .unwrap()
                };
            }
        }
        self.backend.synchronize(&self.stream).unwrap();
        self.pad.check(&self.stream).unwrap();
        self.barrier("called");
        for guard in self.guards {
            let mut after = [0; GUARD];
            // SAFETY: the range lies after the parts, and all work has ended.
            unsafe {
                self.backend
                    .download(&self.stream, guard, &mut after)
                    .unwrap()
            };
            assert_eq!(after, [0xff; GUARD], "rank {rank}, {case:?}");
        }
        if self.c_bytes > 0 {
            // SAFETY: the range is the results'.
            unsafe {
                self.backend
                    .download(&self.stream, results.address(), &mut got)
                    .unwrap()
            };
            for (call, got) in got.chunks_exact(self.c_bytes).enumerate() {
                self.compare(case, wanted, call % INPUTS, got, &format!("call {call}"));
            }
        }
        self.barrier("compared");
    }

    pub fn close(self) {
        self.backend.synchronize(&self.stream).unwrap();
        self.barrier("end");
        drop((self.prepared, self.memory));
        self.staging.close(self.exchange.as_ref()).unwrap();
        self.copies.close(self.exchange.as_ref()).unwrap();
        self.pad
            .close(&self.stream, self.exchange.as_ref())
            .unwrap();
    }
}

/// All of a device where each rank has one; else a grid for each on the first, in whole clusters, with a
/// little left for what comes between.
fn max_blocks<B: Backend>(backend: &B, world: usize) -> Option<u32> {
    if Cuda::device_count().is_ok_and(|gpus| gpus >= world) {
        return None;
    }
    let blocks = backend.device().sms / world as u32;
    Some(blocks.saturating_sub(2) / 2 * 2)
}

pub fn on_ranks<B: Backend>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    run: impl Fn(B, Arc<dyn Exchange>) + Sync,
) {
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            let (device, run) = (&device, &run);
            scope.spawn(move || run(device(exchange.rank()), Arc::new(exchange)));
        }
    });
}
