//! What the sweeps over fused launches have in common: one rank per GPU, all in this process, and medians of
//! interleaved rounds.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use warpweave_symm_mem::cuda::CudaStream;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Exchange, SignalPad, ThreadExchange};

pub type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// M, N and K of a problem.
pub type Shape = [usize; 3];

const ROUNDS: usize = 7;
/// Calls of a sample.
const CALLS: u32 = 10;

/// Sweeps over the shapes that the program was given, or over `shapes`, on all GPUs.
pub fn on_all_gpus(
    shapes: &[Shape],
    sweep: impl Fn(&Cuda, &Arc<dyn Exchange>, Shape) -> Result<()> + Sync,
) -> Result<()> {
    let given: Vec<usize> = std::env::args()
        .skip(1)
        .map(|word| word.parse())
        .collect::<Result<_, _>>()?;
    let shapes = match given.as_chunks() {
        ([], []) => shapes,
        (given, []) => given,
        _ => return Err("give M, N and K of each shape, or nothing".into()),
    };
    let rank = |exchange: Arc<dyn Exchange>| -> Result<()> {
        let cuda = Cuda::new(exchange.rank())?;
        for &[m, n, k] in shapes {
            if exchange.rank() == 0 {
                let world = exchange.world();
                println!("M={m} N={n} K={k} bf16 on {world} × {}", cuda.device().name);
            }
            sweep(&cuda, &exchange, [m, n, k])?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadExchange::group(Cuda::device_count()?.min(8))
            .into_iter()
            .map(|exchange| scope.spawn(|| rank(Arc::new(exchange))))
            .collect();
        ranks.into_iter().try_for_each(|rank| {
            rank.join()
                .unwrap_or_else(|_| Err("a rank panicked".into()))
        })
    })
}

/// Fills memory with values of either sign near 1: tensor cores that multiply zeros draw less power than they
/// would at work.
///
/// # Safety
/// As [`Backend::upload`].
pub unsafe fn fill(cuda: &Cuda, stream: &CudaStream, to: DevicePtr, bytes: usize) -> Result<()> {
    let mixed = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8;
    let value = |i: u32| [mixed(i), 0x3f | (mixed(i) & 0x80)];
    let pattern: Vec<u8> = (0..1 << 19).flat_map(value).collect();
    for at in (0..bytes).step_by(pattern.len()) {
        let part = &pattern[..pattern.len().min(bytes - at)];
        // SAFETY: the caller's obligation, for a part of the memory.
        unsafe { cuda.upload(stream, to.add(at), part)? };
    }
    Ok(())
}

/// Times the launches, of which the first is the GEMM alone, and prints them on rank 0: those of the slowest
/// rank.
pub fn time(
    (cuda, stream): (&Cuda, &CudaStream),
    exchange: &Arc<dyn Exchange>,
    pad: &SignalPad<Cuda>,
    names: &[String],
    launch: impl Fn(usize) -> Result<()>,
) -> Result<()> {
    exchange.barrier("planned")?;
    let (from, to) = (cuda.event()?, cuda.event()?);
    let mut times = vec![Vec::new(); names.len()];
    for _ in 0..ROUNDS {
        for (index, times) in times.iter_mut().enumerate() {
            exchange.barrier("sample")?;
            for call in 0..=CALLS {
                // The first call meets the peers.
                if call == 1 {
                    cuda.record(&from, stream)?;
                }
                launch(index)?;
            }
            cuda.record(&to, stream)?;
            cuda.synchronize(stream)?;
            pad.check(stream)?;
            times.push(cuda.elapsed(&from, &to)? / CALLS);
        }
    }
    let mut table = Vec::new();
    for (name, mut times) in names.iter().zip(times) {
        times.sort_unstable();
        let mine = times[times.len() / 2].as_nanos() as u64;
        let all = exchange.all_gather("time", &mine.to_ne_bytes())?;
        let all = all.iter().filter_map(|bytes| bytes[..].try_into().ok());
        let slowest = all.map(u64::from_ne_bytes).max().unwrap_or(mine);
        table.push((Duration::from_nanos(slowest), name));
    }
    if exchange.rank() == 0 {
        table[1..].sort();
        for (time, name) in &table {
            let micros = time.as_secs_f64() * 1e6;
            let times = time.as_secs_f64() / table[0].0.as_secs_f64();
            println!("{micros:>10.1} µs  {times:>5.3} times the GEMM alone  {name}");
        }
    }
    cuda.synchronize(stream)?;
    exchange.barrier("done")?;
    Ok(())
}
