//! An eventfd that wakes a thread, and bounded waits on descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::requests::Wake;
use crate::error::{CommError, Result};

/// Once woken, stays readable.
pub(crate) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(|e| CommError::io("making an eventfd (is ulimit -n reached?)", e))
    }

    pub(crate) fn wake(&self) {
        // If the counter is full the descriptor is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Wake for WakeFd {
    fn wake(&self) {
        WakeFd::wake(self);
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `fds` is ready or the deadline passes (then none is). Errors and hang-ups count as
/// ready.
pub(crate) fn wait_ready(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<()> {
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(i64::from(u32::MAX) as u64) as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(fds, timeout.as_ref()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(CommError::io("polling descriptors", e)),
            Ok(_) => return Ok(()),
        }
    }
}

pub(crate) fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.revents().intersects(
        PollFlags::IN | PollFlags::OUT | PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL,
    )
}
