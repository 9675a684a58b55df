//! Operands in any memory and of any size, through a symmetric bounce buffer: see [`Variant::Staged`].
//!
//! # What it does
//! A message is sent in pieces. Peers write a piece into one of two slots of this rank's *bounce buffer*,
//! with the kernel of the symmetric variant. In an all-reduce that kernel then copies it to the output. In
//! other operations a local copy on another stream does, while the next piece arrives in the other slot.
//! Pushing reads no peer's memory, so the input is read in place. A reduce-scatter needs no copy out; if its
//! input exceeds the staging memory, pieces are packed into a slot before they are pushed.
//!
//! # Limit
//! The link carries the bytes of the symmetric variant. In addition comes a local copy, which reads and
//! writes each byte once at memory bandwidth. In an all-reduce nothing hides it, for a copy on another stream
//! takes SMs from the reduction: on four H100s 64 MiB took 337 µs by such copies and a launch for the last,
//! and take 327; 256 MiB 1295 and 1297, in graphs 1244 and 1281; symmetric ones 296 and 1147. Copying slice
//! after slice while others are reduced was slower (16 MiB on two: 65 µs for 63).
//!
//! # Order
//! Peers write a slot again only after its owner has begun the launch after next, which waits on the device
//! for the copy out of it. In a reduction peers store to a slot after its owner's first slice, in the other
//! kernels after the barrier: either way its owner has begun that launch, and ended the one before.

use warpweave_symm_mem::{DevicePtr, Result};

use super::backend::{CollectiveKernels, Kernel};
use super::call::{Call, Operand, SignedCall};
use super::enqueue::LOCAL_BLOCKS;
use super::launch::{Addresses, Direct};
use super::operation::Operation;
use super::select::Costs;
use super::variant::Variant;
use super::{Collectives, PIECES};

/// Most bytes of a slot. A longer piece gains less at the links than its copy costs at the end.
const SLOT: usize = 32 << 20;

/// Bytes that a local copy moves in a microsecond: each is read and written, at 4 TB/s.
const COPIED: f64 = 2e6;

/// Minimum time of a launch after another, in microseconds.
const LAUNCH: f64 = 2.5;

/// Bytes of the bounce buffer for so many bytes of staging memory.
pub(super) fn bounce_bytes(staging_bytes: usize) -> usize {
    PIECES * (staging_bytes / PIECES).min(SLOT) / 256 * 256
}

/// How a call is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pieces {
    /// Bytes of a piece, or of each rank's share of it if all ranks have one in a slot; the last may be
    /// shorter.
    bytes: usize,
    count: usize,
}

impl Pieces {
    /// The fewest equal pieces for `bytes` of `operation`, if a slot fits any.
    fn of(operation: Operation, bytes: usize, world: usize, slot: usize) -> Option<Self> {
        let (parts, vectors) = match operation {
            // Every rank reduces a chunk of each piece.
            Operation::AllReduce => (1, world),
            Operation::Broadcast | Operation::Barrier => (1, 1),
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => (world, 1),
        };
        let unit = 16 * vectors;
        let most = slot / parts / unit * unit;
        let count = bytes.max(1).div_ceil(most.max(1));
        let bytes = bytes.div_ceil(count).next_multiple_of(unit);
        (most > 0).then_some(Self { bytes, count })
    }
}

/// A piece: its offset in the message or in each rank's chunk, and its bytes.
#[derive(Clone, Copy)]
struct Piece {
    index: usize,
    start: usize,
    bytes: usize,
}

impl Piece {
    fn slot(&self) -> usize {
        self.index % PIECES
    }
}

impl<B: CollectiveKernels> Collectives<B> {
    fn slot(&self) -> usize {
        self.bounce.bytes() / PIECES
    }

    /// Why no piece fits, if so.
    pub(super) fn staged_refusal(&self, operation: Operation) -> Option<String> {
        match Pieces::of(operation, 1, self.world, self.slot()) {
            Some(_) => None,
            None => Some(format!(
                "{} bytes of staging memory fit no piece",
                self.staging.bytes()
            )),
        }
    }

    /// Whether a reduce-scatter needs no packing.
    fn fits_staging(&self, call: &Call) -> bool {
        call.operation == Operation::ReduceScatter
            && self.chunk(call) * self.world <= self.staging.bytes()
    }

