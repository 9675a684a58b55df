//! The binary, run as it is by real processes.

mod bench;
mod browser;
mod cable;
mod collectives;
mod decode;
mod faults;
mod hosts;
mod job;
mod logging;
mod measure;
mod nvtx;
mod page;
mod plan;
mod regressions;
mod report;
mod suites;
