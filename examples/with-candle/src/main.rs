//! A project that has candle: a linear layer whose input features are sharded over two ranks.
//!
//! Each rank multiplies its shard with candle and adds the other rank's partial, which it pulls over the link
//! from that rank's tensor. The two ranks are threads, on a GPU each where there are two, else both on the
//! first. Where there is no GPU, it says so. `cargo xtask ci --only candle` builds and links it.

use std::error::Error;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver;
use candle_core::{Device, Storage, Tensor};
use candle_nn::{Linear, Module};
use warpweave_comm::Communicator;
use warpweave_overlap::algorithms;
use warpweave_symm_mem::cuda::CudaStream;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, IpcCache};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const FEATURES: usize = 1024;

fn main() -> Outcome<()> {
    println!("{} algorithms", algorithms::table().len());
    let devices = match Cuda::device_count() {
        Ok(devices) => devices,
        Err(error) if error.is_unavailable() => {
            println!("nothing to show here: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let ranks: Vec<_> = Communicator::threads(2)?
        .into_iter()
        .map(|comm| std::thread::spawn(move || rank(&comm, comm.rank() % devices.max(1))))
        .collect();
    for thread in ranks {
        println!("{}", thread.join().expect("a rank panicked")?);
    }
    Ok(())
}

fn rank(comm: &Communicator, ordinal: usize) -> Outcome<String> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    let shard = FEATURES / comm.world();
    let layer = Linear::new(
        Tensor::ones((8, shard), candle_core::DType::F32, &device)?,
        None,
    );
    let partial = layer.forward(&Tensor::ones((4, shard), candle_core::DType::F32, &device)?)?;
    let stream = device.as_cuda_device()?.cuda_stream();
    let reduced = add_peer(comm, 1 - comm.rank(), &stream, &partial)?;
    let all = reduced.flatten_all()?.to_vec1::<f32>()?;
    match all.iter().all(|&x| x == FEATURES as f32) {
        true => Ok(format!(
            "rank {}: {} elements are right",
            comm.rank(),
            all.len()
        )),
        false => Err(format!("rank {}: {all:?}", comm.rank()).into()),
    }
}

/// `partial` plus the peer's. All tensors are contiguous.
fn add_peer(
    comm: &Communicator,
    peer: usize,
    stream: &Arc<driver::CudaStream>,
    partial: &Tensor,
) -> Outcome<Tensor> {
    // candle's context and stream.
    let device = Cuda::adopt(stream.context().clone())?;
    let queue = device.adopt_stream(stream.clone())?;
    let theirs = partial.zeros_like()?;
    // The peer may read as soon as the tensors are registered.
    device.synchronize(&queue)?;

    let cache = IpcCache::new(&device)?;
    let (at, bytes) = address_of(&device, &queue, partial)?;
    let shared = cache.register(comm.exchange(), at, bytes)?;
    let (to, _) = address_of(&device, &queue, &theirs)?;
    // SAFETY: both ranges lie in live tensors of this size, and candle's work on them is on the same stream.
    unsafe { device.copy(&queue, to, shared.range(peer, 0, bytes)?, bytes)? };
    device.synchronize(&queue)?;
    // The peer has read `partial` when this returns.
    cache.release(comm.exchange(), shared)?;
    cache.close(comm.exchange())?;
    Ok((partial + theirs)?)
}

/// Address and length in bytes of a contiguous tensor.
fn address_of(device: &Cuda, queue: &CudaStream, tensor: &Tensor) -> Outcome<(DevicePtr, usize)> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err("the tensor is not on a GPU".into());
    };
    let (start, end) = layout
        .contiguous_offsets()
        .ok_or("the tensor is not contiguous")?;
    let slice = storage.as_cuda_slice::<f32>()?.slice(start..end);
    Ok(device.address_of(&slice, queue)?)
}