    /// The time of a call in microseconds, predicted from that of its kernels, unless [`Variant::Staged`]
    /// itself was measured.
    pub(super) fn predict_staged(&self, costs: &Costs, call: &Call) -> Option<f64> {
        if self.fits_staging(call) {
            let size = call.operation.size(call.bytes(), self.world);
            return costs.predict(call.operation, Variant::Push, self.world, size);
        }
        costs.predict_staged(call.operation, call.bytes(), self.world, self.slot())
    }

    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_staged(&self, stream: &B::Stream, call: &SignedCall) -> Result<()> {
        let Some(cut) = Pieces::of(call.operation, call.bytes(), self.world, self.slot()) else {
            return Ok(());
        };
        // SAFETY: the caller's obligations.
        unsafe {
            match call.operation {
                _ if self.fits_staging(call) => self.by_push_reduce(stream, call, None),
                Operation::ReduceScatter => self.by_packed_pieces(stream, call, cut),
                Operation::AllReduce => {
                    pieces(call, cut).try_for_each(|piece| self.reduce_piece(stream, call, &piece))
                }
                _ => self.by_landed_pieces(stream, call, cut),
            }
        }
    }

    /// Pieces of an all-gather, an all-to-all or a broadcast, each copied out while the next one lands.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    unsafe fn by_landed_pieces(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        cut: Pieces,
    ) -> Result<()> {
        let backend = &self.backend;
        let blocks = self.direct_blocks(cut.bytes);
        for piece in pieces(call, cut) {
            let slot = piece.slot();
            let out = self.out_of_slot(call, &piece);
            // SAFETY: the caller's obligations; the order is what the module's description argues.
            unsafe {
                if piece.index >= PIECES {
                    backend.wait_event(stream, &self.reduced[slot])?;
                }
                self.land(stream, call, &piece)?;
                if piece.index + 1 == cut.count {
                    backend.launch_collective(stream, Kernel::Exchange(&out), blocks)?;
                } else {
                    backend.record(&self.pushed[slot], stream)?;
                    backend.wait_event(&self.side, &self.pushed[slot])?;
                    backend.launch_collective(
                        &self.side,
                        Kernel::Exchange(&out),
                        blocks.min(LOCAL_BLOCKS),
                    )?;
                    backend.record(&self.reduced[slot], &self.side)?;
                }
            }
        }
        match cut.count {
            1 => Ok(()),
            // The copies on the side stream are ordered: all are done when the last is.
            count => backend.wait_event(stream, &self.reduced[(count - 2) % PIECES]),
        }
    }

    /// Sends a piece of an all-gather, an all-to-all or a broadcast to the slots of all ranks.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    unsafe fn land(&self, stream: &B::Stream, call: &SignedCall, piece: &Piece) -> Result<()> {
        // SAFETY: the caller's obligations.
        unsafe {
            if call.operation == Operation::Broadcast {
                let input = Operand::local(call.input.address().add(piece.start));
                let count = piece.bytes / call.dtype.size();
                let part = call.part(count, input, self.slot_of(piece)?);
                return self.by_scatter_all_gather(stream, &part);
            }
            let launch = self.exchange_into_slots(call, piece);
            let blocks = self.direct_blocks(piece.bytes);
            self.backend
                .launch_collective(stream, Kernel::Exchange(&launch), blocks)
        }
    }

    /// Reduces a piece of an all-reduce. What lands in its slot goes on to the output in the same launch.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    unsafe fn reduce_piece(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        piece: &Piece,
    ) -> Result<()> {
        let at = |operand: &Operand| Operand::local(operand.address().add(piece.start));
        let count = piece.bytes / call.dtype.size();
        let part = call.part(count, at(&call.input), at(&call.output));
        // SAFETY: the caller's obligations.
        unsafe { self.by_push_reduce(stream, &part, Some(&self.slot_of(piece)?)) }
    }

    /// The slot of a piece, on every rank.
    fn slot_of(&self, piece: &Piece) -> Result<Operand> {
        Operand::symmetric(&self.bounce, piece.slot() * self.slot(), piece.bytes)
    }

    /// Sends this rank's data for each peer to that peer's slot, and its own to the output.
    fn exchange_into_slots(&self, call: &SignedCall, piece: &Piece) -> Direct {
        let (rank, start) = (self.rank, piece.start);
        let place = piece.slot() * self.slot() + rank * piece.bytes;
        let synchronized = Direct {
            enter: 1,
            leave: 1,
            ..self.local(call, piece, |_| None)
        };
        self.moves(synchronized, |peer| {
            let part = match call.operation {
                Operation::AllToAll => peer * call.bytes(),
                _ => 0,
            };
            let from = call.input.address().add(part + start);
            let to = match peer == rank {
                true => call.output.address().add(rank * call.bytes() + start),
                false => self.bounce.peer(peer).add(place),
            };
            (from != to).then_some((from, to))
        })
    }

    /// The local copy of a piece from its slot to the output.
    fn out_of_slot(&self, call: &SignedCall, piece: &Piece) -> Direct {
        let slot = self.bounce.local().add(piece.slot() * self.slot());
        let (output, rank) = (call.output.address(), self.rank);
        let is_there = |rank: usize| {
            call.operation == Operation::Broadcast && rank == call.root && call.in_place()
        };
        self.local(call, piece, |peer| match call.operation {
            Operation::AllGather | Operation::AllToAll => (peer != rank).then(|| {
                let to = output.add(peer * call.bytes() + piece.start);
                (slot.add(peer * piece.bytes), to)
            }),
            // One range, whoever wrote it.
            _ => (peer == rank && !is_there(rank)).then(|| (slot, output.add(piece.start))),
        })
    }

    /// Pieces of a reduce-scatter, each packed into a slot: the first on `stream`, each other while the one
    /// before is reduced.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    unsafe fn by_packed_pieces(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
        cut: Pieces,
    ) -> Result<()> {
        let backend = &self.backend;
        let blocks = self.direct_blocks(cut.bytes);
        let pack = |piece: &Piece| {
            let slot = self.bounce.local().add(piece.slot() * self.slot());
            self.local(call, piece, |peer| {
                let from = call.input.address().add(peer * call.bytes() + piece.start);
                Some((from, slot.add(peer * piece.bytes)))
            })
        };
        let mut ahead = pieces(call, cut).skip(1);
        // SAFETY: the caller's obligations. A slot is packed when the launch that read it before has ended,
        // and read when it is packed; peers write to no slot in a reduce-scatter.
        unsafe {
            // The slot of the second piece is free from the start.
            backend.record(&self.pushed[1], stream)?;
            for piece in pieces(call, cut) {
                let slot = piece.slot();
                match piece.index {
                    0 => backend.launch_collective(
                        stream,
                        Kernel::Exchange(&pack(&piece)),
                        blocks,
                    )?,
                    _ => backend.wait_event(stream, &self.reduced[slot])?,
                }
                if let Some(next) = ahead.next() {
                    backend.wait_event(&self.side, &self.pushed[next.slot()])?;
                    backend.launch_collective(
                        &self.side,
                        Kernel::Exchange(&pack(&next)),
                        blocks.min(LOCAL_BLOCKS),
                    )?;
                    backend.record(&self.reduced[next.slot()], &self.side)?;
                }
                let packed = self.bounce.local().add(slot * self.slot());
                let part = call.part(
                    piece.bytes / call.dtype.size(),
                    Operand::local(packed),
                    Operand::local(call.output.address().add(piece.start)),
                );
                self.by_push_reduce(stream, &part, None)?;
                backend.record(&self.pushed[slot], stream)?;
            }
        }
        Ok(())
    }

    /// Local copies of a piece, without a barrier.
    fn local(
        &self,
        call: &SignedCall,
        piece: &Piece,
        copy: impl Fn(usize) -> Option<(DevicePtr, DevicePtr)>,
    ) -> Direct {
        let alone = Direct {
            group: self.group(call.signature),
            from: Addresses::default(),
            to: Addresses::default(),
            bytes: piece.bytes as u64,
            enter: 0,
            leave: 0,
        };
        self.moves(alone, copy)
    }

    fn moves(
        &self,
        launch: Direct,
        copy: impl Fn(usize) -> Option<(DevicePtr, DevicePtr)>,
    ) -> Direct {
        let copy = |peer| copy(peer).unwrap_or_default();
        Direct {
            from: Addresses::by_rank(self.world, |peer| copy(peer).0),
            to: Addresses::by_rank(self.world, |peer| copy(peer).1),
            ..launch
        }
    }
}

