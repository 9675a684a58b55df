//! Collectives over symmetric memory: each operation in several variants, which name their transport.
//!
//! # What they have in common
//! - They are enqueued on a stream and neither block nor allocate, so they can be captured in a graph and
//!   replayed.
//! - When a call ends, its outputs are complete and its inputs may be changed. Calls may follow each other
//!   with no other synchronization. All ranks make the same calls in the same order, each rank's ordered on
//!   its device.
//! - Reductions are computed in f32, in the order of ranks: the result is the same on every rank and in every
//!   run. All variants of an operation give the same bits, except those that send partial results.
//! - A peer that does not arrive by the deadline is a fault, which [`Collectives::check`] reports; the
//!   context survives.
//!
//! # Protocols
//! *Packets* carry their epoch with every 12 bytes of data into memory of this library, and need neither
//! signal nor fence: the lowest latency for small messages. Data without epochs go to memory that holds a
//! *sentinel*, and have arrived where they replaced it: the links carry nothing else, and each call zeroes
//! what the call before received. The other variants access symmetric operands directly, between two
//! *barriers* of the ranks: one before the first access, so that inputs are ready and outputs free, one after
//! the last.

mod backend;
mod bulk;
mod call;
mod calls;
mod cuda;
mod enqueue;
pub(crate) mod host;
pub mod launch;
mod multicast;
pub mod norm;
mod operation;
mod push_reduce;
mod scatter_all_gather;
mod select;
mod sentinel;
mod staged;
mod staging;
mod validate;
mod variant;

use std::sync::Arc;

use parking_lot::Mutex;
use warpweave_symm_mem::{
    DType, DevicePtr, Error, Exchange, FaultCause, Memory, Priority, Result, SignalFault,
    SignalPad, SymmetricBuffer, agree,
};

pub use backend::{CollectiveKernels, Kernel, Move};
pub use call::{Call, Operand};
pub use calls::MOVED;
pub use norm::{AddRmsNorm, Quantized};
pub use operation::Operation;
pub use select::{Costs, MalformedCosts, ReductionOrder, interpolate};
pub use variant::Variant;

use host::of_other_call;
use launch::{Addresses, Group, MAX_BLOCKS, MAX_CAPACITY, PACKET_SLOT, Packets, signature};
use select::Selected;

/// How much memory the collectives of a group keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveOptions {
    /// The largest chunk for packets, in bytes. Takes `2.7 * world` times as much memory.
    pub packet_bytes: usize,
    /// The largest message of [`Variant::Sentinel`], in bytes. Takes six times as much memory.
    pub sentinel_bytes: usize,
    /// The largest message that can be reduced in one piece through staging memory, in bytes. Takes as much
    /// memory, and as much again, at most 64 MiB, for the bounce buffer of [`Variant::Staged`].
    pub staging_bytes: usize,
    /// The largest grid of a kernel, in blocks of 512 threads; the other SMs compute meanwhile.
    pub max_blocks: u32,
    /// Whether the kernel that follows a call by packets or sentinels may start while the call waits for
    /// peers, if it is a programmatic dependent launch: on Hopper, GEMMs of few rows whose weights are
    /// constant (`GemmProblem::constant_b` of warpweave-gemm) load these meanwhile.
    ///
    /// That kernel then keeps its place on the SMs, so no other stream of this GPU may have work that a
    /// peer's call waits for: neither might come to an end. Without effect where ranks share a GPU.
    pub early_dependents: bool,
}

impl Default for CollectiveOptions {
    fn default() -> Self {
        Self {
            packet_bytes: 1 << 20,
            sentinel_bytes: 8 << 20,
            staging_bytes: 64 << 20,
            max_blocks: MAX_BLOCKS as u32,
            early_dependents: false,
        }
    }
}

/// Pieces of a message in staging memory: while one is reduced the next is sent.
const PIECES: usize = 2;

