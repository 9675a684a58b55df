//! One rank's part of a case, which it computes call after call, every element of which is compared.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warpweave_gemm::sm90::Tiling;
use warpweave_gemm::{
    AllGatherGemmBackend, AllGatherMatmul, AllGatherOperands, GatheredScales, GemmProblem, Layout,
    Peers, Protocol, Scaling,
};
use warpweave_symm_mem::{
    DType, DevicePtr, Exchange, Memory, SignalPad, SymmetricBuffer, ThreadExchange,
};

/// Different inputs; calls cycle through them.
pub const INPUTS: usize = 3;

/// What a test multiplies.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub problem: GemmProblem,
    pub chunk_rows: usize,
    pub protocol: Protocol,
    pub tiling: Option<Tiling>,
    pub calls: usize,
}

impl Case {
    pub fn new(m: usize, n: usize, k: usize, dtype: DType, chunk_rows: usize) -> Self {
        let padded = |row: usize| row.next_multiple_of(8);
        Case {
            problem: GemmProblem::new(m, n, k, dtype).with_leading_dimensions(
                padded(k),
                padded(n),
                padded(n),
            ),
            chunk_rows,
            protocol: Protocol::PULL,
            tiling: None,
            calls: 6,
        }
    }

    pub fn pushing(self, chunks: usize) -> Self {
        Case {
            protocol: Protocol::Rendezvous { pushed: chunks },
            ..self
        }
    }

    pub fn eager(self) -> Self {
        Case {
            protocol: Protocol::Eager,
            ..self
        }
    }

    /// Slots after that of `done`.
    fn slots(&self, most_rows: usize) -> usize {
        match self.protocol {
            Protocol::Rendezvous { .. } => 1,
            Protocol::Eager => most_rows.div_ceil(self.chunk_rows),
        }
    }

    pub fn biased(self) -> Self {
        Case {
            problem: self.problem.with_bias(),
            ..self
        }
    }

    pub fn transposed(self) -> Self {
        let GemmProblem { lda, ldc, k, .. } = self.problem;
        let layouts = self
            .problem
            .with_layouts(Layout::RowMajor, Layout::Transposed);
        Case {
            problem: layouts.with_leading_dimensions(lda, k.next_multiple_of(8), ldc),
            ..self
        }
    }
}

impl Case {
    /// Of e4m3, with a result of the former type.
    pub fn scaled(self, scaling: Scaling) -> Self {
        let GemmProblem {
            m,
            n,
            k,
            ldc,
            dtype,
            ..
        } = self.problem;
        let ld = k.next_multiple_of(16);
        let problem = GemmProblem::e4m3(m, n, k, scaling, dtype);
        Case {
            problem: problem.with_leading_dimensions(ld, ld, ldc),
            ..self
        }
    }

    /// Bytes of so many elements of A or B.
    fn bytes(&self, elements: usize) -> usize {
        elements * self.problem.dtype.size()
    }
}

/// One rank with everything that its calls need.
pub struct Rank<B: AllGatherGemmBackend> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub stream: B::Stream,
    pub pad: SignalPad<B>,
    /// This rank's shard and its scales, where the peers read them.
    a: SymmetricBuffer<B>,
    /// Where the peers push.
    staging: SymmetricBuffer<B>,
    case: Case,
    pub gemm: AllGatherMatmul,
    pub operands: AllGatherOperands,
    pub handle: B::GemmHandle,
    pub prepared: B::PreparedAllGather,
    /// The shard of each input, then B, the bias, C, and C of each call.
    memory: B::Memory,
    results: DevicePtr,
    /// Bytes of a shard and its scales.
    shard: usize,
}

/// Small integers, so that sums are exact.
fn value(which: usize, row: usize, col: usize) -> f32 {
    let mixed = (which * 7919 + row * 104_729 + col * 31).wrapping_mul(2_654_435_761);
    ((mixed >> 13) % 3) as f32 - 1.0
}

/// Of a line of a matrix, or of all of its lines.
fn scale(scaling: Scaling, which: usize, line: usize) -> f32 {
    let line = if scaling == Scaling::Row { line } else { 0 };
    [0.5, 1.0, 2.0][(5 * which + 7 * line + line / 3) % 3]
}

/// That of a rank, whether its GEMM has one or not.
fn bias_of(rank: usize, column: usize) -> f32 {
    value(2 * INPUTS + rank, 1, column)
}

