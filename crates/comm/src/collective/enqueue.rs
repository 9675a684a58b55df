//! From a call to launches.

use warpweave_symm_mem::{DevicePtr, Result};

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel, Move};
use super::call::{Call, SignedCall};
use super::launch::{Addresses, Direct, PAYLOAD, PacketKernel, Packets};
use super::operation::Operation;
use super::variant::Variant;

/// Threads of a block of `packet_*`.
pub(super) const PACKET_THREADS: usize = 256;
/// Threads of a block of `exchange_*` and `reduce_*`.
pub(super) const DIRECT_THREADS: usize = 512;

/// Blocks of a copy within the device.
pub(super) const LOCAL_BLOCKS: u32 = 32;

/// Direction in which data moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Push,
    Pull,
}

impl<B: CollectiveKernels> Collectives<B> {
    /// Enqueues `call` in this variant.
    ///
    /// # Errors
    /// As [`Collectives::validate`]; errors of the backend.
    ///
    /// # Safety
    /// - Input and output have the elements that [`Operation::elements`] says, mapped until the call has
    ///   ended, on every rank for symmetric operands; no unordered work conflicts. They overlap only as
    ///   [`Call::output`] allows.
    /// - All ranks make the same calls in the same variants and order; the calls of a rank are ordered on its
    ///   device.
    pub unsafe fn enqueue(&self, stream: &B::Stream, call: &Call, variant: Variant) -> Result<()> {
        self.validate(call, variant)?;
        let _span = tracing::debug_span!(
            "comm.collective",
            operation = call.operation.name(),
            variant = variant.name(),
            bytes = call.bytes()
        )
        .entered();
        if call.operation == Operation::Barrier {
            return self.barrier(stream);
        }
        if call.count == 0 {
            return Ok(());
        }
        if self.world == 1 {
            if call.in_place() {
                return Ok(());
            }
            // SAFETY: the caller's obligation; one rank's result is its input.
            return unsafe {
                self.backend.copy(
                    stream,
                    call.output.address(),
                    call.input.address(),
                    call.bytes(),
                )
            };
        }
        let call = &SignedCall::new(call, variant);
        // SAFETY: the caller's obligations; `validate` has seen to what the variant needs.
        unsafe {
            match (variant, call.operation) {
                (Variant::Packets, _) => self.by_packets(stream, call),
                (Variant::Sentinel, _) => self.by_sentinel(stream, call),
                (Variant::Push, Operation::ReduceScatter) | (Variant::TwoShotPush, _) => {
                    self.by_push_reduce(stream, call, None)
                }
                (Variant::Push, _) => self.by_exchange(stream, call, Direction::Push),
                (Variant::Pull, Operation::ReduceScatter)
                | (Variant::OneShot | Variant::TwoShot, _) => {
                    self.by_reduction(stream, call, variant)
                }
                (Variant::Pull, _) => self.by_exchange(stream, call, Direction::Pull),
                (Variant::PushTma, _) => self.by_bulk_exchange(stream, call, Direction::Push),
                (Variant::PullTma, Operation::ReduceScatter) | (Variant::TwoShotTma, _) => {
                    self.by_bulk_reduce(stream, call, variant)
                }
                (Variant::PullTma, _) => self.by_bulk_exchange(stream, call, Direction::Pull),
                (Variant::ScatterAllGather, _) => self.by_scatter_all_gather(stream, call),
                (Variant::Staged, _) => self.by_staged(stream, call),
                (Variant::Multimem, _) => self.by_multimem(stream, call),
                (Variant::MulticastCopy, _) => self.by_multicast_copy(stream, call),
                (Variant::PushCopyEngine, Operation::ReduceScatter | Operation::AllReduce) => {
                    self.by_staging(stream, call)
                }
                (Variant::PushCopyEngine, _) => {
                    self.by_copies(stream, call, Direction::Push, false)
                }
                (Variant::PushBatched, _) => self.by_copies(stream, call, Direction::Push, true),
                (Variant::PullCopyEngine, _) => {
                    self.by_copies(stream, call, Direction::Pull, false)
                }
            }
        }
    }

