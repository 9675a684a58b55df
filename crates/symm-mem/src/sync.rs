//! The threads, locks and clock of the host backend: the machine's, or, with `--cfg shuttle`, those of a scheduler that
//! takes the threads in an order of its own.
//!
//! It is hidden, and public only for the host references of the crates above: what waits in them waits by the same clock.

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