/// The collectives of a group of ranks, with their memory.
#[derive(Debug)]
pub struct Collectives<B: CollectiveKernels> {
    backend: B,
    rank: usize,
    world: usize,
    group_id: u64,
    /// One for launches on a call's stream, one for those on the side stream.
    barriers: [BarrierPad<B>; 2],
    areas: SymmetricBuffer<B>,
    /// The areas of [`Variant::Sentinel`].
    sentinels: SymmetricBuffer<B>,
    staging: SymmetricBuffer<B>,
    /// The bounce buffer of [`Variant::Staged`], which no other variant touches.
    bounce: SymmetricBuffer<B>,
    capacity: usize,
    sentinel_capacity: usize,
    blocks: u32,
    early_dependents: bool,
    side: B::Stream,
    /// The stream of the last call on the caller's memory, outside captures.
    last: Mutex<Option<B::Stream>>,
    /// Recorded where the next one is on another stream.
    turn: B::Event,
    pushed: [B::Event; PIECES],
    reduced: [B::Event; PIECES],
    costs: Costs,
    selected: Selected,
}

/// The flags and epochs of the barriers of a sequence of launches.
#[derive(Debug)]
struct BarrierPad<B: CollectiveKernels> {
    pad: SignalPad<B>,
    epochs: B::Memory,
}

impl<B: CollectiveKernels> BarrierPad<B> {
    fn new(backend: &B, exchange: &Arc<dyn Exchange>, name: &str) -> Result<Self> {
        let pad = SignalPad::new(backend, exchange, name, PACKET_SLOT + 1)?;
        let epochs = backend.allocate(4 * MAX_BLOCKS);
        let epochs = agree(exchange.as_ref(), "collectives.epochs", epochs)?;
        Ok(Self { pad, epochs })
    }

    fn group(&self, signature: u32) -> Group {
        let flags = self.pad.flags();
        Group {
            pad: self.pad.view(),
            flags: Addresses::by_rank(flags.world(), |rank| flags.peer(rank)),
            epochs: self.epochs.address(),
            signature,
            reserved: 0,
        }
    }

    fn recover(&self, backend: &B, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        let epoch = self.pad.recover(stream, exchange)?;
        let epochs = epoch.to_ne_bytes().repeat(MAX_BLOCKS);
        // SAFETY: all ranks are quiet; the range is this object's own.
        let uploaded = unsafe { backend.upload(stream, self.epochs.address(), &epochs) };
        agree(exchange, "collectives.epochs", uploaded)
    }
}

