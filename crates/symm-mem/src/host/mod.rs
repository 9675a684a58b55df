//! The backend without a GPU: ranks are processes or threads, memory is shared by descriptor, streams are
//! threads with queues, and kernels are host functions.

mod element;
mod event;
mod graph;
mod ipc;
mod memory;
mod multicast;
mod pointer;
pub mod record;
mod segment;
mod signal;
mod stream;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::backend::{
    Backend, BackendKind, DeviceInfo, DevicePtr, LONGEST_TIMEOUT, Priority, Sharing, Support,
};
use crate::error::{Error, Result};
use crate::ipc::{AddressSpace, AllocationIdentity, ExportedMemory, MemoryHandle};
use crate::pad::{PadView, StopFlags};
use crate::sync::{Mutex, thread};

pub use element::{Element, decode, encode, rounded};
pub use event::HostEvent;
pub use graph::HostGraph;
pub use ipc::HostPeerMemory;
pub use memory::{HostMapping, HostMemory};
pub use multicast::HostMulticast;
pub use segment::HostSegment;
pub use signal::{
    expect_signal, is_faulted, is_noticed, is_stopped, next_epoch, record_fault, send_signal,
    withhold_signal,
};
pub use stream::HostStream;

/// The "device" of a rank on a machine without a GPU. Clones refer to the same device.
#[derive(Clone, Debug)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: DeviceInfo,
    timeout: Duration,
    streams: stream::Registry,
    setup: Mutex<Option<HostStream>>,
    /// Both [`StopFlags`]: the device is the host.
    stopped: AtomicU32,
    allocations: AtomicU64,
}

impl Inner {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire) != 0
    }
}

impl Host {
    /// A device with the default timeout of ten seconds.
    pub fn new() -> Self {
        Self::with_timeout(Duration::from_secs(10))
    }

    /// A device whose waits for peers time out after `timeout`. At most [`LONGEST_TIMEOUT`].
    pub fn with_timeout(timeout: Duration) -> Self {
        let memory = rustix::system::sysinfo();
        Host(Arc::new(Inner {
            info: DeviceInfo {
                name: "host".into(),
                compute_capability: None,
                sms: 1,
                memory: memory.totalram * u64::from(memory.mem_unit),
                driver: format!(
                    "Linux {}",
                    rustix::system::uname().release().to_string_lossy()
                ),
                shareable_memory: Support::Yes,
                multicast: Support::Yes,
            },
            timeout: timeout.min(LONGEST_TIMEOUT),
            streams: stream::Registry::default(),
            setup: Mutex::default(),
            stopped: AtomicU32::new(0),
            allocations: AtomicU64::new(0),
        }))
    }
}

