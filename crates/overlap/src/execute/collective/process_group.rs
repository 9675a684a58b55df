//! The ranks of one set with what they need for the collectives of one transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpweave_comm::collective::launch::MAX_WORLD;
use warpweave_comm::collective::norm::launch::RowNorm;
use warpweave_comm::collective::{Call, CollectiveOptions, Kernel, Operation, Variant};
use warpweave_comm::{Collectives, Operand};
use warpweave_symm_mem::{DType, DevicePtr, Exchange, Nodes};

use super::{CollectiveBackend, NcclCall, Round};
use crate::execute::addresses::{Addresses, Place};
use crate::execute::error::Result;
use crate::plan::Transport;

/// The least that a group is made for, in bytes: few plans make it anew.
const SMALLEST: usize = 1 << 16;

/// What a group is prepared for, in bytes, that is to do a collective of `bytes`.
fn prepared(bytes: usize) -> usize {
    bytes.next_power_of_two().max(SMALLEST)
}

/// The largest collective of a group that is prepared for `bytes`.
fn capacity<B: CollectiveBackend>(transport: Transport, bytes: usize) -> usize {
    match transport {
        Transport::SymmetricMemory => bytes,
        _ => B::group_capacity(bytes),
    }
}

/// A group, made once and shared by the plans of an executor.
pub(in crate::execute) struct ProcessGroup<B: CollectiveBackend> {
    backend: B,
    /// The ranks of the world that it consists of.
    ranks: Vec<usize>,
    exchange: Arc<dyn Exchange>,
    /// The largest collective, in bytes of all shards.
    capacity: usize,
    engine: Engine<B>,
    /// How often it was recovered.
    recoveries: AtomicU64,
}

#[derive(Debug)]
enum Engine<B: CollectiveBackend> {
    Nccl(B::Group),
    Symmetric(Box<Collectives<B>>),
}

/// A collective of a group with the places of its operands.
#[derive(Clone, Debug)]
pub(in crate::execute) enum GroupCall {
    /// With what follows on this rank, if anything does.
    Nccl(NcclCall, Place, Place, Option<Box<Norm>>),
    /// One call, or a broadcast of each shard.
    Symmetric(Vec<(SymmetricCall, Variant)>),
}

/// A collective over symmetric memory: a [`Call`] with places for addresses.
#[derive(Clone, Debug)]
pub(in crate::execute) struct SymmetricCall {
    pub operation: Operation,
    pub dtype: DType,
    pub count: usize,
    pub root: usize,
    pub input: Places,
    pub output: Places,
    /// What follows an all-reduce in place.
    pub norm: Option<Norm>,
}

/// The rows that an all-reduce leaves at `input`, to be added to a residual and normalized: a [`RowNorm`]
/// with places for addresses.
#[derive(Clone, Copy, Debug)]
pub(in crate::execute) struct Norm {
    pub dtype: DType,
    /// Rows, and elements of a row.
    pub shape: (usize, usize),
    pub epsilon: f32,
    pub input: Place,
    pub residual: Place,
    pub weight: Place,
    pub residual_out: Place,
    pub normalized: Place,
    /// The rows in e4m3, and their scales.
    pub quantized: Option<[Place; 2]>,
}

impl Norm {
    fn rows(&self, at: &Addresses<'_>) -> RowNorm {
        let (rows, hidden) = self.shape;
        let quantized = self
            .quantized
            .map(|places| places.map(|place| at.place(place)));
        let [quantized, scales] = quantized.unwrap_or([DevicePtr::NULL; 2]);
        RowNorm {
            input: at.place(self.input),
            residual: at.place(self.residual),
            weight: at.place(self.weight),
            residual_out: at.place(self.residual_out),
            normalized: at.place(self.normalized),
            quantized,
            scales,
            rows: rows as u32,
            hidden: hidden as u32,
            share: 0.0,
            epsilon: self.epsilon,
            alignment: 0,
            stages: 0,
        }
        .completed(self.dtype)
    }
}