impl<B: CollectiveKernels> Collectives<B> {
    /// Allocates the collectives' memory. Collective: all ranks pass the same `name` and `options`. Variants
    /// are selected by what rank 0 finds [measured](crate::measured) of this machine, else by the built-in
    /// measurements.
    ///
    /// # Errors
    /// As [`Collectives::require_world`]; what the backend and the exchange report. An error on one rank is
    /// an error on all.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        options: CollectiveOptions,
    ) -> Result<Self> {
        let (rank, world) = (exchange.rank(), exchange.world());
        Self::require_world(world)?;
        // Rows of a norm are padded to units: a hundredth more, for rows of 4 KiB and longer.
        const MOST: usize = (MAX_CAPACITY - 64) / 101 * 100 * launch::PAYLOAD;
        let limits = [
            ("packet_bytes", options.packet_bytes, MOST),
            ("sentinel_bytes", options.sentinel_bytes, sentinel::MOST),
        ];
        for (what, bytes, most) in limits {
            if bytes > most {
                return Err(Error::InvalidArgument {
                    what,
                    why: format!("{bytes} bytes; at most {most}"),
                });
            }
        }
        let _span = tracing::info_span!("comm.collectives", name, rank, world).entered();
        let event = || backend.event();
        let own = backend.preload_collectives().and_then(|()| {
            let side = backend.stream(Priority::High)?;
            let (pushed, reduced) = ([event()?, event()?], [event()?, event()?]);
            let turn = event()?;
            let device = backend.device_identity()?.unwrap_or_default();
            let resident = backend.resident_blocks()?;
            Ok((side, turn, pushed, reduced, resident, device))
        });
        let (side, turn, pushed, reduced, resident, device) =
            agree(exchange.as_ref(), "collectives.own", own)?;
        let packets = options.packet_bytes.div_ceil(launch::PAYLOAD) + 1;
        let capacity = (packets + packets / 100).next_multiple_of(64);
        let area = 2 * world * capacity * launch::PACKET;
        let sentinel_capacity = sentinel::capacity(options.sentinel_bytes, world);
        let sentinels = sentinel::area_bytes(sentinel_capacity, world);
        let buffer = |part: &str, bytes| {
            SymmetricBuffer::new(backend, exchange, &format!("{name}.{part}"), bytes)
        };
        let this = Self {
            backend: backend.clone(),
            rank,
            world,
            group_id: exchange.group_id(),
            barriers: [
                BarrierPad::new(backend, exchange, name)?,
                BarrierPad::new(backend, exchange, &format!("{name}.side"))?,
            ],
            areas: buffer("packets", area)?,
            sentinels: buffer("sentinels", sentinels)?,
            staging: buffer("staging", options.staging_bytes)?,
            bounce: buffer("bounce", staged::bounce_bytes(options.staging_bytes))?,
            capacity,
            sentinel_capacity,
            blocks: 0,
            early_dependents: false,
            side,
            last: Mutex::default(),
            turn,
            pushed,
            reduced,
            costs: Costs::of_machine(backend, exchange.as_ref())?,
            selected: Selected::default(),
        };
        let blocks = resident.min(options.max_blocks).clamp(1, MAX_BLOCKS as u32);
        let own = [&blocks.to_le_bytes(), device.as_slice()].concat();
        let all = exchange.all_gather("collectives.devices", &own)?;
        let all: Vec<_> = all
            .iter()
            .filter_map(|of| of.split_first_chunk::<4>())
            .collect();
        // A block synchronizes with the blocks of its number, so the smallest grid bounds all. Ranks that
        // share a device share its SMs: what waits for a peer leaves it room.
        let shares = |device: &[u8]| all.iter().filter(|(_, other)| *other == device).count();
        let grids = all.iter().map(|(blocks, device)| {
            let ranks = if device.is_empty() { 1 } else { shares(device) };
            u32::from_le_bytes(**blocks) / ranks as u32
        });
        let is_shared = all.iter().any(|(_, device)| shares(device) > 1);
        Ok(Self {
            blocks: grids.min().unwrap_or(1).max(1),
            early_dependents: options.early_dependents && !is_shared,
            ..this
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// That there are collectives of `world` ranks: [`MAX_WORLD`](launch::MAX_WORLD) at most.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the limit.
    pub fn require_world(world: usize) -> Result<()> {
        if world <= launch::MAX_WORLD {
            return Ok(());
        }
        Err(Error::Unavailable {
            what: format!("collectives of {world} ranks over symmetric memory"),
            why: format!(
                "they serve {} ranks at most: use NCCL, or groups of fewer ranks",
                launch::MAX_WORLD
            ),
        })
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The largest chunk that can travel by packets, in bytes.
    pub fn packet_bytes(&self) -> usize {
        self.capacity * launch::PAYLOAD
    }

    /// After a synchronization of `stream`: the fault of a peer that did not arrive, or made another call, as
    /// an error.
    ///
    /// # Errors
    /// [`Error::SignalFault`]; errors of the backend.
    pub fn check(&self, stream: &B::Stream) -> Result<()> {
        let checks = self
            .barriers
            .iter()
            .map(|barrier| barrier.pad.check(stream));
        SignalFault::of_several(checks).map_err(|error| match error {
            Error::SignalFault(mut fault) if fault.seen == of_other_call(fault.expected) => {
                fault.cause = FaultCause::OtherCall;
                fault.into()
            }
            other => other,
        })
    }

    /// Makes the collectives usable again after a fault. Collective, with no work of any rank in flight that
    /// signals or waits, as for [`SignalPad::recover`].
    ///
    /// # Errors
    /// Errors of the backend and the exchange.
    pub fn recover(&self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        let side = self.backend.synchronize(&self.side);
        let quiet = side.and(self.backend.synchronize(stream));
        agree(exchange, "collectives.recover", quiet)?;
        agree(exchange, "collectives.filled", self.zero_areas(stream))?;
        for barrier in &self.barriers {
            barrier.recover(&self.backend, stream, exchange)?;
        }
        exchange.barrier("collectives.recovered")?;
        Ok(())
    }

    /// Zeroes what peers write to and wait for, while all ranks are quiet.
    fn zero_areas(&self, stream: &B::Stream) -> Result<()> {
        let mut areas = [&self.areas, &self.sentinels].into_iter();
        // SAFETY: all ranks are quiet; the ranges are this object's own.
        areas.try_for_each(|area| unsafe {
            self.backend.fill(stream, area.local(), 0, area.bytes())
        })
    }

    /// For tests of what follows billions of launches: makes the next launch the one after `epoch`, and
    /// `written` the last that wrote flags of barriers. Collective, with no call of any rank in flight.
    ///
    /// # Errors
    /// Errors of the backend and the exchange.
    #[doc(hidden)]
    pub fn begin_at(
        &self,
        stream: &B::Stream,
        exchange: &dyn Exchange,
        (epoch, written): (u32, u32),
    ) -> Result<()> {
        self.backend.synchronize(&self.side)?;
        self.backend.synchronize(stream)?;
        exchange.barrier("collectives.begin")?;
        let epochs = |bytes: usize| epoch.to_ne_bytes().repeat(bytes / size_of::<u32>());
        let counters = epochs(MAX_BLOCKS * size_of::<u32>());
        let backend = &self.backend;
        self.zero_areas(stream)?;
        // SAFETY: all ranks are quiet; the ranges are this object's own. Padding between flags is nobody's.
        unsafe {
            for barrier in &self.barriers {
                barrier.pad.begin_at(stream, written)?;
                backend.upload(stream, barrier.epochs.address(), &counters)?;
            }
        }
        exchange.barrier("collectives.begun")?;
        Ok(())
    }

    /// Frees the memory once all ranks have called this with their calls completed.
    ///
    /// # Errors
    /// Errors of the backend and the exchange.
    pub fn close(self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        let side = self.backend.synchronize(&self.side);
        let idle = side.and_then(|()| self.backend.synchronize(stream));
        agree(exchange, "collectives.close", idle)
    }

    /// Bytes of the chunk that each rank reduces, rounded up so that chunks stay aligned to vectors.
    fn chunk(&self, call: &Call) -> usize {
        match call.operation {
            Operation::AllReduce => call.bytes().div_ceil(self.world).next_multiple_of(16),
            _ => call.bytes(),
        }
    }

    /// The group of launches on a call's stream.
    fn group(&self, signature: u32) -> Group {
        self.barriers[0].group(signature)
    }

    /// Packets without data.
    fn packets(&self, signature: u32) -> Packets {
        Packets {
            group: self.group(signature),
            areas: Addresses::from_rank(self.rank, self.world, |rank| self.areas.peer(rank)),
            input: DevicePtr::NULL,
            output: DevicePtr::NULL,
            bytes: 0,
            total: 0,
            capacity: self.capacity as u32,
            root: 0,
            aligned: 1,
            admits: self.early_dependents.into(),
        }
    }

    /// Enqueues a call after the one before it, whatever their streams; in a capture the graph orders them.
    fn in_order<T>(&self, stream: &B::Stream, enqueue: impl FnOnce() -> Result<T>) -> Result<T> {
        let backend = &self.backend;
        // Held until the call is enqueued, so that another thread's next call follows it.
        let mut last = self.last.lock();
        let is_last = |last: &B::Stream| backend.is_same_stream(last, stream);
        if !last.as_ref().is_some_and(is_last) && !backend.is_capturing(stream)? {
            if let Some(before) = last.as_ref()
                && !backend.is_capturing(before)?
            {
                backend.record(&self.turn, before)?;
                backend.wait_event(stream, &self.turn)?;
            }
            *last = Some(stream.clone());
        }
        enqueue()
    }

    /// A barrier of the ranks' streams: work after it starts when all ranks' work before it has ended.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn barrier(&self, stream: &B::Stream) -> Result<()> {
        if self.world == 1 {
            return Ok(());
        }
        let group = self.group(signature(Operation::Barrier, &[]));
        // SAFETY: the group is this object's own and no other memory is touched.
        self.in_order(stream, || unsafe { self.backend.barrier(stream, &group) })
    }

    /// A barrier as a call.
    pub fn barrier_call(&self) -> Call {
        let nothing = Operand::local(DevicePtr::NULL);
        Call {
            operation: Operation::Barrier,
            dtype: DType::F32,
            count: 0,
            root: 0,
            input: nothing,
            output: nothing,
        }
    }
}
