//! The suites: what each measures, at which problems, and what others published of the same.

use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::plan::Provider;
use warpweave_report::Shape;
use warpweave_symm_mem::{BackendKind, DType};

use super::layers::LAYERS;
use super::{Figure, Sizes, Suite};
use crate::alone::{gather_alone, gemm_alone};
use crate::limit::tflops;
use crate::plans::Implementation;

/// All suites, the one that runs without a name first.
pub const ALL: [&Suite; 14] = [
    &FUSED_MATMUL,
    &RECIPES,
    &PIPELINE,
    &ROW_PARALLEL,
    &ROW_PARALLEL_NORM,
    &COLUMN_PARALLEL,
    &LAYERS,
    &MATMUL_REDUCE_SCATTER,
    &MATMUL_ALL_REDUCE,
    &OVERLAP_ALL_GATHER,
    &GEMM,
    &COLLECTIVES,
    &DECODE,
    &QUICK,
];

pub(super) const FUSED_MATMUL: Suite = Suite {
    name: "fused-matmul",
    reproduces: "all-gather + matmul in seven ways and in one launch; \
                 nvFuser PR 6002, 8×H100, M=N=K=1024 f16",
    operations: &[Operation::AllGatherMatmul],
    entries: || {
        // In one launch, by each protocol, which is not in nvFuser's table.
        let fused = ["fusedAllGather", "fusedAllGather:protocol=eager"];
        let fused = |c: &Configuration| fused.contains(&c.name().as_str());
        let fused = algorithms::every().into_iter().filter(fused);
        let all = algorithms::table().into_iter().chain(fused);
        all.map(Implementation::from).collect()
    },
    problems: |kind, _| {
        let ragged = (Shape::new(4 * 257, 1160, 1032), DType::F16);
        on_gpus(kind, &[CUBE, bf16(8192, 3584, 8192), ragged])
    },
    // The two baselines were timed by another clock there than the kernels; part of their gap is the clock.
    figures: || {
        let row = |name, ms| (name, ms, Some(name));
        let seven = [
            row("baselineNcclAllgatherMatmul", 0.052),
            row("baselineCudaAllgatherMatmul", 0.093),
            row("naiveRemoteRead", 0.808),
            row("threadloadGatherScalarCompute", 0.531),
            row("multimemGatherScalarCompute", 0.588),
            row("threadloadGatherThenCutlass", 0.043),
            row("multimemGatherThenCutlass", 0.043),
        ];
        Figure::all(CUBE, "8×H100, nvFuser PR 6002", seven).into()
    },
};

pub(super) const RECIPES: Suite = Suite {
    name: "recipes",
    reproduces: "all-gather + matmul by pipelines at nine shapes; \
                 symm-mem-recipes' fused Triton kernel, 8×H100, bf16",
    operations: &[Operation::AllGatherMatmul],
    entries: pipelines,
    problems: |kind, _| on_gpus(kind, &PUBLISHED.map(|(problem, ..)| problem)),
    figures: || {
        let of_shape = |&(problem, alone, separate, fused): &(Sizes, f64, f64, f64)| {
            let baseline = Some("baselineNcclAllgatherMatmul");
            let three = [
                ("cuBLAS alone", alone / 1e3, None),
                ("NCCL, then cuBLAS", separate / 1e3, baseline),
                ("fused Triton", fused / 1e3, None),
            ];
            Figure::all(problem, "8×H100 HBM2e, symm-mem-recipes", three)
        };
        PUBLISHED.iter().flat_map(of_shape).collect()
    },
};

