//! A beginning in the middle of things, for tests: what comes after four billion launches.

use warpweave_symm_mem::{Exchange, Memory, Result};

use super::Collectives;
use super::backend::CollectiveKernels;
use super::launch::MAX_BLOCKS;

impl<B: CollectiveKernels> Collectives<B> {
    /// Makes the next launch the one behind `epoch`. Collective, with no call of any rank under way.
    ///
    /// # Errors
    /// What the backend and the exchange report.
    #[doc(hidden)]
    pub fn begin_at(&self, stream: &B::Stream, exchange: &dyn Exchange, epoch: u32) -> Result<()> {
        self.backend.synchronize(&self.side)?;
        self.backend.synchronize(stream)?;
        exchange.barrier("collectives.begin")?;
        let epochs = |bytes: usize| epoch.to_ne_bytes().repeat(bytes / size_of::<u32>());
        let counters = epochs(MAX_BLOCKS * size_of::<u32>());
        let (backend, areas) = (&self.backend, &self.areas);
        // SAFETY: all ranks are quiet; the ranges are this object's own. Padding between words is nobody's.
        unsafe {
            backend.fill(stream, areas.local(), 0, areas.bytes())?;
            for lane in &self.lanes {
                lane.pad.begin_at(stream, epoch)?;
                backend.upload(stream, lane.epochs.address(), &counters)?;
            }
        }
        exchange.barrier("collectives.begun")?;
        Ok(())
    }
}
