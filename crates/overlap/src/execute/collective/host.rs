//! All-gathers of the host backend.

use std::sync::Arc;

use warpweave_comm::host::HostAllGather;
use warpweave_symm_mem::{Backend, DevicePtr, Exchange, Host};

use super::{AllGatherShape, CollectiveBackend};
use crate::execute::error::Result;

impl CollectiveBackend for Host {
    type Group = ();
    type AllGather = HostAllGather;

    fn group(&self, _: &Arc<dyn Exchange>) -> Result<()> {
        Ok(())
    }

    fn prepare_all_gather(
        &self,
        _: &Arc<()>,
        exchange: &Arc<dyn Exchange>,
        shape: &AllGatherShape,
    ) -> Result<HostAllGather> {
        let row = shape.cols * shape.dtype.size();
        let bytes: Vec<usize> = shape.rows.iter().map(|rows| rows * row).collect();
        Ok(HostAllGather::new(self, exchange, &shape.name, &bytes)?)
    }

    unsafe fn all_gather(
        &self,
        stream: &<Host as Backend>::Stream,
        gather: &HostAllGather,
        src: DevicePtr,
        dst: DevicePtr,
    ) -> Result<()> {
        // SAFETY: the obligations are the caller's, in the same words.
        unsafe { gather.enqueue(stream, src, dst)? };
        Ok(())
    }

    fn check_all_gather(
        &self,
        stream: &<Host as Backend>::Stream,
        gather: &HostAllGather,
    ) -> Result<()> {
        Ok(gather.pad().check(stream)?)
    }

    /// Nothing hangs: the waits of the host's all-gather have deadlines.
    fn abandon_all_gather(&self, _: &HostAllGather) {}

    fn recover_all_gather(
        &self,
        stream: &<Host as Backend>::Stream,
        gather: &HostAllGather,
        exchange: &Arc<dyn Exchange>,
    ) -> Result<()> {
        gather.pad().recover(stream, exchange.as_ref())?;
        Ok(())
    }
}
