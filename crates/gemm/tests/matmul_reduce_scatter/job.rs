//! One rank's part of a case, which it computes call after call, every element of which is compared.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use float8::F8E4M3;
use warpweave_gemm::host::{Element, multiply_with_scales};
use warpweave_gemm::matmul_reduce::{ReduceOutput, Units};
use warpweave_gemm::{
    GemmProblem, GemmReduceBackend, Layout, MatmulReduce, ReduceOperands, Scaling,
};
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer, ThreadExchange,
};

/// Different inputs; calls cycle through them.
pub const INPUTS: usize = 4;
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Slots before the first that the GEMM uses.
const FIRST: usize = 3;
/// Bytes after the partials that nothing may write.
const GUARD: usize = 256;

/// Who gets the result, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Owner,
    Everyone,
    Each,
    /// On the host alone, which emulates multicast: no test makes a multicast object.
    Multimem,
}

impl To {
    pub const ALL: [To; 4] = [To::Owner, To::Everyone, To::Each, To::Multimem];
    pub const WITHOUT_MULTICAST: [To; 3] = [To::Owner, To::Everyone, To::Each];

    /// Whether C is where peers reach it.
    fn is_shared(self) -> bool {
        matches!(self, To::Everyone | To::Multimem)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub m: usize,
    pub n: usize,
    /// Over all ranks.
    pub k: usize,
    /// Of C, and of A and B if these have no scales.
    pub dtype: DType,
    /// Of A and B, which are e4m3 then.
    pub scaling: Scaling,
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

/// Powers of two, which leave sums exact; those of the rank's part of matrix `which`.
fn scales(which: usize, rank: usize, count: usize) -> Vec<f32> {
    let of = |i: usize| [0.5, 1.0, 2.0][(which * 5 + rank * 7 + i * 11 + i / 3) % 3];
    (0..count).map(of).collect()
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
            To::Everyone | To::Each | To::Multimem => 0..self.m,
        }
    }

    /// The type of A and B.
    pub fn of_operands(&self) -> DType {
        match self.scaling {
            Scaling::None => self.dtype,
            _ => DType::E4m3,
        }
    }

    /// A rank's GEMM, with its columns of A and its rows of B stored row after row.
    fn problem(&self, depth: usize) -> GemmProblem {
        GemmProblem {
            scaling: self.scaling,
            ..GemmProblem::new(self.m, self.n, depth, self.of_operands()).with_output(self.dtype)
        }
    }

    /// C for each input, as bytes.
    pub fn wanted<T: Element>(&self, world: usize) -> Vec<Vec<u8>> {
        let all = 0..INPUTS;
        match self.scaling {
            Scaling::None => all.map(|input| self.result::<T, T>(input, world)).collect(),
            _ => all
                .map(|input| self.result::<F8E4M3, T>(input, world))
                .collect(),
        }
    }

