//! Calls on the caller's memory: what an engine makes between its own kernels.
//!
//! One object does all operations, because they share their memory, their epochs and their faults: an engine
//! that makes an all-reduce after each layer and an all-gather at the end has one thing to create, to check
//! and to recover. `enqueue` and `run` take a [`Call`] of raw addresses; these methods take [`DeviceSlice`]s,
//! check their lengths, and are safe.
//!
//! A call allocates nothing on the device, exchanges nothing and waits for nothing, so it can be captured in
//! a graph. The variant depends on the operation, on the size, and on whether the operands are symmetric:
//! these are alike on all ranks. A rank whose memory is not aligned to 16 bytes, or to 4, uses narrower loads
//! and stores in the same protocol.

use warpweave_symm_mem::{DType, DevicePtr, DeviceSlice, Error, Result};

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::{Call, Operand};
use super::enqueue::PACKET_THREADS;
use super::launch::{Addresses, MAX_WORLD, PAYLOAD, Packets, UnevenPackets, signature};
use super::operation::Operation;
use super::variant::Variant;

/// The unit of data that is moved and not reduced: two bytes, whatever the elements are.
pub const MOVED: DType = DType::F16;

/// # Calls on the caller's memory
///
/// Any device memory will do, of any length: memory of stream-ordered pools too, since no peer opens it.
/// Every rank makes the same calls, with the same operation, lengths, type and root, in the same order, and
/// with symmetric operands at the same offsets: a call whose peers reach for another range fails. A call
/// starts after the one before it, on whatever stream that is. In captures only the graph orders calls, and
/// the caller orders launches of graphs. What goes wrong on the device [`Collectives::check`] finds.
///
/// Each returns the variant that does it.
///
/// # Errors
/// [`Error::InvalidArgument`] for lengths that do not fit each other, and for operands that overlap without
/// being the same; what the backend reports while enqueuing.
impl<B: CollectiveKernels> Collectives<B> {
    /// The reduction of `input` over the ranks, to `output`, which may be `input`.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use warpweave_comm::{Collectives, CollectiveOptions, Exchange};
    /// # use warpweave_symm_mem::{Backend, DType, DeviceSlice, Host, Memory, ThreadExchange};
    /// # let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    /// # let device = Host::new();
    /// # let stream = device.setup_stream()?;
    /// let collectives = Collectives::new(&device, &exchange, "engine", CollectiveOptions::default())?;
    /// let x = device.allocate(4 * 4096)?; // or a tensor's address, by `DeviceSlice::from_address`
    /// let x = DeviceSlice::of(&x);
    /// collectives.all_reduce(&stream, DType::F32, x, x)?;
    /// # Ok::<(), warpweave_symm_mem::Error>(())
    /// ```
    pub fn all_reduce(
        &self,
        stream: &B::Stream,
        dtype: DType,
        input: DeviceSlice<'_>,
        output: DeviceSlice<'_>,
    ) -> Result<Variant> {
        self.call(stream, Operation::AllReduce, dtype, 0, [input, output])
    }

    /// The reduction over the ranks of `input`, of which each rank gets one part of `world`, by rank, in
    /// `output`. This may be that part of `input`.
    pub fn reduce_scatter(
        &self,
        stream: &B::Stream,
        dtype: DType,
        input: DeviceSlice<'_>,
        output: DeviceSlice<'_>,
    ) -> Result<Variant> {
        self.call(stream, Operation::ReduceScatter, dtype, 0, [input, output])
    }

    /// Every rank's `input`, by rank, in `output`. `input` may be this rank's part of `output`. Lengths are
    /// even numbers of bytes.
    pub fn all_gather(
        &self,
        stream: &B::Stream,
        input: DeviceSlice<'_>,
        output: DeviceSlice<'_>,
    ) -> Result<Variant> {
        self.call(stream, Operation::AllGather, MOVED, 0, [input, output])
    }

    /// The `input` of rank `root`, in every rank's `output`, which may be `input`. Only the root's `input` is
    /// read. Lengths are even numbers of bytes.
    pub fn broadcast(
        &self,
        stream: &B::Stream,
        root: usize,
        input: DeviceSlice<'_>,
        output: DeviceSlice<'_>,
    ) -> Result<Variant> {
        self.call(stream, Operation::Broadcast, MOVED, root, [input, output])
    }

    /// One part of `world` of every rank's `input`, by rank, in `output`, which may be `input`. Lengths are
    /// even numbers of bytes for each part.
    pub fn all_to_all(
        &self,
        stream: &B::Stream,
        input: DeviceSlice<'_>,
        output: DeviceSlice<'_>,
    ) -> Result<Variant> {
        self.call(stream, Operation::AllToAll, MOVED, 0, [input, output])
    }

