//! The hand-written SM90 GEMM: every kernel, exact on small integers.

use std::marker::PhantomData;

use float8::F8E4M3;
use half::{bf16, f16};
use warpweave_gemm::cuda::{Choice, CudaGemm, CudaPrepared};
use warpweave_gemm::host::{Element, multiply_with_scales};
use warpweave_gemm::matmul_reduce::ReduceOutput;
use warpweave_gemm::sm90::{CONFIGS, FEW_ROWS_TILING, Tiling, serves_few_rows};
use warpweave_gemm::{
    Activation, GemmBackend, GemmOperands, GemmProblem, GemmReduceBackend, Layout, MatmulReduce,
    Provider, Scaling,
};
use warpweave_symm_mem::{Backend, Cuda, DType, DevicePtr, Memory, Priority};

/// Rows, columns and depth: one tile of each size, less than a tile, ragged edges on each side, an odd number
/// of tiles, a ring that is not filled, several turns of the ring, several tiles for a block.
const SHAPES: [(usize, usize, usize); 10] = [
    (128, 256, 64),
    (256, 512, 256),
    (1, 8, 8),
    (64, 72, 24),
    (130, 264, 72),
    (37, 1000, 200),
    (1028, 40, 1032),
    (384, 640, 640),
    (257, 264, 77),
    (3000, 3080, 328),
];

/// Small integers: sums are exact in f32 and rounded once, as the host does.
fn integers<T: Element>(len: usize, seed: usize) -> Vec<T> {
    let mixed = |i: usize| (i * 31 + seed * 7919).wrapping_mul(2_654_435_761) >> 13;
    let wide: Vec<f32> = (0..len).map(|i| (mixed(i) % 5) as f32 - 2.0).collect();
    let mut values = vec![T::default(); len];
    T::round(&wide, &mut values);
    values
}

/// Scales that leave sums exact.
fn powers_of_two(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| [0.5, 1.0, 2.0][(i * 7 + i / 5) % 3])
        .collect()
}

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A, B and C of one problem on the device, and what C must be.
struct Case<T, O = T> {
    cuda: Cuda,
    gemm: CudaGemm,
    stream: <Cuda as Backend>::Stream,
    problem: GemmProblem,
    _memory: <Cuda as Backend>::Memory,
    operands: GemmOperands,
    /// With the poison, a NaN, between the rows.
    expected: Vec<O>,
    _operands: PhantomData<T>,
}

impl<T: Element, O: Element> Case<T, O> {
    fn new(cuda: &Cuda, problem: GemmProblem, seed: usize) -> Self {
        let stream = cuda.stream(Priority::Normal).unwrap();
        let a = integers::<T>(problem.a_len(), seed);
        let b = integers::<T>(problem.b_len(), seed + 1);
        let bias = integers::<O>(problem.bias_len(), seed + 2);
        let [scales_a, scales_b] = problem.scales_len().map(powers_of_two);
        let mut expected = vec![O::default(); problem.c_len()];
        // SAFETY: any bytes make elements.
        unsafe {
            let len = size_of_val(expected.as_slice());
            std::ptr::write_bytes(expected.as_mut_ptr().cast::<u8>(), 0xff, len);
        }
        let with_scales = ((&a[..], &scales_a[..]), (&b[..], &scales_b[..]));
        multiply_with_scales(&problem, with_scales.0, with_scales.1, &bias, &mut expected).unwrap();
        let padded = |bytes: usize| bytes.next_multiple_of(256);
        let at_b = padded(size_of_val(a.as_slice()));
        let at_bias = at_b + padded(size_of_val(b.as_slice()));
        let at_scales = at_bias + padded(size_of_val(bias.as_slice()));
        let at_scales_b = at_scales + padded(size_of_val(scales_a.as_slice()));
        let at_c = at_scales_b + padded(size_of_val(scales_b.as_slice()));
        let memory = cuda
            .allocate(at_c + size_of_val(expected.as_slice()))
            .unwrap();
        let base = memory.address();
        let operands = GemmOperands::new(base, base.add(at_b), base.add(at_c))
            .with_bias(base.add(at_bias))
            .with_scales([base.add(at_scales), base.add(at_scales_b)]);
        let given = [
            (operands.a, bytes(&a)),
            (operands.b, bytes(&b)),
            (operands.bias, bytes(&bias)),
            (operands.scales[0], bytes(&scales_a)),
            (operands.scales[1], bytes(&scales_b)),
        ];
        for (address, values) in given.into_iter().filter(|(_, values)| !values.is_empty()) {
            // SAFETY: the range lies inside the allocation, which nothing else uses yet.
            unsafe { cuda.upload(&stream, address, values).unwrap() };
        }
        Self {
            gemm: cuda.gemm_handle().unwrap(),
            cuda: cuda.clone(),
            stream,
            problem,
            _memory: memory,
            operands,
            expected,
            _operands: PhantomData,
        }
    }

