//! The product with its sums over ranks, ranks as threads of this process: on the host, and on GPUs, one for each rank where
//! there are enough, else all on device 0 with grids that are resident together.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use warpweave_gemm::host::{Element, multiply};
use warpweave_gemm::reduction::Sums;
use warpweave_gemm::{GemmProblem, Layout, ReducingGemmBackend, ReducingMatmul};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Error, Exchange, Host, Memory, SignalPad, SymmetricBuffer,
    ThreadExchange,
};

/// Different inputs; calls take them in turn.
const INPUTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(10);
/// Slots before the first that the product uses.
const FIRST: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    /// Over all ranks.
    k: usize,
    dtype: DType,
    b: Layout,
    group_rows: usize,
    everyone: bool,
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

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

impl Case {
    /// The rows of C that a rank gets.
    fn rows(&self, rank: usize, world: usize) -> Range<usize> {
        match self.everyone {
            true => 0..self.m,
            false => shard(self.m, rank, world),
        }
    }

    /// C for each input, as bytes.
    fn wanted<T: Element>(&self) -> Vec<Vec<u8>> {
        let b = matrix::<T>(INPUTS, 0..self.k, 0..self.n);
        let problem = GemmProblem::new(self.m, self.n, self.k, T::DTYPE);
        let product = |input| {
            let a = matrix::<T>(input, 0..self.m, 0..self.k);
            let mut c = vec![T::default(); self.m * self.n];
            multiply(&problem, &a, &b, &mut c).unwrap();
            bytes(&c).to_vec()
        };
        (0..INPUTS).map(product).collect()
    }
}

/// One rank's part of a case.
struct Job<B: ReducingGemmBackend> {
    backend: B,
    exchange: Arc<dyn Exchange>,
    stream: B::Stream,
    pad: SignalPad<B>,
    plan: B::ReducingPlan,
    product: ReducingMatmul,
    /// Where C, or this rank's rows of it, lies.
    c: DevicePtr,
    c_bytes: usize,
    a_bytes: usize,
    /// A, B and C, then this rank's columns of A for each input.
    memory: B::Memory,
    inputs: DevicePtr,
    staging: SymmetricBuffer<B>,
    copies: SymmetricBuffer<B>,
}

