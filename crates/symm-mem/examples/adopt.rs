//! A project that has its own cudarc context, streams and slices shares them among ranks.
//!
//! Two ranks are threads here, on one GPU each where there are two, else both on the first. Each makes its
//! context, stream and slice with cudarc alone, as candle or mistral.rs would; Warpweave adopts them,
//! registers the slices and lets each rank write into the other's slice on the rank's own stream. Where there
//! is no GPU it says so.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use warpweave_symm_mem::{Backend, Cuda, Exchange, IpcCache, ThreadExchange};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ELEMENTS: usize = 1 << 20;

fn main() -> Outcome<()> {
    let devices = match Cuda::device_count() {
        Ok(devices) => devices,
        Err(error) if error.is_unavailable() => {
            println!("nothing to show here: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let ranks: Vec<_> = ThreadExchange::group(2)
        .into_iter()
        .map(|exchange| {
            let ordinal = exchange.rank() % devices.max(1);
            std::thread::spawn(move || rank(ordinal, Arc::new(exchange)))
        })
        .collect();
    for thread in ranks {
        println!("{}", thread.join().expect("a rank panicked")?);
    }
    Ok(())
}

fn rank(ordinal: usize, exchange: Arc<dyn Exchange>) -> Outcome<String> {
    let (me, peer) = (exchange.rank(), 1 - exchange.rank());

    // What the project has: nothing of it knows Warpweave.
    let context = CudaContext::new(ordinal)?;
    let stream = context.new_stream()?;
    let received = stream.alloc_zeros::<f32>(ELEMENTS)?;
    let outbox = stream.clone_htod(&vec![me as f32 + 0.5; ELEMENTS])?;
    // A peer writes as soon as it can: the slice must be zero, and the pool have given it out, before that.
    stream.synchronize()?;

    // Adopt the context and the stream, register the slice. Ranks of other processes need a slice that CUDA
    // IPC can open: `device.shareable_slice(&stream, ELEMENTS)`.
    let device = Cuda::adopt(context)?;
    let queue = device.adopt_stream(stream.clone())?;
    let cache = IpcCache::new(&device)?;
    let (at, bytes) = device.address_of(&received, &queue)?;
    let shared = cache.register(exchange.as_ref(), at, bytes)?;

    // Put the outbox into the peer's slice, and wait until the peer has done the same. (With the feature
    // `nvcc`, a `SignalPad` orders this on the streams alone.)
    let (from, bytes) = device.address_of(&outbox, &queue)?;
    let to = shared.range(peer, 0, bytes)?;
    // SAFETY: both ranges are of live slices of this length, and the peer reads its own after the barrier.
    unsafe { device.copy(&queue, to, from, bytes)? };
    device.synchronize(&queue)?;
    exchange.barrier("written")?;

    // Back in the project's own terms, on its own stream.
    let got = stream.clone_dtoh(&received)?;
    stream.synchronize()?;
    // Closed by both ranks before either frees its slice.
    cache.release(exchange.as_ref(), shared)?;
    cache.close(exchange.as_ref())?;
    match got.iter().all(|&x| x == peer as f32 + 0.5) {
        true => Ok(format!(
            "rank {me} on {}: the {ELEMENTS} elements of rank {peer} arrived in its slice",
            device.name()
        )),
        false => Err(format!("rank {me}: what arrived is not what rank {peer} sent").into()),
    }
}
