//! NCCL, loaded at run time, with bounded waits.
//!
//! Communicators are non-blocking: if a peer dies while they come up, or in the first collective (which
//! connects the ranks), the call ends with an error at the deadline instead of hanging. Every launch then
//! goes through a thread of NCCL's, which costs the host tens of microseconds; [`Launch::Blocking`] trades
//! the bound on launches for that time.
//!
//! Each function has the version that introduced it. Which functions are used depends on the version of the
//! loaded library alone, which is the same on all ranks, so all ranks take the same path.
//!
//! A communicator lists what is registered with it and shares ownership of that memory. Windows,
//! registrations and the communicator may be dropped in any order; an abort waits for an open call or group
//! (`state`).
//!
//! NCCL's own environment variables (`NCCL_NVLS_ENABLE=0`, `NCCL_DEBUG`, …) are left alone.

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
