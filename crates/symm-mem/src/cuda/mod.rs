//! The backend for NVIDIA GPUs: CUDA virtual memory, shared between processes by descriptor.
//!
//! The driver is loaded at run time, unless the depending project lets cudarc link it. A missing libcuda,
//! device or capability is [`Error::Unavailable`]; if libcuda is linked, a program
//! does not start without it. Memory, signals and copies need a driver of CUDA 12.0. Newer functions are
//! looked up by the feature that needs them.

mod adopt;
mod batch;
mod device;
pub(crate) mod driver;
mod function;
mod graph;
mod ipc;
pub mod launch;
mod memory;
mod multicast;
mod pointer;
mod segment;
mod signal;
mod stop;
mod stream;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::{CudaContext, sys};
use parking_lot::Mutex;

use crate::backend::{Backend, BackendKind, DeviceInfo, DevicePtr, Priority, Sharing, Support};
use crate::error::{Error, Result};
use crate::ipc::{AddressSpace, AllocationIdentity, ExportedMemory, MemoryHandle};
use crate::pad::{PadView, StopFlags};

pub use adopt::SharedSlice;
pub use function::{DriverFunction, is_driver_present};
pub use graph::CudaGraph;
pub use ipc::CudaPeerMemory;
pub use launch::{Function, Image, LaunchConfig, Module};
pub use memory::{CudaMapping, CudaMemory};
pub use multicast::CudaMulticast;
pub use segment::CudaSegment;
pub use signal::copy_blocks;
pub use stream::{CudaEvent, CudaStream};

use driver::check;

/// A rank's GPU. Clones share the device, its set-up stream and its modules.
#[derive(Clone, Debug)]
pub struct Cuda {
    device: Arc<Device>,
    shared: Option<Arc<Shared>>,
    timeout: Duration,
}

#[derive(Debug)]
struct Device {
    context: Arc<CudaContext>,
    info: DeviceInfo,
    granularity: usize,
    streams: Arc<stream::Registry>,
    /// Queried on first use.
    fabric: OnceLock<Support>,
    /// Created for the first signal pad.
    stop: Mutex<Option<stop::StopMemory>>,
}

/// State that is created once and shared by all clones.
#[derive(Debug, Default)]
struct Shared {
    setup: Mutex<Option<CudaStream>>,
    functions: Mutex<HashMap<(usize, &'static str), Function>>,
}

impl Backend for Cuda {
    const KIND: BackendKind = BackendKind::Cuda;
    type Stream = CudaStream;
    type Event = CudaEvent;
    type Segment = CudaSegment;
    type Mapping = CudaMapping;
    type Memory = CudaMemory;
    type PeerMemory = CudaPeerMemory;
    type Multicast = CudaMulticast;
    type Graph = CudaGraph;