    fn prepare(&self, config: usize, swizzle: u32) -> CudaPrepared {
        let choice = Choice::Sm90(Tiling { config, swizzle });
        self.gemm
            .prepare(&self.cuda, &self.problem, choice)
            .unwrap()
    }

    fn poison(&self) {
        let len = size_of_val(self.expected.as_slice());
        // SAFETY: C lies inside the allocation, and all work is on one stream.
        unsafe {
            self.cuda
                .fill(&self.stream, self.operands.c, 0xff, len)
                .unwrap()
        };
    }

    fn launch(&self, prepared: &CudaPrepared) {
        // SAFETY: the operands lie inside the allocation with the problem's sizes; all work is on one stream.
        unsafe {
            self.cuda
                .gemm(&self.stream, prepared, self.operands, DevicePtr::NULL)
                .unwrap()
        };
    }

    /// C, with what is between its rows.
    fn result(&self) -> Vec<O> {
        let mut c = vec![O::default(); self.problem.c_len()];
        // SAFETY: any bytes make elements, and C lies inside the allocation.
        unsafe {
            let len = size_of_val(c.as_slice());
            let to = std::slice::from_raw_parts_mut(c.as_mut_ptr().cast(), len);
            self.cuda
                .download(&self.stream, self.operands.c, to)
                .unwrap();
        }
        c
    }

    fn check(&self, what: &str) {
        let (c, ld) = (self.result(), self.problem.ldc);
        for (at, (got, want)) in c.iter().zip(&self.expected).enumerate() {
            let (got, want) = (got.to_f64(), want.to_f64());
            // The exponential and the quotient of an activation are off by less than a tenth of a rounding,
            // which may then go the other way; they are 0 where the quotient would be below 1e-36.
            let off = match self.problem.activation {
                Activation::None => 0.0,
                Activation::SwiGlu => want.abs() * O::DTYPE.epsilon() + 1e-30,
            };
            assert!(
                got == want || (got - want).abs() <= off || got.is_nan() && want.is_nan(),
                "{what}, {}, row {} column {}: {got}, not {want}",
                self.problem,
                at / ld,
                at % ld
            );
        }
    }

    fn run(&self, config: usize, swizzle: u32) {
        let prepared = self.prepare(config, swizzle);
        self.poison();
        self.launch(&prepared);
        self.check(&Tiling { config, swizzle }.to_string());
    }
}

/// A problem whose rows are whole 16 bytes, with `padding` elements between them.
fn problem(shape: (usize, usize, usize), dtype: DType, b: Layout, padding: usize) -> GemmProblem {
    let (m, n, k) = shape;
    let tight = GemmProblem::new(m, n, k, dtype).with_layouts(Layout::RowMajor, b);
    let row = |ld: usize| ld.next_multiple_of(16 / dtype.size()) + padding;
    tight.with_leading_dimensions(row(tight.lda), row(tight.ldb), row(tight.ldc))
}

/// All shapes and paddings with the kernels that `wanted` names.
fn exact<T: Element>(layout: Layout, wanted: impl Fn(&str) -> bool) {
    let cuda = Cuda::new(0).unwrap();
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        for padding in [0, 16] {
            let mut problem = problem(shape, T::DTYPE, layout, padding);
            problem.bias = (padding != 0) != (seed % 2 == 1);
            let case = Case::<T>::new(&cuda, problem, seed);
            for (index, config) in CONFIGS.iter().enumerate() {
                if wanted(config.name) {
                    case.run(index, 1 + seed as u32 % 3);
                }
            }
        }
    }
}

