//! The copies of a plan: boxes as runs of contiguous bytes.

use warpweave_symm_mem::BackendKind;

use super::Binder;
use crate::execute::ExecuteBackend;
use crate::execute::addresses::{Copy, Place, offset_of};
use crate::execute::step::{Run, Target};
use crate::plan::{MulticastRegion, Region, Transport};

impl<B: ExecuteBackend> Binder<'_, B> {
    /// A copy of a box: one run where the rows lie without gaps on both sides, else one a row.
    pub(super) fn runs(&self, src: &Region, dst: &Region) -> Vec<Run> {
        self.runs_between((src, Copy::Of(src.rank)), (dst, Copy::Of(dst.rank)))
    }

    pub(super) fn multicast_runs(&self, src: &Region, dst: &MulticastRegion) -> Vec<Run> {
        match B::KIND {
            // The host backend emulates the multicast address: it stores to every copy.
            BackendKind::Host => self
                .plan
                .node_of(self.plan.rank)
                .flat_map(|rank| self.runs(src, &dst.on(rank)))
                .collect(),
            BackendKind::Cuda => self.runs_between(
                (src, Copy::Of(src.rank)),
                (&dst.on(self.plan.rank), Copy::All),
            ),
        }
    }

    /// One of this rank's boxes as contiguous bytes: first byte and length.
    pub(super) fn spans(&self, region: &Region) -> Vec<(Place, usize)> {
        let runs = self.runs(region, region);
        runs.iter().map(|run| (run.dst, run.bytes)).collect()
    }

    fn runs_between(&self, (src, from): (&Region, Copy), (dst, to): (&Region, Copy)) -> Vec<Run> {
        if src.is_empty() {
            return Vec::new();
        }
        let plan = self.plan;
        let whole = |r: &Region| r.cols.len() == plan.buffers[r.buffer.0].cols;
        let row = src.cols.len() * plan.buffers[src.buffer.0].dtype.size();
        let (runs, bytes) = match src.rows.len() {
            rows if whole(src) && whole(dst) => (1, rows * row),
            rows => (rows, row),
        };
        let place = |region: &Region, copy, row| Place {
            buffer: region.buffer,
            copy,
            offset: offset_of(plan, region, row),
        };
        let target = match to {
            Copy::Of(rank) if rank == plan.rank => Target::Own,
            Copy::Of(_) if plan.copies_by(dst) == Transport::ThreadLoads => Target::Operand,
            // SMs do not store through a multicast address as to plain memory.
            Copy::Of(_) | Copy::All => Target::Staging,
        };
        (0..runs)
            .map(|row| Run {
                dst: place(dst, to, row),
                src: place(src, from, row),
                bytes,
                to: target,
            })
            .collect()
    }
}
