//! Broadcasts in which every rank forwards a chunk: see `cuda/scatter_all_gather.cu`.

use warpweave_symm_mem::Result;

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::SignedCall;
use super::enqueue::widest;
use super::launch::{Addresses, ScatterAllGather};

impl<B: CollectiveKernels> Collectives<B> {
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_scatter_all_gather(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
    ) -> Result<()> {
        let total = call.bytes();
        let chunk = total.div_ceil(self.world - 1).next_multiple_of(16);
        let (blocks, slices, slice) = self.slices(chunk);
        let launch = ScatterAllGather {
            group: self.group(call.signature),
            output: Addresses::by_rank(self.world, |rank| call.output.of(rank)),
            input: call.input.address(),
            chunk: chunk as u64,
            total: total as u64,
            slice: slice as u64,
            slices: slices as u32,
            root: call.root as u32,
        };
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend
                .launch_collective(stream, Kernel::ScatterAllGather(&launch), blocks)
        }
    }
}

/// The vector width of the launch.
pub(super) fn vector(launch: &ScatterAllGather) -> usize {
    widest(
        launch.output.0.iter().chain([&launch.input]),
        launch.total,
        0,
    )
}
