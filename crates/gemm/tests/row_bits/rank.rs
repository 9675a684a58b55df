//! One rank with the memory in which it multiplies parts of a matrix.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warpweave_gemm::host::Element;
use warpweave_gemm::matmul_reduce::{ReduceOutput, Units};
use warpweave_gemm::sm90::{CONFIGS, Tiling};
use warpweave_gemm::{
    AllGatherMatmul, AllGatherOperands, GemmOperands, GemmProblem, Layout, MatmulReduce, Protocol,
    ReduceOperands,
};
use warpweave_symm_mem::{DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer};

use crate::Kernels;

/// What problems there are.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows of the tall A.
    pub rows: usize,
    /// Most rows of a problem.
    pub most: usize,
    /// Most columns and terms.
    pub extents: [usize; 2],
    /// Rows of which groups are made.
    pub group_rows: usize,
    /// Tiles to choose from.
    pub configs: usize,
    /// Most blocks of a launch.
    pub blocks: Option<u32>,
    /// Problems of a matrix.
    pub calls: usize,
}

/// How a problem is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Plain,
    Pulled,
    Eager,
    Owner,
    Everyone,
    Each,
}

const FAMILIES: [Family; 6] = [
    Family::Plain,
    Family::Pulled,
    Family::Eager,
    Family::Owner,
    Family::Everyone,
    Family::Each,
];

/// What was compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Problems, by family.
    pub families: [usize; FAMILIES.len()],
    pub rows: usize,
}

impl Counts {
    pub fn and(mut self, other: Counts) -> Counts {
        for (here, there) in self.families.iter_mut().zip(other.families) {
            *here += there;
        }
        self.rows += other.rows;
        self
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of", self.rows)?;
        for (family, problems) in FAMILIES.iter().zip(self.families) {
            write!(f, " {problems} {family:?}")?;
        }
        Ok(())
    }
}

// Slots.
const DONE: usize = 0;
const READY: usize = 1;
const EAGER: usize = 2;
const OWNERS: usize = EAGER + AllGatherMatmul::EAGER_CHUNKS;
const MOST_GROUPS: usize = 64;
const EACH: usize = OWNERS + 2 * MOST_GROUPS + 1;
const SLOTS: usize = EACH + Units::MOST + 1;

/// Numbers of chance.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Reals of size one at most, of an element type.
fn reals<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let wide: Vec<f32> = (0..len)
        .map(|_| random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0)
        .collect();
    let mut values = vec![T::default(); len];
    T::round(&wide, &mut values);
    values
}

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::default(); bytes.len() / size_of::<T>()];
    // SAFETY: any bytes make elements, and both have so many.
    unsafe {
        let to = values.as_mut_ptr().cast();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size_of_val(values.as_slice()));
    }
    values
}

/// A matrix B of each rank with what it makes of the tall A, before any rows are taken out.
struct Matrix<T> {
    /// Of the whole A.
    problem: GemmProblem,
    /// What this rank multiplies A of rank 0 into, with the bias.
    gathered: Vec<T>,
    /// What all ranks' own A and B sum to, with the bias.
    summed: Vec<T>,
}

/// Where things begin in a rank's memory.
#[derive(Clone, Copy)]
struct Places {
    /// The tall A of rank 0, and this rank's.
    first_a: DevicePtr,
    own_a: DevicePtr,
    b: DevicePtr,
    bias: DevicePtr,
    c: DevicePtr,
    pulled: DevicePtr,
}

/// Bytes from the start of a rank's shared memory.
#[derive(Clone, Copy)]
struct Shared {
    shard: usize,
    staging: usize,
    /// Two, with room for the largest problem each: calls of any m take them by turns.
    eager: usize,
    eager_stride: usize,
    partials: usize,
    each: usize,
    each_stride: usize,
    copies: usize,
}

pub struct Rank<B: Kernels> {
    backend: B,
    exchange: Arc<dyn Exchange>,
    limits: Limits,
    stream: B::Stream,
    pad: SignalPad<B>,
    handle: B::GemmHandle,
    _memory: B::Memory,
    at: Places,
    shared: SymmetricBuffer<B>,
    within: Shared,
    counts: Counts,
}

