//! GEMMs with biases and batches through a backend, exact against the reference: cuBLASLt on a GPU, panels on
//! the host.

use half::{bf16, f16};
use warpweave_gemm::host::{Element, reference_with_bias};
use warpweave_gemm::{
    Error, Gemm, GemmBackend, GemmBatch, GemmOperands, GemmProblem, Layout, PreparedGemm, Provider,
};
use warpweave_symm_mem::{Cuda, DType, Host, Memory, Priority};

/// Rows, columns and depth: aligned, ragged, a single row, more than a tile.
const SHAPES: [(usize, usize, usize); 5] = [
    (64, 64, 32),
    (37, 132, 40),
    (1, 4, 24),
    (5, 7, 3),
    (250, 259, 33),
];

/// Small integers, so that every sum is exact in every type: 40·4 + 2 is below the 2⁸ of bf16.
fn integers<T: Element>(len: usize, seed: usize) -> Vec<T> {
    let wide: Vec<f32> = (0..len)
        .map(|i| ((i * 7 + i / 11 + seed) % 5) as f32 - 2.0)
        .collect();
    let mut values = vec![T::default(); len];
    T::round(&wide, &mut values);
    values
}

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The operands of one problem in one allocation, each at a multiple of 256 bytes.
struct Case<B: GemmBackend, T, O> {
    backend: B,
    stream: B::Stream,
    gemm: Gemm<B>,
    problem: GemmProblem,
    _memory: B::Memory,
    operands: GemmOperands,
    a: Vec<T>,
    b: Vec<T>,
    bias: Vec<O>,
}

impl<B: GemmBackend, T: Element, O: Element> Case<B, T, O> {
    /// Room for two biases, one after the other; `shift` elements lie before the first.
    fn new(backend: &B, problem: GemmProblem, shift: usize) -> Self {
        let stream = backend.stream(Priority::Normal).unwrap();
        let a = integers(problem.a_len(), 1);
        let b = integers(problem.b_len(), 2);
        let bias = integers(2 * problem.n, 3);
        let padded = |bytes: usize| bytes.next_multiple_of(256);
        let at_b = padded(size_of_val(a.as_slice()));
        let at_bias = at_b + padded(size_of_val(b.as_slice()));
        let at_c = at_bias + padded((shift + bias.len()) * size_of::<O>());
        let memory = backend
            .allocate(at_c + problem.c_len() * size_of::<O>())
            .unwrap();
        let base = memory.address();
        let operands = GemmOperands::new(base, base.add(at_b), base.add(at_c))
            .with_bias(base.add(at_bias + shift * size_of::<O>()));
        for (address, values) in [
            (operands.a, bytes(&a)),
            (operands.b, bytes(&b)),
            (operands.bias, bytes(&bias)),
        ] {
            // SAFETY: the range lies inside the allocation, which nothing else uses yet.
            unsafe { backend.upload(&stream, address, values).unwrap() };
        }
        Self {
            gemm: Gemm::new(backend).unwrap(),
            backend: backend.clone(),
            stream,
            problem,
            _memory: memory,
            operands,
            a,
            b,
            bias,
        }
    }

    fn launch(&self, prepared: &PreparedGemm<B>, operands: GemmOperands) -> Result<(), Error> {
        // SAFETY: the operands lie inside the allocation with the problem's sizes; all work is on one stream,
        // and each test waits for it.
        unsafe { self.gemm.launch(&self.stream, prepared, operands) }
    }

    fn poison(&self) {
        let bytes = self.problem.c_len() * size_of::<O>();
        // SAFETY: C lies inside the allocation, and all work is on one stream.
        unsafe {
            self.backend
                .fill(&self.stream, self.operands.c, 0xff, bytes)
                .unwrap()
        };
    }

    /// Every element of C is that of the reference with this bias; those that no GEMM owns are the poison, a
    /// NaN.
    fn check(&self, bias: &[O]) {
        let p = &self.problem;
        let mut c = vec![O::default(); p.c_len()];
        // SAFETY: any bytes make elements, and C lies inside the allocation.
        unsafe {
            let to =
                std::slice::from_raw_parts_mut(c.as_mut_ptr().cast(), size_of_val(c.as_slice()));
            self.backend
                .download(&self.stream, self.operands.c, to)
                .unwrap();
        }
        let exact = reference_with_bias(p, &self.a, &self.b, bias).unwrap();
        let mut expected = vec![f64::NAN; p.c_len()];
        for (row, values) in exact.chunks_exact(p.n).enumerate() {
            let at = row / p.m * p.batch.c_stride + row % p.m * p.ldc;
            expected[at..at + p.n].copy_from_slice(values);
        }
        for (at, (got, want)) in c.iter().zip(expected).enumerate() {
            let got = got.to_f64();
            assert!(
                got == want || got.is_nan() && want.is_nan(),
                "{p}, element {at}: {got}, not {want}"
            );
        }
    }

    fn run(&self, prepared: &PreparedGemm<B>) {
        self.poison();
        self.launch(prepared, self.operands).unwrap();
        self.check(&self.bias);
    }
}

