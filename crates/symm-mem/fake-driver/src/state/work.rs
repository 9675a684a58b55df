//! Work for streams: copies, fills, and the kernels that the driver knows by name.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A work item. Host memory is an address, accessed when the work runs.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy { to: u64, from: u64, bytes: usize },
    Upload { to: u64, from: usize, bytes: usize },
    Download { to: usize, from: u64, bytes: usize },
    Fill { to: u64, value: u8, bytes: usize },
    Kernel(Kernel),
}

impl Work {
    /// The device memory that it uses; for a kernel, what its parameters point to.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let range = |at: u64, bytes: usize| at..at + bytes as u64;
        match *self {
            Work::Copy { to, from, bytes } => vec![range(to, bytes), range(from, bytes)],
            Work::Upload { to, bytes, .. } | Work::Fill { to, bytes, .. } => vec![range(to, bytes)],
            Work::Download { from, bytes, .. } => vec![range(from, bytes)],
            Work::Kernel(ref kernel) => kernel.ranges(),
        }
    }
}

/// The kernels' first parameter: `PadView` in `warpweave/signal.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Pad {
    pub fault: u64,
    pub stopped: u64,
    pub stopped_on_host: u64,
    pub timeout_ns: u64,
    pub rank: u32,
    pub world: u32,
    pub slots: u32,
    pub reserved: u32,
    pub peers: u64,
    pub sent: u64,
    pub expected: u64,
    pub tickets: u64,
}

/// A kernel with its parameters.
#[derive(Clone, Debug)]
pub(crate) enum Kernel {
    Signal {
        pad: Pad,
        slot: u32,
        peers: u64,
    },
    Wait {
        pad: Pad,
        slot: u32,
        peers: u64,
        lag: u32,
    },
    Copy {
        stopped: u64,
        to: u64,
        from: u64,
        bytes: usize,
    },
    Delay {
        time: Duration,
    },
    Unknown,
}

impl Kernel {
    /// The kernel `name` with a copy of its parameters.
    ///
    /// # Safety
    /// `parameters` points to an address of each parameter that the kernel of this name takes.
    pub unsafe fn of(name: &str, parameters: *mut *mut c_void) -> Kernel {
        // SAFETY: the caller's obligation, in the order and of the types of the kernels.
        unsafe {
            match name {
                "warpweave_signal" => Kernel::Signal {
                    pad: *(*parameters).cast(),
                    slot: *(*parameters.add(1)).cast(),
                    peers: *(*parameters.add(2)).cast(),
                },
                "warpweave_wait" => Kernel::Wait {
                    pad: *(*parameters).cast(),
                    slot: *(*parameters.add(1)).cast(),
                    peers: *(*parameters.add(2)).cast(),
                    lag: *(*parameters.add(3)).cast(),
                },
                "warpweave_copy" => Kernel::Copy {
                    stopped: *(*parameters).cast(),
                    to: *(*parameters.add(1)).cast(),
                    from: *(*parameters.add(2)).cast(),
                    bytes: *(*parameters.add(3)).cast(),
                },
                "warpweave_delay" => Kernel::Delay {
                    time: Duration::from_nanos(*(*parameters).cast()),
                },
                _ => Kernel::Unknown,
            }
        }
    }

    /// The ranges of device memory that the parameters point to.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        match self {
            Kernel::Signal { pad, .. } | Kernel::Wait { pad, .. } => {
                let counters = 4 * u64::from(pad.slots * pad.world);
                let table = 8 * u64::from(pad.world);
                vec![
                    pad.peers..pad.peers + table,
                    pad.sent..pad.sent + counters,
                    pad.expected..pad.expected + counters,
                    pad.fault..pad.fault + 64,
                    pad.stopped..pad.stopped + 4,
                    pad.stopped_on_host..pad.stopped_on_host + 4,
                ]
            }
            &Kernel::Copy {
                stopped,
                to,
                from,
                bytes,
            } => vec![
                stopped..stopped + 4,
                to..to + bytes as u64,
                from..from + bytes as u64,
            ],
            Kernel::Delay { .. } | Kernel::Unknown => Vec::new(),
        }
    }
}

/// One recording of an event: when the stream reached it.
pub(crate) type Recording = Arc<OnceLock<Instant>>;

/// An item in a stream's queue.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Run(Work),
    Reach(Recording),
    Await(Recording),
}

/// A stream's handle and its context, because the default streams of all contexts have the same handles.
pub(crate) type Key = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub waiting: VecDeque<Item>,
    pub running: Option<Item>,
}
