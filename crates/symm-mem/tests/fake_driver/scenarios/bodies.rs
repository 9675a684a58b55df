//! The work of one rank in each scenario.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warpweave_symm_mem::cuda::{CudaMemory, CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::pad::StopFlags;
use warpweave_symm_mem::{
    Backend, Cuda, DevicePtr, Error, Memory, PadView, Priority, Result, SignalPad, SymmetricBuffer,
};

use super::{Kept, Rank};

pub const BYTES: usize = 5000;

pub fn write(device: &Cuda, at: DevicePtr, bytes: &[u8]) -> Result<()> {
    let stream = device.setup_stream()?;
    // SAFETY: the scenarios pass ranges of live buffers.
    unsafe { device.upload(&stream, at, bytes) }
}

pub fn read(device: &Cuda, at: DevicePtr, bytes: usize) -> Result<Vec<u8>> {
    let stream = device.setup_stream()?;
    let mut out = vec![0; bytes];
    // SAFETY: as above.
    unsafe { device.download(&stream, at, &mut out)? };
    Ok(out)
}

/// A buffer whose every part every rank sees.
pub fn buffer(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let buffer = SymmetricBuffer::new(&device, &rank.exchange, "b", BYTES)?;
    let zeros = read(&device, buffer.local(), BYTES)?;
    assert!(zeros.iter().all(|byte| *byte == 0), "new memory is zero");
    rank.barrier("zero seen")?;
    let next = (rank.rank + 1) % rank.world;
    write(&device, buffer.range(next, 7, 1)?, &[rank.rank as u8 + 1])?;
    rank.barrier("written")?;
    for owner in 0..rank.world {
        let part = read(&device, buffer.range(owner, 0, BYTES)?, BYTES)?;
        let writer = (owner + rank.world - 1) % rank.world;
        assert_eq!(part[7], writer as u8 + 1);
    }
    let table = read(&device, buffer.peer_table(), 8 * rank.world)?;
    let last = u64::from_ne_bytes(*table.last_chunk().unwrap());
    assert_eq!(last, buffer.peer(rank.world - 1).0);
    rank.barrier("read")?;
    Ok(Box::new((buffer, device)))
}

/// The kernels of a pad, by name: the fake driver runs them on the memory that they are given.
// SAFETY: the fake driver reads names of kernels up to a zero.
pub static KERNELS: Image = unsafe {
    Image::new(
        "fake",
        b"warpweave_signal warpweave_wait warpweave_delay another\0",
        &[],
    )
};

fn launch(
    device: &Cuda,
    stream: &CudaStream,
    kernel: &'static str,
    parameters: &mut [*mut std::ffi::c_void],
) -> Result<()> {
    let function = device.function(&KERNELS, kernel)?;
    // SAFETY: `signal` and `wait` pass what kernels of these names take, and a pad that outlives the stream's
    // work.
    unsafe { device.launch(stream, &function, LaunchConfig::linear(1, 64), parameters) }
}

pub fn signal(
    device: &Cuda,
    stream: &CudaStream,
    mut pad: PadView,
    mut slot: u32,
    peer: usize,
) -> Result<()> {
    let mut mask = 1u64 << peer;
    let parameters = &mut [
        (&raw mut pad).cast(),
        (&raw mut slot).cast(),
        (&raw mut mask).cast(),
    ];
    launch(device, stream, "warpweave_signal", parameters)
}

pub fn wait(
    device: &Cuda,
    stream: &CudaStream,
    mut pad: PadView,
    mut slot: u32,
    peer: usize,
    mut lag: u32,
) -> Result<()> {
    let mut mask = 1u64 << peer;
    let parameters = &mut [
        (&raw mut pad).cast(),
        (&raw mut slot).cast(),
        (&raw mut mask).cast(),
        (&raw mut lag).cast(),
    ];
    launch(device, stream, "warpweave_wait", parameters)
}

/// Whether a peer's data belongs to this call. Not a panic otherwise: a peer whose wait missed its deadline
/// continues, overwrites unread data, and reports the fault later.
pub fn arrived(rank: &Rank, got: &[u8], expected: u8) -> Result<()> {
    if got.iter().all(|byte| *byte == expected) {
        return Ok(());
    }
    Err(Error::Stream {
        device: format!("rank {}", rank.rank),
        cause: format!("{expected} should have arrived, and here is {}", got[0]),
    })
}

