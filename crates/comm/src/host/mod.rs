//! Collectives of the host backend, where NCCL has no say.

mod collectives;

pub use collectives::HostCollectives;
