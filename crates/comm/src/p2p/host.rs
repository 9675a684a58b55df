//! The host backend's transfers: the protocol as work on a stream.

use cudarc::driver::sys::CUstream;
use warpweave_symm_mem::host::{
    HostStream, expect_signal, is_faulted, send_signal, withhold_signal,
};
use warpweave_symm_mem::{Host, PadView};

use super::backend::{FusedTransfer, TransferBackend};
use super::protocol::{self, Link};
use super::role::Signal;
use crate::error::Result;

/// This rank's end of a lane, in a pad.
struct PadLink {
    pad: PadView,
    lane: usize,
    peer: usize,
}

impl PadLink {
    /// # Safety
    /// While the value is used, `pad` is the view of a live pad of the host backend with the slots of `lane`
    /// and a flag for `peer`, and no other thread of this rank signals or waits on them.
    unsafe fn new(pad: &PadView, lane: usize, peer: usize) -> Self {
        PadLink {
            pad: *pad,
            lane,
            peer,
        }
    }
}

impl Link for PadLink {
    fn signal(&self, signal: Signal) {
        // SAFETY: as `new` was promised.
        unsafe { send_signal(&self.pad, signal.slot(self.lane), self.peer) }
    }

    fn withhold(&self, signal: Signal) {
        // SAFETY: as `new` was promised.
        unsafe { withhold_signal(&self.pad, signal.slot(self.lane), self.peer) }
    }

    fn expect(&self, signal: Signal) -> bool {
        // SAFETY: as `new` was promised.
        unsafe { expect_signal(&self.pad, signal.slot(self.lane), self.peer, 0) }
    }

    fn is_broken(&self) -> bool {
        // SAFETY: as `new` was promised.
        unsafe { is_faulted(&self.pad) }
    }
}

impl TransferBackend for Host {
    fn driver_stream(_stream: &HostStream) -> Option<CUstream> {
        None
    }

    unsafe fn signal_unless_stopped(
        &self,
        stream: &HostStream,
        pad: &PadView,
        slot: usize,
        peer: usize,
    ) -> Result<()> {
        let (lane, signal) = Signal::of_slot(slot);
        // SAFETY: the caller's obligation, until the work has ended.
        let link = unsafe { PadLink::new(pad, lane, peer) };
        let work = move || {
            protocol::signal(&link, signal);
            Ok(())
        };
        Ok(self.launch(stream, "transfer_signal", work)?)
    }

    unsafe fn fused_transfer(&self, stream: &HostStream, launch: &FusedTransfer) -> Result<()> {
        let launch = *launch;
        // SAFETY: the caller's obligation, until the work has ended.
        let link = unsafe { PadLink::new(&launch.pad, launch.lane, launch.peer) };
        let work = move || {
            protocol::transfer(&link, launch.role, || {
                let from = launch.from.as_host::<u8>();
                // SAFETY: the caller vouches for both ranges, and the peer has granted its own.
                unsafe { std::ptr::copy_nonoverlapping(from, launch.to.as_host(), launch.bytes) }
            });
            Ok(())
        };
        Ok(self.launch(stream, launch.engine.kernel(), work)?)
    }
}