/// Problems with the µs of cuBLAS alone, of NCCL and cuBLAS, and of the fused kernel.
const PUBLISHED: [(Sizes, f64, f64, f64); 9] = [
    (bf16(4096, 1792, 4096), 100.0, 223.0, 211.0),
    (bf16(8192, 1792, 4096), 186.0, 393.0, 293.0),
    (bf16(16384, 1792, 4096), 363.0, 748.0, 485.0),
    (bf16(4096, 3584, 8192), 376.0, 587.0, 453.0),
    (bf16(8192, 3584, 8192), 746.0, 1168.0, 821.0),
    (bf16(16384, 3584, 8192), 1502.0, 2306.0, 1566.0),
    (bf16(4096, 6656, 16384), 1358.0, 1858.0, 1615.0),
    (bf16(8192, 6656, 16384), 2567.0, 3533.0, 2907.0),
    (bf16(16384, 6656, 16384), 5249.0, 6982.0, 5814.0),
];

/// A size at which pipelines hide all of the transfer.
pub(super) const PIPELINE: Suite = Suite {
    name: "pipeline-32k",
    reproduces: "all-gather + matmul by pipelines at M=32768 N=8192 K=16384 bf16; \
                 nvFuser's p2p pipeline, 8×H100",
    operations: &[Operation::AllGatherMatmul],
    entries: pipelines,
    problems: |kind, _| on_gpus(kind, &[LARGE]),
    // Published as TFLOP/s per GPU. All three overlap, NCCL's too, so that none is the baseline's.
    figures: || {
        let Shape { m, n, k } = LARGE.0;
        // A rate is to a time what a time is to a rate.
        let figure = |what, rate| (what, tflops((m, n, k), rate), None);
        let three = [
            figure("ring by p2p, 678 TFLOP/s", 678.0),
            figure("Transformer Engine, 660 TFLOP/s", 660.0),
            figure("pipeline over NCCL, 560 TFLOP/s", 560.0),
        ];
        Figure::all(LARGE, "8×H100, nvFuser", three).into()
    },
};

const LARGE: Sizes = bf16(32768, 8192, 16384);

/// The linear layer whose output is reduced over the ranks, in every combination of its parameters.
pub(super) const ROW_PARALLEL: Suite = Suite {
    name: "row-parallel",
    reproduces: "x[t, 4h/d] · W[h, 4h/d]ᵀ and its all-reduce, chunks × streams × reduce; \
                 nvFuser, 2 GPUs, h=t=8192 bf16",
    operations: &[Operation::RowParallelLinear],
    entries: || all_of(Operation::RowParallelLinear),
    problems: |kind, world| {
        let problem = if world == 2 {
            LAYER
        } else {
            bf16(8192, 8192, 8192)
        };
        on_gpus(kind, &[problem])
    },
    // The last has its output in a window of NCCL's; `output=symmetric` registers none.
    figures: || {
        let own = Some("rowParallelLinear");
        let symmetric = "the same, output in NCCL symmetric memory";
        let three = [
            ("2 chunks", 3.31, None),
            ("4 chunks on 2 streams", 3.09, own),
            (symmetric, 3.07, None),
        ];
        Figure::all(LAYER, "2 GPUs, nvFuser", three).into()
    },
};

/// The same layer with the residual and RMSNorm after it, on the rows of decoding and of prefill.
pub(super) const ROW_PARALLEL_NORM: Suite = Suite {
    name: "row-parallel-norm",
    reproduces: "x[M, K/d] · W[N, K/d]ᵀ, all-reduce, residual and RMSNorm, at sizes of Llama 70B: \
                 after NCCL's all-reduce, and in one launch with ours",
    operations: &[Operation::RowParallelLinearNorm],
    // Compared with NCCL, which comes first.
    entries: || {
        let mut all = all_of(Operation::RowParallelLinearNorm);
        all.reverse();
        all
    },
    problems: |kind, _| {
        let of_llama = [
            bf16(8, 8192, 8192),
            bf16(64, 8192, 28672),
            bf16(2048, 8192, 28672),
        ];
        on_gpus(kind, &of_llama)
    },
    figures: Vec::new,
};

/// h = t = 8192, K = 4h.
const LAYER: Sizes = bf16(8192, 8192, 32768);

