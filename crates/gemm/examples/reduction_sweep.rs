//! GEMM + reduction over all GPUs, with groups of several sizes, against the GEMM alone.
//!
//! `cargo run --release --example reduction_sweep --features nvcc [M N K ...]`. A rank a GPU, all in this
//! process; times are those of the slowest rank, medians of interleaved rounds. Results are not compared:
//! tests do that.

mod sweep;

use std::sync::Arc;

use sweep::{Result, Shape};
use warpweave_gemm::matmul_reduce::{ReduceOutput, Units};
use warpweave_gemm::{
    Gemm, GemmBackend, GemmOperands, GemmProblem, GemmReduceBackend, MatmulReduce, Provider,
    ReduceOperands,
};
use warpweave_symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Memory, Priority, SignalPad, SymmetricBuffer,
};

const SHAPES: [Shape; 3] = [[8192, 8192, 8192], [8192, 8192, 32768], [4096, 4096, 14336]];
/// Rows of a group.
const ROWS: [usize; 4] = [128, 256, 512, 1024];
/// Elements of C up to which one shot is tried.
const ONE_SHOT: usize = 4096 * 4096;

#[derive(Clone, Copy)]
enum Way {
    Owners,
    Everyone,
    OneShot,
}

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
    // How and, but in one shot, in groups of how many rows.
    let ways: Vec<(Way, usize)> = [Way::Owners, Way::Everyone]
        .into_iter()
        .flat_map(|way| ROWS.map(|rows| (way, rows)))
        .filter(|&(_, rows)| rows <= m.div_ceil(world).next_multiple_of(ROWS[0]))
        .chain((m * n <= ONE_SHOT).then_some((Way::OneShot, ROWS[0])))
        .collect();
    let published = |(way, rows): (Way, usize)| match way {
        Way::OneShot => Units::of(m, n).count(),
        _ => m.div_ceil(world).div_ceil(rows),
    };
    // Each plan has slots of its own.
    let slots = ways.iter().map(|&way| 1 + 2 * published(way)).sum();
    let pad = SignalPad::new(cuda, exchange, "sweep", slots)?;
    let partials = m.div_ceil(world) * (world - 1) * problem.ldc * dtype.size();
    let staged = match m * n <= ONE_SHOT {
        true => 2 * world * c_bytes,
        false => partials,
    };
    let staging = SymmetricBuffer::new(cuda, exchange, "staging", staged)?;
    let copies = SymmetricBuffer::new(cuda, exchange, "c", c_bytes)?;
    let pulled = cuda.allocate(partials)?;
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
    let handle = cuda.gemm_handle()?;
    let mut prepared = Vec::new();
    let mut free = 0;
    for &(way, group_rows) in &ways {
        let count = published((way, group_rows));
        let ready = free;
        free += 1 + 2 * count;
        let gemm = MatmulReduce {
            problem: *problem,
            shards: shards.clone(),
            c: match way {
                Way::Owners => ReduceOutput::Owner,
                Way::Everyone => ReduceOutput::Everyone,
                Way::OneShot => ReduceOutput::Each,
            },
            rank: exchange.rank(),
            world,
            ready,
            reduced: ready + count,
            done: ready + 2 * count,
            group_rows,
            tiling: None,
            max_blocks: None,
        };
        names.push(match way {
            Way::Owners => format!("reduce-scatter, groups of {group_rows} rows"),
            Way::Everyone => format!("all-reduce, groups of {group_rows} rows"),
            Way::OneShot => "all-reduce in one shot".into(),
        });
        let operands = ReduceOperands {
            a: a.address(),
            b: b.address(),
            bias: DevicePtr::NULL,
            scales: [DevicePtr::NULL; 2],
            c: match way {
                Way::Everyone => copies.addresses().into(),
                Way::Owners | Way::OneShot => copies.local().into(),
            },
            local_c: DevicePtr::NULL,
            staging: staging.addresses().into(),
            staging_stride: world * c_bytes,
            multicast: [DevicePtr::NULL; 2],
            pulled: pulled.address(),
            pad: pad.view(),
        };
        prepared.push((cuda.prepare_reduce(&handle, &gemm)?, operands));
    }
    let launch = |index: usize| -> Result<()> {
        // SAFETY: as above; all ranks launch the same plans in the same order.
        unsafe {
            match index.checked_sub(1) {
                None => gemm.launch(&stream, &alone, operands)?,
                Some(index) => {
                    let (gemm, operands) = &prepared[index];
                    cuda.matmul_reduce(&stream, gemm, operands)?
                }
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
