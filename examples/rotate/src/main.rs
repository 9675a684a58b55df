//! A kernel of one's own that signals a peer, with a twin for the host.
//!
//! `cuda/rotate.cu` is the device code, which `build.rs` compiles with the feature `nvcc`; `host.rs` is its twin, and
//! `kernel.rs` what both take. The program runs it on all GPUs where there are two or more, else on four ranks of the host
//! backend: calls follow each other with other blocks and no synchronisation between the ranks, and every element is compared.

mod cuda;
mod host;
mod kernel;

use std::error::Error;
use std::sync::Arc;

use kernel::{Rotate, RotateKernel};
use warpweave_symm_mem::{Cuda, Exchange, Host, Memory, SignalPad, SymmetricBuffer};
use warpweave_symm_mem::{Result as MemoryResult, ThreadExchange};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const COUNT: usize = 10_000;
const CALLS: usize = 20;
const SENT: usize = 0;
const TAKEN: usize = 1;

fn main() -> Outcome<()> {
    let gpus = Cuda::device_count().unwrap_or(0).min(8);
    let said = match gpus > 1 && cfg!(feature = "nvcc") {
        true => on_ranks(gpus, Cuda::new)?,
        false => on_ranks(4, |_| Ok(Host::new()))?,
    };
    for line in said {
        println!("{line}");
    }
    Ok(())
}

/// Runs each rank on a thread, with the device that `device` gives it.
fn on_ranks<B: RotateKernel>(
    world: usize,
    device: fn(usize) -> MemoryResult<B>,
) -> Outcome<Vec<String>> {
    let threads: Vec<_> = ThreadExchange::group(world)
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || rank(device(exchange.rank())?, Arc::new(exchange)))
        })
        .collect();
    let ended = threads.into_iter();
    ended.map(|t| t.join().expect("no rank panics")).collect()
}

fn rank<B: RotateKernel>(device: B, exchange: Arc<dyn Exchange>) -> Outcome<String> {
    let (me, world) = (exchange.rank(), exchange.world());
    let (right, left) = ((me + 1) % world, (me + world - 1) % world);
    let stream = device.stream(Default::default())?;
    let inbox = SymmetricBuffer::new(&device, &exchange, "inbox", 4 * COUNT)?;
    let pad = SignalPad::new(&device, &exchange, "rotate", 2)?;
    let (block, out) = (device.allocate(4 * COUNT)?, device.allocate(4 * COUNT)?);
    let launch = Rotate {
        block: block.address(),
        inbox: inbox.local(),
        there: inbox.range(right, 0, 4 * COUNT)?,
        out: out.address(),
        pad: pad.view(),
        count: COUNT as u32,
        sent: SENT as u32,
        taken: TAKEN as u32,
        reserved: 0,
    };
    for call in 0..CALLS {
        let mut got = vec![0; 4 * COUNT];
        // SAFETY: the ranges have the sizes that the launch says and live to the end of this function, which no rank
        // leaves before all are done; all ranks launch alike.
        unsafe {
            device.upload(&stream, block.address(), &values(me, call))?;
            device.rotate(&stream, launch)?;
            device.download(&stream, out.address(), &mut got)?;
        }
        pad.check(&stream)?; // did both neighbours come in time?
        if got != values(left, call) {
            return Err(format!("rank {me}, call {call}: not the block of rank {left}").into());
        }
    }
    pad.close(&stream, exchange.as_ref())?;
    inbox.close(exchange.as_ref())?;
    let name = &device.device().name;
    Ok(format!(
        "rank {me} on {name}: {CALLS} calls, each with the {COUNT} elements of rank {left}"
    ))
}

/// The block of a rank in a call: other values each time.
fn values(rank: usize, call: usize) -> Vec<u8> {
    let element = |i: usize| (rank * 1_000_000 + call * 20_000 + i) as f32;
    (0..COUNT).flat_map(|i| element(i).to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_of_the_host_rotate_their_blocks() {
        for world in [1, 2, 3, 8] {
            let said = on_ranks(world, |_| Ok(Host::new())).unwrap();
            assert_eq!(said.len(), world);
        }
    }

    #[test]
    #[ignore = "needs two GPUs and the feature nvcc"]
    fn cuda_ranks_rotate_their_blocks() {
        let gpus = Cuda::device_count().unwrap().min(8);
        assert!(gpus > 1, "two GPUs at least, not {gpus}");
        assert_eq!(on_ranks(gpus, Cuda::new).unwrap().len(), gpus);
    }
}