/// The linear layer whose input is gathered.
pub(super) const COLUMN_PARALLEL: Suite = Suite {
    name: "column-parallel",
    reproduces: "all-gather, then A · Wᵀ + bias, at two of symm-mem-recipes' shapes",
    operations: &[Operation::ColumnParallelLinear],
    // Every algorithm with its defaults, and with one parameter changed.
    entries: || {
        let mut every = algorithms::every();
        every.retain(|c| c.operation() == Operation::ColumnParallelLinear);
        every.into_iter().map(Implementation::from).collect()
    },
    problems: |kind, _| on_gpus(kind, &[bf16(8192, 3584, 8192), bf16(16384, 6656, 16384)]),
    figures: Vec::new,
};

pub(super) const MATMUL_REDUCE_SCATTER: Suite = Suite {
    name: "matmul-reduce-scatter",
    reproduces: "x[M, K/d] · W[K/d, N], reduce-scatter; PyTorch's fused operator with --peers. \
                 ParallelKittens, 8×H100, 32768²×4096: 11.83 ms where the GEMM alone takes 11.78",
    operations: &[Operation::MatmulReduceScatter],
    entries: || all_of(Operation::MatmulReduceScatter),
    problems: |kind, _| on_gpus(kind, &SPLIT_K),
    figures: Vec::new,
};

pub(super) const MATMUL_ALL_REDUCE: Suite = Suite {
    name: "matmul-all-reduce",
    reproduces: "x[M, K/d] · W[K/d, N], all-reduce; PyTorch with --peers. \
                 ParallelKittens, 8×H100: 624 TFLOP/s by multicast",
    operations: &[Operation::MatmulAllReduce],
    entries: || all_of(Operation::MatmulAllReduce),
    problems: |kind, _| on_gpus(kind, &SPLIT_K),
    figures: Vec::new,
};

const SPLIT_K: [Sizes; 3] = [
    bf16(8192, 8192, 8192),
    bf16(8192, 8192, 32768),
    bf16(4096, 4096, 14336),
];

/// A GEMM while an all-gather of unrelated data runs.
pub(super) const OVERLAP_ALL_GATHER: Suite = Suite {
    name: "overlap-allgather",
    reproduces: "a GEMM of 8192³ f16 and an all-gather of 64 MiB a rank, in sequence and overlapped; nvFuser",
    operations: &[Operation::MatmulOverlappingAllGather],
    entries: || {
        let operation = Operation::MatmulOverlappingAllGather;
        let mut entries = all_of(operation);
        // The parts are there for comparison with the whole.
        let alone = ("gemmAlone", "only the GEMM, by cuBLASLt");
        entries.push(gemm(alone, Provider::CublasLt, Some(operation)));
        entries.push(gather_alone());
        entries
    },
    problems: |kind, _| on_gpus(kind, &[WITH_GATHER]),
    // Copy engines move the bytes of the last there too, but under NCCL's all-gather, which no row of ours
    // runs.
    figures: || {
        let three = [
            ("in sequence", 2.96, Some("sequentialAllGather")),
            ("overlapped", 2.02, Some("overlappedAllGather")),
            ("NCCL by copy engine (zero-CTA)", 1.77, None),
        ];
        Figure::all(WITH_GATHER, "8 GPUs, nvFuser", three).into()
    },
};

pub(crate) const WITH_GATHER: Sizes = (Shape::new(8192, 8192, 8192), DType::F16);

/// The GEMMs of the providers, without communication. Every rank computes all of C on its own device, all
/// ranks at once, and the slowest counts; a job of one rank measures one GPU.
pub const GEMM: Suite = Suite {
    name: "gemm",
    reproduces: "the CUTLASS and the hand-written kernels against cuBLASLt, no communication, \
                 at symm-mem-recipes' nine shapes and two cubes",
    operations: &[],
    entries: || {
        let summary = "the hand-written SM90 kernel, tile, cluster and order timed";
        let sm90 = gemm(("sm90", summary), Provider::Sm90, None);
        [cublaslt_and_cutlass().into(), vec![sm90]].concat()
    },
    problems: |kind, _| {
        let mut all = PUBLISHED.map(|(problem, ..)| problem).to_vec();
        all.extend([bf16(8192, 8192, 8192), CUBE]);
        on_gpus(kind, &all)
    },
    figures: Vec::new,
};