impl Host {
    /// How many times device memory was allocated so far, that of the rank alone and segments to be shared.
    pub fn allocations(&self) -> u64 {
        self.0.allocations.load(Ordering::Relaxed)
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for Host {
    const KIND: BackendKind = BackendKind::Host;
    type Stream = HostStream;
    type Event = HostEvent;
    type Segment = HostSegment;
    type Mapping = HostMapping;
    type Memory = HostMemory;
    type PeerMemory = HostPeerMemory;
    type Multicast = HostMulticast;
    type Graph = HostGraph;

    fn device(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn timeout(&self) -> Duration {
        self.0.timeout
    }

    fn setup_stream(&self) -> Result<HostStream> {
        let mut setup = self.0.setup.lock();
        match setup.as_ref() {
            Some(stream) => Ok(stream.clone()),
            None => Ok(setup.insert(self.0.streams.spawn()?).clone()),
        }
    }

    fn stream(&self, _priority: Priority) -> Result<HostStream> {
        self.0.streams.spawn()
    }

    fn synchronize(&self, stream: &HostStream) -> Result<()> {
        if self.0.streams.is_capturing(stream) {
            return Err(graph::forbidden("synchronize"));
        }
        stream.drain(self.0.timeout)
    }

    fn synchronize_device(&self) -> Result<()> {
        match self.0.streams.quiesce(self.0.timeout) {
            true => Ok(()),
            false => Err(Error::Stream {
                device: "host".into(),
                cause: "a stream is stuck".into(),
            }),
        }
    }

    fn event(&self) -> Result<HostEvent> {
        Ok(HostEvent::default())
    }

    fn record(&self, event: &HostEvent, stream: &HostStream) -> Result<()> {
        self.0
            .streams
            .submit(stream, stream::Item::Record(event.clone()))
    }

    fn wait_event(&self, stream: &HostStream, event: &HostEvent) -> Result<()> {
        self.0
            .streams
            .submit(stream, stream::Item::Wait(event.clone()))
    }

    fn elapsed(&self, from: &HostEvent, to: &HostEvent) -> Result<Duration> {
        let (Some(from), Some(to)) = (from.reached(), to.reached()) else {
            return Err(Error::InvalidArgument {
                what: "event",
                why: "elapsed time needs two events that were recorded and reached; synchronize first".into(),
            });
        };
        Ok(to.saturating_duration_since(from))
    }

    fn granularity(&self) -> usize {
        segment::granularity()
    }

    fn fabric_handles(&self) -> Result<Support> {
        Ok(Support::No("memory of the host has none".into()))
    }

    fn create_segment(&self, bytes: usize, _sharing: Sharing) -> Result<HostSegment> {
        self.0.allocations.fetch_add(1, Ordering::Relaxed);
        HostSegment::create(bytes)
    }

    fn export_segment(&self, segment: &HostSegment) -> Result<ExportedMemory> {
        Ok(ExportedMemory {
            handle: MemoryHandle::Descriptor,
            fd: Some(segment.export()?),
        })
    }

    fn import_segment(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<HostSegment> {
        match (handle, fd) {
            (MemoryHandle::Descriptor, Some(fd)) => HostSegment::import(fd, bytes),
            (handle, _) => Err(handle.refused()),
        }
    }

    fn map_segments(&self, segments: &[&HostSegment]) -> Result<HostMapping> {
        HostMapping::new(self, segments)
    }

    fn allocate(&self, bytes: usize) -> Result<HostMemory> {
        self.0.allocations.fetch_add(1, Ordering::Relaxed);
        HostMemory::new(self, bytes)
    }

    fn address_space(&self) -> Result<AddressSpace> {
        AddressSpace::of_process()
    }

    fn identity(&self, at: DevicePtr) -> Result<AllocationIdentity> {
        pointer::identity(at)
    }

    fn export_memory(&self, at: DevicePtr) -> Result<ExportedMemory> {
        ipc::export(at)
    }

    fn import_memory(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<HostPeerMemory> {
        HostPeerMemory::import(self, handle, fd, bytes)
    }

    fn reach_memory(&self, base: DevicePtr, bytes: usize) -> Result<HostPeerMemory> {
        HostPeerMemory::reach(base, bytes)
    }

    fn is_same_stream(&self, one: &HostStream, other: &HostStream) -> bool {
        one.is(other)
    }

    unsafe fn copy(
        &self,
        stream: &HostStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        self.launch(stream, "copy", move || {
            // SAFETY: the caller of `copy` vouches for both ranges until the stream has run this.
            unsafe { std::ptr::copy_nonoverlapping(src.as_host::<u8>(), dst.as_host(), bytes) };
            Ok(())
        })
    }

    unsafe fn copy_unless_stopped(
        &self,
        stream: &HostStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        let device = Arc::downgrade(&self.0);
        self.launch(stream, "copy", move || {
            let stopped = device.upgrade().is_none_or(|device| device.is_stopped());
            if !stopped {
                // SAFETY: the caller vouches for both ranges until the stream has run this.
                unsafe { std::ptr::copy_nonoverlapping(src.as_host::<u8>(), dst.as_host(), bytes) };
            }
            Ok(())
        })
    }

    unsafe fn push_by_engine(
        &self,
        stream: &HostStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.copy_unless_stopped(stream, dst, src, bytes) }
    }

    unsafe fn fill(
        &self,
        stream: &HostStream,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()> {
        self.launch(stream, "fill", move || {
            // SAFETY: the caller of `fill` vouches for the range until the stream has run this.
            unsafe { std::ptr::write_bytes(dst.as_host::<u8>(), value, bytes) };
            Ok(())
        })
    }

    unsafe fn upload(&self, stream: &HostStream, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        self.synchronize(stream)?;
        // SAFETY: the caller vouches for the range; earlier work on the stream has ended.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.as_host(), bytes.len()) };
        Ok(())
    }

    unsafe fn download(&self, stream: &HostStream, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        self.synchronize(stream)?;
        // SAFETY: the caller vouches for the range; earlier work on the stream has ended.
        unsafe { std::ptr::copy_nonoverlapping(src.as_host(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn stop_flags(&self) -> Result<StopFlags> {
        let flag = DevicePtr(self.0.stopped.as_ptr() as u64);
        Ok(StopFlags {
            device: flag,
            host: flag,
        })
    }

    fn stop_waits(&self) {
        self.0.stopped.store(StopFlags::BY_HOST, Ordering::SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }

    fn resume_waits(&self, _stream: &HostStream) -> Result<()> {
        self.synchronize_device()?;
        self.0.stopped.store(0, Ordering::SeqCst);
        Ok(())
    }

    unsafe fn signal(
        &self,
        stream: &HostStream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
    ) -> Result<()> {
        let (pad, peers) = (*pad, peers.to_vec());
        self.launch(stream, "signal", move || {
            for &peer in &peers {
                // SAFETY: the caller of `signal` vouches for the pad until the stream has run this.
                unsafe { send_signal(&pad, slot, peer) };
            }
            Ok(())
        })
    }

    unsafe fn wait(
        &self,
        stream: &HostStream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()> {
        let (pad, peers) = (*pad, peers.to_vec());
        self.launch(stream, "wait", move || {
            for &peer in &peers {
                // SAFETY: the caller of `wait` vouches for the pad until the stream has run this.
                // A failure is in the fault record, for `SignalPad::check`; the stream continues.
                unsafe { expect_signal(&pad, slot, peer, lag) };
            }
            Ok(())
        })
    }

    fn delay(&self, stream: &HostStream, time: Duration) -> Result<()> {
        self.launch(stream, "delay", move || {
            thread::sleep(time);
            Ok(())
        })
    }

    fn capture<E: From<Error>>(
        &self,
        stream: &HostStream,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<HostGraph, E> {
        graph::capture(&self.0.streams, stream, enqueue)
    }

    fn is_capturing(&self, _: &HostStream) -> Result<bool> {
        Ok(self.0.streams.thread_is_capturing())
    }

    unsafe fn launch_graph(&self, graph: &HostGraph, stream: &HostStream) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { graph.launch(&self.0.streams, stream) }
    }

    fn create_multicast(&self, bytes: usize, world: usize) -> Result<HostMulticast> {
        HostMulticast::create(bytes, world)
    }

    fn export_multicast(&self, multicast: &HostMulticast) -> Result<OwnedFd> {
        multicast.export()
    }

    fn import_multicast(&self, fd: OwnedFd, bytes: usize, world: usize) -> Result<HostMulticast> {
        HostMulticast::import(fd, bytes, world)
    }

    fn join_multicast(&self, multicast: &HostMulticast) -> Result<()> {
        multicast.join()
    }

    fn bind_multicast(&self, multicast: &HostMulticast, segment: &HostSegment) -> Result<()> {
        multicast.bind(segment)
    }

    fn map_multicast(&self, multicast: &HostMulticast) -> Result<HostMapping> {
        multicast.map()
    }
}