/// Signals that order copies, back to back.
pub fn pad(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let peer = (rank.rank + 1) % rank.world;
    let recv = SymmetricBuffer::new(&device, &rank.exchange, "recv", BYTES)?;
    let pad = SignalPad::new(&device, &rank.exchange, "p", 2)?;
    let send = device.allocate(BYTES)?;
    let stream = device.stream(Priority::High)?;
    rank.barrier("ready")?;
    for call in 0..3u8 {
        let value = 10 * call + rank.rank as u8;
        wait(&device, &stream, pad.view(), 1, peer, 1)?;
        // SAFETY: the ranges live; credits and signals synchronize the ranks.
        unsafe {
            device.fill(&stream, send.address(), value, BYTES)?;
            device.copy(&stream, recv.peer(peer), send.address(), BYTES)?;
        }
        signal(&device, &stream, pad.view(), 0, peer)?;
        wait(&device, &stream, pad.view(), 0, peer, 0)?;
        device.synchronize(&stream)?;
        pad.check(&stream)?;
        let got = read(&device, recv.local(), BYTES)?;
        arrived(rank, &got, 10 * call + peer as u8)?;
        signal(&device, &stream, pad.view(), 1, peer)?;
    }
    rank.barrier("signalled")?;
    pad.recover(&stream, rank.exchange.as_ref())?;
    rank.barrier("recovered")?;
    let copy = || {
        let (to, from) = (recv.local(), send.address());
        // SAFETY: the ranges live, and this rank's own work alone uses them now.
        unsafe { device.copy_unless_stopped(&stream, to, from, BYTES)? };
        device.synchronize(&stream)?;
        read(&device, to, BYTES)
    };
    let own = 20 + rank.rank as u8;
    // What a wait that fails does to the flag in host memory.
    // SAFETY: aligned memory that lives as long as the device, accessed by atomics only.
    let flag = unsafe { &*(device.stop_flags()?.host.0 as *const AtomicU32) };
    flag.store(StopFlags::FAILED, Ordering::SeqCst);
    assert!(device.is_stopped());
    arrived(rank, &copy()?, 20 + peer as u8)?;
    device.resume_waits(&stream)?;
    assert!(!device.is_stopped());
    // The host alone stops no signal that would follow, so no copy.
    device.stop_waits();
    assert!(device.is_stopped());
    arrived(rank, &copy()?, own)?;
    device.resume_waits(&stream)?;
    rank.barrier("copied")?;
    pad.close(&stream, rank.exchange.as_ref())?;
    Ok(Box::new((recv, send, stream, device)))
}

/// A captured call, replayed.
pub fn graph(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let peer = (rank.rank + 1) % rank.world;
    let recv = SymmetricBuffer::new(&device, &rank.exchange, "recv", BYTES)?;
    let pad = SignalPad::new(&device, &rank.exchange, "p", 2)?;
    let send = device.allocate(BYTES)?;
    let (stream, side) = (
        device.stream(Priority::Normal)?,
        device.stream(Priority::Normal)?,
    );
    let (fork, join) = (device.event()?, device.event()?);
    rank.barrier("ready")?;
    let graph = device.capture(&stream, || {
        device.record(&fork, &stream)?;
        device.wait_event(&side, &fork)?;
        wait(&device, &side, pad.view(), 1, peer, 1)?;
        // SAFETY: the ranges live while the graph does; credits and signals synchronize the ranks.
        unsafe { device.copy(&side, recv.peer(peer), send.address(), BYTES)? };
        signal(&device, &side, pad.view(), 0, peer)?;
        device.record(&join, &side)?;
        device.wait_event(&stream, &join)?;
        wait(&device, &stream, pad.view(), 0, peer, 0)
    })?;
    match device.capture(&stream, || device.synchronize(&stream)) {
        Ok(_) => panic!("a synchronisation was captured"),
        Err(error) if error.to_string().contains("cannot be captured") => {}
        Err(error) => return Err(error),
    }
    for call in 0..3u8 {
        write(
            &device,
            send.address(),
            &[10 * call + rank.rank as u8; BYTES],
        )?;
        // SAFETY: what was captured lives until the stream is empty.
        unsafe { device.launch_graph(&graph, &stream)? };
        device.synchronize(&stream)?;
        pad.check(&stream)?;
        let got = read(&device, recv.local(), BYTES)?;
        arrived(rank, &got, 10 * call + peer as u8)?;
        signal(&device, &stream, pad.view(), 1, peer)?;
    }
    rank.barrier("replayed")?;
    Ok(Box::new((
        graph, fork, join, pad, recv, send, stream, side, device,
    )))
}

