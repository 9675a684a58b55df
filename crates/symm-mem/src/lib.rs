#![doc = include_str!("../README.md")]

mod address;
mod agreement;
pub mod backend;
pub mod cuda;
pub mod dtype;
pub mod error;
pub mod exchange;
pub mod host;
pub mod ipc;
pub mod multicast;
pub mod pad;
pub mod pool;
mod slice;
pub mod symmetric;
#[doc(hidden)]
pub mod sync;
pub mod trust;
mod uniform;
mod wire;

pub use address::DevicePtr;
pub use agreement::{Failure, agree, require_same};
pub use backend::{Backend, BackendKind, DeviceInfo, Mapping, Memory, Priority, Sharing, Support};
pub use cuda::Cuda;
pub use dtype::DType;
pub use error::{Error, FaultCause, Result, SignalFault};
pub use exchange::{Exchange, ExchangeError, LossWatcher, Nodes, SubExchange, ThreadExchange};
pub use host::Host;
pub use ipc::{IpcCache, Registration};
pub use multicast::MulticastCache;
pub use pad::{PadView, SignalPad};
pub use pool::{PoolBuffer, SymmetricPool};
pub use slice::DeviceSlice;
pub use symmetric::SymmetricBuffer;
