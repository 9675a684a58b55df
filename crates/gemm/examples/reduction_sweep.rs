//! Products with their sums over all GPUs, with groups of several sizes, against the product alone.
//!
//! `cargo run --release --example reduction_sweep --features nvcc [M N K ...]`. A rank a GPU, all in this process; times are
//! those of the slowest rank, medians of interleaved rounds. Results are not compared: tests do that.

mod sweep;

use std::sync::Arc;

use sweep::{Result, Shape};
use warpweave_gemm::reduction::Sums;
use warpweave_gemm::{
    Gemm, GemmOperands, GemmProblem, Provider, ReducingGemmBackend, ReducingMatmul,
};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Memory, Priority, SignalPad, SymmetricBuffer,
};

const SHAPES: [Shape; 3] = [[8192, 8192, 8192], [8192, 8192, 32768], [4096, 4096, 14336]];
/// Rows of a group.
const ROWS: [usize; 4] = [128, 256, 512, 1024];

fn main() -> Result<()> {
    sweep::on_all_gpus(&SHAPES, shape)
}

/// K is over all ranks.
fn shape(cuda: &Cuda, exchange: &Arc<dyn Exchange>, [m, n, k]: Shape) -> Result<()> {
    let world = exchange.world();
    let problem = &GemmProblem::new(m, n, k / world, DType::Bf16);
    let dtype = problem.dtype;
    let start = |i: usize| i * (m / world) + i.min(m % world);
    let shards: Vec<_> = (0..world).map(|i| start(i)..start(i + 1)).collect();
    let c_bytes = problem.c_len() * dtype.size();
    let shapes = || {
        [false, true]
            .into_iter()
            .flat_map(|all| ROWS.map(|rows| (all, rows)))
    };
    let groups = |rows: usize| m.div_ceil(world).div_ceil(rows);
    // Each plan has slots of its own.
    let slots = shapes().map(|(_, rows)| 1 + 2 * groups(rows)).sum();
    let pad = SignalPad::new(cuda, exchange, "sweep", slots)?;
    let parts = m.div_ceil(world) * (world - 1) * problem.ldc * dtype.size();
    let staging = SymmetricBuffer::new(cuda, exchange, "staging", parts)?;
    let copies = SymmetricBuffer::new(cuda, exchange, "c", c_bytes)?;
    let fetched = cuda.allocate(parts)?;
    let (a_bytes, b_bytes) = (
        problem.a_len() * dtype.size(),
        problem.b_len() * dtype.size(),
    );
    let (a, b) = (cuda.allocate(a_bytes)?, cuda.allocate(b_bytes)?);
    let stream = cuda.stream(Priority::Normal)?;

    let gemm = Gemm::new(cuda)?;
    let operands = GemmOperands::new(a.address(), b.address(), copies.local());
    // SAFETY: the allocations have the problem's sizes, and all of their work is on one stream.
    let alone = unsafe {
        sweep::fill(cuda, &stream, a.address(), a_bytes)?;
        sweep::fill(cuda, &stream, b.address(), b_bytes)?;
        gemm.tune(&stream, problem, Provider::CublasLt, operands)?
    };

    let mut names = vec!["cuBLASLt alone".to_owned()];
    let mut plans = Vec::new();
    let mut free = 0;
    for (everyone, group_rows) in shapes() {
        if group_rows <= m / world {
            let ready = free;
            free += 1 + 2 * groups(group_rows);
            let product = ReducingMatmul {
                problem: *problem,
                shards: shards.clone(),
                a: a.address(),
                b: b.address(),
                bias: DevicePtr::NULL,
                c: match everyone {
                    true => Sums::Everyone(copies.addresses()),
                    false => Sums::Owner(copies.local()),
                },
                staging: staging.addresses(),
                fetched: fetched.address(),
                pad: pad.view(),
                ready,
                summed: ready + groups(group_rows),
                done: ready + 2 * groups(group_rows),
                group_rows,
                max_blocks: None,
            };
            let to = if everyone { "all" } else { "owners" };
            names.push(format!("sums to {to}, groups of {group_rows} rows"));
            plans.push(cuda.reducing_plan(&product)?);
        }
    }
    let launch = |index: usize| -> Result<()> {
        // SAFETY: as above; all ranks launch the same plans in the same order.
        unsafe {
            match index.checked_sub(1) {
                None => gemm.launch(&stream, &alone, operands)?,
                Some(plan) => cuda.reducing_matmul(&stream, &plans[plan])?,
            }
        }
        Ok(())
    };
    sweep::time((cuda, &stream), exchange, &pad, &names, launch)?;
    pad.close(&stream, exchange.as_ref())?;
    staging.close(exchange.as_ref())?;
    copies.close(exchange.as_ref())?;
    Ok(())
}