/// Streams, events and kernels of one rank.
pub fn streams(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let (a, b) = (
        device.stream(Priority::Normal)?,
        device.stream(Priority::High)?,
    );
    let (start, end) = (device.event()?, device.event()?);
    let time = Duration::from_millis(2);
    let mut ns = time.as_nanos() as u64;
    device.record(&start, &a)?;
    launch(&device, &a, "warpweave_delay", &mut [(&raw mut ns).cast()])?;
    device.record(&end, &a)?;
    device.wait_event(&b, &end)?;
    device.synchronize(&b)?;
    assert!(device.elapsed(&start, &end)? >= time);
    let another = device.function(&KERNELS, "another")?;
    assert!(another.max_resident_blocks(256, 100 << 10)? > 0);
    let pairs = LaunchConfig {
        cluster: Some((2, 1, 1)),
        ..LaunchConfig::linear(2, 256)
    };
    let resident = another.max_resident_in_clusters(pairs)?;
    assert!(resident > 0 && resident % 2 == 0, "{resident}");
    launch(&device, &b, "another", &mut [])?;
    let memory = device.allocate(3)?;
    write(&device, memory.address(), &[1, 2, 3])?;
    assert_eq!(read(&device, memory.address(), 3)?, [1, 2, 3]);
    assert!(device.free_memory()? > 0);
    rank.barrier("done")?;
    Ok(Box::new((start, end, another, memory, a, b, device)))
}

/// Everything is dropped while work that uses it is in flight, the streams first.
pub fn dropped(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let stream = device.stream(Priority::Normal)?;
    let buffer = SymmetricBuffer::new(&device, &rank.exchange, "b", BYTES)?;
    let memory = device.allocate(BYTES)?;
    let event = device.event()?;
    // SAFETY: what this scenario is about: what is dropped waits for the work on it.
    let fill = || unsafe {
        device.fill(&stream, buffer.peer(rank.world - 1), 1, BYTES)?;
        device.fill(&stream, memory.address(), 2, BYTES)
    };
    let graph = device.capture(&stream, fill)?;
    let mut ns = Duration::from_millis(3).as_nanos() as u64;
    launch(
        &device,
        &stream,
        "warpweave_delay",
        &mut [(&raw mut ns).cast()],
    )?;
    device.record(&event, &stream)?;
    fill()?;
    // SAFETY: as in `fill`.
    unsafe { device.launch_graph(&graph, &stream)? };
    drop((stream, graph, event));
    drop(memory);
    drop(buffer);
    rank.barrier("done")?;
    Ok(Box::new(device))
}

/// Keeps a stream busy and then fills the memory.
fn fill_later(device: &Cuda, stream: &CudaStream, memory: &CudaMemory) -> Result<()> {
    let mut ns = Duration::from_millis(3).as_nanos() as u64;
    launch(
        device,
        stream,
        "warpweave_delay",
        &mut [(&raw mut ns).cast()],
    )?;
    // SAFETY: what these scenarios are about: what is dropped waits for the work on it.
    unsafe { device.fill(stream, memory.address(), 1, BYTES) }
}

/// Memory of one value is dropped under work on the streams of another over the same context.
pub fn twins(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let (adopted, new) = (Cuda::adopt(device.context().clone())?, rank.device()?);
    for twin in [&adopted, &new] {
        let (memory, stream) = (device.allocate(BYTES)?, twin.stream(Priority::Normal)?);
        fill_later(twin, &stream, &memory)?;
        drop(memory);
        let memory = device.allocate(BYTES)?;
        fill_later(twin, &stream, &memory)?;
        drop(stream);
        drop(memory);
    }
    rank.barrier("done")?;
    Ok(Box::new((device, adopted, new)))
}

/// Memory is dropped in a capture of streams whose earlier work is still in flight.
pub fn captured(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let (stream, side) = (
        device.stream(Priority::Normal)?,
        device.stream(Priority::High)?,
    );
    let (fork, join) = (device.event()?, device.event()?);
    let kept = device.allocate(BYTES)?;
    for late in [&stream, &side] {
        let memory = device.allocate(BYTES)?;
        let buffer = SymmetricBuffer::new(&device, &rank.exchange, "b", BYTES)?;
        fill_later(&device, late, &memory)?;
        // SAFETY: as in `fill_later`.
        unsafe { device.fill(late, buffer.local(), 2, BYTES)? };
        let graph = device.capture(&stream, || {
            device.record(&fork, &stream)?;
            device.wait_event(&side, &fork)?;
            drop((memory, buffer));
            // SAFETY: as in `fill_later`.
            unsafe { device.fill(&side, kept.address(), 3, BYTES)? };
            device.record(&join, &side)?;
            device.wait_event(&stream, &join)
        })?;
        drop(graph);
    }
    rank.barrier("done")?;
    Ok(Box::new((fork, join, kept, stream, side, device)))
}

