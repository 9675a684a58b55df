//! What stands in for NCCL on the host backend.

use std::sync::Arc;

use warpweave_comm::host::HostCollectives;
use warpweave_symm_mem::{Backend, DevicePtr, Exchange, Host};

use super::{CollectiveBackend, NcclCall};
use crate::execute::error::Result;
use crate::plan::Collective;

impl CollectiveBackend for Host {
    type Group = HostCollectives;

    fn group_capacity(bytes: usize) -> usize {
        bytes
    }

    fn group(
        &self,
        exchange: &Arc<dyn Exchange>,
        spans_nodes: bool,
        bytes: usize,
    ) -> Result<HostCollectives> {
        let made = match spans_nodes {
            true => HostCollectives::over_network,
            false => HostCollectives::new,
        };
        Ok(made(self, exchange, "nccl", bytes)?)
    }

    unsafe fn collective(
        &self,
        stream: &<Host as Backend>::Stream,
        group: &HostCollectives,
        call: &NcclCall,
        operands: (DevicePtr, DevicePtr),
    ) -> Result<()> {
        let dtype = call.dtype;
        // SAFETY: the obligations are the caller's, in the same flags.
        unsafe {
            match call.collective {
                Collective::AllGather => {
                    let bytes: Vec<usize> = call.counts.iter().map(|n| n * dtype.size()).collect();
                    group.all_gather(stream, operands, &bytes)?;
                }
                Collective::ReduceScatter => {
                    group.reduce_scatter(stream, dtype, operands, &call.counts)?;
                }
                Collective::AllReduce => {
                    group.all_reduce(stream, dtype, operands, call.counts.iter().sum())?;
                }
            }
        }
        Ok(())
    }

    fn check_group(
        &self,
        stream: &<Host as Backend>::Stream,
        group: &HostCollectives,
    ) -> Result<()> {
        Ok(group.check(stream)?)
    }

    fn recover_group(
        &self,
        stream: &<Host as Backend>::Stream,
        group: &HostCollectives,
        exchange: &Arc<dyn Exchange>,
    ) -> Result<()> {
        Ok(group.recover(stream, exchange.as_ref())?)
    }
}