    /// Data of different lengths from every rank to every rank. `sent` and `received` are bytes by rank, even
    /// numbers: what this rank sends to each, contiguous in `input`, and gets from each, contiguous in
    /// `output`. `most` is a bound that all ranks give alike: no rank sends more to any. A launch moves as
    /// much as packets hold, and calls of more take several.
    ///
    /// Two ranks that disagree about a length make different calls, and are told. If the lengths differ by a
    /// multiple of 4 KiB, who gets less than it expects fails at the deadline, and who gets more drops it.
    pub fn all_to_all_uneven(
        &self,
        stream: &B::Stream,
        (input, sent): (DeviceSlice<'_>, &[usize]),
        (output, received): (DeviceSlice<'_>, &[usize]),
        most: usize,
    ) -> Result<()> {
        let (world, rank) = (self.world(), self.rank());
        let wrong = |why: String| {
            Err(Error::InvalidArgument {
                what: "operand of a collective",
                why: format!("uneven all-to-all of {world} ranks: {why}"),
            })
        };
        for (what, slice, bytes) in [("input", &input, sent), ("output", &output, received)] {
            let sum = bytes
                .iter()
                .try_fold(0, |sum: usize, bytes| sum.checked_add(*bytes));
            if bytes.len() != world || sum != Some(slice.bytes()) {
                let has = slice.bytes();
                return wrong(format!("the {what} of {has} bytes is not of {bytes:?}"));
            }
            if bytes
                .iter()
                .any(|bytes| *bytes > most || !bytes.is_multiple_of(2))
            {
                return wrong(format!(
                    "{what}: {bytes:?} are not even numbers up to {most}"
                ));
            }
        }
        let (from, to) = (input.own(), output.own());
        if (from.0 | to.0) % 2 != 0 || sent[rank] != received[rank] {
            return wrong(
                "an odd address, or what this rank sends to itself it does not get".into(),
            );
        }
        if overlap((from.0, input.bytes()), (to.0, output.bytes())) {
            return wrong("input and output overlap".into());
        }
        // Whole vectors, so that each piece is aligned if the first is.
        let piece = self.packet_bytes() / 48 * 48;
        let starts = |bytes: &[usize], first: DevicePtr| {
            let mut next = first;
            Addresses::by_rank(world, |rank| {
                let start = next;
                next = next.add(bytes[rank]);
                start
            })
        };
        let (from, to) = (starts(sent, from), starts(received, to));
        for start in (0..most).step_by(piece) {
            let part = |bytes: &[usize]| {
                let mut all = [0; MAX_WORLD];
                for (part, bytes) in all.iter_mut().zip(bytes) {
                    *part = bytes.saturating_sub(start).min(piece) as u32;
                }
                all
            };
            let at = |all: Addresses| Addresses::by_rank(world, |rank| all.0[rank].add(start));
            let (from, to, sent, received) = (at(from), at(to), part(sent), part(received));
            let largest = sent.iter().chain(&received).fold(0, |a, b| a.max(*b));
            let lengths = sent
                .iter()
                .chain(&received)
                .fold(0, |all, bytes| all | bytes);
            let addresses = from.0.iter().chain(&to.0).fold(0, |all, at| all | at.0);
            let launch = UnevenPackets {
                packets: Packets {
                    bytes: u64::from(largest),
                    total: u64::from(largest),
                    aligned: u32::from((addresses | u64::from(lengths)).is_multiple_of(4)),
                    ..self.packets(signature("uneven all-to-all", &[most]))
                },
                from,
                to,
                sent,
                received,
            };
            // Of all ranks the same grid, whatever this one has.
            let blocks = (most.min(piece)).div_ceil(PAYLOAD).div_ceil(PACKET_THREADS) as u32;
            let blocks = blocks.clamp(1, self.blocks);
            // SAFETY: the operands have these bytes, live as `DeviceSlice` promises, and do not overlap.
            self.in_order(stream, || unsafe {
                self.backend
                    .launch_collective(stream, Kernel::UnevenPackets(&launch), blocks)
            })?;
        }
        Ok(())
    }

    fn call(
        &self,
        stream: &B::Stream,
        operation: Operation,
        dtype: DType,
        root: usize,
        [input, output]: [DeviceSlice<'_>; 2],
    ) -> Result<Variant> {
        let unit = match operation {
            Operation::ReduceScatter | Operation::AllToAll => dtype.size() * self.world(),
            _ => dtype.size(),
        };
        let wrong = |why: String| {
            Err(Error::InvalidArgument {
                what: "operand of a collective",
                why: format!("{operation} of {} ranks: {why}", self.world()),
            })
        };
        let given = input.bytes();
        if !given.is_multiple_of(unit) {
            return wrong(format!("{given} bytes are not a multiple of {unit}"));
        }
        let count = given / unit;
        let expected = operation.elements(count, self.world()).1 * dtype.size();
        if output.bytes() != expected {
            let has = output.bytes();
            return wrong(format!("the output has {has} bytes, and needs {expected}"));
        }
        let output = self.operand(&output)?;
        let mut input = self.operand(&input)?;
        if operation == Operation::AllGather {
            let part = output.parts((self.rank(), self.world()), given);
            // In place: peers have theirs at other offsets.
            if input.address() == part.address() {
                input = part;
            }
        }
        let call = Call {
            operation,
            dtype,
            count,
            root,
            input,
            output,
        };
        if !self.are_apart(&call, given, expected) {
            return wrong("input and output overlap".into());
        }
        // SAFETY: the operands have the lengths that were checked, and live as `DeviceSlice` promises; they
        // overlap only as calls may. That all ranks make the same calls no rank can check; where one does
        // not, a wait fails, and what was computed is reported as invalid.
        self.in_order(stream, || unsafe { self.run(stream, &call) })
    }

    pub(super) fn operand(&self, slice: &DeviceSlice<'_>) -> Result<Operand> {
        let operand = Operand::of_slice(slice, (self.rank(), self.world()))?;
        self.require_own_group(&operand).map(|()| operand)
    }

    /// Whether the operands share no memory, or just as much as the operation allows.
    fn are_apart(&self, call: &Call, given: usize, taken: usize) -> bool {
        let (input, output) = (call.input.address().0, call.output.address().0);
        let part = (self.rank() * call.bytes()) as u64;
        let same = match call.operation {
            Operation::AllGather => input == output + part,
            Operation::ReduceScatter => output == input + part,
            _ => input == output,
        };
        same || !overlap((input, given), (output, taken))
    }
}

/// Whether two ranges of (address, bytes) share a byte.
pub(super) fn overlap(one: (u64, usize), other: (u64, usize)) -> bool {
    one.0 < other.0 + other.1 as u64 && other.0 < one.0 + one.1 as u64
}
