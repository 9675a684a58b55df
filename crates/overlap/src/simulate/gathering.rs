//! What one launch costs that pulls the rows of the others and multiplies meanwhile.

use super::cost::{Cost, Costs, micros};
use super::sharing::Resource;
use crate::plan::{GatherProtocol, KernelShape, Region, shard};

impl Costs<'_> {
    /// Of a peer's shard, read in chunks, the first, which comes before the GEMM; the others overlap with it.
    pub(super) fn first_chunk(&self, shard: &Region, chunk_rows: usize) -> Cost {
        let own = self.plan.rank;
        let end = shard.rows.start.saturating_add(chunk_rows);
        let first = Region {
            rows: shard.rows.start..end.min(shard.rows.end),
            ..shard.clone()
        };
        let pull = self.machine.link.sm_pull_gbs;
        self.transfer(shard.rank, &[own], self.bytes(&first), pull)
            .by_one_thread(Resource::LinkIn(own))
            .arriving()
    }

    /// The GEMM of one rank's rows, which takes its part of the whole: pulling takes nothing from it that can
    /// be measured. Rows of others, but what is pushed of each shard, end no earlier than a wave after the
    /// last of them: of those that are pulled a chunk is here at the begin, the others share a link, and each
    /// is counted before it is loaded again.
    pub(super) fn gathered_gemm(
        &self,
        shape: KernelShape,
        (chunk_rows, protocol): (usize, GatherProtocol),
        result: &Region,
    ) -> Cost {
        let (own, world) = (self.plan.rank, self.plan.world);
        let sizes = (shape.m, shape.n, shape.k);
        let is_eager = matches!(protocol, GatherProtocol::Eager { .. });
        let waves = match is_eager {
            true => self.machine.late_waves(sizes, shape.dtype),
            false => self.machine.fast_waves(sizes, shape.dtype),
        };
        let rows = result.rows.len();
        let time = rows as f64 / shape.m as f64 * waves.count() * waves.wave_us;
        let of = |rank| shard(shape.m, rank, world);
        let first = result.rows.start;
        let owner = (0..world).find(|&rank| of(rank).contains(&first));
        let coming = match (owner.filter(|&owner| owner != own), protocol) {
            (None, _) => None,
            (_, GatherProtocol::Eager { .. }) => Some(0.0),
            (Some(owner), GatherProtocol::Rendezvous { pushed, .. }) => {
                let pushed = pushed.saturating_mul(chunk_rows);
                let rest = rows.saturating_sub(chunk_rows) * shape.k * shape.dtype.size();
                let bytes = (world - 1) as f64 * rest as f64;
                let pulling = micros(bytes, self.machine.link.sm_pull_gbs);
                let is_pulled = first >= of(owner).start.saturating_add(pushed);
                is_pulled.then_some(pulling + self.machine.latency.signal_us)
            }
        };
        let others = (world - 1) as f64 * time;
        let latency = coming.map_or(0.0, |coming| (waves.wave_us + coming - others).max(0.0));
        Cost {
            latency,
            time,
            loads: vec![(Resource::Sms(own), 1.0)],
            gemm: true,
            ..Cost::default()
        }
    }
}
