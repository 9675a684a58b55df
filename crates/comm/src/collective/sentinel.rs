//! All-reduces of data that need no flag: see `cuda/sentinel.cuh`.

use warpweave_symm_mem::Result;

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::SignedCall;
use super::launch::{Addresses, MAX_BLOCKS, Packets};
use super::norm::launch::WARP;

/// Bytes of a vector, the unit of transfer: `kBytes`.
pub(super) const VECTOR: usize = 16;

/// Generations of calls, each with sections of its own: `kGenerations`.
pub(super) const GENERATIONS: usize = 3;

/// Words of a state: the generation, and what the call before used.
pub(super) const STATE: usize = 2;

/// Bytes in front of the sections of an area: the state of each block.
pub(super) const STATES: usize = MAX_BLOCKS * STATE * size_of::<u32>();

/// Threads of a block that have vectors, few or many. Those of one more warp have none.
const THREADS: [usize; 2] = [256 - WARP, 512 - WARP];

/// The largest message in bytes: its vectors are counted in 32 bits.
pub(super) const MOST: usize = u32::MAX as usize / 4 * VECTOR;

/// Vectors of a section of two halves, for a chunk of `bytes` among `world` ranks and for its sum.
pub(super) const fn capacity(bytes: usize, world: usize) -> usize {
    2 * bytes.div_ceil(world).div_ceil(VECTOR)
}

/// Threads of a block of `sentinel_norm_*`: those that a row has units for, and a warp.
pub(super) fn norm_threads(units: usize) -> usize {
    units.next_multiple_of(WARP).clamp(THREADS[0], THREADS[1]) + WARP
}

/// Bytes of the area of a rank.
pub(super) const fn area_bytes(capacity: usize, world: usize) -> usize {
    STATES + GENERATIONS * world * capacity * VECTOR
}

/// Threads of a block of `sentinel_*`: many where few would have several vectors of a chunk each.
pub(super) const fn threads(launch: &Packets, blocks: u32) -> usize {
    let vectors = (launch.bytes as usize).div_ceil(VECTOR);
    THREADS[(vectors > blocks as usize * THREADS[0]) as usize] + WARP
}

impl<B: CollectiveKernels> Collectives<B> {
    /// The largest message of an all-reduce without flags in bytes.
    pub fn sentinel_bytes(&self) -> usize {
        self.sentinel_capacity / 2 * VECTOR * self.world
    }

    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_sentinel(&self, stream: &B::Stream, call: &SignedCall) -> Result<()> {
        let (launch, blocks) = self.sentinels(call);
        // SAFETY: the caller's obligations.
        unsafe {
            let kernel = Kernel::Sentinel(call.dtype, &launch);
            self.backend.launch_collective(stream, kernel, blocks)
        }
    }

    /// The parameter and the grid of `call`, the same whether its rows are normalized or not.
    pub(super) fn sentinels(&self, call: &SignedCall) -> (Packets, u32) {
        let (total, bytes) = (call.bytes(), self.chunk(call));
        let [input, output] = [call.input.address(), call.output.address()];
        let aligned = (input.0 | output.0 | total as u64).is_multiple_of(VECTOR as u64);
        let launch = Packets {
            areas: Addresses::from_rank(self.rank, self.world, |rank| self.sentinels.peer(rank)),
            input,
            output,
            bytes: bytes as u64,
            total: total as u64,
            capacity: self.sentinel_capacity as u32,
            aligned: aligned.into(),
            ..self.packets(call.signature)
        };
        let blocks = bytes.div_ceil(VECTOR).div_ceil(THREADS[0]) as u32;
        (launch, blocks.clamp(1, self.blocks))
    }
}
