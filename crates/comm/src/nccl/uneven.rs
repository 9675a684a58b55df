//! Collectives in which each rank has a segment of a buffer, of equal lengths or not. Segments are
//! contiguous, in rank order. A call that NCCL lacks is a group of calls that it has.

use cudarc::driver::sys::CUstream;

use super::comm::NcclComm;
use super::element::{Element, ReduceOp};
use crate::error::{CommError, Result};

/// One rank's segment of a buffer.
struct Segment {
    rank: usize,
    at: u64,
    count: usize,
}

impl NcclComm {
    /// The segments that are not empty.
    fn segments(
        &self,
        what: &'static str,
        base: u64,
        counts: &[usize],
        element: Element,
    ) -> Result<Vec<Segment>> {
        let invalid = |why| CommError::InvalidArgument { what, why };
        if counts.len() != self.world() {
            let (counts, ranks) = (counts.len(), self.world());
            return Err(invalid(format!("{counts} counts for {ranks} ranks")));
        }
        let mut at = base;
        let mut segments = Vec::with_capacity(counts.len());
        for (rank, &count) in counts.iter().enumerate() {
            if count > 0 {
                segments.push(Segment { rank, at, count });
            }
            at = count
                .checked_mul(element.size())
                .and_then(|bytes| at.checked_add(bytes as u64))
                .ok_or_else(|| invalid(format!("{counts:?} elements are past all addresses")))?;
        }
        Ok(segments)
    }

    /// The common count, if all ranks have the same.
    fn even(&self, counts: &[usize]) -> Option<usize> {
        let first = *counts.first()?;
        (counts.len() == self.world() && counts.iter().all(|count| *count == first))
            .then_some(first)
    }

