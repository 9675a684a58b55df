//! Memory on GPUs. What counts leaks is in programs of its own.

mod batch;
#[path = "../support/descriptors.rs"]
mod descriptors;
mod ipc;
mod memory;
#[path = "../support/processes.rs"]
mod processes;
#[path = "../support/sharing.rs"]
mod sharing;