fn pieces(call: &Call, cut: Pieces) -> impl Iterator<Item = Piece> {
    let total = call.bytes();
    (0..cut.count).map(move |index| Piece {
        index,
        start: index * cut.bytes,
        bytes: (total - index * cut.bytes).min(cut.bytes),
    })
}

impl Costs {
    /// Predicted time in microseconds of a call through a bounce buffer with slots of `slot` bytes: the
    /// kernels of the symmetric variant, piece by piece, and in an all-reduce the copy of each piece, else of
    /// the last or the first. That the other copies overlap is assumed, not measured.
    fn predict_staged(
        &self,
        operation: Operation,
        bytes: usize,
        world: usize,
        slot: usize,
    ) -> Option<f64> {
        let variant = match operation {
            Operation::AllReduce => Variant::TwoShotPush,
            Operation::Broadcast => Variant::ScatterAllGather,
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => Variant::Push,
            Operation::Barrier => return None,
        };
        let cut = Pieces::of(operation, bytes, world, slot)?;
        let piece = operation.size(cut.bytes, world);
        let copied = match operation {
            Operation::AllGather => world * cut.bytes,
            _ => piece,
        };
        let (each, copy) = (
            self.predict(operation, variant, world, piece)?,
            copied as f64 / COPIED,
        );
        let count = cut.count as f64;
        Some(match operation {
            Operation::AllReduce => count * (each + copy),
            _ => count * each + LAUNCH + copy,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