/// All shapes, layouts, paddings, biases and batches of one type.
fn exact<B: GemmBackend, T: Element, O: Element>(backend: &B) {
    for (m, n, k) in SHAPES {
        for a in [Layout::RowMajor, Layout::Transposed] {
            for b in [Layout::RowMajor, Layout::Transposed] {
                for (padding, count, shared) in
                    [(0, 1, false), (0, 3, false), (3, 3, true), (8, 2, true)]
                {
                    let tight = GemmProblem::new(m, n, k, T::DTYPE)
                        .with_output(O::DTYPE)
                        .with_layouts(a, b);
                    let one = tight.with_leading_dimensions(
                        tight.lda + padding,
                        tight.ldb + padding,
                        tight.ldc + padding,
                    );
                    let batched = one.with_batch(GemmBatch {
                        count,
                        a_stride: one.a_len() + padding,
                        b_stride: if shared { 0 } else { one.b_len() },
                        c_stride: one.c_len() + padding,
                    });
                    for bias in [false, true] {
                        let problem = GemmProblem { bias, ..batched };
                        let case = Case::<B, T, O>::new(backend, problem, 0);
                        case.run(&case.gemm.prepare(&problem, Provider::CublasLt).unwrap());
                    }
                }
            }
        }
    }
}

fn every_type<B: GemmBackend>(backend: &B) {
    exact::<B, f16, f16>(backend);
    exact::<B, f16, f32>(backend);
    exact::<B, bf16, bf16>(backend);
    exact::<B, bf16, f32>(backend);
    exact::<B, f32, f32>(backend);
}

fn two_with_bias(m: usize, n: usize, k: usize, dtype: DType) -> GemmProblem {
    GemmProblem::new(m, n, k, dtype)
        .with_bias()
        .with_batch(GemmBatch {
            count: 2,
            a_stride: m * k,
            b_stride: 0,
            c_stride: m * n,
        })
}

/// Tuning sees the bias and the batch, and a tuned plan is as exact.
fn tuned<B: GemmBackend>(backend: &B) {
    let problem = two_with_bias(256, 192, 40, DType::Bf16);
    let case = Case::<B, bf16, bf16>::new(backend, problem, 0);
    // SAFETY: as in `launch`.
    let prepared = unsafe {
        case.gemm
            .tune(&case.stream, &problem, Provider::CublasLt, case.operands)
    };
    case.run(&prepared.unwrap());
}

/// A graph keeps the bias with which it was captured, whatever the plan is launched with afterwards.
fn captured<B: GemmBackend>(backend: &B) {
    let problem = two_with_bias(64, 64, 32, DType::F16);
    let case = Case::<B, f16, f16>::new(backend, problem, 0);
    let second = case
        .operands
        .with_bias(case.operands.bias.add(2 * problem.n));
    let prepared = case.gemm.prepare(&problem, Provider::CublasLt).unwrap();
    case.run(&prepared);
    let graph = backend
        .capture(&case.stream, || case.launch(&prepared, case.operands))
        .unwrap();
    case.poison();
    case.launch(&prepared, second).unwrap();
    case.check(&case.bias[problem.n..]);
    case.poison();
    // SAFETY: the case owns what was captured, and checks what it gave.
    unsafe { backend.launch_graph(&graph, &case.stream).unwrap() };
    case.check(&case.bias);
}

/// A bias may lie at any element where rows do; where they are aligned it must be too, and otherwise is
/// refused.
fn misaligned(backend: &Cuda) {
    let ragged = GemmProblem::new(37, 259, 33, DType::F16).with_bias();
    let case = Case::<Cuda, f16, f16>::new(backend, ragged, 1);
    case.run(&case.gemm.prepare(&ragged, Provider::CublasLt).unwrap());

    let aligned = GemmProblem::new(64, 64, 32, DType::F16).with_bias();
    let case = Case::<Cuda, f16, f16>::new(backend, aligned, 1);
    let prepared = case.gemm.prepare(&aligned, Provider::CublasLt).unwrap();
    let error = case.launch(&prepared, case.operands).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Operand {
                operand: "bias",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn the_host_is_exact() {
    // `host_properties.rs` has the other types.
    exact::<Host, bf16, bf16>(&Host::new());
}

#[test]
fn the_host_keeps_captured_biases_and_tunes() {
    tuned(&Host::new());
    captured(&Host::new());
}

#[test]
#[ignore = "needs a GPU"]
fn cublaslt_is_exact_on_a_gpu() {
    every_type(&Cuda::new(0).unwrap());
}

#[test]
#[ignore = "needs a GPU"]
fn cublaslt_tunes_with_bias_and_batch_on_a_gpu() {
    tuned(&Cuda::new(0).unwrap());
}

#[test]
#[ignore = "needs a GPU"]
fn a_graph_on_a_gpu_keeps_its_bias() {
    captured(&Cuda::new(0).unwrap());
}

#[test]
#[ignore = "needs a GPU"]
fn a_misaligned_bias_is_served_or_refused_on_a_gpu() {
    misaligned(&Cuda::new(0).unwrap());
}