    /// All partials are exact, and so is their reduction, which is rounded once.
    fn result<E: Element, T: Element>(&self, input: usize, world: usize) -> Vec<u8> {
        let mut results = vec![0.0; self.m * self.n];
        for rank in 0..world {
            let depth = shard(self.k, rank, world);
            if depth.is_empty() {
                continue;
            }
            let problem = self.problem(depth.len()).with_output(DType::F32);
            let a = matrix::<E>(input, 0..self.m, depth.clone());
            let b = matrix::<E>(INPUTS, depth, 0..self.n);
            let [of_a, of_b] = problem.scales_len();
            let (of_a, of_b) = (scales(input, rank, of_a), scales(INPUTS, rank, of_b));
            let mut partial = vec![0.0f32; results.len()];
            let none: [f32; 0] = [];
            multiply_with_scales(&problem, (&a, &of_a), (&b, &of_b), &none, &mut partial).unwrap();
            results
                .iter_mut()
                .zip(partial)
                .for_each(|(result, partial)| *result += partial);
        }
        for row in results.chunks_exact_mut(self.n).filter(|_| self.bias) {
            let bias = (0..self.n).map(|col| value(INPUTS + 1, 0, col));
            row.iter_mut()
                .zip(bias)
                .for_each(|(result, bias)| *result += bias);
        }
        let mut c = vec![T::default(); results.len()];
        T::round(&results, &mut c);
        bytes(&c).to_vec()
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
    c: DevicePtr,
    /// Where everyone gets the result, where C is in calls that have it in local memory.
    local_c: Option<DevicePtr>,
    pub c_bytes: usize,
    /// Of A and its scales.
    pub a_bytes: usize,
    /// From A to its scales.
    pub scales_of_a: usize,
    /// A, B, the bias, C and the partials pulled, then this rank's columns of A for each input. Scales lie
    /// after their matrices.
    pub memory: B::Memory,
    pub inputs: DevicePtr,
    /// What lies after the partials of others' rows, and after those pulled.
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
        let problem = GemmProblem {
            bias: case.bias,
            ..case.problem(depth.len()).with_layouts(Layout::RowMajor, b)
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
        let size = case.of_operands().size();
        let scales_of = problem.scales_len();
        let [a_scales, b_scales] = [m, n].map(|lines| part(lines * depth.len() * size));
        let a_bytes = a_scales + scales_of[0] * 4;
        let b_bytes = b_scales + scales_of[1] * 4;
        let c_bytes = 2 * n * case.rows(rank, world).len();
        // The second of two stagings does not follow the partials of the first.
        let staging_stride = part(2 * n * world * m) + 512;
        let staging_bytes = match case.to {
            To::Each => staging_stride + 2 * n * world * m,
            To::Multimem => 2 * n * m,
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
        let copies = shared("c", if case.to.is_shared() { 2 * n * m } else { 0 });
        let gemm = MatmulReduce {
            problem,
            shards: (0..world).map(|rank| shard(m, rank, world)).collect(),
            c: match case.to {
                To::Owner => ReduceOutput::Owner,
                To::Everyone => ReduceOutput::Everyone,
                To::Each => ReduceOutput::Each,
                To::Multimem => ReduceOutput::Multimem,
            },
            rank,
            world,
            ready: FIRST + if case.to == To::Everyone { groups } else { 0 },
            reduced: FIRST,
            done: FIRST + slots,
            group_rows: case.group_rows,
            tiling: None,
            max_blocks: max_blocks(&backend, world),
        };
        let operands = ReduceOperands {
            a,
            b: b_at,
            bias,
            scales: [a.add(a_scales), b_at.add(b_scales)],
            c: match case.to {
                To::Owner | To::Each => c.into(),
                To::Everyone | To::Multimem => copies.addresses().into(),
            },
            local_c: DevicePtr::NULL,
            staging: staging.addresses().into(),
            staging_stride,
            multicast: [DevicePtr::NULL; 2],
            pulled,
            pad: pad.view(),
        };
        let stream = backend.stream(Default::default()).unwrap();
        let stored = |which: usize, rows: Range<usize>, cols: Range<usize>, layout: Layout| {
            let (lines, length) = layout.stored(rows.len(), cols.len());
            let at = |line: usize, i: usize| match layout {
                Layout::RowMajor => value(which, rows.start + line, cols.start + i),
                Layout::Transposed => value(which, rows.start + i, cols.start + line),
            };
            let places = (0..lines).flat_map(|line| (0..length).map(move |i| (line, i)));
            let wide: Vec<f32> = places.map(|(line, i)| at(line, i)).collect();
            encode(case.of_operands(), &wide)
        };
        let weight = stored(INPUTS, depth.clone(), 0..n, b);
        // SAFETY: the ranges lie in memory of this job, which nothing else uses yet; parts that are read
        // before they have come spoil C, since all bits set are no number.
        unsafe {
            backend.upload(&stream, b_at, &weight).unwrap();
            let of_b = scales(INPUTS, rank, scales_of[1]);
            backend
                .upload(&stream, operands.scales[1], bytes(&of_b))
                .unwrap();
            let elements = matrix::<T>(INPUTS + 1, 0..1, 0..n);
            backend.upload(&stream, bias, bytes(&elements)).unwrap();
            for input in 0..INPUTS {
                let columns = stored(input, 0..m, depth.clone(), Layout::RowMajor);
                let at = inputs.add(input * part(a_bytes));
                backend.upload(&stream, at, &columns).unwrap();
                let of_a = scales(input, rank, scales_of[0]);
                backend
                    .upload(&stream, at.add(a_scales), bytes(&of_a))
                    .unwrap();
            }
            for partials in [staging.local(), pulled] {
                backend.fill(&stream, partials, 0xff, guarded).unwrap();
            }
        }
        backend.synchronize(&stream).unwrap();
        let handle = backend.gemm_handle().unwrap();
        let prepared = backend.prepare_reduce(&handle, &gemm).unwrap();
        let job = Job {
            c: match case.to {
                To::Everyone | To::Multimem => copies.local(),
                To::Owner | To::Each => c,
            },
            local_c: (case.to == To::Everyone).then_some(c),
            backend,
            stream,
            pad,
            prepared,
            gemm,
            operands,
            handle,
            c_bytes,
            a_bytes,
            scales_of_a: a_scales,
            memory,
            inputs,
            guards: [staging.local(), pulled].map(|partials| partials.add(staging_bytes)),
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

    /// Where C is in local memory in a call of `input`: every second one of a rank has it there.
    fn local_c(&self, input: usize) -> Option<DevicePtr> {
        let is_local = (input + self.exchange.rank()) % 2 == 1;
        self.local_c.filter(|_| is_local)
    }

    /// Where C is in a call of `input`.
    pub fn c(&self, input: usize) -> DevicePtr {
        self.local_c(input).unwrap_or(self.c)
    }

    /// Enqueues a call: A of `input`, nonsense in C, the launch. Every second input is read where it is:
    /// operands are a launch's own.
    pub fn enqueue(&self, input: usize) -> warpweave_symm_mem::Result<()> {
        let from = self
            .inputs
            .add(input * self.a_bytes.next_multiple_of(256).max(256));
        let mut operands = self.operands;
        operands.local_c = self.local_c(input).unwrap_or(DevicePtr::NULL);
        // SAFETY: the ranges lie in the job's memory; all ranks launch as often as this one, and work on C is
        // on the stream of the launches.
        unsafe {
            match input % 2 {
                0 => self
                    .backend
                    .copy(&self.stream, operands.a, from, self.a_bytes)?,
                _ => {
                    operands.a = from;
                    operands.scales[0] = from.add(self.scales_of_a);
                }
            }
            if self.c_bytes > 0 {
                for c in [self.c].into_iter().chain(self.local_c) {
                    self.backend.fill(&self.stream, c, 0xff, self.c_bytes)?;
                }
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
                        .copy(&self.stream, to, self.c(call % INPUTS), self.c_bytes)
                        .unwrap()
                };
            }
        }
        self.backend.synchronize(&self.stream).unwrap();
        self.pad.check(&self.stream).unwrap();
        self.barrier("called");
        for guard in self.guards {
            let mut after = [0; GUARD];
            // SAFETY: the range lies after the partials, and all work has ended.
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
