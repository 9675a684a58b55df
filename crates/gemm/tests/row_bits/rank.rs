//! One rank with the memory in which it multiplies parts of a matrix.

use std::sync::Arc;
use std::time::Duration;

use warpweave_gemm::host::Element;
use warpweave_gemm::sm90::{CONFIGS, Tiling};
use warpweave_gemm::{Activation, GATE_COLUMNS, GemmOperands, GemmProblem, Layout, Scaling};
use warpweave_symm_mem::{DType, DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer};

use crate::Kernels;
use crate::families::{Counts, SLOTS};
use crate::values::{Random, bytes, elements, reals, reduce};

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
/// A matrix B of each rank with what it makes of the tall A, before any rows are taken out.
pub struct Matrix<T> {
    /// Of the whole A.
    pub problem: GemmProblem,
    /// What this rank multiplies A of rank 0 into, with the bias.
    pub gathered: Vec<T>,
    /// The SwiGLU of that, if there are whole groups of columns.
    pub gated: Option<Vec<T>>,
    /// The reduction of all ranks' own A·B, with the bias.
    pub reduced: Vec<T>,
}

/// Where a matrix begins, and its scales.
#[derive(Clone, Copy)]
pub struct Scaled {
    pub elements: DevicePtr,
    pub scales: DevicePtr,
}

/// Where things begin in a rank's memory.
#[derive(Clone, Copy)]
pub struct Places {
    /// The tall A of rank 0, and this rank's.
    pub first_a: Scaled,
    pub own_a: Scaled,
    pub b: Scaled,
    pub bias: DevicePtr,
    pub c: DevicePtr,
    pub pulled: DevicePtr,
    /// Scales of rows that do not begin where launches take them: `PLACES` times those of a problem.
    pub scales: DevicePtr,
}

/// Such places.
pub const PLACES: usize = 8;

/// Bytes from the start of a rank's shared memory.
#[derive(Clone, Copy)]
pub struct Shared {
    pub shard: usize,
    pub staging: usize,
    /// Two, with room for the largest problem each: calls of any m alternate between them.
    pub eager: usize,
    pub eager_stride: usize,
    /// The scales of the rows in these.
    pub shard_scales: usize,
    pub staging_scales: usize,
    pub eager_scales: usize,
    pub scales_stride: usize,
    pub partials: usize,
    pub each: usize,
    pub each_stride: usize,
    pub copies: usize,
}

