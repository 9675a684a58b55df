//! A backend with injected failures.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use warpweave_symm_mem::ipc::{AddressSpace, AllocationIdentity, ExportedMemory, MemoryHandle};
use warpweave_symm_mem::pad::StopFlags;
use warpweave_symm_mem::{
    Backend, BackendKind, DeviceInfo, DevicePtr, Error, Exchange, Host, PadView, Priority, Result,
    Sharing, Support, ThreadExchange,
};

/// A step that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Create,
    Export,
    Import,
    Join,
    Bind,
    Map,
    Identity,
    ExportMemory,
    ImportMemory,
    Allocate,
    Upload,
    CreateSegment,
    MapSegments,
    Synchronize,
}

/// The host backend, failing at one step on request. Clones fail together.
#[derive(Clone, Debug)]
pub struct Faulty {
    pub host: Host,
    /// The step, and how often it succeeds before.
    fails: Arc<Mutex<Option<(Step, usize)>>>,
    apart: bool,
}

impl Faulty {
    pub fn new() -> Self {
        Faulty {
            host: Host::new(),
            fails: Arc::default(),
            apart: false,
        }
    }

    /// A device whose peers, even if they are threads, open its memory as another process does.
    pub fn apart() -> Self {
        Faulty {
            apart: true,
            ..Self::new()
        }
    }

    pub fn fail(&self, step: Option<Step>) {
        self.fail_after(step, 0);
    }

    /// Fails once the step has succeeded so often.
    pub fn fail_after(&self, step: Option<Step>, times: usize) {
        *self.fails.lock() = step.map(|step| (step, times));
    }

    fn at(&self, step: Step) -> Result<()> {
        let mut fails = self.fails.lock();
        let Some((_, times)) = fails.as_mut().filter(|(of, _)| *of == step) else {
            return Ok(());
        };
        if *times > 0 {
            *times -= 1;
        } else {
            return Err(Error::Unavailable {
                what: format!("{step:?}"),
                why: "on purpose".into(),
            });
        }
        Ok(())
    }
}

impl Backend for Faulty {
    const KIND: BackendKind = BackendKind::Host;
    type Stream = <Host as Backend>::Stream;
    type Event = <Host as Backend>::Event;
    type Segment = <Host as Backend>::Segment;
    type Mapping = <Host as Backend>::Mapping;
    type Memory = <Host as Backend>::Memory;
    type PeerMemory = <Host as Backend>::PeerMemory;
    type Multicast = <Host as Backend>::Multicast;
    type Graph = <Host as Backend>::Graph;

