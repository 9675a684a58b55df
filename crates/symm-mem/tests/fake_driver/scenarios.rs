//! Scenarios of programs with symmetric memory, with threads as ranks on a device each.

mod bodies;
mod caches;
mod hosts;
mod slices;
mod stopped;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use warpweave_fake_driver::{Call, Control, DEVICES, Failure, WITH};
use warpweave_symm_mem::multicast::guard_process;
use warpweave_symm_mem::{Cuda, Error, Exchange, Result, ThreadExchange};

pub use hosts::answer as answer_of_hosts;
pub use stopped::nothing_is_copied;

/// A rank of a scenario.
pub struct Rank {
    pub rank: usize,
    pub world: usize,
    pub exchange: Arc<dyn Exchange>,
    /// Timeout of waits for signals.
    pub timeout: Duration,
}

impl Rank {
    pub fn device(&self) -> Result<Cuda> {
        let devices = std::env::var(DEVICES).map_or(2, |n| n.parse().unwrap());
        Ok(Cuda::new(self.rank % devices)?.with_timeout(self.timeout))
    }

    pub fn barrier(&self, name: &str) -> Result<()> {
        Ok(self.exchange.barrier(name)?)
    }
}

/// What a rank holds at the end of its work, to be dropped.
pub type Kept = Box<dyn Any>;

#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub world: usize,
    pub multicast: bool,
    /// The ranks share memory that is their own, and not the library's.
    pub own_memory: bool,
    /// What the devices must have beyond the default: the value of [`WITH`].
    pub needs: &'static str,
    pub body: fn(&Rank) -> Result<Kept>,
}

pub const SCENARIOS: &[Scenario] = &[
    Scenario::of("buffer-1", 1, bodies::buffer),
    Scenario::of("buffer-2", 2, bodies::buffer),
    Scenario::of("buffer-4", 4, bodies::buffer),
    Scenario::of("pad", 2, bodies::pad),
    Scenario::of("graph", 2, bodies::graph),
    Scenario::of("streams", 1, bodies::streams),
    Scenario::of("dropped", 2, bodies::dropped),
    Scenario::of("twins", 1, bodies::twins),
    Scenario::of("captured", 1, bodies::captured),
    Scenario::of("early", 1, bodies::early),
    Scenario::of("batch", 1, bodies::batch),
    Scenario::of("adoption", 1, bodies::adoption),
    Scenario::of("slice", 1, slices::shared),
    Scenario::of("plain-memory", 2, caches::plain_memory).with_own_memory(),
    Scenario::of("virtual-memory", 2, caches::virtual_memory).with_own_memory(),
    Scenario::of("fabric-memory", 2, caches::fabric_memory)
        .with_own_memory()
        .with("fabric"),
    Scenario::of("hosts", 2, hosts::buffer).with("fabric"),
    Scenario::of("pooled-memory", 2, caches::pooled_memory)
        .with_own_memory()
        .with("pools"),
    Scenario::of("pool", 2, caches::pool),
    Scenario::of("multicast", 2, bodies::multicast).with_multicast(),
    Scenario::of("multicast-cache", 2, caches::multicast).with_multicast(),
];

/// How a rank's work went.
#[derive(Debug)]
pub struct Ended {
    pub outcome: Result<()>,
    /// The rank's driver calls up to the end of its work; later ones free what it held.
    pub calls: u64,
}

impl Scenario {
    const fn of(name: &'static str, world: usize, body: fn(&Rank) -> Result<Kept>) -> Self {
        Scenario {
            name,
            world,
            multicast: false,
            own_memory: false,
            needs: "",
            body,
        }
    }

    const fn with_own_memory(mut self) -> Self {
        self.own_memory = true;
        self
    }

    const fn with(mut self, needs: &'static str) -> Self {
        self.needs = needs;
        self
    }

    const fn with_multicast(mut self) -> Self {
        self.multicast = true;
        self
    }

    /// Runs it with one call failing. Panics if a rank panics.
    pub fn run(&self, driver: &Control, failure: Option<Failure>, timeout: Duration) -> Vec<Ended> {
        driver.restart(failure);
        let (driver, body) = (*driver, self.body);
        let group = ThreadExchange::group_with_timeout(self.world, Duration::from_secs(30));
        let threads: Vec<_> = group
            .into_iter()
            .map(|exchange| {
                std::thread::spawn(move || {
                    let (rank, world) = (exchange.rank(), exchange.world());
                    driver.rank(rank);
                    let rank = Rank {
                        rank,
                        world,
                        exchange: Arc::new(exchange),
                        timeout,
                    };
                    let ended = catch_unwind(AssertUnwindSafe(|| body(&rank)));
                    let calls = driver
                        .calls()
                        .iter()
                        .filter(|c| c.rank == rank.rank)
                        .count();
                    let outcome = ended.expect("a rank panicked").map(drop);
                    Ended {
                        outcome,
                        calls: calls as u64,
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a rank panicked"))
            .collect()
    }

    /// The scenario of this name.
    pub fn named(name: &str) -> &'static Scenario {
        SCENARIOS.iter().find(|s| s.name == name).unwrap()
    }

    /// Whether it can run here.
    pub fn is_allowed(&self) -> bool {
        let has = std::env::var(WITH).unwrap_or_default();
        self.multicast == guard_process().is_ok() && self.needs == has
    }
}

/// Runs every scenario without failures: no rule is broken and nothing leaks.
pub fn all_are_sound(driver: &Control) {
    let mut run = 0;
    for scenario in SCENARIOS.iter().filter(|s| s.is_allowed()) {
        let name = scenario.name;
        for ended in scenario.run(driver, None, Duration::from_secs(20)) {
            ended
                .outcome
                .unwrap_or_else(|error: Error| panic!("{name}: {error}"));
        }
        assert_eq!(driver.faults(), [""; 0], "{name}");
        assert_eq!(driver.live(), [""; 0], "{name}");
        run += 1;
    }
    assert!(run > 0);
}

/// The calls of one rank's buffer, in their order.
pub fn calls_of_an_allocation(driver: &Control) {
    let scenario = Scenario::named("buffer-1");
    for ended in scenario.run(driver, None, Duration::from_secs(20)) {
        ended.outcome.unwrap();
    }
    let memory = |call: &Call| {
        let name = call.function.strip_prefix("cuMem")?;
        let moves = name.starts_with("cpy") || name.starts_with("set");
        (!moves).then(|| name.to_owned())
    };
    let calls: Vec<_> = driver.calls().iter().filter_map(memory).collect();
    let expected = [
        "GetAllocationGranularity",
        // The memory, zeroed through a mapping of its own.
        "Create",
        "AddressReserve",
        "Map",
        "SetAccess",
        "Unmap",
        "AddressFree",
        "ExportToShareableHandle",
        // All ranks' parts, contiguously.
        "AddressReserve",
        "Map",
        "SetAccess",
        // The table of peers.
        "Alloc_v2",
        // In reverse order.
        "Free_v2",
        "Unmap",
        "AddressFree",
        "Release",
    ];
    assert_eq!(calls, expected);
}