pub struct Rank<B: Kernels> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub limits: Limits,
    pub stream: B::Stream,
    pub pad: SignalPad<B>,
    pub handle: B::GemmHandle,
    _memory: B::Memory,
    pub at: Places,
    pub shared: SymmetricBuffer<B>,
    pub within: Shared,
    pub counts: Counts,
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
        let [n, k] = [n, k].map(|extent| extent.next_multiple_of(16));
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
            part(2 * rows),
            part(2 * rows),
            part(2 * n),
            part(n),
            part(rows * n),
            part(world * most * n),
            PLACES * part(2 * most),
        ]
        .map(&mut place);
        let memory = backend.allocate(end).unwrap();
        let places = places.map(|at| memory.address().add(at));
        let [
            first,
            own,
            weight,
            of_first,
            of_own,
            of_weight,
            bias,
            c,
            pulled,
            scales,
        ] = places;
        let scaled = |elements, scales| Scaled { elements, scales };

        end = 0;
        let mut place = |bytes: usize| {
            end += bytes;
            end - bytes
        };
        let (eager_stride, each_stride) = (part(most * k), part(world * most * n));
        let scales_stride = part(2 * most);
        let within = Shared {
            shard: place(part(most * k)),
            staging: place(part(most * k)),
            eager: place(2 * eager_stride),
            eager_stride,
            shard_scales: place(scales_stride),
            staging_scales: place(scales_stride),
            eager_scales: place(2 * scales_stride),
            scales_stride,
            partials: place(part(world * most * n)),
            each: place(2 * each_stride),
            each_stride,
            copies: place(part(most * n)),
        };
        let shared = SymmetricBuffer::new(&backend, &exchange, "row bits", end).unwrap();
        let mut pad = SignalPad::new(&backend, &exchange, "row bits", SLOTS).unwrap();
        pad.set_timeout(Duration::from_secs(10));
        let rank = Self {
            stream: backend.stream(Default::default()).unwrap(),
            handle: backend.gemm_handle().unwrap(),
            pad,
            _memory: memory,
            at: Places {
                first_a: scaled(first, of_first),
                own_a: scaled(own, of_own),
                b: scaled(weight, of_weight),
                bias,
                c,
                pulled,
                scales,
            },
            shared,
            within,
            counts: Counts::default(),
            backend,
            exchange,
            limits,
        };
        // Code is loaded before any rank waits for another: a driver may wait for that until nothing runs.
        rank.backend
            .delay(&rank.stream, Duration::from_micros(1))
            .unwrap();
        // SAFETY: places of this rank's memory, which nothing uses yet.
        unsafe {
            let (to, from) = (rank.at.c, rank.at.first_a.elements);
            rank.backend.fill(&rank.stream, from, 0xff, 256).unwrap();
            rank.backend.copy(&rank.stream, to, from, 256).unwrap();
        }
        rank.synchronize();
        rank.barrier("ready");
        rank
    }

    pub fn barrier(&self, place: &str) {
        self.exchange.barrier(place).unwrap();
    }

    pub fn upload(&self, to: DevicePtr, bytes: &[u8]) {
        // SAFETY: a place of this rank's memory, which nothing uses meanwhile.
        unsafe { self.backend.upload(&self.stream, to, bytes).unwrap() };
    }

    pub fn download<T: Element>(&self, from: DevicePtr, elements_of: usize) -> Vec<T> {
        let mut bytes = vec![0; elements_of * size_of::<T>()];
        // SAFETY: a place of this rank's memory, whose work is all on one stream.
        unsafe {
            self.backend
                .download(&self.stream, from, &mut bytes)
                .unwrap();
        }
        elements(&bytes)
    }

    /// Rows of a tall A for `problem`, from `row` on. Their scales are copied to one of the places for them.
    pub fn rows_of(&self, problem: &GemmProblem, a: Scaled, row: usize, place: usize) -> Scaled {
        let GemmProblem {
            m,
            lda,
            dtype,
            scaling,
            ..
        } = *problem;
        let elements = a.elements.add(row * lda * dtype.size());
        if scaling != Scaling::Row {
            return Scaled { elements, ..a };
        }
        let size = DType::F32.size();
        let scales = self.at.scales.add(place * self.within.scales_stride);
        let (from, count) = (a.scales.add(row * size), m.min(self.limits.rows - row));
        // SAFETY: places of this rank's memory, whose work is all on one stream.
        unsafe {
            self.backend
                .copy(&self.stream, scales, from, count * size)
                .unwrap();
        }
        Scaled { elements, scales }
    }

    /// A plain GEMM into `c`.
    pub fn plain(&self, problem: &GemmProblem, a: Scaled, tiling: Tiling) {
        let prepared = self.backend.prepare_tiled(&self.handle, problem, tiling);
        let operands = GemmOperands::new(a.elements, self.at.b.elements, self.at.c)
            .with_bias(self.at.bias)
            .with_scales([a.scales, self.at.b.scales]);
        // SAFETY: the matrices lie in this rank's memory, whose work is all on one stream; the kernel needs
        // no workspace.
        unsafe {
            self.backend
                .gemm(&self.stream, &prepared, operands, DevicePtr::NULL)
                .unwrap();
            // The prepared GEMM lives until it has ended.
            self.backend.synchronize(&self.stream).unwrap();
        }
    }

    /// Plays the problems of a matrix, of elements of type `E`, with results of type `T`.
    pub fn matrix<E: Element, T: Element>(&mut self, number: u64) {
        let random = &mut Random::with_seed(number);
        let matrix = self.make::<E, T>(number, random);
        for _ in 0..self.limits.calls {
            self.problem(&matrix, random);
        }
    }

    /// Uploads a matrix, and multiplies the whole of A.
    pub fn make<E: Element, T: Element>(&self, number: u64, random: &mut Random) -> Matrix<T> {
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let Limits {
            rows,
            extents: [n, k],
            ..
        } = self.limits;
        let n = (1 + random.usize(..n)).next_multiple_of(8);
        let k = 1 + random.usize(..k);
        let is_scaled = E::DTYPE == DType::E4m3;
        let layout = match random.bool() && !is_scaled {
            true => Layout::RowMajor,
            false => Layout::Transposed,
        };
        let scaling = match (is_scaled, random.usize(..3) == 0) {
            (false, _) => Scaling::None,
            (true, false) => Scaling::Row,
            (true, true) => Scaling::Tensor,
        };
        let ld = |columns: usize| columns.next_multiple_of(16 / E::DTYPE.size());
        let (stored_rows, stored_columns) = layout.stored(k, n);
        let problem = GemmProblem::new(rows, n, k, E::DTYPE).with_output(T::DTYPE);
        let problem = GemmProblem { scaling, ..problem }
            .with_layouts(Layout::RowMajor, layout)
            .with_leading_dimensions(ld(k), ld(stored_columns), n);
        let biased = random.bool();

        let seed = |of: usize, what: u64| (number << 8 | what) * 64 + of as u64 + 1;
        let matrices = [
            (self.at.first_a, rows * ld(k), seed(0, 0)),
            (self.at.own_a, rows * ld(k), seed(rank, 0)),
            (self.at.b, stored_rows * ld(stored_columns), seed(rank, 1)),
        ];
        let [of_a, of_b] = problem.scales_len();
        for ((to, len, seed), scales) in matrices.into_iter().zip([of_a, of_a, of_b]) {
            self.upload(to.elements, bytes(&reals::<E>(len, seed)));
            if scales > 0 {
                self.upload(to.scales, bytes(&reals::<f32>(scales, !seed)));
            }
        }
        // The owner of a row adds its own: all ranks have the same.
        let bias = reals::<T>(n, seed(0, 2));
        self.upload(self.at.bias, bytes(&bias));

        let with_bias = GemmProblem {
            bias: biased,
            ..problem
        };
        self.plain(&with_bias, self.at.first_a, SIMPLEST);
        let gathered = self.download::<T>(self.at.c, rows * n);
        let gated = n.is_multiple_of(2 * GATE_COLUMNS).then(|| {
            let problem = with_bias.with_activation(Activation::SwiGlu);
            self.plain(&problem, self.at.first_a, SIMPLEST_GATED);
            self.download::<T>(self.at.c, rows * n / 2)
        });
        self.plain(&problem, self.at.own_a, SIMPLEST);
        let partial = self.download::<T>(self.at.c, rows * n);
        let partials = self
            .exchange
            .all_gather("partials", bytes(&partial))
            .unwrap();
        let partials: Vec<Vec<T>> = partials.iter().map(|bytes| elements(bytes)).collect();
        assert_eq!(partials.len(), world);
        Matrix {
            problem: with_bias,
            gathered,
            gated,
            reduced: reduce(&partials, biased.then_some(&bias[..])),
        }
    }

    pub fn synchronize(&self) {
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

/// Single blocks of the smallest tile.
const SIMPLEST: Tiling = Tiling {
    config: CONFIGS.len() - 1,
    swizzle: 1,
};
/// The same of tiles that SwiGLU has, which are all others.
const SIMPLEST_GATED: Tiling = Tiling {
    config: CONFIGS.len() - 2,
    swizzle: 1,
};
