//! The host backend, ranks as threads or as processes: one program, since each links the whole crate.

mod agreement;
mod alone;
#[path = "../support/descriptors.rs"]
mod descriptors;
#[path = "../support/faulty.rs"]
mod faulty;
mod ipc;
mod ipc_confined;
mod ipc_leaks;
mod ipc_reuse;
mod leaks;
mod memory;
mod multicast;
mod pool;
mod processes;
#[path = "../support/processes.rs"]
mod ranks;
#[path = "../support/sharing.rs"]
mod sharing;
