//! The all-gather GEMM, with every tile, cluster, group and number of chunks, against the GEMM alone, on
//! all GPUs.
//!
//! `cargo run --release --example all_gather_sweep --features nvcc [M N K ...]`. A rank a GPU, all in this
//! process; times are those of the slowest rank, medians of interleaved rounds. Results are not compared:
//! tests do that.

mod sweep;

use std::sync::Arc;

use sweep::{Result, Shape};
use warpweave_gemm::{
    AllGatherGemmBackend, AllGatherMatmul, AllGatherOperands, GatheredScales, Gemm, GemmBackend,
    GemmOperands, GemmProblem, Protocol, Provider,
};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Memory, Priority, SignalPad, SymmetricBuffer,
};

const SHAPES: [Shape; 4] = [
    [16384, 6656, 16384],
    [16384, 3584, 8192],
    [8192, 1792, 4096],
    [4096, 1792, 4096],
];
/// Of a shard, at most.
const CHUNKS: [usize; 4] = [2, 4, 8, 16];

fn main() -> Result<()> {
    sweep::on_all_gpus(&SHAPES, shape)
}

fn shape(cuda: &Cuda, exchange: &Arc<dyn Exchange>, [m, n, k]: Shape) -> Result<()> {
    let problem = &GemmProblem::new(m, n, k, DType::Bf16);
    let (world, dtype) = (exchange.world(), problem.dtype);
    let start = |i: usize| i * (m / world) + i.min(m % world);
    let shards: Vec<_> = (0..world).map(|i| start(i)..start(i + 1)).collect();
    let a_bytes = problem.a_len() * dtype.size();
    let a = SymmetricBuffer::new(cuda, exchange, "a", a_bytes)?;
    let pad = SignalPad::new(cuda, exchange, "sweep", 2 + AllGatherMatmul::EAGER_CHUNKS)?;
    let staging = SymmetricBuffer::new(cuda, exchange, "staging", 2 * a_bytes)?;
    let b = cuda.allocate(problem.b_len() * dtype.size())?;
    let c = cuda.allocate(problem.c_len() * dtype.size())?;
    let stream = cuda.stream(Priority::Normal)?;

    let gemm = Gemm::new(cuda)?;
    let operands = GemmOperands::new(a.local(), b.address(), c.address());
    // SAFETY: the allocations have the problem's sizes, and all of their work is on one stream.
    let alone = unsafe {
        let b_bytes = problem.b_len() * dtype.size();
        sweep::fill(cuda, &stream, a.local(), a_bytes)?;
        sweep::fill(cuda, &stream, b.address(), b_bytes)?;
        gemm.tune(&stream, problem, Provider::CublasLt, operands)?
    };

    let handle = cuda.gemm_handle()?;
    let gathered = AllGatherOperands {
        a: a.addresses().into(),
        local_a: DevicePtr::NULL,
        staging: staging.addresses().into(),
        staging_stride: a_bytes,
        b: b.address(),
        c: c.address(),
        bias: DevicePtr::NULL,
        scales: GatheredScales::default(),
        pad: pad.view(),
    };
    let mut names = vec!["cuBLASLt alone".to_owned()];
    let mut launches = Vec::new();
    let largest = shards[0].len();
    let pulled = CHUNKS.map(|chunks| {
        let rows = AllGatherMatmul::chunk_rows(largest, chunks);
        (Protocol::PULL, rows, 1)
    });
    let eager = AllGatherMatmul::eager_chunk_rows(largest);
    for (protocol, chunk_rows, ready) in pulled.into_iter().chain([(Protocol::Eager, eager, 2)]) {
        let mut gemm = AllGatherMatmul {
            problem: *problem,
            shards: shards.clone(),
            chunk_rows,
            rank: exchange.rank(),
            world,
            ready,
            done: 0,
            protocol,
            tiling: None,
            max_blocks: None,
        };
        let chunks = gemm.chunks();
        let tilings = gemm.tilings(cuda.device().sms);
        for tiling in tilings.into_iter().map(Some).chain([None]) {
            gemm.tiling = tiling;
            let prepared = cuda.prepare_all_gather(&handle, &gemm)?;
            let chosen = if tiling.is_none() {
                ", the default choice"
            } else {
                ""
            };
            let name = format!(
                "{}, {protocol:?}, {chunks} chunks of {chunk_rows} rows{chosen}",
                prepared.tiling()
            );
            if !names.contains(&name) {
                names.push(name);
                launches.push(prepared);
            }
        }
    }
    let launch = |index: usize| -> Result<()> {
        // SAFETY: as above; all ranks launch the same plans in the same order.
        unsafe {
            match index.checked_sub(1) {
                None => gemm.launch(&stream, &alone, operands)?,
                Some(index) => cuda.all_gather_matmul(&stream, &launches[index], &gathered)?,
            }
        }
        Ok(())
    };
    sweep::time((cuda, &stream), exchange, &pad, &names, launch)?;
    pad.close(&stream, exchange.as_ref())?;
    staging.close(exchange.as_ref())?;
    a.close(exchange.as_ref())?;
    Ok(())
}
