//! Reductions of what SMs push to staging memory: see `cuda/push_reduce.cu`.

use warpweave_symm_mem::{DevicePtr, Result};

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::{Operand, SignedCall};
use super::enqueue::{DIRECT_THREADS, widest};
use super::launch::{Addresses, MAX_SLICES, PushReduce};
use super::operation::Operation;

/// Fewest bytes of a slice: two vectors of each thread.
const SLICE: usize = 2 * 16 * DIRECT_THREADS;

impl<B: CollectiveKernels> Collectives<B> {
    /// Blocks, slices of a block and bytes of a slice that cover a chunk.
    pub(super) fn slices(&self, chunk: usize) -> (u32, usize, usize) {
        let blocks = (chunk.div_ceil(SLICE) as u32).clamp(1, self.blocks);
        let slices = chunk.div_ceil(SLICE * blocks as usize).clamp(1, MAX_SLICES);
        let slice = chunk
            .div_ceil(blocks as usize * slices)
            .next_multiple_of(16 * DIRECT_THREADS);
        (blocks, slices, slice)
    }

    /// Results of an all-reduce go to the peers' outputs, or land in `landing` if those are local.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`]. `landing` is symmetric, as large as the output, and not accessed by
    /// other work.
    pub(super) unsafe fn by_push_reduce(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        landing: Option<&Operand>,
    ) -> Result<()> {
        let chunk = self.chunk(call);
        let everywhere = call.operation == Operation::AllReduce;
        let (blocks, slices, slice) = self.slices(chunk);
        let landed = landing.map_or(DevicePtr::NULL, Operand::address);
        let landing = landing.unwrap_or(&call.output);
        let launch = PushReduce {
            group: self.group(call.signature),
            staging: Addresses::by_rank(self.world, |rank| {
                self.staging.peer(rank).add(self.rank * chunk)
            }),
            to: Addresses::by_rank(self.world, |rank| {
                let mine = rank == self.rank;
                match everywhere {
                    true if mine => call.output.address().add(rank * chunk),
                    true => landing.of(rank).add(self.rank * chunk),
                    false if mine => call.output.address(),
                    false => DevicePtr::NULL,
                }
            }),
            landed,
            output: call.output.address(),
            received: self.staging.local(),
            input: call.input.address(),
            chunk: chunk as u64,
            total: match everywhere {
                true => call.bytes() as u64,
                false => (chunk * self.world) as u64,
            },
            slice: slice as u64,
            slices: slices as u32,
            reserved: 0,
        };
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend
                .launch_collective(stream, Kernel::PushReduce(call.dtype, &launch), blocks)
        }
    }
}

/// The vector width of the launch.
pub(super) fn vector(launch: &PushReduce, element: usize) -> usize {
    let addresses = launch.staging.0.iter().chain(&launch.to.0);
    widest(
        addresses.chain([&launch.input]),
        launch.chunk | launch.total,
        element,
    )
}
