//! NCCL, loaded at run time, with bounded waits.
//!
//! Communicators are made non-blocking: a peer that died while they come up, or in the first collective (which connects
//! the ranks), ends in an error at the deadline and not in a hang. Every launch then goes through a thread of NCCL's, which
//! costs the host tens of microseconds; [`Launch::Blocking`] trades the bound on launches for that time.
//!
//! What NCCL reads from the environment (`NCCL_NVLS_ENABLE=0`, `NCCL_DEBUG`, …) is left as it is.

mod api;
mod collectives;
mod comm;
mod element;
mod library;
mod teardown;

pub use comm::{Launch, NcclComm, NcclOptions};
pub use element::{Element, ReduceOp};
pub use library::{NcclLibrary, NcclVersion, OLDEST_NCCL};