impl<B: Kernels> Rank<B> {
    pub fn new(backend: B, exchange: Arc<dyn Exchange>, limits: Limits) -> Self {
        let world = exchange.world();
        let Limits {
            rows,
            most,
            extents: [n, k],
            ..
        } = limits;
        let [n, k] = [n, k].map(|extent| extent.next_multiple_of(8));
        // Each begins at a multiple of 256 bytes.
        let part = |elements: usize| (2 * elements).next_multiple_of(256);
        let mut end = 0;
        let mut place = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        let places = [
            part(rows * k),
            part(rows * k),
            part(n * k),
            part(n),
            part(rows * n),
            part(world * most * n),
        ]
        .map(&mut place);
        let memory = backend.allocate(end).unwrap();
        let [first_a, own_a, b, bias, c, pulled] = places.map(|at| memory.address().add(at));

        end = 0;
        let mut place = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        let (eager_stride, each_stride) = (part(most * k), part(world * most * n));
        let within = Shared {
            shard: place(part(most * k)),
            staging: place(part(most * k)),
            eager: place(2 * eager_stride),
            eager_stride,
            partials: place(part(world * most * n)),
            each: place(2 * each_stride),
            each_stride,
            copies: place(part(most * n)),
        };
        let shared = SymmetricBuffer::new(&backend, &exchange, "row bits", end).unwrap();
        let mut pad = SignalPad::new(&backend, &exchange, "row bits", SLOTS).unwrap();
        pad.set_timeout(Duration::from_secs(10));
        Self {
            stream: backend.stream(Default::default()).unwrap(),
            handle: backend.gemm_handle().unwrap(),
            pad,
            _memory: memory,
            at: Places {
                first_a,
                own_a,
                b,
                bias,
                c,
                pulled,
            },
            shared,
            within,
            counts: Counts::default(),
            backend,
            exchange,
            limits,
        }
    }

    fn barrier(&self, place: &str) {
        self.exchange.barrier(place).unwrap();
    }

    fn upload(&self, to: DevicePtr, bytes: &[u8]) {
        // SAFETY: a place of this rank's memory, which nothing uses meanwhile.
        unsafe { self.backend.upload(&self.stream, to, bytes).unwrap() };
    }

    fn download<T: Element>(&self, from: DevicePtr, elements_of: usize) -> Vec<T> {
        let mut bytes = vec![0; elements_of * size_of::<T>()];
        // SAFETY: a place of this rank's memory, whose work is all on one stream.
        unsafe {
            self.backend
                .download(&self.stream, from, &mut bytes)
                .unwrap();
        }
        elements(&bytes)
    }

    /// A plain GEMM into `c`.
    fn plain(&self, problem: &GemmProblem, a: DevicePtr, tiling: Tiling) {
        let prepared = self.backend.prepare_tiled(&self.handle, problem, tiling);
        let operands = GemmOperands::new(a, self.at.b, self.at.c).with_bias(self.at.bias);
        // SAFETY: the matrices lie in this rank's memory, whose work is all on one stream; the kernel needs no
        // workspace.
        unsafe {
            self.backend
                .gemm(&self.stream, &prepared, operands, DevicePtr::NULL)
                .unwrap();
            // The prepared GEMM lives until it has ended.
            self.backend.synchronize(&self.stream).unwrap();
        }
    }

    /// Plays the problems of a matrix.
    pub fn matrix<T: Element>(&mut self, number: u64) {
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let random = &mut Random(number);
        let Limits {
            rows,
            extents: [n, k],
            calls,
            ..
        } = self.limits;
        let n = (1 + random.below(n)).next_multiple_of(8);
        let k = 1 + random.below(k);
        let layout = match random.once_in(2) {
            true => Layout::RowMajor,
            false => Layout::Transposed,
        };
        let ld = |columns: usize| columns.next_multiple_of(8);
        let (stored_rows, stored_columns) = layout.stored(k, n);
        let problem = GemmProblem::new(rows, n, k, T::DTYPE)
            .with_layouts(Layout::RowMajor, layout)
            .with_leading_dimensions(ld(k), ld(stored_columns), n);
        let biased = random.once_in(2);

        let seed = |of: usize, what: u64| (number << 8 | what) * 64 + of as u64 + 1;
        self.upload(
            self.at.first_a,
            bytes(&reals::<T>(rows * ld(k), seed(0, 0))),
        );
        self.upload(
            self.at.own_a,
            bytes(&reals::<T>(rows * ld(k), seed(rank, 0))),
        );
        let b = reals::<T>(stored_rows * ld(stored_columns), seed(rank, 1));
        self.upload(self.at.b, bytes(&b));
        // The owner of a row adds its own: all ranks have the same.
        let bias = reals::<T>(n, seed(0, 2));
        self.upload(self.at.bias, bytes(&bias));

        let with_bias = GemmProblem {
            bias: biased,
            ..problem
        };
        self.plain(&with_bias, self.at.first_a, SIMPLEST);
        let gathered = self.download::<T>(self.at.c, rows * n);
        self.plain(&problem, self.at.own_a, SIMPLEST);
        let partial = self.download::<T>(self.at.c, rows * n);
        let partials = self
            .exchange
            .all_gather("partials", bytes(&partial))
            .unwrap();
        let partials: Vec<Vec<T>> = partials.iter().map(|bytes| elements(bytes)).collect();
        let matrix = Matrix {
            problem: with_bias,
            gathered,
            summed: sum(&partials, biased.then_some(&bias[..])),
        };
        assert_eq!(partials.len(), world);
        for _ in 0..calls {
            self.problem(&matrix, random);
        }
    }

