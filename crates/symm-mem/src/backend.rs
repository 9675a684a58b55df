//! What a backend provides, and who is responsible for what.
//!
//! A [`Backend`] is one rank's device: its streams, events, memory and signals. There are two,
//! [`Host`](crate::Host) and [`Cuda`](crate::Cuda), with the same file names in both folders. Dispatch is
//! static.
//!
//! - The backend checks every driver call and returns a typed error. It never panics on a missing library,
//!   device or capability.
//! - Methods that take raw [`DevicePtr`]s are `unsafe`: the caller guarantees that the ranges stay mapped for
//!   as long as the stream may touch them. [`SymmetricBuffer`](crate::SymmetricBuffer) and plans offer
//!   bounds-checked access.
//! - Work on one stream runs in order. Only events order streams among each other.
//! - Nothing waits without a deadline. A wait on the device that misses it records a fault and ends;
//!   [`Backend::synchronize`] gives up after the timeout of the backend.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub use crate::address::DevicePtr;
use crate::error::{Error, Result};
use crate::ipc::handle::{AddressSpace, AllocationIdentity, ExportedMemory, MemoryHandle};
use crate::pad::view::{PadView, StopFlags};

/// The longest timeout of a backend: one day. Longer ones are clamped, so that deadline arithmetic cannot
/// overflow.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Which backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// Processes or threads of one machine, without a GPU.
    Host,
    /// NVIDIA GPUs.
    Cuda,
}

/// Whether the device supports something, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// Supported.
    Yes,
    /// Not supported, for this reason.
    No(String),
}

impl Support {
    /// True if it is supported.
    pub fn is_yes(&self) -> bool {
        matches!(self, Support::Yes)
    }

    /// `Ok`, or [`Error::Unavailable`] with `what` in it.
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

/// How ranks open each other's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// By file descriptors, which reach ranks of one host.
    Descriptors,
    /// By fabric handles: 64 bytes that open the memory on every host of an NVLink domain. Descriptors work
    /// too.
    Fabric,
}

/// Properties and capabilities of a rank's device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The driver's name for it; "host" for the host backend.
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
    /// Stores to several devices at once through one address (NVLS), subject to the guard of
    /// [`multicast`](crate::multicast).
    pub multicast: Support,
}

/// Priority of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Priority {
    /// The driver's default.
    #[default]
    Normal,
    /// Ahead of normal streams, for communication.
    High,
}

