//! Point to point: zero-copy *get* and *put* between ranks, ordered by streams.
//!
//! A transfer has two ends, which synchronize on the device and never on the host:
//! - **get**: the owner [exposes](Channel::expose) a range, the reader [gets](Channel::get) it. The owner's
//!   token completes when the range has been read.
//! - **put**: the receiver [accepts](Channel::accept) into a range, the writer [puts](Channel::put) to it.
//!   The receiver's token completes when the range has been written.
//!
//! # Who matches whom
//! The k-th get on a lane of a pair of ranks reads the range of the k-th expose on it, and the k-th put
//! writes that of the k-th accept. Any number may be in flight, in both directions of a pair. Lanes are
//! independent. What a rank does on one lane with one peer is ordered on its device: on one stream, or on
//! several that events order.
//!
//! # Tokens
//! Every post returns a [`Token`] that remembers what was posted; [`Token::wait`] consumes it. Tokens may be
//! waited for in any order. A dropped token enqueues nothing and loses no epoch, but nobody waits for the end
//! of its transfer: the next post of that kind on its lane fails with
//! [`CommError::TokenDropped`](crate::CommError::TokenDropped), until a later token is waited for or
//! [`PointToPoint::wait_all`] is called.
//!
//! # Graphs
//! Epochs are counted on the device, so a captured transfer can be replayed. Wait for what is posted in a
//! capture in the same capture, and for what was posted before it before the capture: a wait that would cover
//! both is refused. What a capture that fails has posted is taken back by the next post or
//! [`PointToPoint::wait_all`] outside a capture.
//!
//! # When a peer does not arrive
//! A wait that misses its deadline skips its transfer and fills the pad's fault record. From then on this
//! rank signals nothing that did not happen, so its peers run into their own deadlines.
//! [`PointToPoint::check`] returns the error; [`PointToPoint::recover`] makes the endpoint usable again. A
//! copy engine cannot skip a copy: a copy after a failed wait moves bytes that nobody granted, and no signal
//! follows. Discard what was read then, and treat a range that a *put* may have written as undefined until
//! the ranks have recovered.
//!
//! # Kernels that wait
//! A transfer by [`TransferMethod::Sm`] or [`TransferMethod::Tma`] occupies its blocks while it waits for the
//! peer. Transfers that wait on several streams at once must leave SMs for the work that ends their waits:
//! [`Options::max_blocks`] bounds each. Ranks that share a GPU also need a hardware queue for each stream:
//! set `CUDA_DEVICE_MAX_CONNECTIONS=32`.

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
