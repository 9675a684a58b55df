//! The binary, run as it is by real processes.

mod bench;
mod collectives;
mod faults;
mod job;
mod measure;
mod plan;
mod regressions;
mod suites;
mod timeline;
