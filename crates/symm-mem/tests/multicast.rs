//! Multicast objects on the host backend, which emulates them, and what happens when a step fails on one rank.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{
    Backend, BackendKind, DeviceInfo, DevicePtr, Error, Exchange, Host, PadView, Priority, Result,
    SymmetricBuffer, ThreadExchange,
};

/// A step of making a multicast object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Export,
    Import,
    Join,
    Bind,
    Map,
}

/// The host backend, failing at one step.
#[derive(Clone, Debug)]
struct Faulty {
    host: Host,
    fails: Option<Step>,
}

impl Faulty {
    fn at(&self, step: Step) -> Result<()> {
        if self.fails == Some(step) {
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
        self.host.synchronize(stream)
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
    fn create_segment(&self, bytes: usize) -> Result<Self::Segment> {
        self.host.create_segment(bytes)
    }
    fn export_segment(&self, segment: &Self::Segment) -> Result<OwnedFd> {
        self.host.export_segment(segment)
    }
    fn import_segment(&self, fd: OwnedFd, bytes: usize) -> Result<Self::Segment> {
        self.host.import_segment(fd, bytes)
    }
    fn map_segments(&self, segments: &[&Self::Segment]) -> Result<Self::Mapping> {
        self.host.map_segments(segments)
    }
    fn allocate(&self, bytes: usize) -> Result<Self::Memory> {
        self.host.allocate(bytes)
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
    fn capture(
        &self,
        stream: &Self::Stream,
        enqueue: impl FnOnce() -> Result<()>,
    ) -> Result<Self::Graph> {
        self.host.capture(stream, enqueue)
    }
    fn launch_graph(&self, graph: &Self::Graph, stream: &Self::Stream) -> Result<()> {
        self.host.launch_graph(graph, stream)
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

/// Makes a multicast object on three ranks, `culprit` failing at `fails`; then, with the same exchanges, one that works.
fn attempt(culprit: usize, fails: Option<Step>) -> Vec<Result<()>> {
    let threads: Vec<_> = ThreadExchange::group_with_timeout(3, Duration::from_secs(20))
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || {
                let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                let mut device = Faulty {
                    host: Host::new(),
                    fails: None,
                };
                let buffer = SymmetricBuffer::new(&device, &exchange, "b", 100).unwrap();
                device.fails = fails.filter(|_| exchange.rank() == culprit);
                let outcome = MulticastBuffer::new(&device, &exchange, &buffer).map(drop);
                device.fails = None;
                let object = MulticastBuffer::new(&device, &exchange, &buffer).unwrap();
                assert_eq!(
                    object.address(),
                    DevicePtr::NULL,
                    "host kernels store to every mapping"
                );
                drop(object);
                buffer.close(exchange.as_ref()).unwrap();
                outcome
            })
        })
        .collect();
    threads
        .into_iter()
        .map(|t| t.join().expect("a rank panicked"))
        .collect()
}

#[test]
fn all_ranks_get_an_object() {
    for outcome in attempt(0, None) {
        outcome.unwrap();
    }
}

#[test]
fn a_failure_on_one_rank_is_an_error_on_all_and_nobody_is_left_waiting() {
    let steps = [
        (0, Step::Create),
        (0, Step::Export),
        (2, Step::Import),
        (1, Step::Join),
        (0, Step::Bind),
        (2, Step::Bind),
        (1, Step::Map),
    ];
    for (culprit, step) in steps {
        for (rank, outcome) in attempt(culprit, Some(step)).into_iter().enumerate() {
            let error = outcome.unwrap_err();
            assert!(
                error.to_string().contains("on purpose"),
                "{step:?}, rank {rank}: {error}"
            );
            match error {
                Error::Unavailable { .. } => assert_eq!(rank, culprit, "{step:?}"),
                Error::PeerFailed { rank: named, .. } => {
                    assert!(named == culprit && rank != culprit, "{step:?}")
                }
                other => panic!("{step:?}, rank {rank}: {other}"),
            }
        }
    }
}