    /// Some rows of the matrix by some family.
    fn problem<T: Element>(&mut self, matrix: &Matrix<T>, random: &mut Random) {
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let Limits {
            rows,
            most,
            group_rows,
            configs,
            blocks,
            ..
        } = self.limits;
        let which = random.below(FAMILIES.len());
        let family = FAMILIES[which];
        let m = match random.below(4) {
            0 => 1 + random.below(4),
            _ => 1 + random.below(most),
        };
        let start = random.below(rows - m + 1);
        let shards = shards(random, m, world);
        let chunk_rows = 1 + random.below(m);
        let groups = 1 + random.below(3);
        // All ranks draw alike, and have tiles of their own.
        let tilings: Vec<_> = (0..world)
            .map(|_| Tiling {
                config: random.below(configs),
                swizzle: 1 + random.below(4) as u32,
            })
            .collect();
        let clusters = CONFIGS[tilings[rank].config].cluster;
        let is_tiled = random.once_in(2)
            && (clusters == [1, 1] || matches!(family, Family::Pulled | Family::Eager));
        let tiling = is_tiled.then_some(tilings[rank]);
        let problem = GemmProblem {
            m,
            ..matrix.problem
        };
        let GemmProblem { n, lda, ldc, .. } = problem;

        let what = format!(
            "{family:?} of rows {start}..{} by {tiling:?}, {problem}",
            start + m
        );
        let poison = |bytes| {
            // SAFETY: places of this rank's memory; no rank has work under way.
            unsafe {
                self.backend
                    .fill(&self.stream, self.at.c, 0xff, bytes)
                    .unwrap();
                let copies = self.shared.local().add(self.within.copies);
                self.backend
                    .fill(&self.stream, copies, 0xff, 2 * most * n)
                    .unwrap();
            }
        };
        poison(2 * m * n);
        let on_all = |offset: usize| -> Vec<DevicePtr> {
            let all = self.shared.addresses().into_iter();
            all.map(|address| address.add(offset)).collect()
        };
        let (wanted, got_rows, at) = match family {
            Family::Plain => {
                let a = self.at.first_a.add(2 * start * lda);
                self.plain(&problem, a, tilings[rank]);
                (&matrix.gathered, 0..m, self.at.c)
            }
            Family::Pulled | Family::Eager => {
                let largest = shards.iter().map(Range::len).max().unwrap_or(0);
                let eager = family == Family::Eager;
                let own = shards[rank].clone();
                let from = self.at.first_a.add(2 * (start + own.start) * lda);
                let shard = self.shared.local().add(self.within.shard);
                if !own.is_empty() {
                    // SAFETY: places of this rank's memory; no rank has work under way.
                    unsafe {
                        self.backend
                            .copy(&self.stream, shard, from, 2 * own.len() * lda)
                            .unwrap();
                    }
                }
                let gemm = AllGatherMatmul {
                    problem,
                    shards,
                    chunk_rows: match eager {
                        true => AllGatherMatmul::eager_chunk_rows(largest),
                        false => chunk_rows,
                    },
                    rank,
                    world,
                    ready: if eager { EAGER } else { READY },
                    done: DONE,
                    protocol: if eager {
                        Protocol::Eager
                    } else {
                        Protocol::PULL
                    },
                    tiling,
                    max_blocks: blocks,
                };
                let staging = if eager {
                    self.within.eager
                } else {
                    self.within.staging
                };
                let operands = AllGatherOperands {
                    a: on_all(self.within.shard).into(),
                    staging: on_all(staging).into(),
                    staging_stride: self.within.eager_stride,
                    b: self.at.b,
                    c: self.at.c,
                    bias: self.at.bias,
                    pad: self.pad.view(),
                };
                let prepared = self.backend.prepare_all_gather(&self.handle, &gemm);
                let prepared = prepared.unwrap_or_else(|error| panic!("{what}: {error}"));
                self.synchronize();
                self.barrier("prepared");
                // SAFETY: all matrices are there; all ranks launch the same, and wait for the end.
                unsafe {
                    self.backend
                        .all_gather_matmul(&self.stream, &prepared, &operands)
                        .unwrap();
                }
                self.synchronize();
                (&matrix.gathered, 0..m, self.at.c)
            }
            Family::Owner | Family::Everyone | Family::Each => {
                let output = match family {
                    Family::Owner => ReduceOutput::Owner,
                    Family::Everyone => ReduceOutput::Everyone,
                    _ => ReduceOutput::Each,
                };
                let own = shards[rank].clone();
                let gemm = MatmulReduce {
                    problem,
                    shards,
                    c: output,
                    rank,
                    world,
                    ready: if family == Family::Each { EACH } else { OWNERS },
                    summed: OWNERS + MOST_GROUPS,
                    done: match family {
                        Family::Each => EACH + Units::MOST,
                        _ => OWNERS + 2 * MOST_GROUPS,
                    },
                    group_rows: groups * group_rows,
                    tiling,
                    max_blocks: blocks,
                };
                let operands = ReduceOperands {
                    a: self.at.own_a.add(2 * start * lda),
                    b: self.at.b,
                    bias: self.at.bias,
                    c: match output {
                        ReduceOutput::Everyone => on_all(self.within.copies).into(),
                        _ => self.at.c.into(),
                    },
                    staging: match output {
                        ReduceOutput::Each => on_all(self.within.each).into(),
                        _ => on_all(self.within.partials).into(),
                    },
                    staging_stride: self.within.each_stride,
                    pulled: self.at.pulled,
                    pad: self.pad.view(),
                };
                let prepared = self.backend.prepare_reduce(&self.handle, &gemm);
                let prepared = prepared.unwrap_or_else(|error| panic!("{what}: {error}"));
                self.synchronize();
                self.barrier("prepared");
                // SAFETY: as above.
                unsafe {
                    self.backend
                        .matmul_reduce(&self.stream, &prepared, &operands)
                        .unwrap();
                }
                self.synchronize();
                match output {
                    ReduceOutput::Owner => (&matrix.summed, own, self.at.c),
                    ReduceOutput::Everyone => {
                        let copies = self.shared.local().add(self.within.copies);
                        (&matrix.summed, 0..m, copies)
                    }
                    ReduceOutput::Each => (&matrix.summed, 0..m, self.at.c),
                }
            }
        };
        self.pad.check(&self.stream).unwrap();
        let got = self.download::<T>(at, got_rows.len() * ldc);
        let wanted = &wanted[(start + got_rows.start) * n..(start + got_rows.end) * n];
        for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
            let [got, wanted] = [got, wanted].map(|value| value.to_f64().to_bits());
            assert!(
                got == wanted,
                "rank {rank} of {world}, row {}, column {}: {what}",
                got_rows.start + i / n,
                i % n
            );
        }
        // No rank goes on while others may still read what is its.
        self.barrier("compared");
        self.counts.families[which] += 1;
        self.counts.rows += got_rows.len();
    }

    fn synchronize(&self) {
        self.backend.synchronize(&self.stream).unwrap();
    }

    pub fn close(self) -> Counts {
        self.synchronize();
        self.barrier("end");
        let exchange = self.exchange.as_ref();
        self.pad.close(&self.stream, exchange).unwrap();
        self.shared.close(exchange).unwrap();
        self.counts
    }
}

/// By the definition: partials that were rounded, in the order of ranks, the bias, and one rounding.
fn sum<T: Element>(partials: &[Vec<T>], bias: Option<&[T]>) -> Vec<T> {
    let len = partials[0].len();
    let (mut total, mut wide) = (vec![-0.0f32; len], vec![0.0f32; len]);
    for partial in partials {
        T::widen(partial, &mut wide);
        for (total, term) in total.iter_mut().zip(&wide) {
            *total += term;
        }
    }
    if let Some(bias) = bias {
        let mut wide = vec![0.0; bias.len()];
        T::widen(bias, &mut wide);
        for row in total.chunks_exact_mut(bias.len()) {
            for (total, bias) in row.iter_mut().zip(&wide) {
                *total += bias;
            }
        }
    }
    let mut sums = vec![T::default(); len];
    T::round(&total, &mut sums);
    sums
}

/// Shards of `m` rows, some of them empty.
fn shards(random: &mut Random, m: usize, world: usize) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (1..world).map(|_| random.below(m + 1)).collect();
    cuts.sort_unstable();
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([m]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// Single blocks of the smallest tile.
const SIMPLEST: Tiling = Tiling {
    config: CONFIGS.len() - 1,
    swizzle: 1,
};