/// Memory of a collective over symmetric memory: this rank's alone, or that of every rank of the group, in
/// which this rank is number `me`.
#[derive(Clone, Debug)]
pub(in crate::execute) enum Places {
    Own(Place),
    OfAll { places: Vec<Place>, me: usize },
}

impl Places {
    fn operand(&self, at: &Addresses<'_>) -> Result<Operand> {
        match self {
            Places::Own(place) => Ok(Operand::local(at.place(*place))),
            Places::OfAll { places, me } => {
                let mut addresses = [DevicePtr::NULL; MAX_WORLD];
                for (address, place) in addresses.iter_mut().zip(places) {
                    *address = at.place(*place);
                }
                Ok(Operand::shared(
                    &addresses[..places.len().min(MAX_WORLD)],
                    *me,
                )?)
            }
        }
    }
}

impl SymmetricCall {
    fn call(&self, at: &Addresses<'_>) -> Result<Call> {
        Ok(Call {
            operation: self.operation,
            dtype: self.dtype,
            count: self.count,
            root: self.root,
            input: self.input.operand(at)?,
            output: self.output.operand(at)?,
        })
    }
}

impl<B: CollectiveBackend> std::fmt::Debug for ProcessGroup<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({:?} by {:?})", self.ranks, self.engine)
    }
}