    unsafe fn by_packets(&self, stream: &B::Stream, call: &SignedCall) -> Result<()> {
        let kernel = match call.operation {
            Operation::AllGather => PacketKernel::AllGather,
            Operation::AllToAll => PacketKernel::AllToAll,
            Operation::Broadcast => PacketKernel::Broadcast,
            Operation::ReduceScatter => PacketKernel::ReduceScatter,
            Operation::AllReduce | Operation::Barrier => PacketKernel::AllReduce,
        };
        let bytes = call.bytes();
        let addresses = call.input.address().0 | call.output.address().0;
        let aligned = (addresses | bytes as u64).is_multiple_of(4);
        let launch = Packets {
            input: call.input.address(),
            output: call.output.address(),
            bytes: bytes as u64,
            root: call.root as u32,
            aligned: u32::from(aligned),
            ..self.packets(call.signature)
        };
        let blocks = bytes.div_ceil(PAYLOAD).div_ceil(PACKET_THREADS) as u32;
        let blocks = blocks.clamp(1, self.blocks);
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend.launch_collective(
                stream,
                Kernel::Packets(kernel, call.dtype, &launch),
                blocks,
            )
        }
    }

    unsafe fn by_exchange(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        direction: Direction,
    ) -> Result<()> {
        let launch = self.exchange_of(call, direction);
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend.launch_collective(
                stream,
                Kernel::Exchange(&launch),
                self.direct_blocks(call.bytes()),
            )
        }
    }

    pub(super) unsafe fn by_reduction(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        variant: Variant,
    ) -> Result<()> {
        let launch = self.reduction_of(call, variant);
        // All ranks have the same grid, whatever is left for the last rank.
        let blocks = self.direct_blocks(self.chunk(call).max(launch.bytes as usize));
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend
                .launch_collective(stream, Kernel::Reduce(call.dtype, &launch), blocks)
        }
    }

    /// What this rank reduces and where the result goes.
    pub(super) fn reduction_of(&self, call: &SignedCall, variant: Variant) -> Direct {
        let chunk = self.chunk(call);
        let mine = self.rank * chunk;
        let (start, bytes, everywhere) = match variant {
            Variant::TwoShot | Variant::TwoShotTma => (mine, self.part(call, self.rank), true),
            Variant::OneShot => (0, call.bytes(), false),
            _ => (mine, chunk, false),
        };
        let to = Addresses::by_rank(self.world, |rank| match everywhere {
            true => call.output.of(rank).add(start),
            false if rank == self.rank => call.output.address(),
            false => DevicePtr::NULL,
        });
        Direct {
            group: self.group(call.signature),
            from: Addresses::by_rank(self.world, |rank| call.input.of(rank).add(start)),
            to,
            bytes: bytes as u64,
            enter: 1,
            leave: 1,
        }
    }

    /// Bytes of the chunk of `rank` in an all-reduce.
    pub(super) fn part(&self, call: &Call, rank: usize) -> usize {
        let chunk = self.chunk(call);
        call.bytes().saturating_sub(rank * chunk).min(chunk)
    }

    unsafe fn by_copies(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        direction: Direction,
        batched: bool,
    ) -> Result<()> {
        let Direct { from, to, .. } = self.exchange_of(call, direction);
        let at = |rank: usize| Move {
            dst: to.0[rank],
            src: from.0[rank],
            bytes: call.bytes(),
        };
        let moves: Vec<Move> = (1..self.world)
            .map(|step| at((self.rank + step) % self.world))
            .filter(|copy| copy.src != DevicePtr::NULL)
            .collect();
        let own = at(self.rank);
        let backend = &self.backend;
        let aside = own.src != DevicePtr::NULL;
        // SAFETY: the caller's obligations; every rank is between the two barriers while its output is
        // written and its input read.
        unsafe {
            if aside {
                // The local copy runs on the side stream while the copy engines use the links.
                backend.record(&self.pushed[0], stream)?;
                backend.wait_event(&self.side, &self.pushed[0])?;
                let alone = |addresses: Addresses| {
                    Addresses::by_rank(self.world, |rank| match rank == self.rank {
                        true => addresses.0[rank],
                        false => DevicePtr::NULL,
                    })
                };
                let launch = Direct {
                    from: alone(from),
                    to: alone(to),
                    enter: 0,
                    leave: 0,
                    ..self.exchange_of(call, direction)
                };
                let blocks = self.direct_blocks(own.bytes).min(LOCAL_BLOCKS);
                backend.launch_collective(&self.side, Kernel::Exchange(&launch), blocks)?;
                backend.record(&self.reduced[0], &self.side)?;
            }
            backend.barrier(stream, &self.group(call.signature))?;
            match batched {
                true => backend.batched_copies(stream, &moves)?,
                false => backend.copies(stream, &moves)?,
            }
            if aside {
                backend.wait_event(stream, &self.reduced[0])?;
            }
            backend.barrier(stream, &self.group(call.signature))
        }
    }

    /// Sources and destinations by rank: this rank's memory on one side, every rank's on the other.
    pub(super) fn exchange_of(&self, call: &SignedCall, direction: Direction) -> Direct {
        let bytes = call.bytes();
        let (rank, input, output) = (self.rank, &call.input, &call.output);
        let copy_of = |peer: usize| match (call.operation, direction) {
            (Operation::AllGather, Direction::Push) => {
                (input.address(), output.of(peer).add(rank * bytes))
            }
            (Operation::AllGather, Direction::Pull) => {
                (input.of(peer), output.address().add(peer * bytes))
            }
            (Operation::AllToAll, Direction::Push) => (
                input.address().add(peer * bytes),
                output.of(peer).add(rank * bytes),
            ),
            (Operation::AllToAll, Direction::Pull) => (
                input.of(peer).add(rank * bytes),
                output.address().add(peer * bytes),
            ),
            (_, Direction::Push) if rank == call.root => (input.address(), output.of(peer)),
            (_, Direction::Pull) if peer == call.root => (input.of(peer), output.address()),
            _ => (DevicePtr::NULL, DevicePtr::NULL),
        };
        // Data already in place needs no move.
        let copy_of = |peer: usize| match copy_of(peer) {
            (from, to) if from == to => (DevicePtr::NULL, DevicePtr::NULL),
            other => other,
        };
        Direct {
            group: self.group(call.signature),
            from: Addresses::by_rank(self.world, |peer| copy_of(peer).0),
            to: Addresses::by_rank(self.world, |peer| copy_of(peer).1),
            bytes: bytes as u64,
            enter: 1,
            leave: 1,
        }
    }

    pub(super) fn direct_blocks(&self, bytes: usize) -> u32 {
        (bytes.div_ceil(16 * DIRECT_THREADS) as u32).clamp(1, self.blocks)
    }
}

/// The widest vector, 16 bytes or an element's size (4 or 2 for untyped bytes), to which everything that a
/// launch touches is aligned.
pub(super) fn vector(launch: &Direct, element: usize) -> usize {
    widest(
        launch.from.0.iter().chain(&launch.to.0),
        launch.bytes,
        element,
    )
}

/// The widest vector of which `addresses` and `sizes` (several or-ed together) are multiples: 16 bytes or one
/// element. An `element` of 0 means untyped bytes: words if aligned to them, else halves.
pub(super) fn widest<'a>(
    addresses: impl Iterator<Item = &'a DevicePtr>,
    sizes: u64,
    element: usize,
) -> usize {
    let all = addresses.fold(sizes, |all, address| all | address.0);
    match element {
        _ if all.is_multiple_of(16) => 16,
        0 if all.is_multiple_of(4) => 4,
        0 => 2,
        size => size,
    }
}