/// One rank's device. The [module](self) lists the obligations of both sides.
pub trait Backend: Clone + Debug + Send + Sync + Sized + 'static {
    /// Which backend this is.
    const KIND: BackendKind;

    /// A queue of work. Clones refer to the same queue.
    type Stream: Clone + Debug + Send + Sync;
    /// A point in a stream, with a timestamp.
    type Event: Debug + Send + Sync;
    /// Physical memory that peers can map. Freed when its last owner in any process drops it.
    type Segment: Debug + Send + Sync;
    /// Segments mapped into this process's device address space, unmapped on drop.
    type Mapping: Mapping;
    /// Device memory private to this rank, freed on drop.
    type Memory: Memory;
    /// A peer's allocation opened on this device, closed on drop.
    type PeerMemory: Mapping;
    /// An object through which one store reaches the bound segments of all ranks.
    type Multicast: Debug + Send + Sync;
    /// Work captured from streams, to be launched repeatedly.
    type Graph: Debug + Send;

    /// The properties of the device.
    fn device(&self) -> &DeviceInfo;

    /// How long a wait on the device or a synchronisation may take before it is an error. At most
    /// [`LONGEST_TIMEOUT`].
    fn timeout(&self) -> Duration;

    /// The stream for set-up work, created once.
    fn setup_stream(&self) -> Result<Self::Stream>;

    /// A new stream.
    fn stream(&self, priority: Priority) -> Result<Self::Stream>;

    /// Blocks until all work on `stream` has ended: at most [`Backend::timeout`] longer than its waits may
    /// take.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;

    /// Blocks until all work on all streams of this device has ended, as [`Backend::synchronize`] does for
    /// one. A failure of host work stays with its stream, whose next synchronisation reports it.
    ///
    /// # Errors
    /// [`Error::Stream`] if a stream is still busy; errors of the driver.
    fn synchronize_device(&self) -> Result<()>;

    /// A new event, with timing.
    fn event(&self) -> Result<Self::Event>;

    /// Records `event` after all work enqueued on `stream` so far.
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;

    /// Makes later work on `stream` wait for the last recording of `event`.
    fn wait_event(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()>;

    /// Device time between two events. An error if either has not been reached.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration>;

    /// Sizes of segments are multiples of this, for allocation and for multicast binding.
    fn granularity(&self) -> usize;

    /// Whether memory can be shared by fabric handles, and so with ranks of other hosts of an NVLink domain.
    /// The first call may create memory to find out.
    ///
    /// # Errors
    /// The driver's, if it fails in another way than by refusing.
    fn fabric_handles(&self) -> Result<Support>;

    /// New physical memory of `bytes`, a multiple of [`Backend::granularity`], zeroed, to be shared in this
    /// way: [`Sharing::Fabric`] only where [`Backend::fabric_handles`] has it.
    fn create_segment(&self, bytes: usize, sharing: Sharing) -> Result<Self::Segment>;

    /// What a peer process needs to import `segment`.
    fn export_segment(&self, segment: &Self::Segment) -> Result<ExportedMemory>;

    /// Imports a peer's segment from the result of the peer's [`Backend::export_segment`].
    fn import_segment(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self::Segment>;

    /// Maps `segments`, all of the same size, contiguously into one range that this device may read and
    /// write.
    fn map_segments(&self, segments: &[&Self::Segment]) -> Result<Self::Mapping>;

    /// Device memory of `bytes` private to this rank, zeroed, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Self::Memory>;

    /// Which ranks can use this device's addresses as they are: see [`AddressSpace`].
    fn address_space(&self) -> Result<AddressSpace>;

    /// The allocation of this device that contains the address `at`, whoever made it. Costs a few
    /// microseconds and no exchange.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no live allocation of this device
    /// contains it.
    fn identity(&self, at: DevicePtr) -> Result<AllocationIdentity>;

    /// What another process needs to open the allocation that contains `at`. The allocation must outlive
    /// every opening.
    fn export_memory(&self, at: DevicePtr) -> Result<ExportedMemory>;

    /// Opens a peer's allocation of `bytes` from the result of the peer's [`Backend::export_memory`].
    fn import_memory(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self::PeerMemory>;

    /// Makes another rank's allocation of `bytes` at `base`, in this rank's own [`AddressSpace`], accessible
    /// to this device.
    fn reach_memory(&self, base: DevicePtr, bytes: usize) -> Result<Self::PeerMemory>;

    /// True if both are the same queue.
    fn is_same_stream(&self, one: &Self::Stream, other: &Self::Stream) -> bool;

    /// Copies `bytes` on `stream` by copy engine. Either side may be a peer's mapped memory.
    ///
    /// # Safety
    /// Both ranges stay mapped until the copy has ended and do not overlap. No unordered work conflicts with
    /// it.
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// As [`Backend::copy`], for memory of a peer that may not have released it for this call: copies nothing
    /// once a wait of this device has failed, also if the copy was enqueued or captured before that.
    ///
    /// On a GPU the SMs copy, in up to 32 blocks of 512 threads, because a copy engine cannot be stopped from
    /// the device. The copy nodes of a conditional graph node could be, but they run on the SMs too, and the
    /// node costs 6 to 9 µs in replays. On one H100 the kernel took 0.6 µs (4 KiB) to 1.6 µs (64 KiB) more
    /// than a copy within the device, and less than a copy engine (`docs/results/stopped-copies.md`). Use
    /// [`Backend::push_by_engine`] for staging memory.
    ///
    /// # Safety
    /// As for [`Backend::copy`]. Neither address is a multicast address.
    unsafe fn copy_unless_stopped(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// As [`Backend::copy`], to staging memory of a peer: memory that the peer reads within calls only, and
    /// whose pad it checks afterwards.
    ///
    /// Copies nothing once a wait of this device has failed, as far as the host knows when it enqueues the
    /// copy. On a GPU, copies enqueued or captured before the host learned of the failure still run. The
    /// notice of the failure is in the peer's pad before they do, so the peer's next wait or
    /// [check](crate::SignalPad::check) fails, and the peer never takes what it read for valid. Memory that
    /// the peer's program uses between calls, such as results, is not protected by that: use
    /// [`Backend::copy_unless_stopped`], or let the peer pull.
    ///
    /// # Safety
    /// As for [`Backend::copy`].
    unsafe fn push_by_engine(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()>;

    /// Sets `bytes` to `value` on `stream`.
    ///
    /// # Safety
    /// The range stays mapped until the work has ended. No unordered work conflicts with it.
    unsafe fn fill(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()>;

    /// Copies host bytes to the device and returns when they have arrived. Ordered after `stream` only.
    ///
    /// # Safety
    /// The range is mapped. No unordered work conflicts with it.
    unsafe fn upload(&self, stream: &Self::Stream, dst: DevicePtr, bytes: &[u8]) -> Result<()>;

    /// Copies device bytes to the host, after all earlier work on `stream`.
    ///
    /// # Safety
    /// The range is mapped. No unordered work conflicts with it.
    unsafe fn download(
        &self,
        stream: &Self::Stream,
        src: DevicePtr,
        bytes: &mut [u8],
    ) -> Result<()>;

    /// The flags that stop waits of this device: created by the first call, shared by all clones.
    fn stop_flags(&self) -> Result<StopFlags>;

    /// Ends all unsatisfied waits of this device, present and future, until [`Backend::resume_waits`]. May be
    /// called from any thread at any time and never blocks.
    fn stop_waits(&self);

    /// Whether waits are stopped: a wait of this device has failed, or [`Backend::stop_waits`] was called,
    /// and [`Backend::resume_waits`] was not called since. Costs one load.
    fn is_stopped(&self) -> bool;

    /// Clears the [`StopFlags`], once all work that was enqueued on this device while they were set has ended
    /// ([`Backend::synchronize_device`]): so no signal is sent that follows a copy that was skipped.
    /// Nothing may be enqueued meanwhile.
    fn resume_waits(&self, stream: &Self::Stream) -> Result<()>;

    /// Signals each of `peers` after all earlier work on `stream`: increments the sent epoch of (`slot`,
    /// peer) and stores it, with release at system scope, to the flag (`slot`, own rank) of the peer's pad.
    ///
    /// After a failed wait of this device it signals nothing, because the data may not be there, and records
    /// that as a fault of the pad.
    ///
    /// # Safety
    /// - The pad of the view `pad` lives until the work has ended; `slot` and `peers` are in range.
    /// - Signals of this rank in the slot are ordered, because each reads and writes a counter.
    unsafe fn signal(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
    ) -> Result<()>;

    /// Waits for each of `peers`: increments the expected epoch of (`slot`, peer) and makes later work on
    /// `stream` wait, with acquire at system scope, until the peer has signalled the expected epoch minus
    /// `lag`. At the deadline the wait records the fault in the pad, and the stream continues.
    ///
    /// # Safety
    /// As for [`Backend::signal`], for waits.
    unsafe fn wait(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()>;

    /// Keeps `stream` busy for `time` with a kernel that does nothing. Benchmarks use it to hide launch
    /// costs.
    fn delay(&self, stream: &Self::Stream, time: Duration) -> Result<()>;

    /// Records the work that `enqueue` puts on `stream`, and on streams forked from it by events and joined
    /// again, instead of running it. The graph holds addresses and keeps nothing alive: see
    /// [`Backend::launch_graph`]. What `enqueue` fails with is returned, and there is no graph then.
    fn capture<E: From<Error>>(
        &self,
        stream: &Self::Stream,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self::Graph, E>;

    /// Whether work that is enqueued on `stream` now is recorded in a graph. The host backend goes by the
    /// thread.
    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool>;

    /// Runs captured work on `stream`. Launches of the same graph are ordered.
    ///
    /// ```compile_fail,E0133
    /// # use warpweave_symm_mem::{Backend, Host, Result, SignalPad};
    /// fn replay(device: &Host, pad: SignalPad<Host>) -> Result<()> {
    ///     let stream = device.setup_stream()?;
    ///     let graph = device.capture(&stream, || pad.signal(&stream, 0, &[0]))?;
    ///     drop(pad);
    ///     device.launch_graph(&graph, &stream) // The signal would write unmapped memory.
    /// }
    /// ```
    ///
    /// # Safety
    /// - Enqueuing the captured work now would be sound, including the work of safe methods: the memory,
    ///   pads, plans and communicators that it uses live until the launch has ended.
    /// - This backend's device captured the graph.
    unsafe fn launch_graph(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()>;

    /// Creates a multicast object for segments of `bytes` on `world` devices. One rank creates it, the others
    /// import it.
    fn create_multicast(&self, bytes: usize, world: usize) -> Result<Self::Multicast>;

    /// A descriptor of `multicast` that a peer process can import.
    fn export_multicast(&self, multicast: &Self::Multicast) -> Result<OwnedFd>;

    /// Imports the object that another rank created.
    fn import_multicast(&self, fd: OwnedFd, bytes: usize, world: usize) -> Result<Self::Multicast>;

    /// Adds this device to the object. Every rank must have done so before any rank binds memory.
    fn join_multicast(&self, multicast: &Self::Multicast) -> Result<()>;

    /// Binds this device's `segment`. Every rank must have done so before any rank maps the object.
    fn bind_multicast(&self, multicast: &Self::Multicast, segment: &Self::Segment) -> Result<()>;

    /// Maps the object for stores. Its address must never be read (invariant 7). The host backend emulates
    /// the object by storing to every mapping, and returns an empty mapping at [`DevicePtr::NULL`].
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
    /// Length in bytes as requested.
    fn bytes(&self) -> usize;
}
