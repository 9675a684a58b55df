//! Calls through multicast addresses: by the SMs (see `cuda/multimem.cu`) and by copy engine.
//!
//! An operand has a multicast address only if it comes from a
//! [`MulticastBuffer`](warpweave_symm_mem::multicast::MulticastBuffer), which exists only where the guard
//! allows it.

use warpweave_symm_mem::{DevicePtr, Result};

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel, Move};
use super::call::{Call, SignedCall};
use super::enqueue::Direction;
use super::launch::Multimem;
use super::operation::Operation;
use super::variant::Variant;

impl<B: CollectiveKernels> Collectives<B> {
    /// Why a call cannot use multicast addresses, if so.
    pub(super) fn multicast_refusal(&self, call: &Call, variant: Variant) -> Option<&'static str> {
        let (input, output) = (
            call.input.multicast_address(),
            call.output.multicast_address(),
        );
        let reduces = matches!(
            call.operation,
            Operation::AllReduce | Operation::ReduceScatter
        );
        if reduces && input.is_none() {
            return Some("the input has no multicast address");
        }
        if call.operation != Operation::ReduceScatter && output.is_none() {
            return Some("the output has no multicast address");
        }
        let own = call.output.address().add(self.offset(call));
        if variant == Variant::MulticastCopy && own == call.input.address() {
            return Some(
                "a copy engine cannot copy memory to itself, and the output holds the input",
            );
        }
        None
    }

    /// Whether this rank has data for its peers in an operation that moves data.
    fn gives(&self, call: &Call) -> bool {
        call.operation == Operation::AllGather || call.root == self.rank
    }

    /// Offset of this rank's data in the output, in bytes.
    fn offset(&self, call: &Call) -> usize {
        match call.operation {
            Operation::AllGather => self.rank * call.bytes(),
            _ => 0,
        }
    }

    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_multimem(&self, stream: &B::Stream, call: &SignedCall) -> Result<()> {
        let at = |address: Option<DevicePtr>, offset| match address {
            Some(address) if address != DevicePtr::NULL => address.add(offset),
            _ => DevicePtr::NULL,
        };
        let (from, to) = (
            call.input.multicast_address(),
            call.output.multicast_address(),
        );
        if let Operation::AllReduce | Operation::ReduceScatter = call.operation {
            let everywhere = call.operation == Operation::AllReduce;
            let variant = if everywhere {
                Variant::TwoShot
            } else {
                Variant::Pull
            };
            let start = self.rank * self.chunk(call);
            let launch = Multimem {
                direct: self.reduction_of(call, variant),
                from: at(from, start),
                to: at(to.filter(|_| everywhere), start),
            };
            let blocks = self.direct_blocks(self.chunk(call));
            // SAFETY: the caller's obligations.
            return unsafe {
                self.backend.launch_collective(
                    stream,
                    Kernel::MultimemReduce(call.dtype, &launch),
                    blocks,
                )
            };
        }
        let launch = Multimem {
            direct: self.exchange_of(call, Direction::Push),
            from: at(Some(call.input.address()).filter(|_| self.gives(call)), 0),
            to: at(to, self.offset(call)),
        };
        // SAFETY: the caller's obligations.
        unsafe {
            self.backend.launch_collective(
                stream,
                Kernel::MultimemSpread(&launch),
                self.direct_blocks(call.bytes()),
            )
        }
    }

    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_multicast_copy(
        &self,
        stream: &B::Stream,
        call: &SignedCall,
    ) -> Result<()> {
        let to = call.output.multicast_address().unwrap_or_default();
        let offset = self.offset(call);
        let copy = |to: DevicePtr| Move {
            dst: to.add(offset),
            src: call.input.address(),
            bytes: call.bytes(),
        };
        let moves = match to {
            _ if !self.gives(call) => vec![],
            // The host backend has no multicast address: it stores to every mapping.
            DevicePtr::NULL => (0..self.world)
                .map(|rank| copy(call.output.of(rank)))
                .collect(),
            to => vec![copy(to)],
        };
        // SAFETY: the caller's obligations; every rank is between the two barriers while its output is
        // written.
        unsafe {
            self.backend.barrier(stream, &self.group(call.signature))?;
            self.backend.copies(stream, &moves)?;
            self.backend.barrier(stream, &self.group(call.signature))
        }
    }
}
