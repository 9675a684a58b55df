//! NCCL's calls, each a row of one table. Addresses are device addresses, counts are elements, and streams
//! order the work.

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::CUstream;

use super::api::{IN_PROGRESS, SUCCESS};
use super::comm::NcclComm;
use super::element::{Element, ReduceOp};
use super::group;
use crate::error::{CommError, Result};

/// Converts an argument to NCCL's type; `what` is its name.
trait Pass<To> {
    fn pass(self, comm: &NcclComm, what: &'static str) -> Result<To>;
}

impl Pass<*mut c_void> for u64 {
    fn pass(self, _: &NcclComm, _: &'static str) -> Result<*mut c_void> {
        Ok(self as usize as *mut c_void)
    }
}

/// A count.
impl Pass<usize> for usize {
    fn pass(self, _: &NcclComm, _: &'static str) -> Result<usize> {
        Ok(self)
    }
}

/// A rank.
impl Pass<c_int> for usize {
    fn pass(self, comm: &NcclComm, what: &'static str) -> Result<c_int> {
        comm.among_ranks(what, self)?;
        Ok(self as c_int)
    }
}

impl Pass<c_int> for Element {
    fn pass(self, comm: &NcclComm, _: &'static str) -> Result<c_int> {
        let found = comm.library().version();
        if found < self.since() {
            return Err(CommError::NcclTooOld {
                what: "8-bit floats",
                found,
                needed: self.since(),
            });
        }
        Ok(self.code())
    }
}

impl Pass<c_int> for ReduceOp {
    fn pass(self, _: &NcclComm, _: &'static str) -> Result<c_int> {
        Ok(self.code())
    }
}

/// Methods that pass their arguments in NCCL's order, followed by the communicator and the stream.
macro_rules! calls {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $kind:ty),*) by $function:ident;)*) => {
        impl NcclComm {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As [`NcclComm`] says.
                ///
                /// # Errors
                /// [`CommError::Nccl`], [`CommError::Timeout`] when the launch does not end by the deadline,
                /// [`CommError::InvalidArgument`] for a rank that is none, [`CommError::NcclTooOld`].
                #[allow(clippy::too_many_arguments)] // They are NCCL's.
                $vis unsafe fn $name(&self, $($arg: $kind,)* stream: CUstream) -> Result<()> {
                    let function = &self.library().api.$function;
                    let (name, function) = (function.name, function.get()?);
                    $(let $arg = $arg.pass(self, stringify!($arg))?;)*
                    let grouped = group::join(&self.shared, name)?;
                    let code = self.shared.call(name, |raw| {
                        // SAFETY: the communicator is alive while the call runs, and the ranks among the
                        // arguments were checked. Memory, stream and the other ranks' calls are the caller's
                        // obligation.
                        unsafe { function($($arg,)* raw, stream.cast()) }
                    })?;
                    match code {
                        // Nothing has been launched yet, so there is nothing to wait for.
                        SUCCESS | IN_PROGRESS if grouped => Ok(()),
                        code => self.shared.await_completion(name, code, &|_| Ok(())),
                    }
                }
            )*
        }
    };
}

calls! {
    /// Every rank's `count` elements at `send` to `recv` of every rank, by rank: `world * count` elements. In
    /// place when `send` is `recv` plus this rank's offset.
    pub fn all_gather(send: u64, recv: u64, count: usize, element: Element) by all_gather;

    /// `count` elements combined over all ranks, to every rank. In place when `send == recv`.
    pub fn all_reduce(send: u64, recv: u64, count: usize, element: Element, op: ReduceOp) by all_reduce;

    /// `world * count` elements combined over all ranks; rank `r` receives the `r`-th `count` of them. In
    /// place when `recv` is `send` plus this rank's offset.
    pub fn reduce_scatter(send: u64, recv: u64, count: usize, element: Element, op: ReduceOp)
        by reduce_scatter;

    /// `count` elements combined over all ranks, to rank `root`. `recv` is written there alone. In place when
    /// `send == recv`.
    pub fn reduce(send: u64, recv: u64, count: usize, element: Element, op: ReduceOp, root: usize) by reduce;

    /// `count` elements at `send` of rank `root`, read there alone, to `recv` of every rank. In place when
    /// `send == recv`.
    pub fn broadcast(send: u64, recv: u64, count: usize, element: Element, root: usize) by broadcast;

    /// `count` elements to rank `peer`, which receives them. Pairs that cross belong in one
    /// [`NcclComm::group`].
    pub fn send(send: u64, count: usize, element: Element, peer: usize) by send;

    /// `count` elements from rank `peer`, which sends them.
    pub fn recv(recv: u64, count: usize, element: Element, peer: usize) by recv;

    /// `ncclAlltoAll`.
    pub(super) fn native_all_to_all(send: u64, recv: u64, count: usize, element: Element) by all_to_all;

    /// `ncclGather`.
    pub(super) fn native_gather(send: u64, recv: u64, count: usize, element: Element, root: usize) by gather;

    /// `ncclScatter`.
    pub(super) fn native_scatter(send: u64, recv: u64, count: usize, element: Element, root: usize)
        by scatter;
}

impl NcclComm {
    pub(super) fn among_ranks(&self, what: &'static str, rank: usize) -> Result<()> {
        if rank < self.world() {
            return Ok(());
        }
        Err(CommError::InvalidArgument {
            what,
            why: format!("rank {rank} of {} ranks", self.world()),
        })
    }

    /// Orders `stream` after all work that every rank enqueued before its own barrier: an all-reduce of the
    /// one `i32` at `scratch`, whose value does not matter.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_reduce`].
    pub unsafe fn barrier(&self, scratch: u64, stream: CUstream) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.all_reduce(scratch, scratch, 1, Element::I32, ReduceOp::Max, stream) }
    }
}