impl<B: CollectiveBackend> ProcessGroup<B> {
    /// Makes this rank's group of `round`, whose ranks are those of `exchange`. Collective.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        round: &Round,
        (nodes, rank): (&Nodes, usize),
        bytes: usize,
    ) -> Result<Self> {
        let transport = round.transport;
        let ranks = round.group_of(rank);
        let bytes = prepared(bytes);
        let engine = match transport {
            Transport::SymmetricMemory => {
                let defaults = CollectiveOptions::default();
                let options = CollectiveOptions {
                    packet_bytes: defaults.packet_bytes.min(bytes),
                    sentinel_bytes: defaults.sentinel_bytes.min(bytes),
                    // Chunks are rounded up to vectors.
                    staging_bytes: bytes + 16 * exchange.world(),
                    ..defaults
                };
                let name = "overlap.collectives";
                let collectives = Collectives::new(backend, exchange, name, options)?;
                Engine::Symmetric(Box::new(collectives))
            }
            _ => {
                let in_one = |group: &Vec<usize>| nodes.share_one(group.iter().copied());
                let spans_nodes = !round.groups.iter().all(in_one);
                Engine::Nccl(backend.group(exchange, spans_nodes, bytes)?)
            }
        };
        Ok(Self {
            backend: backend.clone(),
            ranks: ranks.to_vec(),
            exchange: exchange.clone(),
            capacity: capacity::<B>(transport, bytes),
            engine,
            recoveries: AtomicU64::new(0),
        })
    }

    /// The largest collective that it can do, in bytes of all shards.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes when what was captured before is of no use any more.
    pub fn generation(&self) -> u64 {
        self.recoveries.load(Ordering::Relaxed)
    }

    /// Chooses variants for calls over symmetric memory, at addresses that are like those of all calls.
    pub fn select(&self, calls: Vec<SymmetricCall>, at: &Addresses<'_>) -> Result<GroupCall> {
        let Engine::Symmetric(collectives) = &self.engine else {
            return Ok(GroupCall::Symmetric(Vec::new()));
        };
        let chosen = calls.into_iter().map(|call| {
            let reduction = call.call(at)?;
            let variant = match &call.norm {
                None => collectives.select(&reduction)?,
                Some(norm) => collectives.select_with_norm(&reduction, &norm.rows(at))?,
            };
            Ok((call, variant))
        });
        Ok(GroupCall::Symmetric(chosen.collect::<Result<_>>()?))
    }

    /// Enqueues a call that was made for this group.
    ///
    /// # Safety
    /// As for [`CollectiveBackend::collective`], [`Collectives::enqueue`] and
    /// [`Collectives::enqueue_with_norm`].
    pub unsafe fn enqueue(
        &self,
        stream: &B::Stream,
        call: &GroupCall,
        at: &Addresses<'_>,
    ) -> Result<()> {
        // SAFETY: the caller's obligations.
        unsafe {
            match (&self.engine, call) {
                (Engine::Nccl(group), GroupCall::Nccl(call, src, dst, norm)) => {
                    let operands = (at.place(*src), at.place(*dst));
                    self.named(self.backend.collective(stream, group, call, operands))?;
                    if let Some(norm) = norm {
                        let rows = norm.rows(at);
                        self.backend.launch_collective(
                            stream,
                            Kernel::AddRmsNorm(norm.dtype, &rows),
                            1,
                        )?;
                    }
                }
                (Engine::Symmetric(collectives), GroupCall::Symmetric(calls)) => {
                    for (call, variant) in calls {
                        let (reduction, variant) = (call.call(at)?, *variant);
                        match &call.norm {
                            None => collectives.enqueue(stream, &reduction, variant)?,
                            Some(norm) => {
                                let rows = norm.rows(at);
                                collectives
                                    .enqueue_with_norm(stream, &reduction, &rows, variant)?;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// See [`CollectiveBackend::drain_group`].
    pub fn drain(&self, stream: &B::Stream) -> Result<()> {
        match &self.engine {
            Engine::Nccl(group) => self.named(self.backend.drain_group(stream, group)),
            Engine::Symmetric(_) => Ok(()),
        }
    }

    /// See [`CollectiveBackend::abandon_group`].
    pub fn abandon(&self) {
        if let Engine::Nccl(group) = &self.engine {
            self.backend.abandon_group(group);
        }
    }

    /// See [`CollectiveBackend::check_group`].
    pub fn check(&self, stream: &B::Stream) -> Result<()> {
        self.named(match &self.engine {
            Engine::Nccl(group) => self.backend.check_group(stream, group),
            Engine::Symmetric(collectives) => collectives.check(stream).map_err(Into::into),
        })
    }

    /// See [`CollectiveBackend::recover_group`].
    pub fn recover(&self, stream: &B::Stream) -> Result<()> {
        self.recoveries.fetch_add(1, Ordering::Relaxed);
        match &self.engine {
            Engine::Nccl(group) => self.backend.recover_group(stream, group, &self.exchange),
            Engine::Symmetric(collectives) => {
                Ok(collectives.recover(stream, self.exchange.as_ref())?)
            }
        }
    }

    /// An error that names ranks of the group, in ranks of the world.
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.with_ranks(&self.ranks))
    }
}

/// Waits until everything on `stream` has ended. If it does not, aborts the collectives of the groups.
pub(in crate::execute) fn drain<B: CollectiveBackend>(
    backend: &B,
    stream: &B::Stream,
    groups: &[Arc<ProcessGroup<B>>],
) -> Result<()> {
    let drained = groups
        .iter()
        .try_for_each(|group| group.drain(stream))
        .and_then(|()| Ok(backend.synchronize(stream)?));
    if drained.is_err() {
        groups.iter().for_each(|group| group.abandon());
    }
    drained
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::{Cuda, Host};

    /// How many groups an executor makes for plans with collectives of these sizes, bound one after the
    /// other.
    fn made<B: CollectiveBackend>(
        transport: Transport,
        sizes: impl Iterator<Item = usize>,
    ) -> usize {
        let mut most = None;
        let mut made = 0;
        for bytes in sizes {
            if most.is_none_or(|most| most < bytes) {
                most = Some(capacity::<B>(transport, prepared(bytes)));
                made += 1;
            }
        }
        made
    }

    #[test]
    fn one_communicator_of_nccl_serves_plans_in_ascending_sizes() {
        let ascending = || (10..30).map(|power| 3usize << power);
        assert_eq!(made::<Cuda>(Transport::Nccl, ascending()), 1);
        // What has memory of its own is made anew for a size of which it has too little.
        assert!(made::<Host>(Transport::Nccl, ascending()) > 10);
        assert!(made::<Cuda>(Transport::SymmetricMemory, ascending()) > 10);
        assert_eq!(made::<Host>(Transport::Nccl, ascending().rev()), 1);
    }
}
