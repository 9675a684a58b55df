//! Threads, locks and clock of the host backend: those of the system or, with `--cfg shuttle`, those of a
//! scheduler that chooses the interleaving.
//!
//! Hidden, and public only for the host references in other crates, whose waits must use the same clock.

#[cfg(shuttle)]
mod scheduled;

#[cfg(not(shuttle))]
pub use parking_lot::{Condvar, Mutex};
#[cfg(shuttle)]
pub use scheduled::{Condvar, Instant, Mutex};
#[cfg(shuttle)]
pub use shuttle::thread;
#[cfg(not(shuttle))]
pub use std::{thread, time::Instant};
