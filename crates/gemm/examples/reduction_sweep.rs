//! Products with their sums over all GPUs, with groups of several sizes, against the product alone.
//!
//! `cargo run --release --example reduction_sweep --features nvcc [M N K ...]`. A rank a GPU, all in this process; times are
//! those of the slowest rank, medians of interleaved rounds. Results are not compared: tests do that.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use warpweave_gemm::reduction::Sums;
use warpweave_gemm::{
    Gemm, GemmOperands, GemmProblem, Layout, Provider, ReducingGemmBackend, ReducingMatmul,
};
use warpweave_symm_mem::{
    Backend, Cuda, DType, Exchange, Memory, Priority, SignalPad, SymmetricBuffer, ThreadExchange,
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const SHAPES: [(usize, usize, usize); 3] =
    [(8192, 8192, 8192), (8192, 8192, 32768), (4096, 4096, 14336)];
const ROWS: [usize; 4] = [256, 512, 1024, 2048];
const ROUNDS: usize = 7;
/// Calls of a sample.
const CALLS: u32 = 10;

fn main() -> Result<()> {
    let given: Vec<usize> = std::env::args()
        .skip(1)
        .map(|word| word.parse())
        .collect::<Result<_, _>>()?;
    let (given, rest) = given.as_chunks();
    if !rest.is_empty() {
        return Err("give M, N and K of each shape, or nothing".into());
    }
    let shapes = match given {
        [] => SHAPES.to_vec(),
        _ => given.iter().map(|&[m, n, k]| (m, n, k)).collect(),
    };
    let world = Cuda::device_count()?.min(8);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadExchange::group(world)
            .into_iter()
            .map(|exchange| scope.spawn(|| sweep(Arc::new(exchange), &shapes)))
            .collect();
        ranks.into_iter().try_for_each(|rank| {
            rank.join()
                .unwrap_or_else(|_| Err("a rank panicked".into()))
        })
    })
}

fn sweep(exchange: Arc<dyn Exchange>, shapes: &[(usize, usize, usize)]) -> Result<()> {
    let cuda = Cuda::new(exchange.rank())?;
    for &(m, n, k) in shapes {
        let world = exchange.world();
        if exchange.rank() == 0 {
            println!("M={m} N={n} K={k} bf16 on {world} × {}", cuda.device().name);
        }
        let problem = GemmProblem::new(m, n, k / world, DType::Bf16)
            .with_layouts(Layout::RowMajor, Layout::RowMajor);
        shape(&cuda, &exchange, &problem)?;
    }
    Ok(())
}

fn shape(cuda: &Cuda, exchange: &Arc<dyn Exchange>, problem: &GemmProblem) -> Result<()> {
    let (rank, world) = (exchange.rank(), exchange.world());
    let GemmProblem { m, dtype, .. } = *problem;
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
        // Values of either sign near 1: tensor cores that multiply zeros draw less power than they would at work.
        let mixed = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8;
        let value = |i: u32| [mixed(i), 0x3f | (mixed(i) & 0x80)];
        let pattern: Vec<u8> = (0..1 << 19).flat_map(value).collect();
        for (to, bytes) in [(a.address(), a_bytes), (b.address(), b_bytes)] {
            for at in (0..bytes).step_by(pattern.len()) {
                let part = &pattern[..pattern.len().min(bytes - at)];
                cuda.upload(&stream, to.add(at), part)?;
            }
        }
        gemm.tune(&stream, problem, Provider::CublasLt, operands)?
    };

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
            let name = format!("sums to {to}, groups of {group_rows} rows");
            plans.push((name, cuda.reducing_plan(&product)?));
        }
    }
    exchange.barrier("planned")?;

    let (from, to) = (cuda.event()?, cuda.event()?);
    let mut times = vec![Vec::new(); 1 + plans.len()];
    for _ in 0..ROUNDS {
        for (index, times) in times.iter_mut().enumerate() {
            exchange.barrier("sample")?;
            for call in 0..=CALLS {
                // The first call meets the peers.
                if call == 1 {
                    cuda.record(&from, &stream)?;
                }
                // SAFETY: as above; all ranks launch the same plans in the same order.
                unsafe {
                    match index.checked_sub(1) {
                        None => gemm.launch(&stream, &alone, operands)?,
                        Some(plan) => cuda.reducing_matmul(&stream, &plans[plan].1)?,
                    }
                }
            }
            cuda.record(&to, &stream)?;
            cuda.synchronize(&stream)?;
            pad.check(&stream)?;
            times.push(cuda.elapsed(&from, &to)? / CALLS);
        }
    }
    let names = std::iter::once("cuBLASLt alone").chain(plans.iter().map(|(name, _)| &name[..]));
    let mut table = Vec::new();
    for (name, mut times) in names.zip(times) {
        times.sort_unstable();
        let mine = times[times.len() / 2].as_nanos() as u64;
        let all = exchange.all_gather("time", &mine.to_ne_bytes())?;
        let all = all.iter().filter_map(|bytes| bytes[..].try_into().ok());
        let slowest = all.map(u64::from_ne_bytes).max().unwrap_or(mine);
        table.push((Duration::from_nanos(slowest), name));
    }
    if rank == 0 {
        for (time, name) in &table {
            let micros = time.as_secs_f64() * 1e6;
            let times = time.as_secs_f64() / table[0].0.as_secs_f64();
            println!("{micros:>10.1} µs  {times:>5.3} of the product alone  {name}");
        }
    }
    cuda.synchronize(&stream)?;
    exchange.barrier("done")?;
    pad.close(&stream, exchange.as_ref())?;
    staging.close(exchange.as_ref())?;
    copies.close(exchange.as_ref())?;
    Ok(())
}