    fn device(&self) -> &DeviceInfo {
        self.host.device()
    }
    fn timeout(&self) -> Duration {
        self.host.timeout()
    }
    fn setup_stream(&self) -> Result<Self::Stream> {
        self.host.setup_stream()
    }
    fn stream(&self, priority: Priority) -> Result<Self::Stream> {
        self.host.stream(priority)
    }
    fn synchronize(&self, stream: &Self::Stream) -> Result<()> {
        self.at(Step::Synchronize)?;
        self.host.synchronize(stream)
    }
    fn synchronize_device(&self) -> Result<()> {
        self.host.synchronize_device()
    }
    fn event(&self) -> Result<Self::Event> {
        self.host.event()
    }
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()> {
        self.host.record(event, stream)
    }
    fn wait_event(&self, stream: &Self::Stream, event: &Self::Event) -> Result<()> {
        self.host.wait_event(stream, event)
    }
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration> {
        self.host.elapsed(from, to)
    }
    fn granularity(&self) -> usize {
        self.host.granularity()
    }
    fn fabric_handles(&self) -> Result<Support> {
        self.host.fabric_handles()
    }
    fn create_segment(&self, bytes: usize, sharing: Sharing) -> Result<Self::Segment> {
        self.at(Step::CreateSegment)?;
        self.host.create_segment(bytes, sharing)
    }
    fn export_segment(&self, segment: &Self::Segment) -> Result<ExportedMemory> {
        self.host.export_segment(segment)
    }
    fn import_segment(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self::Segment> {
        self.host.import_segment(handle, fd, bytes)
    }
    fn map_segments(&self, segments: &[&Self::Segment]) -> Result<Self::Mapping> {
        self.at(Step::MapSegments)?;
        self.host.map_segments(segments)
    }
    fn allocate(&self, bytes: usize) -> Result<Self::Memory> {
        self.at(Step::Allocate)?;
        self.host.allocate(bytes)
    }
    fn address_space(&self) -> Result<AddressSpace> {
        match self.apart {
            true => AddressSpace::private(),
            false => self.host.address_space(),
        }
    }
    fn identity(&self, at: DevicePtr) -> Result<AllocationIdentity> {
        self.at(Step::Identity)?;
        self.host.identity(at)
    }
    fn export_memory(&self, at: DevicePtr) -> Result<ExportedMemory> {
        self.at(Step::ExportMemory)?;
        self.host.export_memory(at)
    }
    fn import_memory(
        &self,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self::PeerMemory> {
        self.at(Step::ImportMemory)?;
        self.host.import_memory(handle, fd, bytes)
    }
    fn reach_memory(&self, base: DevicePtr, bytes: usize) -> Result<Self::PeerMemory> {
        self.at(Step::ImportMemory)?;
        self.host.reach_memory(base, bytes)
    }
    fn is_same_stream(&self, one: &Self::Stream, other: &Self::Stream) -> bool {
        self.host.is_same_stream(one, other)
    }
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: the caller's obligation, here and in the functions below.
        unsafe { self.host.copy(stream, dst, src, bytes) }
    }
    unsafe fn copy_unless_stopped(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.copy_unless_stopped(stream, dst, src, bytes) }
    }
    unsafe fn push_by_engine(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.push_by_engine(stream, dst, src, bytes) }
    }
    fn stop_flags(&self) -> Result<StopFlags> {
        self.host.stop_flags()
    }
    fn stop_waits(&self) {
        self.host.stop_waits();
    }
    fn is_stopped(&self) -> bool {
        self.host.is_stopped()
    }
    fn resume_waits(&self, stream: &Self::Stream) -> Result<()> {
        self.host.resume_waits(stream)
    }
    unsafe fn fill(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        value: u8,
        bytes: usize,
    ) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.fill(stream, dst, value, bytes) }
    }
    unsafe fn upload(&self, stream: &Self::Stream, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        self.at(Step::Upload)?;
        // SAFETY: as in `copy`.
        unsafe { self.host.upload(stream, dst, bytes) }
    }
    unsafe fn download(
        &self,
        stream: &Self::Stream,
        src: DevicePtr,
        bytes: &mut [u8],
    ) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.download(stream, src, bytes) }
    }
    unsafe fn signal(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
    ) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.signal(stream, pad, slot, peers) }
    }
    unsafe fn wait(
        &self,
        stream: &Self::Stream,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.wait(stream, pad, slot, peers, lag) }
    }
    fn delay(&self, stream: &Self::Stream, time: Duration) -> Result<()> {
        self.host.delay(stream, time)
    }
    fn capture<E: From<Error>>(
        &self,
        stream: &Self::Stream,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self::Graph, E> {
        self.host.capture(stream, enqueue)
    }
    fn is_capturing(&self, stream: &Self::Stream) -> Result<bool> {
        self.host.is_capturing(stream)
    }
    unsafe fn launch_graph(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()> {
        // SAFETY: as in `copy`.
        unsafe { self.host.launch_graph(graph, stream) }
    }
    fn create_multicast(&self, bytes: usize, world: usize) -> Result<Self::Multicast> {
        self.at(Step::Create)?;
        self.host.create_multicast(bytes, world)
    }
    fn export_multicast(&self, multicast: &Self::Multicast) -> Result<OwnedFd> {
        self.at(Step::Export)?;
        self.host.export_multicast(multicast)
    }
    fn import_multicast(&self, fd: OwnedFd, bytes: usize, world: usize) -> Result<Self::Multicast> {
        self.at(Step::Import)?;
        self.host.import_multicast(fd, bytes, world)
    }
    fn join_multicast(&self, multicast: &Self::Multicast) -> Result<()> {
        self.at(Step::Join)?;
        self.host.join_multicast(multicast)
    }
    fn bind_multicast(&self, multicast: &Self::Multicast, segment: &Self::Segment) -> Result<()> {
        self.at(Step::Bind)?;
        self.host.bind_multicast(multicast, segment)
    }
    fn map_multicast(&self, multicast: &Self::Multicast) -> Result<Self::Mapping> {
        self.at(Step::Map)?;
        self.host.map_multicast(multicast)
    }
}

/// Runs `body` on every rank of a group of threads and returns the results by rank.
pub fn ranks<T: Send + 'static>(
    world: usize,
    body: impl Fn(Arc<dyn Exchange>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let threads: Vec<_> = ThreadExchange::group_with_timeout(world, Duration::from_secs(20))
        .into_iter()
        .map(|exchange| {
            let body = body.clone();
            std::thread::spawn(move || body(Arc::new(exchange)))
        })
        .collect();
    threads
        .into_iter()
        .map(|t| t.join().expect("a rank panicked"))
        .collect()
}

/// Checks that a step failed on purpose on `culprit` and that all ranks report it.
pub fn all_blame<T>(culprit: usize, step: Step, outcomes: Vec<Result<T>>) {
    for (rank, outcome) in outcomes.into_iter().enumerate() {
        let error = outcome
            .err()
            .unwrap_or_else(|| panic!("{step:?}: rank {rank} succeeded"));
        assert!(
            error.to_string().contains("on purpose"),
            "{step:?}, rank {rank}: {error}"
        );
        match error {
            Error::Unavailable { .. } => assert_eq!(rank, culprit, "{step:?}"),
            Error::PeerMemory { .. } => assert_eq!(rank, culprit, "{step:?}"),
            Error::PeerFailed { rank: named, .. } => {
                assert!(named == culprit && rank != culprit, "{step:?}")
            }
            other => panic!("{step:?}, rank {rank}: {other}"),
        }
    }
}

/// `bytes` of memory.
pub fn read(device: &Faulty, at: DevicePtr, bytes: usize) -> Vec<u8> {
    let stream = device.setup_stream().unwrap();
    let mut out = vec![0; bytes];
    // SAFETY: the tests pass ranges of live registrations.
    unsafe { device.download(&stream, at, &mut out).unwrap() };
    out
}

/// Fills memory.
pub fn write(device: &Faulty, at: DevicePtr, bytes: &[u8]) {
    let stream = device.setup_stream().unwrap();
    // SAFETY: the tests pass ranges of live registrations.
    unsafe { device.upload(&stream, at, bytes).unwrap() };
}

/// Runs `body` with threads that share their addresses and with threads that do not.
pub fn both<T: Send + 'static>(
    world: usize,
    body: impl Fn(Faulty, Arc<dyn Exchange>) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let other = body.clone();
    let mut results = ranks(world, move |exchange| body(Faulty::new(), exchange));
    results.extend(ranks(world, move |exchange| {
        other(Faulty::apart(), exchange)
    }));
    results
}
