//! The binary, run as it is by real processes.

mod bench;
mod collectives;
mod faults;
mod job;
mod plan;
mod suites;