/// A number that seems to be of chance, for a call of a rank.
fn mixed(call: usize, rank: usize) -> u64 {
    let seed = (call * 7919 + rank * 104_729) as u64;
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

fn encode(dtype: DType, value: f32) -> Vec<u8> {
    warpweave_symm_mem::host::encode(dtype, &[value])
}

/// Rows of `ld` elements; those after `columns` would spoil every sum.
fn stored(
    dtype: DType,
    rows: Range<usize>,
    (columns, ld): (usize, usize),
    value: impl Fn(usize, usize) -> f32,
) -> Vec<u8> {
    let element = |row, column| match column < columns {
        true => encode(dtype, value(row, column)),
        false => encode(dtype, f32::NAN),
    };
    rows.flat_map(|row| {
        (0..ld)
            .flat_map(move |column| element(row, column))
            .collect::<Vec<_>>()
    })
    .collect()
}

fn shards(m: usize, world: usize) -> Vec<Range<usize>> {
    let start = |i: usize| i * (m / world) + i.min(m % world);
    (0..world).map(|i| start(i)..start(i + 1)).collect()
}

impl<B: AllGatherGemmBackend> Rank<B> {
    pub fn new(
        backend: B,
        exchange: Arc<dyn Exchange>,
        max_blocks: Option<u32>,
        case: Case,
    ) -> Self {
        let (rank, world) = (exchange.rank(), exchange.world());
        let GemmProblem {
            m,
            n,
            k,
            lda,
            ldb,
            ldc,
            dtype,
            out,
            scaling,
            b_layout,
            ..
        } = case.problem;
        let shards = shards(m, world);
        let (b_rows, b_columns) = b_layout.stored(k, n);
        // Each part begins at a multiple of 256 bytes.
        let part = |bytes: usize| bytes.next_multiple_of(256);
        let shard_rows = part(case.bytes(shards[0].len() * lda));
        let shard = shard_rows + part(4 * shards[0].len());
        let of_b = part(case.bytes(b_rows * ldb));
        let results = (case.calls + 1) * part(2 * m * ldc);
        let parts = INPUTS * shard + of_b + part(4 * n) + part(2 * n) + results;
        let memory = backend.allocate(parts).unwrap();
        let a = SymmetricBuffer::new(&backend, &exchange, "a", shard).unwrap();
        // The second of two stagings does not follow the rows of the first.
        let staging_stride = part(case.bytes(m * lda)) + 512;
        let scale_stride = part(4 * m) + 256;
        let staged = 2 * (staging_stride + scale_stride);
        let staging = SymmetricBuffer::new(&backend, &exchange, "staging", staged).unwrap();
        let b = memory.address().add(INPUTS * shard);
        let scales_b = b.add(of_b);
        let bias = scales_b.add(part(4 * n));
        let c = bias.add(part(2 * n));
        let of_a = Peers::from(a.addresses()).offset(shard_rows);

        let mut pad =
            SignalPad::new(&backend, &exchange, "test", 1 + case.slots(shards[0].len())).unwrap();
        pad.set_timeout(Duration::from_secs(10));

        let gemm = AllGatherMatmul {
            problem: case.problem,
            shards,
            chunk_rows: case.chunk_rows,
            rank,
            world,
            ready: 1,
            done: 0,
            protocol: case.protocol,
            tiling: case.tiling,
            max_blocks,
        };
        let operands = AllGatherOperands {
            a: a.addresses().into(),
            local_a: DevicePtr::NULL,
            staging: staging.addresses().into(),
            staging_stride,
            b,
            c,
            bias,
            scales: GatheredScales {
                a: match scaling {
                    Scaling::Row => of_a,
                    _ => of_a[rank].into(),
                },
                staging: match scaling {
                    Scaling::Row => Peers::from(staging.addresses()).offset(2 * staging_stride),
                    _ => Peers::NONE,
                },
                staging_stride: scale_stride,
                b: scales_b,
            },
            pad: pad.view(),
        };
        let stream = backend.stream(Default::default()).unwrap();
        let handle = backend.gemm_handle().unwrap();
        let prepared = backend.prepare_all_gather(&handle, &gemm).unwrap();

        // SAFETY: all ranges lie in the memory made here, which nothing else uses yet.
        unsafe {
            for input in 0..INPUTS {
                let own = gemm.shards[rank].clone();
                let at = memory.address().add(input * shard);
                let rows = stored(dtype, own.clone(), (k, lda), |row, i| value(input, row, i));
                if !rows.is_empty() {
                    backend.upload(&stream, at, &rows).unwrap();
                }
                let lines = own.start..own.end.max(own.start + 1);
                let scales = stored(DType::F32, lines, (1, 1), |row, _| {
                    scale(scaling, input, row)
                });
                if !own.is_empty() || scaling == Scaling::Tensor {
                    backend
                        .upload(&stream, at.add(shard_rows), &scales)
                        .unwrap();
                }
            }
            let scales = |col, _| scale(scaling, INPUTS + rank, col);
            let scales = stored(DType::F32, 0..n, (1, 1), scales);
            backend.upload(&stream, scales_b, &scales).unwrap();
            let weight = |row, column| match b_layout {
                Layout::RowMajor => value(INPUTS + rank, row, column),
                Layout::Transposed => value(INPUTS + rank, column, row),
            };
            let weight = stored(dtype, 0..b_rows, (b_columns, ldb), weight);
            backend.upload(&stream, b, &weight).unwrap();
            let elements = stored(out, 0..1, (n, n), |_, column| bias_of(rank, column));
            backend.upload(&stream, bias, &elements).unwrap();
            // Rows that are read before they have arrived spoil C.
            backend
                .fill(&stream, staging.local(), 0xff, staged)
                .unwrap();
        }
        let rank = Rank {
            results: c.add(part(2 * m * ldc)),
            shard,
            backend,
            exchange,
            stream,
            pad,
            a,
            staging,
            case,
            gemm,
            operands,
            handle,
            prepared,
            memory,
        };
        // No rank launches before all have made their memory and loaded their code, for which a driver may
        // wait until nothing runs.
        rank.feed(0);
        rank.backend
            .delay(&rank.stream, Duration::from_micros(1))
            .unwrap();
        rank.backend.synchronize(&rank.stream).unwrap();
        rank.exchange.barrier("ready").unwrap();
        rank
    }

    pub fn me(&self) -> usize {
        self.exchange.rank()
    }

    fn result_bytes(&self) -> usize {
        (2 * self.case.problem.m * self.case.problem.ldc).next_multiple_of(256)
    }

    /// Enqueues the copy that gives a call its input.
    pub fn feed(&self, input: usize) {
        let from = self.memory.address().add(input * self.shard);
        // SAFETY: both ranges lie in this rank's memory, whose work is all on one stream.
        unsafe {
            self.backend
                .copy(&self.stream, self.a.local(), from, self.shard)
                .unwrap();
        }
    }

    /// The same, but this rank's rows stay in local memory, where the call is to find them.
    fn feed_locally(&self, input: usize) -> DevicePtr {
        self.feed(input);
        let rows = self
            .case
            .bytes(self.gemm.shards[self.me()].len() * self.case.problem.lda);
        // SAFETY: as above.
        unsafe {
            self.backend
                .fill(&self.stream, self.a.local(), 0xff, rows)
                .unwrap();
        }
        self.memory.address().add(input * self.shard)
    }

    /// Enqueues the copies of what is pushed, and the flag after each.
    fn push(&self) -> warpweave_symm_mem::Result<()> {
        let own = &self.gemm.shards[self.me()];
        let Protocol::Rendezvous { pushed } = self.case.protocol else {
            return Ok(());
        };
        let rows = own.len().min(pushed * self.case.chunk_rows);
        let lda = self.case.problem.lda;
        let world = self.exchange.world();
        if rows == 0 {
            return Ok(());
        }
        for peer in (1..world).map(|step| (self.me() + step) % world) {
            let to = self.staging.addresses()[peer].add(self.case.bytes(own.start * lda));
            // SAFETY: both ranges are there; the call before has ended after this peer's `done`.
            unsafe {
                self.backend.copy(
                    &self.stream,
                    to,
                    self.a.local(),
                    self.case.bytes(rows * lda),
                )?;
            }
            self.pad.signal(&self.stream, self.gemm.ready, &[peer])?;
        }
        Ok(())
    }

    /// Enqueues the GEMM into a C that is wrong everywhere, and the copy that keeps C. Every second call has
    /// its C where it is kept: operands are a launch's own.
    pub fn gemm(&self, call: usize) -> warpweave_symm_mem::Result<()> {
        self.gemm_of(call, DevicePtr::NULL)
    }

    fn gemm_of(&self, call: usize, local_a: DevicePtr) -> warpweave_symm_mem::Result<()> {
        let bytes = 2 * self.case.problem.m * self.case.problem.ldc;
        let to = self.results.add(call * self.result_bytes());
        self.push()?;
        // SAFETY: all ranges lie in this rank's memory; the ranks launch the same GEMM equally often.
        unsafe {
            let mut operands = AllGatherOperands {
                local_a,
                ..self.operands
            };
            if call % 2 == 1 {
                operands.c = to;
            }
            let c = operands.c;
            self.backend.fill(&self.stream, c, 0xff, bytes)?;
            self.backend
                .all_gather_matmul(&self.stream, &self.prepared, &operands)
                .unwrap();
            match c == to {
                true => Ok(()),
                false => self.backend.copy(&self.stream, to, c, bytes),
            }
        }
    }

    /// Calls back to back with nothing between them that waits on the host, some of them late on some ranks.
    pub fn calls(&self, late: Duration) {
        for call in 0..self.case.calls {
            // In some calls the rows of some ranks are local.
            let is_local =
                self.case.protocol == Protocol::PULL && mixed(call, 9 + self.me()) % 2 == 1;
            let local_a = match is_local {
                true => self.feed_locally(call % INPUTS),
                false => {
                    self.feed(call % INPUTS);
                    DevicePtr::NULL
                }
            };
            if !late.is_zero() && mixed(call, self.me()).is_multiple_of(3) {
                self.backend.delay(&self.stream, late).unwrap();
            }
            self.gemm_of(call, local_a).unwrap();
        }
        self.check_calls(|call| call % INPUTS);
    }

    /// Compares every element of every call.
    pub fn check_calls(&self, input: impl Fn(usize) -> usize) {
        let GemmProblem { m, n, ldc, .. } = self.case.problem;
        let mut bytes = vec![0; 2 * m * ldc];
        let wanted: Vec<Vec<u8>> = (0..INPUTS).map(|input| self.wanted(input)).collect();
        for call in 0..self.case.calls {
            let from = self.results.add(call * self.result_bytes());
            // SAFETY: the range lies in this rank's memory.
            unsafe {
                self.backend
                    .download(&self.stream, from, &mut bytes)
                    .unwrap()
            };
            self.pad.check(&self.stream).unwrap();
            for row in 0..m {
                let got = &bytes[2 * row * ldc..][..2 * n];
                let (me, case) = (self.me(), self.case);
                let wanted = &wanted[input(call)][2 * row * n..][..2 * n];
                assert!(got == wanted, "{case:?}, rank {me}, call {call}, row {row}");
                let beyond = &bytes[2 * row * ldc + 2 * n..2 * (row + 1) * ldc];
                assert!(
                    beyond.iter().all(|&byte| byte == 0xff),
                    "{case:?}, row {row}"
                );
            }
        }
    }

    /// C by its definition.
    fn wanted(&self, input: usize) -> Vec<u8> {
        let GemmProblem {
            m,
            n,
            k,
            out,
            scaling,
            ..
        } = self.case.problem;
        let weight = INPUTS + self.me();
        let weight: Vec<f32> = (0..k * n).map(|i| value(weight, i / n, i % n)).collect();
        let mut bytes = Vec::with_capacity(2 * m * n);
        let mut sums = vec![0.0; n];
        for row in 0..m {
            sums.fill(0.0);
            for i in 0..k {
                let a = value(input, row, i);
                let weight = &weight[i * n..][..n];
                for (sum, b) in sums.iter_mut().zip(weight) {
                    *sum += a * b;
                }
            }
            let of_row = scale(scaling, input, row);
            let scaled = sums.iter().enumerate().map(|(column, sum)| {
                let of_column = scale(scaling, INPUTS + self.me(), column);
                let scaled = match scaling {
                    Scaling::None => *sum,
                    _ => sum * of_row * of_column,
                };
                match self.case.problem.bias {
                    true => scaled + bias_of(self.me(), column),
                    false => scaled,
                }
            });
            bytes.extend(scaled.flat_map(|sum| encode(out, sum)));
        }
        bytes
    }

    pub fn close(self) {
        self.backend.synchronize(&self.stream).unwrap();
        self.exchange.barrier("end").unwrap();
        let exchange = self.exchange.as_ref();
        self.pad.close(&self.stream, exchange).unwrap();
        self.staging.close(exchange).unwrap();
        self.a.close(exchange).unwrap();
    }
}

/// Devices of the ranks, and how many blocks each may have.
pub type Place<B> = dyn Fn(usize) -> (B, Option<u32>) + Sync;

pub fn on_ranks<B: AllGatherGemmBackend>(
    world: usize,
    place: &Place<B>,
    case: Case,
    run: impl Fn(Rank<B>) + Sync,
) {
    let run = &run;
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            scope.spawn(move || {
                let (backend, max_blocks) = place(exchange.rank());
                run(Rank::new(backend, Arc::new(exchange), max_blocks, case));
            });
        }
    });
}