/// The simplest kernel on a single tile: the place to begin when something is wrong.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn one_tile_is_exact() {
    let cuda = Cuda::new(0).unwrap();
    let last = CONFIGS.len() - 1;
    for layout in [Layout::Transposed, Layout::RowMajor] {
        for (n, k) in [(128, 16), (128, 64), (128, 128), (128, 64 * 7)] {
            let problem = problem((128, n, k), DType::Bf16, layout, 0);
            for problem in [problem, problem.with_bias()] {
                Case::<bf16>::new(&cuda, problem, k).run(last, 1);
            }
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn blocks_alone_are_exact() {
    exact::<bf16>(Layout::Transposed, |name| name.ends_with("alone"));
    exact::<bf16>(Layout::RowMajor, |name| name.ends_with("alone"));
}

/// Every tile of two boxes or more, and the kernel of few rows.
fn gated<T: Element, O: Element>(scaling: Scaling, layouts: &[Layout]) {
    let cuda = Cuda::new(0).unwrap();
    for (seed, (m, n, k)) in SHAPES.into_iter().enumerate() {
        for &layout in layouts {
            let n = n.next_multiple_of(16);
            let shape = problem((m, n, k), T::DTYPE, layout, seed % 2 * 16);
            let problem = GemmProblem {
                scaling,
                out: O::DTYPE,
                activation: Activation::SwiGlu,
                bias: seed % 3 != 0,
                ..shape
            };
            let case = Case::<T, O>::new(&cuda, problem, seed);
            for (index, config) in CONFIGS.iter().enumerate() {
                if config.tile[1] > 64 {
                    case.run(index, 1 + seed as u32 % 3);
                }
            }
            if serves_few_rows(&problem) {
                case.run(FEW_ROWS_TILING.config, FEW_ROWS_TILING.swizzle);
            }
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn swiglu_is_the_host_s() {
    let both = [Layout::RowMajor, Layout::Transposed];
    gated::<bf16, bf16>(Scaling::None, &both);
    gated::<f16, f16>(Scaling::None, &both);
    gated::<F8E4M3, bf16>(Scaling::Row, &both[1..]);
    let cuda = Cuda::new(0).unwrap();
    for (m, n) in [(1, 16), (7, 1536), (64, 3072), (33, 14336), (100, 3072)] {
        let problem = problem((m, n, 512), DType::Bf16, Layout::Transposed, 0);
        let problem = problem.with_activation(Activation::SwiGlu);
        let Tiling { config, swizzle } = FEW_ROWS_TILING;
        Case::<bf16>::new(&cuda, problem, m).run(config, swizzle);
    }
    let narrow = Choice::Sm90(Tiling {
        config: CONFIGS.len() - 1,
        swizzle: 1,
    });
    let problem = problem((64, 64, 64), DType::Bf16, Layout::Transposed, 0);
    let problem = problem.with_activation(Activation::SwiGlu);
    let case = Case::<bf16>::new(&cuda, problem, 0);
    assert!(case.gemm.prepare(&cuda, &problem, narrow).is_err());
}

const FEW_ROWS: Choice = Choice::Sm90(FEW_ROWS_TILING);

/// One block and many, one tile for an SM and several, rings that are turned and that are not filled, ragged
/// edges, for such numbers of rows.
fn few_rows<T: Element, O: Element>(scaling: Scaling, rows: impl Iterator<Item = usize>) {
    let cuda = Cuda::new(0).unwrap();
    // What rows are multiples of.
    let unit = 16 / T::DTYPE.size();
    for (seed, m) in rows.enumerate() {
        // Not for all rows: they take the host longer than all others.
        let wide = [(18440, 264), (24584, 136), (28680, 520)];
        let some = if seed % 4 == 0 { wide.len() } else { 0 };
        for (n, k) in [
            (8, 8),
            (72, 24),
            (520, 1032),
            (1536, 4096),
            (2112, 1024),
            (4104, 1024),
            (5120, 256),
            (7168, 256),
            (9000, 200),
        ]
        .into_iter()
        .chain(wide.into_iter().take(some))
        {
            let [n, k] = [n, k].map(|side: usize| side.next_multiple_of(unit));
            let shape = problem((m, n, k), T::DTYPE, Layout::Transposed, seed % 2 * 16);
            let problem = GemmProblem {
                scaling,
                out: O::DTYPE,
                bias: seed % 3 == 0,
                constant_b: seed % 2 == 0,
                ..shape
            };
            let Tiling { config, swizzle } = FEW_ROWS_TILING;
            Case::<T, O>::new(&cuda, problem, seed).run(config, swizzle);
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn few_rows_are_exact() {
    few_rows::<bf16, bf16>(Scaling::None, (1..=128).step_by(3));
    few_rows::<f16, f16>(Scaling::None, (2..=128).step_by(3));
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn few_rows_of_e4m3_are_exact() {
    few_rows::<F8E4M3, bf16>(Scaling::Row, (1..=128).step_by(9));
    few_rows::<F8E4M3, f16>(Scaling::Tensor, (3..=128).step_by(40));
    few_rows::<F8E4M3, bf16>(Scaling::Block, (2..=128).step_by(9));
    few_rows::<F8E4M3, f16>(Scaling::Block, (4..=128).step_by(40));
}

/// Where the order of additions and multiplications shows.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn few_rows_of_e4m3_have_the_bits_of_tiles() {
    let cuda = Cuda::new(0).unwrap();
    for scaling in [Scaling::Tensor, Scaling::Row, Scaling::Block] {
        for (m, n, k) in [
            (1, 2112, 7168),
            (37, 528, 1040),
            (64, 4096, 512),
            (100, 6160, 3072),
            (40, 28688, 1040),
        ] {
            let shape = problem((m, n, k), DType::E4m3, Layout::Transposed, 0);
            let problem = GemmProblem {
                scaling,
                out: DType::Bf16,
                ..shape
            };
            let case = Case::<F8E4M3, bf16>::new(&cuda, problem, m);
            for (address, len) in case.operands.scales.into_iter().zip(problem.scales_len()) {
                let scales: Vec<f32> = (0..len).map(|i| ((i + 2) as f32).sqrt().fract()).collect();
                // SAFETY: the scales of the case, which nothing uses now.
                unsafe { cuda.upload(&case.stream, address, bytes(&scales)).unwrap() };
            }
            let results = [CONFIGS.len() - 1, 0, FEW_ROWS_TILING.config].map(|config| {
                case.poison();
                case.launch(&case.prepare(config, 1));
                case.result()
            });
            let bits = results.map(|c| bytes(&c).to_vec());
            assert!(bits.iter().all(|other| *other == bits[0]), "{problem}");
        }
    }
}

/// Each GEMM turns the columns of what the one before has stored by one. B is loaded early, A is not: in a
/// stream and in a graph, where a kernel may start while the one before it runs.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn few_rows_wait_for_the_gemm_before() {
    const CALLS: usize = 32;
    let cuda = Cuda::new(0).unwrap();
    let stream = cuda.stream(Priority::Normal).unwrap();
    // One tile for an SM, and two.
    for (m, width) in [(1, 2048), (64, 2048), (40, 9216)] {
        let problem =
            problem((m, width, width), DType::Bf16, Layout::Transposed, 0).with_constant_b();
        let gemm = cuda.gemm_handle().unwrap();
        let prepared = gemm.prepare(&cuda, &problem, FEW_ROWS).unwrap();
        let one = |is: bool| bf16::from_f32(f32::from(u8::from(is)));
        let turn: Vec<bf16> = (0..width * width)
            .map(|i| one(i % width == (i / width + 1) % width))
            .collect();
        let rows = integers::<bf16>(m * width, m);
        let [b, x, y] = [&turn[..], &rows, &rows].map(|values| {
            let memory = cuda.allocate(size_of_val(values)).unwrap();
            // SAFETY: the allocation is as long, and new.
            unsafe {
                cuda.upload(&stream, memory.address(), bytes(values))
                    .unwrap()
            };
            memory
        });
        let enqueue = || {
            for call in 0..CALLS {
                let (from, to) = if call % 2 == 0 { (&x, &y) } else { (&y, &x) };
                let operands = GemmOperands::new(from.address(), b.address(), to.address());
                // SAFETY: the matrices have the problem's sizes; all work is on one stream.
                unsafe {
                    cuda.gemm(&stream, &prepared, operands, DevicePtr::NULL)
                        .unwrap()
                };
            }
            Ok::<_, warpweave_symm_mem::Error>(())
        };
        let check = |turns: usize| {
            let mut found = vec![bf16::ZERO; m * width];
            // SAFETY: any bytes make elements, and the allocation is as long.
            unsafe {
                let len = size_of_val(found.as_slice());
                let to = std::slice::from_raw_parts_mut(found.as_mut_ptr().cast(), len);
                cuda.download(&stream, x.address(), to).unwrap();
            }
            for (i, found) in found.iter().enumerate() {
                let (row, column) = (i / width, i % width);
                let wanted = rows[row * width + (column + turns) % width];
                assert_eq!(
                    *found, wanted,
                    "{m} rows after {turns} calls, row {row}, column {column}"
                );
            }
        };
        enqueue().unwrap();
        check(CALLS);
        let graph = cuda.capture(&stream, enqueue).unwrap();
        for _ in 0..200 {
            // SAFETY: what was captured lives until the end.
            unsafe { cuda.launch_graph(&graph, &stream).unwrap() };
        }
        check(201 * CALLS);
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn clusters_are_exact() {
    exact::<bf16>(Layout::Transposed, |name| name.contains("share"));
    exact::<bf16>(Layout::RowMajor, |name| name.contains("share"));
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn half_precision_is_exact() {
    exact::<f16>(Layout::Transposed, |_| true);
    exact::<f16>(Layout::RowMajor, |_| true);
}

/// All tiles with all kinds of scales, in both types of C: sums of integers with scales that are powers of
/// two.
fn exact_e4m3<O: Element>() {
    let cuda = Cuda::new(0).unwrap();
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        for (scaling, layout) in [
            (Scaling::Tensor, Layout::RowMajor),
            (Scaling::Row, Layout::RowMajor),
            (Scaling::Block, Layout::RowMajor),
            (Scaling::Block, Layout::Transposed),
        ] {
            let (m, n, k) = shape;
            let tight = GemmProblem::e4m3(m, n, k, scaling, O::DTYPE).with_block_scales(layout);
            let padding = seed % 2 * 16;
            let ld = k.next_multiple_of(16) + padding;
            let mut problem = tight.with_leading_dimensions(ld, ld, n + padding);
            problem.bias = seed % 3 == 1;
            let case = Case::<F8E4M3, O>::new(&cuda, problem, seed);
            for index in 0..CONFIGS.len() {
                case.run(index, 1 + seed as u32 % 3);
            }
        }
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn e4m3_is_exact() {
    exact_e4m3::<bf16>();
    exact_e4m3::<f16>();
}

/// cuBLASLt takes the scales as they lie, wherever it has an algorithm: 16 elements of K, four rows of A.
#[test]
#[ignore = "needs a Hopper GPU and CUDA 12.9"]
fn cublaslt_takes_the_same_scales() {
    let cuda = Cuda::new(0).unwrap();
    for (seed, (m, n, k)) in [(128, 256, 512), (64, 384, 1152), (1028, 640, 1024)]
        .into_iter()
        .enumerate()
    {
        for scaling in [Scaling::Tensor, Scaling::Row, Scaling::Block] {
            let problem = GemmProblem::e4m3(m, n, k, scaling, DType::Bf16);
            let case = Case::<F8E4M3, bf16>::new(&cuda, problem, seed);
            let prepared = cuda.prepare_gemm(&case.gemm, &problem, Provider::CublasLt);
            let prepared = match prepared {
                Ok(prepared) => prepared,
                Err(error) => panic!("{problem}: {error}"),
            };
            let bytes = Cuda::workspace_bytes(&prepared);
            let workspace = cuda.allocate(bytes.max(256)).unwrap();
            case.poison();
            // SAFETY: as in `launch`, with a workspace of the size asked for.
            unsafe {
                cuda.gemm(&case.stream, &prepared, case.operands, workspace.address())
                    .unwrap()
            };
            case.check(&format!("cuBLASLt {}", scaling.name()));
        }
    }
}

/// Launches that depend on each other with no synchronisation between them: each waits on the device for the
/// one before.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn a_chain_of_gemms_is_ordered() {
    let cuda = Cuda::new(0).unwrap();
    let square = problem((512, 512, 512), DType::F16, Layout::RowMajor, 0);
    let case = Case::<f16>::new(&cuda, square, 5);
    // A · P · P for a permutation P that swaps neighbours is A again, exactly.
    let mut swap = vec![0.0f32; 512 * 512];
    for row in 0..512 {
        swap[row * 512 + (row ^ 1)] = 1.0;
    }
    let mut b = vec![f16::ZERO; 512 * 512];
    f16::round(&swap, &mut b);
    let GemmOperands { a, b: at_b, c, .. } = case.operands;
    let prepared = [case.prepare(0, 1), case.prepare(3, 2)];
    // SAFETY: the ranges lie inside the allocation; all work is on one stream.
    unsafe {
        cuda.upload(&case.stream, at_b, bytes(&b)).unwrap();
        for _ in 0..50 {
            let [there, back] =
                [(a, c), (c, a)].map(|(from, to)| GemmOperands::new(from, at_b, to));
            for (prepared, operands) in prepared.iter().zip([there, back]) {
                cuda.gemm(&case.stream, prepared, operands, DevicePtr::NULL)
                    .unwrap();
            }
        }
        let mut end = vec![f16::ZERO; 512 * 512];
        let to = std::slice::from_raw_parts_mut(end.as_mut_ptr().cast(), 2 * end.len());
        cuda.download(&case.stream, a, to).unwrap();
        assert!(end == integers::<f16>(512 * 512, 5));
    }
}

/// A graph holds the maps of its capture, whatever the plan is launched with afterwards.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn a_captured_gemm_is_replayed() {
    let cuda = Cuda::new(0).unwrap();
    let shape = problem((300, 520, 136), DType::Bf16, Layout::RowMajor, 0);
    let case = Case::<bf16>::new(&cuda, shape, 9);
    let prepared = case.prepare(0, 2);
    case.launch(&prepared);
    let graph = cuda
        .capture(&case.stream, || {
            case.launch(&prepared);
            case.launch(&prepared);
            Ok::<_, warpweave_gemm::Error>(())
        })
        .unwrap();
    for _ in 0..3 {
        case.poison();
        // SAFETY: the case owns what was captured, and checks what it gave.
        unsafe { cuda.launch_graph(&graph, &case.stream).unwrap() };
        case.check("replayed");
    }
}

/// A framework captures in a mode in which the driver refuses what may synchronise: what is prepared
/// meanwhile is prepared all the same, and the capture goes on.
#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn gemms_are_prepared_while_a_stream_is_captured() {
    use cudarc::driver::sys::{
        CUresult, CUstreamCaptureMode, cuGraphDestroy, cuStreamBeginCapture_v2, cuStreamEndCapture,
    };
    let cuda = Cuda::new(0).unwrap();
    let shape = problem((300, 520, 136), DType::Bf16, Layout::RowMajor, 0);
    let case = Case::<bf16>::new(&cuda, shape, 9);
    let other = cuda.stream(Priority::Normal).unwrap();
    let reduce = MatmulReduce {
        problem: shape,
        shards: std::iter::once(0..300).collect(),
        c: ReduceOutput::Owner,
        rank: 0,
        world: 1,
        ready: 0,
        reduced: 0,
        done: 4,
        group_rows: 128,
        tiling: None,
        max_blocks: None,
    };
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    ] {
        // SAFETY: the stream lives, and nothing else uses it.
        let begun = unsafe { cuStreamBeginCapture_v2(other.raw().cast(), mode) };
        assert_eq!(begun, CUresult::CUDA_SUCCESS);
        // A handle of its own: its memory is allocated in the midst of the capture.
        let handle = cuda.gemm_handle().unwrap();
        let reduction = cuda.prepare_reduce(&handle, &reduce).unwrap();
        let prepared = case.prepare(0, 2);
        // SAFETY: what is captured is never launched.
        unsafe {
            cuda.gemm(&other, &prepared, case.operands, DevicePtr::NULL)
                .unwrap();
        }
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives, and `graph` is a place for one graph.
        let ended = unsafe { cuStreamEndCapture(other.raw().cast(), &mut graph) };
        assert_eq!(ended, CUresult::CUDA_SUCCESS, "the capture was spoilt");
        // SAFETY: the graph was just captured.
        unsafe { cuGraphDestroy(graph) };
        drop((reduction, handle));
        case.poison();
        case.launch(&prepared);
        case.check("prepared during a capture");
    }
}

#[test]
#[ignore = "needs a Hopper GPU and the feature `nvcc`"]
fn tuning_tries_every_candidate() {
    let cuda = Cuda::new(0).unwrap();
    let shape = problem((640, 768, 512), DType::Bf16, Layout::Transposed, 8);
    let case = Case::<bf16>::new(&cuda, shape, 3);
    // SAFETY: the operands lie inside the allocation, and all work is on one stream.
    let prepared = unsafe {
        cuda.gemm_tune(
            &case.gemm,
            &case.stream,
            &case.problem,
            Provider::Sm90,
            case.operands,
        )
    };
    case.poison();
    case.launch(&prepared.unwrap());
    case.check("tuned");
}
