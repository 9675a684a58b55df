//! Backends that can carry transfers.

use cudarc::driver::sys::CUstream;
use warpweave_symm_mem::{Backend, DevicePtr, PadView};

use super::role::Role;
use crate::error::Result;

/// Which kernel does a transfer in one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKernel {
    /// `transfer_sm`: loads and stores.
    Sm,
    /// `transfer_bulk`: bulk copies through shared memory. Addresses that differ modulo 16 use
    /// [`TransferKernel::Sm`].
    Bulk,
}

impl TransferKernel {
    /// The kernel.
    pub const fn kernel(self) -> &'static str {
        match self {
            TransferKernel::Sm => "transfer_sm",
            TransferKernel::Bulk => "transfer_bulk",
        }
    }
}

/// A transfer in one launch: waits for the peer's flag, copies, signals the peer.
#[derive(Clone, Copy, Debug)]
pub struct FusedTransfer {
    /// [`Role::Get`] or [`Role::Put`].
    pub role: Role,
    /// The kernel.
    pub engine: TransferKernel,
    /// The peer.
    pub peer: usize,
    /// The lane.
    pub lane: usize,
    /// Where the bytes go.
    pub to: DevicePtr,
    /// Where they come from.
    pub from: DevicePtr,
    /// How many.
    pub bytes: usize,
    /// The pad of the endpoint.
    pub pad: PadView,
    /// The flag that the peer signals in this rank's pad.
    pub awaited: DevicePtr,
    /// The flag that this rank signals in the peer's pad.
    pub signalled: DevicePtr,
    /// Most blocks of the grid, if limited.
    pub max_blocks: Option<u32>,
}

impl FusedTransfer {
    /// Slot of the flag to wait for.
    pub fn wait_slot(&self) -> usize {
        self.role.awaited().slot(self.lane)
    }

    /// Slot of the flag to signal.
    pub fn signal_slot(&self) -> usize {
        self.role.signalled().slot(self.lane)
    }
}

/// A backend with the kernels of transfers.
pub trait TransferBackend: Backend {
    /// Loads the kernels that the device can run, so that no launch loads one while a peer waits.
    ///
    /// # Errors
    /// Errors of the driver; a missing capability is no error.
    fn preload_transfers(&self) -> Result<()> {
        Ok(())
    }

    /// The driver's stream, where there is one.
    fn driver_stream(stream: &Self::Stream) -> Option<CUstream>;

    /// Signals `peer` in `slot` on `stream`, unless a wait of the pad has failed.
    ///
    /// # Errors
    /// A capability that the device or the build lacks; errors of the driver.
    ///
    /// # Safety
    /// As [`Backend::signal`].
    unsafe fn signal_unless_stopped(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peer: usize,
    ) -> Result<()>;

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// As [`TransferBackend::signal_unless_stopped`].
    ///
    /// # Safety
    /// - Both ranges are mapped until the work has ended, do not overlap, and no unordered work conflicts but
    ///   the peer's, which the signals order.
    /// - `launch.pad` is the view of a live pad that has the slots, and `awaited` and `signalled` are its
    ///   flags.
    unsafe fn fused_transfer(&self, stream: &Self::Stream, launch: &FusedTransfer) -> Result<()>;
}
