//! The contract of a backend.
//!
//! A [`Backend`] is one rank's device: its streams, events, memory and signals. There are two, [`Host`](crate::Host)
//! and [`Cuda`](crate::Cuda), with the same file names side by side. Dispatch is static.
//!
//! Who upholds what:
//! - The backend checks every driver call and answers with a typed error; it never panics on a missing library,
//!   device or capability.
//! - Methods that take raw [`DevicePtr`]s are `unsafe`: the caller vouches that the ranges are mapped for as long as
//!   the stream may touch them. [`SymmetricBuffer`](crate::SymmetricBuffer) and plans give bounds-checked ways in.
//! - Work on one stream runs in order; streams are ordered among each other by events only.
//! - Nothing waits without a deadline: waits on the device record a fault and end; [`Backend::synchronize`] gives up
//!   after the timeout of the backend.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub use crate::address::DevicePtr;
use crate::error::Result;
use crate::ipc::handle::{AddressSpace, AllocationIdentity, ExportedMemory, MemoryHandle};
use crate::pad::view::{PadView, StopFlags};

/// The longest timeout of a backend: a day. Longer ones are cut to it, so that arithmetic on deadlines cannot overflow.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// Processes or threads of a machine, no GPU.
    Host,
    /// NVIDIA GPUs.
    Cuda,
}

/// Whether something can be done here, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It cannot, for this reason.
    No(String),
}

impl Support {
    /// True if it can be done.
    pub fn is_yes(&self) -> bool {
        matches!(self, Support::Yes)
    }

    /// `Ok`, or [`Error::Unavailable`](crate::Error::Unavailable) that names `what`.
    pub fn require(&self, what: &str) -> Result<()> {
        match self {
            Support::Yes => Ok(()),
            Support::No(why) => Err(crate::Error::Unavailable {
                what: what.into(),
                why: why.clone(),
            }),
        }
    }
}

/// What a rank's device is and can do.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// As the driver names it; "host" for the host backend.
    pub name: String,
    /// Compute capability of a GPU, (9, 0) for Hopper.
    pub compute_capability: Option<(u32, u32)>,
    /// Streaming multiprocessors (SMs) of a GPU; 1 on the host, whose kernels are sequential.
    pub sms: u32,
    /// Bytes of device memory.
    pub memory: u64,
    /// Driver version as text.
    pub driver: String,
    /// Memory that peers can map, shared by descriptor.
    pub shareable_memory: Support,
    /// Stores to several devices at once through one address (NVLS); with the guard of
    /// [`multicast`](crate::multicast) applied.
    pub multicast: Support,
}

/// Urgency of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Priority {
    /// As the driver's default.
    #[default]
    Normal,
    /// Before normal streams, for communication.
    High,
}