/// Kernels that may start before their predecessor has ended: in a capture only after one kernel, which the
/// driver here sees to.
pub fn early(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let (stream, side) = (
        device.stream(Priority::Normal)?,
        device.stream(Priority::Normal)?,
    );
    let (fork, join) = (device.event()?, device.event()?);
    let memory = device.allocate(BYTES)?;
    let function = device.function(&KERNELS, "warpweave_delay")?;
    let delay = |stream: &CudaStream| {
        let mut ns = 1u64;
        let config = LaunchConfig {
            programmatic: true,
            ..LaunchConfig::linear(1, 1)
        };
        // SAFETY: the kernel takes a number.
        unsafe { device.launch(stream, &function, config, &mut [(&raw mut ns).cast()]) }
    };
    let enqueue = || {
        delay(&stream)?;
        delay(&stream)?;
        // SAFETY: the range lives while the graph does.
        unsafe { device.fill(&stream, memory.address(), 1, BYTES)? };
        delay(&stream)?;
        device.record(&fork, &stream)?;
        device.wait_event(&side, &fork)?;
        delay(&side)?;
        device.record(&join, &side)?;
        delay(&stream)?;
        device.wait_event(&stream, &join)?;
        delay(&stream)
    };
    enqueue()?;
    let graph = device.capture(&stream, enqueue)?;
    // SAFETY: what was captured lives until the stream is empty.
    unsafe { device.launch_graph(&graph, &stream)? };
    device.synchronize(&stream)?;
    rank.barrier("done")?;
    Ok(Box::new((graph, fork, join, memory, stream, side, device)))
}

/// Many copies in one call.
pub fn batch(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let stream = device.stream(Priority::Normal)?;
    let memory = device.allocate(4096)?;
    let at = |offset| memory.address().add(offset);
    let copies = [
        (at(2000), at(0), 2),
        (at(3000), at(2), 3),
        (at(3500), at(0), 0),
    ];
    write(&device, at(0), &[1, 2, 3, 4, 5])?;
    // SAFETY: the ranges live until the streams are empty, and do not overlap.
    let copy = || unsafe { device.copy_batch(&stream, &copies) };
    copy()?;
    device.synchronize(&stream)?;
    assert_eq!(read(&device, at(2000), 2)?, [1, 2]);
    assert_eq!(read(&device, at(3000), 3)?, [3, 4, 5]);
    write(&device, at(0), &[6, 7, 8, 9, 10])?;
    let graph = device.capture(&stream, copy)?;
    // SAFETY: as in `copy`.
    unsafe { device.launch_graph(&graph, &stream)? };
    device.synchronize(&stream)?;
    assert_eq!(read(&device, at(3000), 3)?, [8, 9, 10]);
    rank.barrier("done")?;
    Ok(Box::new((graph, memory, stream, device)))
}

/// A context and a stream that a program made with cudarc.
pub fn adoption(rank: &Rank) -> Result<Kept> {
    let context = rank.device()?.context().clone();
    // The program relies on cudarc's tracking, and goes on relying on it.
    // SAFETY: nothing was allocated with this context while its tracking was off.
    unsafe { context.enable_event_tracking() };
    let device = Cuda::adopt(context.clone())?;
    assert!(context.is_event_tracking(), "the context is the program's");
    // cudarc's own error is no error of this crate: the rank's work then ends without its stream.
    let Ok(theirs) = context.new_stream() else {
        return Err(Error::Stream {
            device: device.name().into(),
            cause: "cudarc made no stream".into(),
        });
    };
    let stream = device.adopt_stream(theirs.clone())?;
    let buffer = SymmetricBuffer::new(&device, &rank.exchange, "b", BYTES)?;
    // SAFETY: the buffer outlives the stream's work.
    unsafe { device.fill(&stream, buffer.local(), 3, BYTES)? };
    device.synchronize(&stream)?;
    assert_eq!(read(&device, buffer.local(), BYTES)?, [3; BYTES]);
    buffer.close(rank.exchange.as_ref())?;
    rank.barrier("done")?;
    Ok(Box::new((theirs, stream, device, context)))
}

/// One store that reaches every rank's part.
pub fn multicast(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let buffer = SymmetricBuffer::new(&device, &rank.exchange, "b", BYTES)?;
    let object = MulticastBuffer::new(&device, &rank.exchange, &buffer)?;
    let stream = device.stream(Priority::Normal)?;
    rank.barrier("mapped")?;
    let mine = rank.rank * 100;
    // SAFETY: the object spans the buffer, and every rank stores to bytes of its own.
    unsafe {
        device.fill(
            &stream,
            object.address().add(mine),
            rank.rank as u8 + 1,
            100,
        )?
    };
    device.synchronize(&stream)?;
    rank.barrier("stored")?;
    for owner in 0..rank.world {
        let part = read(&device, buffer.peer(owner), 100 * rank.world)?;
        for (writer, bytes) in part.chunks(100).enumerate() {
            assert!(
                bytes.iter().all(|b| *b == writer as u8 + 1),
                "{writer} to {owner}"
            );
        }
    }
    rank.barrier("read")?;
    object.close(rank.exchange.as_ref())?;
    // Another, which is dropped on each rank alone.
    let dropped = MulticastBuffer::new(&device, &rank.exchange, &buffer)?;
    rank.barrier("done")?;
    Ok(Box::new((dropped, stream, buffer, device)))
}
