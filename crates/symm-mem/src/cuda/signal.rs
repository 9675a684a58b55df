//! Signals and waits as stream operations, by the kernels of `cuda/signal.cu`.

use std::ffi::c_void;
use std::time::Duration;

use super::Cuda;
use super::launch::{Image, LaunchConfig};
use super::stream::CudaStream;
use crate::backend::{Backend, DevicePtr};
use crate::error::{Error, Result};
use crate::pad::PadView;

static SIGNAL: Image = crate::device_image!("signal", sm_90a, compute_80);

// `signal.cuh` asserts the same layouts.
const _: () = {
    use crate::pad::{FLAG_STRIDE, FaultRecord, StopFlags};
    use std::mem::offset_of;
    assert!(size_of::<PadView>() == 80 && align_of::<PadView>() == 8);
    assert!(offset_of!(PadView, fault) == 0 && offset_of!(PadView, stop) == 8);
    assert!(offset_of!(StopFlags, device) == 0 && offset_of!(StopFlags, host) == 8);
    assert!(offset_of!(PadView, timeout_ns) == 24 && offset_of!(PadView, rank) == 32);
    assert!(offset_of!(PadView, world) == 36 && offset_of!(PadView, slots) == 40);
    assert!(offset_of!(PadView, reserved) == 44);
    assert!(offset_of!(PadView, peers) == 48 && offset_of!(PadView, sent) == 56);
    assert!(offset_of!(PadView, expected) == 64 && offset_of!(PadView, tickets) == 72);
    assert!(size_of::<FaultRecord>() == FaultRecord::BYTES && FaultRecord::BYTES == 64);
    assert!(offset_of!(FaultRecord, notice) == 0 && offset_of!(FaultRecord, state) == 4);
    assert!(offset_of!(FaultRecord, waiter) == 8 && offset_of!(FaultRecord, peer) == 12);
    assert!(offset_of!(FaultRecord, slot) == 16 && offset_of!(FaultRecord, expected) == 20);
    assert!(offset_of!(FaultRecord, seen) == 24 && offset_of!(FaultRecord, cause) == 28);
    assert!(offset_of!(FaultRecord, waited_us_low) == 32);
    assert!(offset_of!(FaultRecord, missing_low) == 40);
    assert!(FLAG_STRIDE == 32);
};

/// Threads of a block that copies.
const COPY_THREADS: u32 = 512;

/// What such a block has in flight: eight loads of 16 bytes a thread (`range.cuh`).
const COPY_BLOCK_BYTES: usize = COPY_THREADS as usize * 8 * 16;

/// Blocks that keep a link busy and leave most SMs to other kernels.
const COPY_BLOCKS: usize = 32;

/// Blocks of the kernel that copies `bytes` to a peer so that a failed wait can stop it.
pub fn copy_blocks(bytes: usize) -> usize {
    bytes.div_ceil(COPY_BLOCK_BYTES).min(COPY_BLOCKS)
}

/// The peers as a bit set.
fn mask(peers: &[usize]) -> Result<u64> {
    peers.iter().try_fold(0u64, |mask, &peer| {
        if peer >= 64 || mask & (1 << peer) != 0 {
            return Err(Error::InvalidArgument {
                what: "peers",
                why: format!(
                    "rank {peer} is listed twice or is not below 64, the largest group of one \
                stream operation"
                ),
            });
        }
        Ok(mask | 1 << peer)
    })
}

impl Cuda {
    /// Loads the signal kernels before anything waits, because loading may need an idle device. If the build
    /// or the device lacks them, the first signal reports it.
    pub(super) fn preload_signals(&self) -> Result<()> {
        for name in [
            "warpweave_signal",
            "warpweave_wait",
            "warpweave_copy",
            "warpweave_delay",
        ] {
            match self.function(&SIGNAL, name) {
                Err(error) if !error.is_unavailable() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Backend::signal`](crate::Backend::signal).
    pub(super) unsafe fn launch_signal(
        &self,
        stream: &CudaStream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
    ) -> Result<()> {
        if peers.is_empty() {
            return Ok(());
        }
        let (mut pad, mut slot, mut mask) = (*pad, slot as u32, mask(peers)?);
        let mut parameters = [argument(&mut pad), argument(&mut slot), argument(&mut mask)];
        // SAFETY: the kernel takes a pad, a slot and a mask by value; the pad is the caller's obligation.
        unsafe { self.launch_in_one_block(stream, "warpweave_signal", &mut parameters) }
    }

    /// # Safety
    /// As for [`Backend::wait`](crate::Backend::wait).
    pub(super) unsafe fn launch_wait(
        &self,
        stream: &CudaStream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()> {
        if peers.is_empty() {
            return Ok(());
        }
        let (mut pad, mut slot, mut mask, mut lag) = (*pad, slot as u32, mask(peers)?, lag);
        let mut parameters = [
            argument(&mut pad),
            argument(&mut slot),
            argument(&mut mask),
            argument(&mut lag),
        ];
        // SAFETY: the kernel takes a pad, a slot, a mask and a lag by value; the pad is the caller's
        // obligation.
        unsafe { self.launch_in_one_block(stream, "warpweave_wait", &mut parameters) }
    }

    /// # Safety
    /// As for [`Backend::copy_unless_stopped`].
    pub(super) unsafe fn launch_copy(
        &self,
        stream: &CudaStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 || self.leaves_out_copies(stream)? {
            return Ok(());
        }
        let Some(mut stopped) = self.stop_flag() else {
            // SAFETY: the caller's obligation.
            return unsafe { self.copy(stream, dst, src, bytes) };
        };
        let function = match self.function(&SIGNAL, "warpweave_copy") {
            Ok(function) => function,
            // A build without the kernel has no kernels that wait either, so only the host stops the device.
            Err(Error::FeatureMissing { .. }) => {
                // SAFETY: the caller's obligation.
                return unsafe { self.push_by_engine(stream, dst, src, bytes) };
            }
            Err(error) => return Err(error),
        };
        let (mut dst, mut src, mut size) = (dst, src, bytes as u64);
        let mut parameters = [
            argument(&mut stopped),
            argument(&mut dst),
            argument(&mut src),
            argument(&mut size),
        ];
        let config = LaunchConfig::linear(copy_blocks(bytes) as u32, COPY_THREADS);
        // SAFETY: the kernel takes three addresses and a size by value. The flag lives as long as the device,
        // the ranges are the caller's obligation.
        unsafe { self.launch(stream, &function, config, &mut parameters) }
    }

    pub(super) fn launch_delay(&self, stream: &CudaStream, time: Duration) -> Result<()> {
        let mut ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the kernel takes nanoseconds by value and touches no memory.
        unsafe { self.launch_in_one_block(stream, "warpweave_delay", &mut [argument(&mut ns)]) }
    }

    /// # Safety
    /// As for [`Cuda::launch`].
    unsafe fn launch_in_one_block(
        &self,
        stream: &CudaStream,
        name: &'static str,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        let function = self.function(&SIGNAL, name)?;
        let threads = if name == "warpweave_delay" { 1 } else { 64 };
        // SAFETY: the caller's obligation.
        unsafe {
            self.launch(
                stream,
                &function,
                LaunchConfig::linear(1, threads),
                parameters,
            )
        }
    }
}

fn argument<T>(value: &mut T) -> *mut c_void {
    (value as *mut T).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_become_bits() {
        assert_eq!(mask(&[0, 3, 63]).unwrap(), 1 | 8 | 1 << 63);
        assert!(mask(&[64]).is_err() && mask(&[1, 1]).is_err());
    }
}
