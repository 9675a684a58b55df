//! The binary, run as it is by real processes.

mod bench;
mod cable;
mod collectives;
mod decode;
mod faults;
mod hosts;
mod job;
mod logging;
mod measure;
mod nvtx;
#[path = "../../../report/tests/cli/page.rs"]
mod page;
mod plan;
mod recorded;
mod regressions;
mod suites;
