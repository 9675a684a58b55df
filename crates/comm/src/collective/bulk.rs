//! Calls by TMA bulk copies: see `cuda/bulk.cu`.

use warpweave_symm_mem::Result;

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::SignedCall;
use super::enqueue::Direction;
use super::variant::Variant;

/// Bytes of a stage in shared memory: `kStage`.
pub(super) const STAGE: usize = 16 << 10;
/// Stages of a block of `exchange_bulk`: `kMoveStages`.
pub(super) const MOVE_STAGES: usize = 12;
/// Stages of a block of `reduce_bulk_*`: `kReduceStages`.
pub(super) const REDUCE_STAGES: usize = 8;
/// Result buffers of a block, each `STAGE / world` bytes: `kResults`.
pub(super) const RESULT_STAGES: usize = 4;
/// Threads of a block of `exchange_bulk`.
pub(super) const MOVE_THREADS: usize = 32;
/// Threads of a block of `reduce_bulk_*`.
pub(super) const REDUCE_THREADS: usize = 128;

/// Most blocks of `exchange_bulk`: with full stages they have 6 MiB in flight, several times what the links
/// hold.
const MOVE_BLOCKS: u32 = 32;
/// Most blocks of `reduce_bulk_*`.
const REDUCE_BLOCKS: u32 = 64;

impl<B: CollectiveKernels> Collectives<B> {
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_bulk_exchange(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        direction: Direction,
    ) -> Result<()> {
        let launch = self.exchange_of(call, direction);
        // The same grid on every rank, whatever each has to move.
        let items = call.bytes().div_ceil(STAGE) as u32;
        let blocks = items.clamp(1, self.blocks.min(MOVE_BLOCKS));
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend
                .launch_collective(stream, Kernel::ExchangeTma(&launch), blocks)
        }
    }

    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_bulk_reduce(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        variant: Variant,
    ) -> Result<()> {
        let launch = self.reduction_of(call, variant);
        let items = self.chunk(call).div_ceil(STAGE / self.world) as u32;
        let blocks = items.clamp(1, self.blocks.min(REDUCE_BLOCKS));
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend
                .launch_collective(stream, Kernel::ReduceTma(call.dtype, &launch), blocks)
        }
    }
}