    /// As [`NcclComm::all_gather`] where rank `r` gives `counts[r]` elements: a broadcast of each.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `counts` is the same on all ranks.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`], and [`CommError::InvalidArgument`] when `counts` is not one for each
    /// rank.
    pub unsafe fn all_gather_uneven(
        &self,
        send: u64,
        recv: u64,
        counts: &[usize],
        element: Element,
        stream: CUstream,
    ) -> Result<()> {
        if let Some(count) = self.even(counts) {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.all_gather(send, recv, count, element, stream) };
        }
        let segments = self.segments("counts", recv, counts, element)?;
        self.group(|comm| {
            for Segment { rank, at, count } in segments {
                // The address to send from is read on the root alone.
                let from = if rank == comm.rank() { send } else { at };
                // SAFETY: each segment lies inside the buffers that the caller vouches for.
                unsafe { comm.broadcast(from, at, count, element, rank, stream)? };
            }
            Ok(())
        })
    }

    /// As [`NcclComm::reduce_scatter`] where rank `r` receives `counts[r]` elements: a reduction to each.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `counts` is the same on all ranks.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather_uneven`].
    pub unsafe fn reduce_scatter_uneven(
        &self,
        send: u64,
        recv: u64,
        counts: &[usize],
        element: Element,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<()> {
        if let Some(count) = self.even(counts) {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.reduce_scatter(send, recv, count, element, op, stream) };
        }
        let segments = self.segments("counts", send, counts, element)?;
        self.group(|comm| {
            for Segment { rank, at, count } in segments {
                // SAFETY: each segment lies inside the buffers that the caller vouches for.
                unsafe { comm.reduce(at, recv, count, element, op, rank, stream)? };
            }
            Ok(())
        })
    }

    /// The `r`-th `count` elements at `send` to rank `r`, which keeps those of rank `s` as the `s`-th `count`
    /// at `recv`. Not in place. `ncclAlltoAll` from 2.28 on, sends and receives before.
    ///
    /// # Safety
    /// As [`NcclComm`] says.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn all_to_all(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        stream: CUstream,
    ) -> Result<()> {
        if self.library().api.all_to_all.is_present() {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.native_all_to_all(send, recv, count, element, stream) };
        }
        let counts = vec![count; self.world()];
        // SAFETY: the caller's promise is the same.
        unsafe { self.all_to_all_uneven((send, &counts), (recv, &counts), element, stream) }
    }

    /// As [`NcclComm::all_to_all`], with `send.1[r]` elements to rank `r` and `recv.1[r]` from it.
    ///
    /// # Safety
    /// As [`NcclComm`] says; what a rank sends to another is as many as that one receives from it.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather_uneven`].
    pub unsafe fn all_to_all_uneven(
        &self,
        send: (u64, &[usize]),
        recv: (u64, &[usize]),
        element: Element,
        stream: CUstream,
    ) -> Result<()> {
        let sends = self.segments("counts to send", send.0, send.1, element)?;
        let recvs = self.segments("counts to receive", recv.0, recv.1, element)?;
        // SAFETY: the caller vouches for the buffers, in which the segments lie.
        unsafe { self.exchange(sends, recvs, element, stream) }
    }

    /// Every rank's `count` elements at `send` to `recv` of rank `root`, by rank. In place when `send` is
    /// `recv` plus the root's offset. `ncclGather` from 2.28 on, sends and receives before.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `recv` is written on the root alone.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn gather(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        root: usize,
        stream: CUstream,
    ) -> Result<()> {
        if self.library().api.gather.is_present() {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.native_gather(send, recv, count, element, root, stream) };
        }
        let counts = vec![count; self.world()];
        // SAFETY: the caller's promise is the same.
        unsafe { self.gather_uneven(send, recv, &counts, element, root, stream) }
    }

    /// As [`NcclComm::gather`] where rank `r` gives `counts[r]` elements.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `counts` is the same on all ranks, and `recv` is written on the root alone.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather_uneven`].
    pub unsafe fn gather_uneven(
        &self,
        send: u64,
        recv: u64,
        counts: &[usize],
        element: Element,
        root: usize,
        stream: CUstream,
    ) -> Result<()> {
        let (own, all) = self.with_root((send, recv), counts, element, root)?;
        // SAFETY: the caller vouches for the buffers, in which the segments lie.
        unsafe { self.exchange(own, all, element, stream) }
    }

    /// The `r`-th `count` elements at `send` of rank `root` to `recv` of rank `r`. In place when `recv` is
    /// `send` plus the root's offset. `ncclScatter` from 2.28 on, sends and receives before.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `send` is read on the root alone.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather`].
    pub unsafe fn scatter(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: Element,
        root: usize,
        stream: CUstream,
    ) -> Result<()> {
        if self.library().api.scatter.is_present() {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.native_scatter(send, recv, count, element, root, stream) };
        }
        let counts = vec![count; self.world()];
        // SAFETY: the caller's promise is the same.
        unsafe { self.scatter_uneven(send, recv, &counts, element, root, stream) }
    }

    /// As [`NcclComm::scatter`] where rank `r` receives `counts[r]` elements.
    ///
    /// # Safety
    /// As [`NcclComm`] says; `counts` is the same on all ranks, and `send` is read on the root alone.
    ///
    /// # Errors
    /// As [`NcclComm::all_gather_uneven`].
    pub unsafe fn scatter_uneven(
        &self,
        send: u64,
        recv: u64,
        counts: &[usize],
        element: Element,
        root: usize,
        stream: CUstream,
    ) -> Result<()> {
        let (own, all) = self.with_root((recv, send), counts, element, root)?;
        // SAFETY: the caller vouches for the buffers, in which the segments lie.
        unsafe { self.exchange(all, own, element, stream) }
    }

    /// Between this rank's buffer at `own` and all ranks' segments at `all` on `root`: this rank's, for the
    /// root, and on the root those of all.
    fn with_root(
        &self,
        (own, all): (u64, u64),
        counts: &[usize],
        element: Element,
        root: usize,
    ) -> Result<(Vec<Segment>, Vec<Segment>)> {
        self.among_ranks("root", root)?;
        let mut segments = self.segments("counts", all, counts, element)?;
        let count = counts[self.rank()];
        let own = Segment {
            rank: root,
            at: own,
            count,
        };
        if self.rank() != root {
            segments.clear();
        }
        Ok(((count > 0).then_some(own).into_iter().collect(), segments))
    }

    /// Sends and receives segments, in one group.
    ///
    /// # Safety
    /// As [`NcclComm`] says of the segments; a rank sends to another what that one receives from it.
    unsafe fn exchange(
        &self,
        sends: Vec<Segment>,
        recvs: Vec<Segment>,
        element: Element,
        stream: CUstream,
    ) -> Result<()> {
        self.group(|comm| {
            for Segment { rank, at, count } in sends {
                // SAFETY: the caller vouches for each segment.
                unsafe { comm.send(at, count, element, rank, stream)? };
            }
            for Segment { rank, at, count } in recvs {
                // SAFETY: as above.
                unsafe { comm.recv(at, count, element, rank, stream)? };
            }
            Ok(())
        })
    }
}
