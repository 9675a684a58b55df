//! The copies of a plan: boxes as runs of contiguous bytes.

use warpweave_symm_mem::DevicePtr;

use super::Binder;
use crate::execute::ExecuteBackend;
use crate::execute::step::Run;
use crate::plan::{MulticastRegion, Region};

impl<B: ExecuteBackend> Binder<'_, B> {
    /// A copy of a box: one run where the rows lie without gaps on both sides, else one a row.
    pub(super) fn runs(&self, src: &Region, dst: &Region) -> Vec<Run> {
        let from = self.buffers.copy_of(src.buffer, src.rank);
        let to = self.buffers.copy_of(dst.buffer, dst.rank);
        self.runs_between((src, from), (dst, to), dst.rank != self.plan.rank)
    }

    pub(super) fn multicast_runs(&self, src: &Region, dst: &MulticastRegion) -> Vec<Run> {
        let from = self.buffers.copy_of(src.buffer, src.rank);
        let to = self.buffers.multicast(dst.buffer);
        if to == DevicePtr::NULL {
            // The host backend emulates the multicast address: it stores to every copy.
            return self
                .plan
                .node_of(self.plan.rank)
                .flat_map(|rank| self.runs(src, &dst.on(rank)))
                .collect();
        }
        self.runs_between((src, from), (&dst.on(self.plan.rank), to), true)
    }

    /// One of this rank's boxes as contiguous bytes: first address and length.
    pub(super) fn spans(&self, region: &Region) -> Vec<(DevicePtr, usize)> {
        let own = self.buffers.copy_of(region.buffer, region.rank);
        let runs = self.runs_between((region, own), (region, own), false);
        runs.iter().map(|run| (run.dst, run.bytes)).collect()
    }

    fn runs_between(
        &self,
        (src, from): (&Region, DevicePtr),
        (dst, to): (&Region, DevicePtr),
        pushes: bool,
    ) -> Vec<Run> {
        if src.is_empty() {
            return Vec::new();
        }
        let whole = |r: &Region| r.cols.len() == self.plan.buffers[r.buffer.0].cols;
        let row = src.cols.len() * self.plan.buffers[src.buffer.0].dtype.size();
        let (runs, bytes) = match src.rows.len() {
            rows if whole(src) && whole(dst) => (1, rows * row),
            rows => (rows, row),
        };
        (0..runs)
            .map(|i| Run {
                dst: to.add(self.offset(dst, i)),
                src: from.add(self.offset(src, i)),
                bytes,
                pushes,
            })
            .collect()
    }
}
