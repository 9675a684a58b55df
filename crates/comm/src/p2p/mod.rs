//! Point to point: zero-copy *get* and *put* between ranks, ordered by streams.
//!
//! A transfer has two ends, which meet on the device and never on the host:
//! - **get**: the owner [exposes](Channel::expose) a range, the reader [gets](Channel::get) it. The owner's token is
//!   through when the range has been read.
//! - **put**: the receiver [accepts](Channel::accept) into a range, the writer [puts](Channel::put) to it. The receiver's
//!   token is through when the range has been written.
//!
//! # Who matches whom
//! The k-th get on a lane of a pair of ranks takes what the k-th expose on it gave, and the k-th put goes where the k-th
//! accept said. Any number may be in flight, in both directions of a pair. Lanes know nothing of each other. What a rank
//! does on one lane with one peer is ordered on its device: on one stream, or on several that events order.
//!
//! # Tokens
//! Every post returns a [`Token`] that remembers what it was posted with; [`Token::wait`] consumes it. Tokens may be waited
//! for in any order. One that is dropped enqueues nothing and loses no epoch, but nobody waits for the end of its transfer:
//! the next post of that kind on its lane is [`CommError::TokenDropped`](crate::CommError::TokenDropped), until a later
//! token is waited for or [`PointToPoint::wait_all`] is called.
//!
//! # Graphs
//! Epochs are counted on the device, so a captured transfer can be replayed. What is posted in a capture is waited for in
//! the same capture, and what was posted before it is not.
//!
//! # When a peer does not come
//! A wait that misses the deadline leaves its transfer out and the pad's fault record filled; from then on this rank
//! signals nothing that did not happen, so its peers learn of it by their own deadlines. [`PointToPoint::check`] is the
//! error, [`PointToPoint::recover`] the way on. A copy engine cannot be told to leave a copy out: a copy behind a wait that
//! failed moves bytes that nobody granted, without a signal to say so. What was read is to be thrown away then, and a range
//! that a *put* may have written belongs to no one until the ranks have recovered.
//!
//! # Kernels that wait
//! A transfer by [`TransferMethod::Sm`] or [`TransferMethod::Tma`] occupies its blocks while it waits for the peer. Transfers that
//! wait on several streams at once must leave room for the work that ends their waits: [`Options::max_blocks`] bounds
//! each. Ranks that share a GPU should also be given a queue a stream, by `CUDA_DEVICE_MAX_CONNECTIONS=32`.

mod backend;
mod channel;
mod counts;
mod cuda;
mod endpoint;
mod host;
mod method;
mod nccl;
mod protocol;
mod range;
mod role;
mod state;
mod token;

pub use backend::{FusedTransfer, TransferBackend, TransferKernel};
pub use channel::Channel;
pub use endpoint::PointToPoint;
pub use method::TransferMethod;
pub use range::MemoryRange;
pub use role::Role;
pub use state::Options;
pub use token::Token;
