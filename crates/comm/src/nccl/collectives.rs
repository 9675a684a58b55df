//! The calls on a communicator. Addresses are device addresses, counts are elements, and work is ordered by its stream.

use std::ffi::c_void;

use cudarc::driver::sys::CUstream;

use super::api::{IN_PROGRESS, SUCCESS};
use super::comm::NcclComm;
use super::element::{Element, ReduceOp};
use crate::error::{CommError, Result};

fn read(address: u64) -> *const c_void {
    address as usize as *const c_void
}

fn write(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}

impl NcclComm {
    /// Every rank's `count` elements at `send` to `recv` of every rank, by rank: `world * count` elements. In place
    /// when `send` is `recv` plus this rank's offset.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// [`CommError::Nccl`], [`CommError::Timeout`] when the launch does not end by the deadline.
    pub unsafe fn all_gather(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        stream: CUstream,
    ) -> Result<()> {
        let raw = self.live("ncclAllGather")?;
        // SAFETY: the communicator is alive; the caller vouches for addresses and stream.
        let code = unsafe {
            (self.library.api.all_gather)(
                read(send),
                write(recv),
                count,
                element.code(),
                raw,
                stream.cast(),
            )
        };
        self.launched("ncclAllGather", code)
    }

    /// As [`NcclComm::all_gather`] where rank `r` gives `counts[r]` elements, stored one after the other.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `counts` is the same on all ranks.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`], and [`CommError::InvalidArgument`] when `counts` is not one for each rank.
    pub unsafe fn all_gather_uneven(
        &self,
        send: u64,
        recv: u64,
        counts: &[usize],
        element: Element,
        stream: CUstream,
    ) -> Result<()> {
        if counts.len() != self.world() {
            return Err(CommError::InvalidArgument {
                what: "counts",
                why: format!("{} counts for {} ranks", counts.len(), self.world()),
            });
        }
        if counts.iter().all(|count| *count == counts[0]) {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.all_gather(send, recv, counts[0], element, stream) };
        }
        self.group(|comm| {
            let mut at = recv;
            for (root, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                // The address to send from is read on the root alone.
                let from = if root == comm.rank() { send } else { at };
                // SAFETY: each part lies inside the buffers that the caller vouches for.
                unsafe { comm.broadcast(from, at, count, element, root, stream)? };
                at += (count * element.size()) as u64;
            }
            Ok(())
        })
    }

    /// `count` elements combined over all ranks, to every rank. In place when `send == recv`.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn all_reduce(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<()> {
        let raw = self.live("ncclAllReduce")?;
        // SAFETY: the communicator is alive; the caller vouches for addresses and stream.
        let code = unsafe {
            (self.library.api.all_reduce)(
                read(send),
                write(recv),
                count,
                element.code(),
                op.code(),
                raw,
                stream.cast(),
            )
        };
        self.launched("ncclAllReduce", code)
    }

    /// `world * count` elements combined over all ranks; rank `r` receives the `r`-th `count` of them.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<()> {
        let raw = self.live("ncclReduceScatter")?;
        // SAFETY: the communicator is alive; the caller vouches for addresses and stream.
        let code = unsafe {
            (self.library.api.reduce_scatter)(
                read(send),
                write(recv),
                count,
                element.code(),
                op.code(),
                raw,
                stream.cast(),
            )
        };
        self.launched("ncclReduceScatter", code)
    }

    /// `count` elements at `send` of rank `root` to `recv` of every rank.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `send` is read on the root alone.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn broadcast(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        root: usize,
        stream: CUstream,
    ) -> Result<()> {
        let root = self.peer("root", root)?;
        let raw = self.live("ncclBroadcast")?;
        // SAFETY: the communicator is alive; the caller vouches for addresses and stream.
        let code = unsafe {
            (self.library.api.broadcast)(
                read(send),
                write(recv),
                count,
                element.code(),
                root,
                raw,
                stream.cast(),
            )
        };
        self.launched("ncclBroadcast", code)
    }

    /// `count` elements to rank `peer`, which receives them. Pairs that cross belong in one [`NcclComm::group`].
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn send(
        &self,
        send: u64,
        count: usize,
        element: Element,
        peer: usize,
        stream: CUstream,
    ) -> Result<()> {
        let peer = self.peer("peer", peer)?;
        let raw = self.live("ncclSend")?;
        // SAFETY: the communicator is alive; the caller vouches for address and stream.
        let code = unsafe {
            (self.library.api.send)(read(send), count, element.code(), peer, raw, stream.cast())
        };
        self.launched("ncclSend", code)
    }

    /// `count` elements from rank `peer`, which sends them.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn recv(
        &self,
        recv: u64,
        count: usize,
        element: Element,
        peer: usize,
        stream: CUstream,
    ) -> Result<()> {
        let peer = self.peer("peer", peer)?;
        let raw = self.live("ncclRecv")?;
        // SAFETY: the communicator is alive; the caller vouches for address and stream.
        let code = unsafe {
            (self.library.api.recv)(write(recv), count, element.code(), peer, raw, stream.cast())
        };
        self.launched("ncclRecv", code)
    }

    /// Orders `stream` after all that every rank enqueued before its own barrier: an all-reduce of the one `i32` at
    /// `word`, whose value does not matter.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn barrier(&self, word: u64, stream: CUstream) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.all_reduce(word, word, 1, Element::I32, ReduceOp::Max, stream) }
    }

    /// Makes the calls of `calls` one launch, so that sends and receives among ranks may cross.
    ///
    /// # Errors
    /// The first error of `calls`, or of the launch.
    pub fn group<R>(&self, calls: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        self.live("ncclGroupStart")?;
        // SAFETY: takes nothing; NCCL keeps the group with this thread, and `GroupEnd` ends it on every path.
        let code = unsafe { (self.library.api.group_start)() };
        if code != SUCCESS {
            return Err(self.error("ncclGroupStart", code));
        }
        self.grouped.set(self.grouped.get() + 1);
        let open = OpenGroup {
            comm: self,
            ended: false,
        };
        let result = calls(self);
        let launched = self.launched("ncclGroupEnd", open.end());
        let result = result?;
        launched.map(|()| result)
    }

    /// Inside a group nothing has been launched yet, so that there is nothing to wait for.
    fn launched(&self, call: &'static str, code: i32) -> Result<()> {
        match code {
            SUCCESS | IN_PROGRESS if self.grouped.get() > 0 => Ok(()),
            code => self.settle(call, code, &|_| Ok(())),
        }
    }

    fn peer(&self, what: &'static str, rank: usize) -> Result<i32> {
        if rank >= self.world() {
            return Err(CommError::InvalidArgument {
                what,
                why: format!("rank {rank} of {} ranks", self.world()),
            });
        }
        Ok(rank as i32)
    }
}

/// Ends the group also when the calls panic, or this thread could launch nothing more.
struct OpenGroup<'a> {
    comm: &'a NcclComm,
    ended: bool,
}

impl OpenGroup<'_> {
    fn end(mut self) -> i32 {
        self.close()
    }

    fn close(&mut self) -> i32 {
        self.ended = true;
        self.comm.grouped.set(self.comm.grouped.get() - 1);
        // SAFETY: takes nothing; the group was started on this thread.
        unsafe { (self.comm.library.api.group_end)() }
    }
}

impl Drop for OpenGroup<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.close();
        }
    }
}
