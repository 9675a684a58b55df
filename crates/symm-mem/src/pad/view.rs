//! What kernels see of a pad.

use crate::address::DevicePtr;

/// Distance between two flags in bytes: one sector of the GPU's caches, so that flags do not share one.
pub const FLAG_STRIDE: usize = 32;

/// What kernels get to see of a pad, by value. The same layout in Rust and in `signal.cuh`; on the host
/// backend the addresses are plain ones and the flags are atomics.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PadView {
    /// This rank's fault record, after the flags: a peer's is at the same distance from the peer's flags.
    pub fault: DevicePtr,
    /// The [`StopFlags`] of this rank's device.
    pub stop: StopFlags,
    /// Nanoseconds after which a wait gives up.
    pub timeout_ns: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Number of slots.
    pub slots: u32,
    /// Zero.
    pub reserved: u32,
    /// Address of a table of `world` addresses (u64): the flags of every rank's pad, as mapped here.
    pub peers: DevicePtr,
    /// `[slots][world]` u32: the epoch last sent to each peer.
    pub sent: DevicePtr,
    /// `[slots][world]` u32: the epoch last waited for from each peer.
    pub expected: DevicePtr,
    /// `[slots][world]` u32: counters for the blocks of a grid, zero between kernels.
    pub tickets: DevicePtr,
}

impl PadView {
    /// Byte offset of the fault record from the first flag of a pad.
    pub const fn fault_offset(world: usize, slots: usize) -> usize {
        Self::flag_offset(world, slots, 0)
    }

    /// Byte offset of the flag that `source` writes in `slot`.
    pub const fn flag_offset(world: usize, slot: usize, source: usize) -> usize {
        (slot * world + source) * FLAG_STRIDE
    }
}

/// Two u32 of a device, shared by all its pads. Nonzero once waiting is pointless. On the host backend both
/// are the same cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StopFlags {
    /// In device memory, set by the first failing wait of the device. Every signal checks it first.
    pub device: DevicePtr,
    /// In host memory that the device can access: [`StopFlags::FAILED`] or [`StopFlags::BY_HOST`]. By it the
    /// host learns of a failed wait without a synchronisation, and stops kernels that wait, since they poll
    /// it.
    pub host: DevicePtr,
}

impl StopFlags {
    /// A wait of the device has failed.
    pub const FAILED: u32 = 1;
    /// The host has stopped the device.
    pub const BY_HOST: u32 = 2;
}
