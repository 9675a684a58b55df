//! Reductions through staging memory, to which copy engines bring the peers' data.

use warpweave_symm_mem::{DevicePtr, Result};

use super::backend::{CollectiveKernels, Kernel};
use super::call::SignedCall;
use super::launch::{Addresses, Direct};
use super::operation::Operation;
use super::{Collectives, PIECES};

/// Chunks from this many bytes on go through staging memory in pieces.
const TWO_PIECES: usize = 8 << 20;

impl<B: CollectiveKernels> Collectives<B> {
    /// Copies chunks to the staging memory of the ranks that reduce them, a piece at a time, and reduces on
    /// the side stream while the next piece is sent. An all-reduce then sends the results to all.
    ///
    /// Staging memory is free at the start: a rank leaves a call when all ranks have reduced. A peer's output
    /// is free once its first piece has arrived.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_staging(&self, stream: &B::Stream, call: &SignedCall) -> Result<()> {
        let backend = &self.backend;
        let chunk = self.chunk(call);
        let everywhere = call.operation == Operation::AllReduce;
        let part = |rank| match everywhere {
            true => self.part(call, rank),
            false => chunk,
        };
        let count = if chunk < TWO_PIECES { 1 } else { PIECES };
        let piece = chunk.div_ceil(count).next_multiple_of(16);
        let pieces = |bytes: usize, index: usize| {
            let start = (index * piece).min(bytes);
            (start, (bytes - start).min(piece))
        };
        let peers: Vec<usize> = (1..self.world)
            .map(|step| (self.rank + step) % self.world)
            .collect();
        // Where the result of this rank's chunk goes.
        let result = match everywhere {
            true => call.output.address().add(self.rank * chunk),
            false => call.output.address(),
        };
        // SAFETY: the caller's obligations, and the order that the description above argues.
        unsafe {
            for index in 0..count {
                for &peer in &peers {
                    let (start, bytes) = pieces(part(peer), index);
                    let src = call.input.address().add(peer * chunk + start);
                    let dst = self.staging.peer(peer).add(self.rank * chunk + start);
                    backend.push_by_engine(stream, dst, src, bytes)?;
                }
                backend.record(&self.pushed[index], stream)?;
            }
            for index in 0..count {
                let last = index + 1 == count;
                let (start, bytes) = pieces(part(self.rank), index);
                let launch = Direct {
                    group: self.barriers[1].group(call.signature),
                    from: Addresses::by_rank(self.world, |rank| match rank == self.rank {
                        true => call.input.address().add(self.rank * chunk + start),
                        false => self.staging.local().add(rank * chunk + start),
                    }),
                    to: Addresses::by_rank(self.world, |rank| match rank == self.rank {
                        true => result.add(start),
                        false => DevicePtr::NULL,
                    }),
                    bytes: bytes as u64,
                    // Peers enter after their copies, so their pieces have arrived by then.
                    enter: 1,
                    leave: u32::from(last && !everywhere),
                };
                backend.wait_event(&self.side, &self.pushed[index])?;
                let blocks = self.direct_blocks(piece);
                backend.launch_collective(
                    &self.side,
                    Kernel::Reduce(call.dtype, &launch),
                    blocks,
                )?;
                backend.record(&self.reduced[index], &self.side)?;
            }
            for index in 0..count {
                backend.wait_event(stream, &self.reduced[index])?;
                for &peer in peers.iter().filter(|_| everywhere) {
                    let (start, bytes) = pieces(part(self.rank), index);
                    let dst = call.output.of(peer).add(self.rank * chunk + start);
                    backend.push_by_engine(stream, dst, result.add(start), bytes)?;
                }
            }
            match everywhere {
                true => backend.barrier(stream, &self.group(call.signature)),
                false => Ok(()),
            }
        }
    }
}
