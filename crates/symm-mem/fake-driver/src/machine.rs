//! The simulated machine, from environment variables.

use std::env;

/// Variable: number of devices; two by default. With none, `cuInit` fails.
pub const DEVICES: &str = "WARPWEAVE_FAKE_DEVICES";

/// Variable: capabilities that the devices lack, separated by commas: `vmm`, `descriptor`, `multicast`,
/// `peer`; or the process: `imex`, without which memory with fabric handles is not permitted.
pub const WITHOUT: &str = "WARPWEAVE_FAKE_WITHOUT";

/// Variable: capabilities that the devices have beyond the default: `fabric`, `pools`.
pub const WITH: &str = "WARPWEAVE_FAKE_WITH";

/// Variable: granularity of allocation in bytes, a power of two of at least a page; 2 MiB by default.
pub const GRANULARITY: &str = "WARPWEAVE_FAKE_GRANULARITY";

/// Variable: granularity of multicast binding in bytes; by default that of allocation.
pub const MULTICAST_GRANULARITY: &str = "WARPWEAVE_FAKE_MULTICAST_GRANULARITY";

/// Variable: with `1`, streams run their work on threads of their own instead of when it is enqueued.
pub const ASYNCHRONOUS: &str = "WARPWEAVE_FAKE_ASYNCHRONOUS";

/// The largest number of devices of a multicast object.
pub(crate) const MOST_DEVICES: usize = 16;

/// Memory of one device. The files are sparse, so the machine need not have it.
pub(crate) const DEVICE_BYTES: usize = 64 << 30;

#[derive(Debug)]
pub(crate) struct Machine {
    pub devices: i32,
    pub vmm: bool,
    pub descriptor: bool,
    pub multicast: bool,
    pub peer: bool,
    pub fabric: bool,
    pub imex: bool,
    pub pools: bool,
    pub asynchronous: bool,
    pub granularity: usize,
    pub multicast_granularity: usize,
}

impl Machine {
    pub fn of_environment() -> Self {
        let number = |name| env::var(name).ok().and_then(|text| text.parse().ok());
        let list = |name| env::var(name).unwrap_or_default();
        let (without, with) = (list(WITHOUT), list(WITH));
        let lacks = |what| without.split(',').any(|w| w == what);
        let has = |what| with.split(',').any(|w| w == what);
        let granularity = number(GRANULARITY).unwrap_or(2 << 20);
        Machine {
            devices: number(DEVICES).unwrap_or(2).min(MOST_DEVICES) as i32,
            vmm: !lacks("vmm"),
            descriptor: !lacks("descriptor"),
            multicast: !lacks("multicast"),
            peer: !lacks("peer"),
            fabric: has("fabric"),
            imex: !lacks("imex"),
            pools: has("pools"),
            asynchronous: list(ASYNCHRONOUS) == "1",
            granularity,
            multicast_granularity: number(MULTICAST_GRANULARITY).unwrap_or(granularity),
        }
    }

    pub fn has(&self, device: i32) -> bool {
        (0..self.devices).contains(&device)
    }
}