/// One rank's device. See the [module](self) for who upholds what.
pub trait Backend: Clone + Debug + Send + Sync + Sized + 'static {
    /// Which backend this is.
    const KIND: BackendKind;

    /// A queue of work. Clones name the same queue.
    type Stream: Clone + Debug + Send + Sync;
    /// A point in a stream, with a time.
    type Event: Debug + Send + Sync;
    /// Physical memory that peers can map; freed when its last owner in any process lets go.
    type Segment: Debug + Send + Sync;
    /// Segments mapped into this process's device address space, unmapped on drop.
    type Mapping: Mapping;
    /// Device memory of this rank alone, freed on drop.
    type Memory: Memory;
    /// A peer's allocation made reachable here, closed on drop.
    type PeerMemory: Mapping;
    /// An object through which one store reaches the bound segments of all ranks.
    type Multicast: Debug + Send + Sync;
    /// Work captured from streams, to be launched again and again.
    type Graph: Debug + Send;

    /// What the device is.
    fn device(&self) -> &DeviceInfo;

    /// How long a wait on the device or a synchronisation may take before it is an error; [`LONGEST_TIMEOUT`] at most.
    fn timeout(&self) -> Duration;

    /// The stream on which set-up work runs; made once.
    fn setup_stream(&self) -> Result<Self::Stream>;

    /// A new stream.
    fn stream(&self, priority: Priority) -> Result<Self::Stream>;

    /// Blocks until all work on `stream` has ended, [`Backend::timeout`] at most beyond what its waits may take.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;

    /// A new event, with timing.
    fn event(&self) -> Result<Self::Event>;

    /// Marks the present end of `stream` with `event`.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;

    /// Makes later work on `stream` wait for what `event` last marked.
    fn wait_event(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// Device time between two events that have both been reached (an error otherwise).
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration>;

    /// The unit to which the sizes of segments are rounded up, for allocation and for multicast binding.
    fn granularity(&self) -> usize;

    /// New physical memory of `bytes`, a multiple of [`Backend::granularity`], zeroed.
    fn create_segment(&self, bytes: usize) -> Result<Self::Segment>;

    /// A descriptor of `segment` that a peer process can import.
    fn export_segment(&self, segment: &Self::Segment) -> Result<OwnedFd>;

    /// A peer's segment from its descriptor.
    fn import_segment(&self, fd: OwnedFd, bytes: usize) -> Result<Self::Segment>;

    /// Maps `segments`, all of the same size, one behind the other in one contiguous range that this device may read
    /// and write.
    fn map_segments(&self, segments: &[&Self::Segment]) -> Result<Self::Mapping>;

    /// Device memory of `bytes` for this rank alone, zeroed, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Where the addresses of this device's memory mean the same to another rank: see [`AddressSpace`].
    fn address_space(&self) -> Result<AddressSpace>;

    /// The allocation of this device that holds the address `at`, whoever made it. Costs a few microseconds and no
    /// exchange.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if no live allocation of this device holds it.
    fn identity(&self, at: DevicePtr) -> Result<AllocationIdentity>;

    /// What another process needs to open the allocation that holds `at`. The allocation outlives all who open it.
    fn export_memory(&self, at: DevicePtr) -> Result<ExportedMemory>;

    /// A peer's allocation of `bytes` from what [`Backend::export_memory`] gave the peer: its first address here.
    fn import_memory(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self::PeerMemory>;

    /// The allocation of `bytes` at `base` of another rank in this rank's own [`AddressSpace`], made reachable by this
    /// device.
    fn reach_memory(&self, base: DevicePtr, bytes: usize) -> Result<Self::PeerMemory>;

    /// True if both name the same queue.
    fn is_same_stream(&self, one: &Self::Stream, other: &Self::Stream) -> bool;

    /// Copies `bytes` on `stream` by copy engine; either side may be a peer's mapped memory.
    ///
    /// # Safety
    /// Both ranges are mapped until the copy has ended and do not overlap; no unordered work conflicts.
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// As [`Backend::copy`], for memory of a peer, which may not have given it for this call: moves nothing once a wait of
    /// this device has failed. The host backend looks when the copy is due. On a GPU nothing can hold back a copy engine
    /// whose copy is enqueued: [`Cuda`](crate::Cuda) looks when the copy is enqueued, so that those of the call in which the
    /// wait fails, and of calls enqueued before the host could know of it, still run. The peers have been given notice by
    /// then.
    ///
    /// # Safety
    /// As for [`Backend::copy`].
    unsafe fn copy_unless_stopped(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// Sets `bytes` to `value` on `stream`.
    ///
    /// # Safety
    /// The range is mapped until the work has ended; no unordered work conflicts.
    unsafe fn fill(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()>;

    /// Copies host bytes to the device and returns when they are there. Ordered behind nothing but `stream`.
    ///
    /// # Safety
    /// The range is mapped; no unordered work conflicts.
    unsafe fn upload(&self, stream: &Self::Stream, dst: DevicePtr, bytes: &[u8]) -> Result<()>;

    /// Copies device bytes to the host, after all earlier work on `stream`.
    ///
    /// # Safety
    /// The range is mapped; no unordered work conflicts.
    unsafe fn download(
        &self,
        stream: &Self::Stream,
        src: DevicePtr,
        bytes: &mut [u8],
    ) -> Result<()>;

    /// The flags by which waits of this device are ended, made at the first call and shared by all clones.
    fn stop_flags(&self) -> Result<StopFlags>;

    /// Ends all waits of this device that are not satisfied, those under way and those to come, until
    /// [`Backend::resume_waits`]. From any thread, at any time; blocks for nothing.
    fn stop_waits(&self);

    /// Whether a wait of this device has failed, or [`Backend::stop_waits`] has ended them, and nobody has resumed them since.
    /// Costs a load and no synchronisation.
    fn is_stopped(&self) -> bool;

    /// Clears the [`StopFlags`]. With no wait of this device under way.
    fn resume_waits(&self, stream: &Self::Stream) -> Result<()>;

    /// For each peer of `peers` adds one to the sent epoch of (`slot`, peer) and stores it, with release at system
    /// scope, to the word (`slot`, own rank) of that peer's pad, after all earlier work on `stream`. Does nothing after a
    /// wait of this device that failed: what is to be published may not be there.
    ///
    /// # Safety
    /// - The pad behind `pad` lives until the work has ended; `slot` and `peers` are in range.
    /// - Signals of this rank in the slot are ordered: each advances a counter by reading and writing it.
    unsafe fn signal(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
    ) -> Result<()>;

    /// For each peer of `peers` adds one to the expected epoch of (`slot`, peer) and makes later work on `stream`
    /// wait, with acquire at system scope, until that peer has signalled the expected epoch minus `lag`. At the
    /// deadline the fault is recorded in the pad and the stream goes on.
    ///
    /// # Safety
    /// As for [`Backend::signal`], of waits.
    unsafe fn wait(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()>;

    /// Keeps `stream` busy for `time`, by a kernel that does nothing else: benches hide the cost of launches behind it.
    fn delay(&self, stream: &Self::Stream, time: Duration) -> Result<()>;

    /// Records what `enqueue` puts on `stream` (and on streams forked from it by events and joined again) instead of
    /// running it. The graph holds addresses and keeps nothing alive: see [`Backend::launch_graph`].
    fn capture(
        &self,
        stream: &Self::Stream,
        enqueue: impl FnOnce() -> Result<()>,
    ) -> Result<Self::Graph>;

    /// Runs captured work on `stream`. Launches of one graph follow each other.
    ///
    /// ```compile_fail,E0133
    /// # use warpweave_symm_mem::{Backend, Host, Result, SignalPad};
    /// fn replay(device: &Host, pad: SignalPad<Host>) -> Result<()> {
    ///     let stream = device.setup_stream()?;
    ///     let graph = device.capture(&stream, || pad.signal(&stream, 0, &[0]))?;
    ///     drop(pad);
    ///     device.launch_graph(&graph, &stream) // The signal would go to memory that is unmapped.
    /// }
    /// ```
    ///
    /// # Safety
    /// - What was captured would be sound if it were enqueued now, that of safe methods too: memory, pads, plans and
    ///   communicators that it uses live until the launch has ended.
    /// - This backend's device is the one that captured the graph.
    unsafe fn launch_graph(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()>;

    /// A multicast object for segments of `bytes` on `world` devices; one rank makes it, the others import it.
    fn create_multicast(&self, bytes: usize, world: usize) -> Result<Self::Multicast>;

    /// A descriptor of `multicast` that a peer process can import.
    fn export_multicast(&self, multicast: &Self::Multicast) -> Result<OwnedFd>;

    /// The object that another rank made.
    fn import_multicast(&self, fd: OwnedFd, bytes: usize, world: usize) -> Result<Self::Multicast>;

    /// Adds this device to the object. All ranks do so before any binds memory.
    fn join_multicast(&self, multicast: &Self::Multicast) -> Result<()>;

    /// Binds this device's `segment`. All ranks do so before any maps the object.
    fn bind_multicast(&self, multicast: &Self::Multicast, segment: &Self::Segment) -> Result<()>;

    /// Maps the object for stores. Its address must never be read (invariant 7). The host backend, which emulates the
    /// object by storing to every mapping, answers with an empty mapping at [`DevicePtr::NULL`].
    fn map_multicast(&self, multicast: &Self::Multicast) -> Result<Self::Mapping>;
}

/// Segments mapped into the device's address space; unmapped on drop.
pub trait Mapping: Debug + Send + Sync {
    /// First address.
    fn address(&self) -> DevicePtr;
    /// Length in bytes.
    fn bytes(&self) -> usize;
}

/// Device memory of one rank; freed on drop, after the work that was enqueued before it.
pub trait Memory: Debug + Send + Sync {
    /// First address.
    fn address(&self) -> DevicePtr;
    /// Length in bytes as asked for.
    fn bytes(&self) -> usize;
}
