//! Calls by bulk copies of the tensor memory accelerator: see `cuda/bulk.cu`.

use warpweave_symm_mem::Result;

use super::Collectives;
use super::backend::CollectiveKernels;
use super::call::Call;
use super::enqueue::Direction;
use super::variant::Variant;

/// Bytes of a stage in shared memory: `kStage`.
pub(super) const STAGE: usize = 16 << 10;
/// Stages of a block that moves: `kMoveStages`.
pub(super) const MOVE_STAGES: usize = 12;
/// Stages of a block that sums: `kSumStages`.
pub(super) const REDUCE_STAGES: usize = 8;
/// Sums on their way out of a block, each of a stage less what each source has of it: `kSums`.
pub(super) const RESULT_STAGES: usize = 4;
/// Threads of a block of `exchange_bulk`.
pub(super) const MOVE_THREADS: usize = 32;
/// Threads of a block of `reduce_bulk_*`.
pub(super) const REDUCE_THREADS: usize = 128;

/// The most blocks that move: with their stages full they have 6 MiB on the way, several times what the links hold.
const MOVE_BLOCKS: u32 = 32;
/// The most blocks that sum.
const REDUCE_BLOCKS: u32 = 64;

impl<B: CollectiveKernels> Collectives<B> {
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_bulk_exchange(
        &self,
        stream: &B::Stream,
        call: &Call,
        direction: Direction,
    ) -> Result<()> {
        let launch = self.exchange_of(call, direction);
        // As many on every rank, whatever each of them has to move.
        let items = call.bytes().div_ceil(STAGE) as u32;
        let blocks = items.clamp(1, self.blocks.min(MOVE_BLOCKS));
        // SAFETY: the caller's obligations.
        unsafe { self.backend.exchange_tma(stream, &launch, blocks) }
    }

    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_bulk_reduce(
        &self,
        stream: &B::Stream,
        call: &Call,
        variant: Variant,
    ) -> Result<()> {
        let launch = self.reduction_of(call, variant);
        let items = self.chunk(call).div_ceil(STAGE / self.world) as u32;
        let blocks = items.clamp(1, self.blocks.min(REDUCE_BLOCKS));
        // SAFETY: the caller's obligations.
        unsafe { self.backend.reduce_tma(stream, call.dtype, &launch, blocks) }
    }
}