impl<B: ReducingGemmBackend> Job<B> {
    fn new<T: Element>(
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
        let most = m.div_ceil(world);
        let groups = most.div_ceil(case.group_rows);
        let mut pad = SignalPad::new(&backend, &exchange, "test", FIRST + 2 * groups).unwrap();
        pad.set_timeout(timeout);
        let part = |bytes: usize| bytes.next_multiple_of(256).max(256);
        let (a_bytes, b_bytes) = (2 * m * depth.len(), 2 * n * depth.len());
        let c_bytes = 2 * n * case.rows(rank, world).len();
        let all = (1 + INPUTS) * part(a_bytes) + part(b_bytes) + part(c_bytes);
        let memory = backend.allocate(all).unwrap();
        let a = memory.address();
        let b_at = a.add(part(a_bytes));
        let c = b_at.add(part(b_bytes));
        let inputs = c.add(part(c_bytes));
        let shared = |name: &str, bytes: usize| {
            SymmetricBuffer::new(&backend, &exchange, name, bytes.max(256)).unwrap()
        };
        let staging = shared("staging", 2 * n * most * (world - 1));
        let copies = shared("c", if case.everyone { 2 * n * m } else { 0 });
        let product = ReducingMatmul {
            problem,
            shards: (0..world).map(|rank| shard(m, rank, world)).collect(),
            a,
            b: b_at,
            c: match case.everyone {
                true => Sums::Everyone(copies.addresses()),
                false => Sums::Owner(c),
            },
            staging: staging.addresses(),
            pad: pad.view(),
            ready: FIRST + groups,
            over: FIRST,
            group_rows: case.group_rows,
            max_blocks: max_blocks(&backend, world),
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
        // SAFETY: the ranges lie in memory of this job, which nothing else uses yet; parts that are read before they have
        // come spoil C, since all bits set are no number.
        unsafe {
            backend.upload(&stream, b_at, bytes(&weight)).unwrap();
            for input in 0..INPUTS {
                let columns = matrix::<T>(input, 0..m, depth.clone());
                let at = inputs.add(input * part(a_bytes));
                backend.upload(&stream, at, bytes(&columns)).unwrap();
            }
            backend
                .fill(&stream, staging.local(), 0xff, staging.bytes())
                .unwrap();
        }
        backend.synchronize(&stream).unwrap();
        let plan = backend.reducing_plan(&product).unwrap();
        let job = Job {
            c: match case.everyone {
                true => copies.local(),
                false => c,
            },
            backend,
            stream,
            pad,
            plan,
            product,
            c_bytes,
            a_bytes,
            memory,
            inputs,
            staging,
            copies,
            exchange,
        };
        // Ranks may share a context, in which nothing is loaded or allocated while one of them waits for another.
        job.meet("made");
        job
    }

    fn meet(&self, place: &str) {
        self.exchange.barrier(place).unwrap();
    }

    /// Enqueues a call: A of `input`, nonsense in C, the launch.
    fn enqueue(&self, input: usize) -> warpweave_symm_mem::Result<()> {
        let from = self
            .inputs
            .add(input * self.a_bytes.next_multiple_of(256).max(256));
        // SAFETY: the ranges lie in the job's memory; all ranks launch as often as this one, and work on C is on the stream
        // of the launches.
        unsafe {
            self.backend
                .copy(&self.stream, self.product.a, from, self.a_bytes)?;
            if self.c_bytes > 0 {
                self.backend
                    .fill(&self.stream, self.c, 0xff, self.c_bytes)?;
            }
            self.backend
                .reducing_matmul(&self.stream, &self.plan)
                .unwrap();
        }
        Ok(())
    }

    /// Compares `got` with this rank's rows of C for `input`.
    fn compare(&self, case: &Case, wanted: &[Vec<u8>], input: usize, got: &[u8], what: &str) {
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
    fn calls(&self, case: &Case, wanted: &[Vec<u8>], count: usize) {
        let rank = self.exchange.rank();
        let results = self
            .backend
            .allocate((count * self.c_bytes).max(1))
            .unwrap();
        let mut got = vec![0; count * self.c_bytes];
        self.meet("allocated");
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
        self.meet("called");
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
        self.meet("compared");
    }

    fn close(self) {
        self.backend.synchronize(&self.stream).unwrap();
        self.meet("end");
        drop((self.plan, self.memory));
        self.staging.close(self.exchange.as_ref()).unwrap();
        self.copies.close(self.exchange.as_ref()).unwrap();
        self.pad
            .close(&self.stream, self.exchange.as_ref())
            .unwrap();
    }
}

/// All of a device where each rank has one; else a grid for each on the first, in whole clusters, with a little left for what
/// comes between.
fn max_blocks<B: Backend>(backend: &B, world: usize) -> Option<u32> {
    if Cuda::device_count().is_ok_and(|gpus| gpus >= world) {
        return None;
    }
    let blocks = backend.device().multiprocessors / world as u32;
    Some(blocks.saturating_sub(2) / 2 * 2)
}

fn on_ranks<B: Backend>(
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

fn exact<B: ReducingGemmBackend>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    case: &Case,
    count: usize,
) {
    match case.dtype {
        DType::F16 => exact_in::<B, f16>(world, device, case, count),
        _ => exact_in::<B, bf16>(world, device, case, count),
    }
}

fn exact_in<B: ReducingGemmBackend, T: Element>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    case: &Case,
    count: usize,
) {
    let wanted = case.wanted::<T>();
    on_ranks(world, device, |backend, exchange| {
        let job = Job::new::<T>(backend, exchange, case, PATIENCE);
        job.calls(case, &wanted, count);
        job.close();
    });
}

fn replays<B: ReducingGemmBackend>(world: usize, device: impl Fn(usize) -> B + Sync, case: &Case) {
    let wanted = case.wanted::<bf16>();
    on_ranks(world, device, |backend, exchange| {
        let job = Job::new::<bf16>(backend, exchange, case, PATIENCE);
        job.calls(case, &wanted, 2);
        // A graph for each input, which are replayed in another order, without a stop between them.
        let graphs: Vec<_> = (0..INPUTS)
            .map(|input| {
                job.backend
                    .capture(&job.stream, || job.enqueue(input))
                    .unwrap()
            })
            .collect();
        job.meet("captured");
        for call in 0..10 {
            let input = call * 3 % INPUTS;
            job.backend
                .launch_graph(&graphs[input], &job.stream)
                .unwrap();
            job.backend
                .launch_graph(&graphs[(input + 1) % INPUTS], &job.stream)
                .unwrap();
            let mut got = vec![0; job.c_bytes];
            // SAFETY: the range is that of C.
            unsafe { job.backend.download(&job.stream, job.c, &mut got).unwrap() };
            job.pad.check(&job.stream).unwrap();
            // C is read before any rank goes on to write it.
            job.compare(
                case,
                &wanted,
                (input + 1) % INPUTS,
                &got,
                &format!("replay {call}"),
            );
        }
        job.meet("replayed");
        drop(graphs);
        job.close();
    });
}

/// The last rank stays away from a call: the others end in time, with a fault, and the pad recovers.
fn silence<B: ReducingGemmBackend>(world: usize, device: impl Fn(usize) -> B + Sync, case: &Case) {
    let wanted = case.wanted::<bf16>();
    let patience = Duration::from_millis(500);
    on_ranks(world, device, |backend, exchange| {
        let (rank, away) = (exchange.rank(), exchange.world() - 1);
        let job = Job::new::<bf16>(backend, exchange, case, patience);
        job.calls(case, &wanted, 3);
        if rank != away {
            let start = Instant::now();
            job.enqueue(0).unwrap();
            job.backend.synchronize(&job.stream).unwrap();
            assert!(start.elapsed() < PATIENCE, "ended late");
            let fault = job.pad.check(&job.stream).unwrap_err();
            let Error::SignalTimeout(fault) = fault else {
                panic!("{fault}");
            };
            assert_eq!((fault.rank, fault.peer), (rank, away), "{fault}");
            assert!(fault.waited >= patience, "{fault}");
        }
        job.meet("silence");
        job.pad.recover(&job.stream, job.exchange.as_ref()).unwrap();
        job.meet("recovered");
        job.calls(case, &wanted, 3);
        job.close();
    });
}

/// m, n, k over all ranks: ragged shards, groups and tiles; fewer rows than ranks; aligned; more columns than rows; a shard of
/// several groups, of which the last is short.
const SHAPES: [(usize, usize, usize); 5] = [
    (300, 136, 128),
    (3, 8, 64),
    (1024, 512, 256),
    (70, 1032, 192),
    (1500, 264, 64),
];

fn every_case(world: usize, group_rows: usize) -> impl Iterator<Item = Case> {
    SHAPES
        .into_iter()
        .enumerate()
        .flat_map(move |(i, (m, n, k))| {
            [false, true].map(|everyone| Case {
                m: m + i % 2 * world,
                n,
                k,
                dtype: if i % 2 == 0 { DType::Bf16 } else { DType::F16 },
                b: if (i + usize::from(everyone)) % 2 == 0 {
                    Layout::RowMajor
                } else {
                    Layout::Transposed
                },
                group_rows,
                everyone,
            })
        })
}

fn small(everyone: bool, group_rows: usize) -> Case {
    Case {
        m: 610,
        n: 264,
        k: 128,
        dtype: DType::Bf16,
        b: Layout::RowMajor,
        group_rows,
        everyone,
    }
}

#[test]
fn every_rank_gets_its_sums() {
    for world in 1..=8 {
        for group_rows in [16, 100] {
            for everyone in [false, true] {
                for (m, b) in [
                    (37, Layout::RowMajor),
                    (8 * world, Layout::Transposed),
                    (3, Layout::RowMajor),
                ] {
                    let (n, k, dtype) = (10, 21, DType::F16);
                    let case = Case {
                        m,
                        n,
                        k,
                        dtype,
                        b,
                        group_rows,
                        everyone,
                    };
                    exact(world, |_| Host::new(), &case, 8);
                }
            }
        }
    }
}

#[test]
fn captured_calls_are_replayed() {
    for everyone in [false, true] {
        replays(3, |_| Host::new(), &small(everyone, 50));
    }
}

#[test]
fn a_rank_that_stays_away_is_a_fault_and_the_pad_recovers() {
    for everyone in [false, true] {
        silence(3, |_| Host::new(), &small(everyone, 50));
    }
}

/// Worlds to try on this machine, of which each rank has a device of its own or all have the first.
fn gpu_worlds() -> Vec<usize> {
    let gpus = Cuda::device_count().unwrap();
    [1, 2, 4, 8]
        .into_iter()
        .filter(|&world| world <= gpus.max(4))
        .collect()
}

fn gpu(world: usize) -> impl Fn(usize) -> Cuda + Sync {
    let apart = Cuda::device_count().unwrap() >= world;
    move |rank| Cuda::new(if apart { rank } else { 0 }).unwrap()
}

/// One tile for each rank: the place to begin when something is wrong.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_one_tile_for_each_rank_is_summed() {
    for everyone in [false, true] {
        let case = Case {
            m: 256,
            n: 128,
            k: 128,
            b: Layout::Transposed,
            ..small(everyone, 128)
        };
        exact(2, gpu(2), &case, 1);
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_every_rank_gets_its_sums() {
    for world in gpu_worlds() {
        for group_rows in [256, 128] {
            for case in every_case(world, group_rows) {
                exact(world, gpu(world), &case, 6);
            }
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_a_hundred_calls_in_a_row_are_kept_apart() {
    for world in gpu_worlds() {
        for everyone in [false, true] {
            let shape = Case {
                m: 1028,
                n: 520,
                k: 256,
                ..small(everyone, 256)
            };
            exact(world, gpu(world), &shape, 100);
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_captured_calls_are_replayed() {
    for everyone in [false, true] {
        replays(2, gpu(2), &small(everyone, 128));
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_a_rank_that_stays_away_is_a_fault_and_the_pad_recovers() {
    for everyone in [false, true] {
        silence(2, gpu(2), &small(everyone, 128));
    }
}

/// Reals, whose sums depend on their order: the same bits on every call and from every grid.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn on_gpus_every_run_gives_the_same_bits() {
    let case = Case {
        m: 520,
        n: 264,
        k: 512,
        ..small(true, 128)
    };
    let results = |blocks: u32| -> Vec<Vec<u8>> {
        let (sender, receiver) = std::sync::mpsc::channel();
        on_ranks(2, gpu(2), |backend, exchange| {
            let mut job = Job::new::<bf16>(backend, exchange, &case, PATIENCE);
            job.product.max_blocks = Some(blocks);
            job.plan = job.backend.reducing_plan(&job.product).unwrap();
            let real = |i: usize| {
                ((i * 7919 + 13).wrapping_mul(2_654_435_761) >> 9) as f32 % 1000.0 / 777.0
            };
            let values: Vec<bf16> = (0..case.m * case.k / 2)
                .map(|i| bf16::from_f32(real(i)))
                .collect();
            // SAFETY: the ranges are those of A for each input.
            unsafe {
                for input in 0..INPUTS {
                    let at = job.inputs.add(input * job.a_bytes.next_multiple_of(256));
                    job.backend.upload(&job.stream, at, bytes(&values)).unwrap();
                }
            }
            job.meet("uploaded");
            for call in 0..4 {
                job.enqueue(call).unwrap();
                let mut c = vec![0; job.c_bytes];
                // SAFETY: the range is that of C.
                unsafe { job.backend.download(&job.stream, job.c, &mut c).unwrap() };
                job.pad.check(&job.stream).unwrap();
                sender.send(c).unwrap();
            }
            job.close();
        });
        drop(sender);
        receiver.into_iter().collect()
    };
    let all: Vec<_> = [2, 7, 40].into_iter().flat_map(results).collect();
    assert_eq!(all.len(), 24);
    assert!(all.iter().all(|c| *c == all[0]));
    assert!(all[0].iter().any(|&byte| byte != 0xff));
}
