//! The twin of `cuda/rotate.cu`: the same steps on the thread of a host stream.

use warpweave_symm_mem::host::{expect_signal, record, send_signal};

use crate::launch::RotateLaunch;

/// # Safety
/// The addresses and the pad are as [`RotateLaunch`] says, and all ranks launch alike.
pub unsafe fn rotate(launch: &RotateLaunch) {
    let &RotateLaunch { ref pad, count, .. } = launch;
    let (rank, world) = (pad.rank as usize, pad.world as usize);
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    let (sent, taken) = (launch.sent as usize, launch.taken as usize);
    let [block, receive, there, out] =
        [launch.block, launch.receive, launch.there, launch.out].map(|at| at.as_host::<f32>());
    // SAFETY: the ranges are the caller's obligation. A receive buffer is written between its owner's `taken`
    // and the writer's `sent`, and read between the two the other way round.
    unsafe {
        if !expect_signal(pad, taken, right, 1) {
            return;
        }
        record::copy(block, there, count as usize);
        send_signal(pad, sent, right);
        if !expect_signal(pad, sent, left, 0) {
            return;
        }
        record::copy(receive, out, count as usize);
        send_signal(pad, taken, left);
    }
}
