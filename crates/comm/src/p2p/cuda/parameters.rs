//! Kernel parameters, laid out as the structure of the same name in `cuda/transfer.cuh`.

use std::mem::offset_of;

use warpweave_symm_mem::{DevicePtr, PadView};

use super::grid::Shape;
use crate::p2p::FusedTransfer;

/// Parameter of `transfer_sm` and `transfer_bulk`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Transfer {
    to: DevicePtr,
    from: DevicePtr,
    bytes: u64,
    awaited: DevicePtr,
    signalled: DevicePtr,
    pad: PadView,
    peer: u32,
    wait: u32,
    signal: u32,
    chunk: u32,
    stages: u32,
    reserved: u32,
}
const _: () = {
    assert!(size_of::<Transfer>() == 5 * 8 + size_of::<PadView>() + 6 * 4);
    assert!(offset_of!(Transfer, awaited) == 24 && offset_of!(Transfer, pad) == 40);
    assert!(offset_of!(Transfer, peer) == 120 && offset_of!(Transfer, stages) == 136);
};

impl Transfer {
    /// Slots and ranks were checked to fit.
    pub fn new(launch: &FusedTransfer, shape: Shape) -> Self {
        Transfer {
            to: launch.to,
            from: launch.from,
            bytes: launch.bytes as u64,
            awaited: launch.awaited,
            signalled: launch.signalled,
            pad: launch.pad,
            peer: launch.peer as u32,
            wait: launch.wait_slot() as u32,
            signal: launch.signal_slot() as u32,
            chunk: shape.chunk,
            stages: shape.stages,
            reserved: 0,
        }
    }
}
