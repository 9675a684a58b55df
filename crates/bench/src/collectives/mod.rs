//! The suite `collectives`: every variant of every operation over symmetric memory, and NCCL, from kilobytes
//! to hundreds of megabytes.
//!
//! The size of a row is what a rank brings: the input of an all-gather, of which the output is `world` times
//! as large; the whole input of a reduce-scatter or an all-to-all, of which a rank keeps or sends `1 /
//! world`; the tensor of an all-reduce or a broadcast.

mod candidate;
mod costs;
pub mod decode;
mod expected;
mod memory;
mod method;
mod nccl;
mod numbers;
mod operation;
mod run;

pub use candidate::alone;
pub use costs::costs;
pub use method::catalogue;
pub use nccl::NcclBackend;
pub use operation::{DEFAULT_OPERATIONS, operation, sizes};
pub(crate) use run::measure;
