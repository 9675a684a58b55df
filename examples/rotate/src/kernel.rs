//! What a launch takes, and the backends that can launch it.

use warpweave_symm_mem::{Backend, DevicePtr, PadView, Result};

/// The kernel's parameter. `cuda/rotate.cu` has the same layout.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rotate {
    /// This rank's block: `count` f32.
    pub block: DevicePtr,
    /// This rank's inbox, `count` f32 in symmetric memory.
    pub inbox: DevicePtr,
    /// The right neighbour's inbox, as mapped here.
    pub there: DevicePtr,
    /// Where the left neighbour's block goes: `count` f32.
    pub out: DevicePtr,
    /// The pad of the two slots.
    pub pad: PadView,
    /// Elements of a block.
    pub count: u32,
    /// Slot: "the block is in your inbox".
    pub sent: u32,
    /// Slot: "your block has been taken out of my inbox".
    pub taken: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<Rotate>() == 128);

/// A backend with the kernel.
pub trait RotateKernel: Backend {
    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// What the device or the build lacks; what the driver reports.
    ///
    /// # Safety
    /// - The addresses cover what [`Rotate`] says, until the work has ended; `block` and `out` overlap no inbox.
    /// - The pad lives until then, and nothing but these launches uses its two slots on any rank. All ranks launch alike.
    unsafe fn rotate(&self, stream: &Self::Stream, launch: Rotate) -> Result<()>;
}
