//! Collectives of the host backend, where NCCL has no say.

mod all_gather;

pub use all_gather::HostAllGather;
