//! A project with its own cudarc, which links CUDA. Its ranks read each other's slices.
//!
//! `cargo xtask ci` compiles it with the bindings of CUDA 12.8 and of 13.0, to show that Warpweave leaves
//! both the link mode and the version to the project. `crates/symm-mem/examples/adopt.rs` says more about the
//! calls.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use warpweave_comm::Communicator;
use warpweave_overlap::algorithms;
use warpweave_symm_mem::{Backend, Cuda, IpcCache};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    println!("{} algorithms", algorithms::table().len());
    let ranks: Vec<_> = Communicator::threads(2)?
        .into_iter()
        .map(|comm| std::thread::spawn(move || rank(&comm)))
        .collect();
    for thread in ranks {
        thread.join().expect("a rank panicked")?;
    }
    Ok(())
}

fn rank(comm: &Communicator) -> Outcome<()> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let mine = stream.clone_htod(&[comm.rank() as f32; 1024])?;
    let theirs = read_peer(comm, 1 - comm.rank(), &stream, &mine)?;
    assert_eq!(stream.clone_dtoh(&theirs)?[0], 1.0 - comm.rank() as f32);
    Ok(())
}

/// The peer's slice of the same length, read over the link.
fn read_peer(
    comm: &Communicator,
    peer: usize,
    stream: &Arc<CudaStream>,
    mine: &CudaSlice<f32>,
) -> Outcome<CudaSlice<f32>> {
    let theirs = stream.alloc_zeros::<f32>(mine.len())?;
    let device = Cuda::adopt(stream.context().clone())?;
    let queue = device.adopt_stream(stream.clone())?;
    device.synchronize(&queue)?;

    let cache = IpcCache::new(&device)?;
    let (at, bytes) = device.address_of(mine, &queue)?;
    let shared = cache.register(comm.exchange(), at, bytes)?;
    let (to, _) = device.address_of(&theirs, &queue)?;
    // SAFETY: both ranges lie in live slices of this length, which nothing else uses until the copy has
    // ended.
    unsafe { device.copy(&queue, to, shared.range(peer, 0, bytes)?, bytes)? };
    device.synchronize(&queue)?;
    cache.release(comm.exchange(), shared)?;
    cache.close(comm.exchange())?;
    Ok(theirs)
}