/// A GEMM without communication, by its name and a sentence.
fn gemm(
    (name, summary): (&'static str, &str),
    provider: Provider,
    operation: Option<Operation>,
) -> Implementation {
    Implementation {
        in_catalogue: (name, summary.to_owned()),
        ..gemm_alone(name, provider, operation)
    }
}

fn cublaslt_and_cutlass() -> [Implementation; 2] {
    let cublaslt = "cuBLASLt, its heuristics' candidates timed; the host's own GEMM on the host";
    let cutlass = "the CUTLASS SM90 kernels, tile and schedule timed";
    [
        gemm(("cublasLt", cublaslt), Provider::CublasLt, None),
        gemm(("cutlass", cutlass), Provider::Cutlass, None),
    ]
}

/// No plans: [`crate::collectives`] measures them.
pub(super) const COLLECTIVES: Suite = Suite {
    name: "collectives",
    reproduces: "collectives over symmetric memory, NCCL's and, with --peers, PyTorch's, over sizes",
    operations: &[],
    entries: Vec::new,
    problems: |_, _| Vec::new(),
    figures: Vec::new,
};

/// No plans either: [`crate::collectives::decode`] measures them.
pub(super) const DECODE: Suite = Suite {
    name: "decode",
    reproduces: "all-reduces of 4 KiB to 16 MiB on local memory: alone, before an RMSNorm, \
                 and 32 with a GEMM before each; ours, fused, and NCCL",
    ..COLLECTIVES
};

/// A quick check that every implementation runs and is right.
pub(super) const QUICK: Suite = Suite {
    name: "quick",
    reproduces: "every algorithm of every operation once, small: for checks, not for figures",
    operations: &Operation::ALL,
    entries: || {
        let defaults = algorithms::algorithms().map(Configuration::with_defaults);
        let all = defaults.map(Implementation::from);
        all.chain(cublaslt_and_cutlass()).collect()
    },
    problems: |kind, _| {
        let small = (Shape::new(64, 48, 40), DType::F16);
        match kind {
            BackendKind::Host => vec![small],
            // Sizes whose rows TMA can take.
            BackendKind::Cuda => vec![bf16(1024, 512, 512), small],
        }
    },
    figures: Vec::new,
};

const CUBE: Sizes = (Shape::new(1024, 1024, 1024), DType::F16);

const fn bf16(m: usize, n: usize, k: usize) -> Sizes {
    (Shape::new(m, n, k), DType::Bf16)
}

/// `problems` on GPUs. On the host every suite has the same: 131 rows do not divide by four, and no size is a
/// multiple of anything.
fn on_gpus(kind: BackendKind, problems: &[Sizes]) -> Vec<Sizes> {
    match kind {
        BackendKind::Cuda => problems.to_vec(),
        BackendKind::Host => vec![
            (Shape::new(256, 256, 256), DType::F16),
            (Shape::new(131, 71, 90), DType::Bf16),
        ],
    }
}

/// Every candidate for an operation.
fn all_of(operation: Operation) -> Vec<Implementation> {
    let candidates = algorithms::candidates(operation).into_iter();
    candidates.map(Implementation::from).collect()
}

/// The baseline of all-gather + matmul, and the algorithms that nvFuser's table lacks: each with its defaults
/// and with one parameter changed. An algorithm for several nodes adds nothing on one.
fn pipelines() -> Vec<Implementation> {
    let table = algorithms::table();
    let pipelines = algorithms::every().into_iter().filter(|candidate| {
        let of_table = |own: &Configuration| own.algorithm() == candidate.algorithm();
        candidate.operation() == Operation::AllGatherMatmul
            && candidate.algorithm().name != "hierarchical"
            && !table.iter().any(of_table)
    });
    let all = table.iter().take(1).cloned().chain(pipelines);
    all.map(Implementation::from).collect()
}
