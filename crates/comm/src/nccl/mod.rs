//! NCCL, loaded at run time, with bounded waits.
//!
//! Communicators are made non-blocking: a peer that died while they come up, or in the first collective (which connects
//! the ranks), ends in an error at the deadline and not in a hang. Every launch then goes through a thread of NCCL's, which
//! costs the host tens of microseconds; [`Launch::Blocking`] trades the bound on launches for that time.
//!
//! Each function carries the version that brought it, and is decided by the version of the loaded library alone, on which
//! the ranks agree: no rank takes a way that another does not have.
//!
//! What is registered with a communicator is kept in its list, with a share of the memory. Windows, registrations and the
//! communicator may be dropped in any order; an abort waits for the call or the group that is open (`state`).
//!
//! What NCCL reads from the environment (`NCCL_NVLS_ENABLE=0`, `NCCL_DEBUG`, …) is left as it is.

mod agreement;
mod api;
mod collectives;
mod comm;
mod config;
mod element;
mod fault;
mod group;
mod library;
mod memory;
mod registration;
mod state;
mod teardown;
mod uneven;
mod version;
mod window;
mod zero_cta;

pub use api::{ncclComm, ncclComm_t};
pub use comm::{NcclAborter, NcclComm};
pub use config::{CtaPolicy, Launch, NcclOptions};
pub use element::{Element, ReduceOp};
pub use library::NcclLibrary;
pub use memory::NcclMemory;
pub use version::{NcclVersion, OLDEST_NCCL};
pub use window::{NcclRegistration, NcclWindow, WindowKind};
pub use zero_cta::{Collective, NoZeroCta};
