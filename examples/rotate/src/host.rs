//! The twin of `cuda/rotate.cu`: the same steps on the thread of a host stream.

use warpweave_symm_mem::host::{HostStream, expect_signal, send_signal};
use warpweave_symm_mem::{Host, Result};

use crate::kernel::{Rotate, RotateKernel};

impl RotateKernel for Host {
    unsafe fn rotate(&self, stream: &HostStream, launch: Rotate) -> Result<()> {
        let work = move || {
            // SAFETY: the caller's obligations are those of the twin, kept until the work has ended.
            unsafe { rotate(&launch) };
            Ok(())
        };
        self.launch(stream, "rotate", work)
    }
}

/// # Safety
/// As for [`RotateKernel::rotate`].
unsafe fn rotate(launch: &Rotate) {
    let &Rotate { ref pad, count, .. } = launch;
    let (rank, world) = (pad.rank as usize, pad.world as usize);
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    let (sent, taken) = (launch.sent as usize, launch.taken as usize);
    let [block, inbox, there, out] =
        [launch.block, launch.inbox, launch.there, launch.out].map(|at| at.as_host::<f32>());
    // SAFETY: the ranges are the caller's obligation. An inbox is written between its owner's `taken` and the writer's
    // `sent`, and read between the two the other way round.
    unsafe {
        if !expect_signal(pad, taken, right, 1) {
            return;
        }
        there.copy_from(block, count as usize);
        send_signal(pad, sent, right);
        if !expect_signal(pad, sent, left, 0) {
            return;
        }
        out.copy_from(inbox, count as usize);
        send_signal(pad, taken, left);
    }
}