    fn device(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn setup_stream(&self) -> Result<CudaStream> {
        let Some(shared) = &self.shared else {
            return self.stream(Priority::Normal);
        };
        let mut setup = shared.setup.lock();
        match setup.as_ref() {
            Some(stream) => Ok(stream.clone()),
            None => Ok(setup.insert(self.stream(Priority::Normal)?).clone()),
        }
    }

    fn stream(&self, priority: Priority) -> Result<CudaStream> {
        CudaStream::new(self, priority)
    }

    fn synchronize(&self, stream: &CudaStream) -> Result<()> {
        stream::synchronize(self, stream)
    }

    fn synchronize_device(&self) -> Result<()> {
        stream::synchronize_all(self)
    }

    fn event(&self) -> Result<CudaEvent> {
        CudaEvent::new(self)
    }

    fn record(&self, event: &CudaEvent, stream: &CudaStream) -> Result<()> {
        event.record(self, stream)
    }

    fn wait_event(&self, stream: &CudaStream, event: &CudaEvent) -> Result<()> {
        event.block(self, stream)
    }

    fn elapsed(&self, from: &CudaEvent, to: &CudaEvent) -> Result<Duration> {
        from.elapsed(self, to)
    }

    fn granularity(&self) -> usize {
        self.device.granularity
    }

    fn fabric_handles(&self) -> Result<Support> {
        self.fabric_support()
    }

    fn create_segment(&self, bytes: usize, sharing: Sharing) -> Result<CudaSegment> {
        memory::zeroed_segment(self, bytes, sharing)
    }

    fn export_segment(&self, segment: &CudaSegment) -> Result<ExportedMemory> {
        segment.export()
    }

    fn import_segment(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<CudaSegment> {
        match (handle, fd) {
            (MemoryHandle::Descriptor, Some(fd)) => CudaSegment::import(self, &fd, bytes),
            (MemoryHandle::Fabric(handle), _) => CudaSegment::of_fabric(self, handle, bytes),
            (handle, _) => Err(handle.refused()),
        }
    }

    fn map_segments(&self, segments: &[&CudaSegment]) -> Result<CudaMapping> {
        CudaMapping::new(self, segments)
    }

    fn allocate(&self, bytes: usize) -> Result<CudaMemory> {
        CudaMemory::new(self, bytes)
    }

    fn address_space(&self) -> Result<AddressSpace> {
        AddressSpace::of_process()
    }

    fn identity(&self, at: DevicePtr) -> Result<AllocationIdentity> {
        pointer::identity(self, at)
    }

    fn export_memory(&self, at: DevicePtr) -> Result<ExportedMemory> {
        ipc::export(self, at)
    }

    fn import_memory(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<CudaPeerMemory> {
        CudaPeerMemory::import(self, handle, fd, bytes)
    }

    fn reach_memory(&self, base: DevicePtr, bytes: usize) -> Result<CudaPeerMemory> {
        CudaPeerMemory::reach(self, base, bytes)
    }

    fn is_same_stream(&self, one: &CudaStream, other: &CudaStream) -> bool {
        one.raw() == other.raw()
    }

    unsafe fn copy(
        &self,
        stream: &CudaStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's obligation.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, stream.raw()) };
        check(result, "cuMemcpyDtoDAsync", self.name())
    }

    unsafe fn copy_unless_stopped(
        &self,
        stream: &CudaStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_copy(stream, dst, src, bytes) }
    }

    unsafe fn push_by_engine(
        &self,
        stream: &CudaStream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        if self.leaves_out_copies(stream)? {
            return Ok(());
        }
        // SAFETY: the caller's obligation.
        unsafe { self.copy(stream, dst, src, bytes) }
    }

    unsafe fn fill(
        &self,
        stream: &CudaStream,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's obligation.
        let result = unsafe { sys::cuMemsetD8Async(dst.0, value, bytes, stream.raw()) };
        check(result, "cuMemsetD8Async", self.name())
    }

    unsafe fn upload(&self, stream: &CudaStream, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // For pageable memory the driver blocks, without a limit, until the stream reaches the copy.
        self.synchronize(stream)?;
        // SAFETY: the caller's obligation; `bytes` outlives the copy, since the stream is drained below.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(dst.0, bytes.as_ptr().cast(), bytes.len(), stream.raw())
        };
        check(result, "cuMemcpyHtoDAsync", self.name())?;
        self.synchronize(stream)
    }

    unsafe fn download(&self, stream: &CudaStream, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // As in `upload`.
        self.synchronize(stream)?;
        // SAFETY: the caller's obligation; `bytes` outlives the copy, since the stream is drained below.
        let result = unsafe {
            sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), src.0, bytes.len(), stream.raw())
        };
        check(result, "cuMemcpyDtoHAsync", self.name())?;
        self.synchronize(stream)
    }

    fn stop_flags(&self) -> Result<StopFlags> {
        self.stop_memory()
    }

    fn stop_waits(&self) {
        self.set_stopped();
    }

    fn is_stopped(&self) -> bool {
        self.has_stopped()
    }

    fn resume_waits(&self, stream: &CudaStream) -> Result<()> {
        self.clear_stopped(stream)
    }

    unsafe fn signal(
        &self,
        stream: &CudaStream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_signal(stream, pad, slot, peers) }
    }

    unsafe fn wait(
        &self,
        stream: &CudaStream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_wait(stream, pad, slot, peers, lag) }
    }

    fn delay(&self, stream: &CudaStream, time: Duration) -> Result<()> {
        self.launch_delay(stream, time)
    }

    fn capture<E: From<Error>>(
        &self,
        stream: &CudaStream,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<CudaGraph, E> {
        graph::capture(self, stream, enqueue)
    }

    fn is_capturing(&self, stream: &CudaStream) -> Result<bool> {
        stream::is_capturing(self, stream)
    }

    unsafe fn launch_graph(&self, graph: &CudaGraph, stream: &CudaStream) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { graph.launch(stream) }
    }

    fn create_multicast(&self, bytes: usize, world: usize) -> Result<CudaMulticast> {
        CudaMulticast::create(self, bytes, world)
    }

    fn export_multicast(&self, multicast: &CudaMulticast) -> Result<OwnedFd> {
        multicast.export()
    }

    fn import_multicast(&self, fd: OwnedFd, bytes: usize, _world: usize) -> Result<CudaMulticast> {
        CudaMulticast::import(self, &fd, bytes)
    }

    fn join_multicast(&self, multicast: &CudaMulticast) -> Result<()> {
        multicast.join()
    }

    fn bind_multicast(&self, multicast: &CudaMulticast, segment: &CudaSegment) -> Result<()> {
        multicast.bind(segment)
    }

    fn map_multicast(&self, multicast: &CudaMulticast) -> Result<CudaMapping> {
        multicast.map()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_gets_an_answer() {
        if is_driver_present() {
            return;
        }
        for error in [Cuda::new(0).unwrap_err(), Cuda::device_count().unwrap_err()] {
            assert!(error.is_unavailable(), "{error}");
            assert!(
                error.to_string().contains("libcuda is not on this machine"),
                "{error}"
            );
        }
        assert!(!function::has_symbol(c"cuMulticastCreate"));
    }
}
