//! What one launch costs that fetches the rows of the others and multiplies meanwhile.

use super::cost::{Cost, Costs, micros};
use super::sharing::Resource;
use crate::plan::{KernelShape, Region, shard};

impl Costs<'_> {
    /// Of a peer's shard, read in chunks, the first: it stands before the product, the others come beside it.
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
    }

    /// The product of one rank's rows, which takes its part of the whole: fetching takes nothing from it that can be measured.
    /// Rows that are fetched, behind so many of each shard that are pushed, end no earlier than a wave behind their last chunks, which
    /// share a link.
    pub(super) fn gathered_product(
        &self,
        shape: KernelShape,
        (chunk_rows, pushed): (usize, usize),
        result: &Region,
    ) -> Cost {
        let (own, world) = (self.plan.rank, self.plan.world);
        let waves = self.machine.waves((shape.m, shape.n, shape.k), shape.dtype);
        let rows = result.rows.len();
        let time = rows as f64 / shape.m as f64 * waves.count() * waves.wave_us;
        let mut latency = 0.0;
        let of = |rank| shard(shape.m, rank, world);
        let first = result.rows.start;
        let owner = (0..world).find(|&rank| of(rank).contains(&first));
        if owner.is_some_and(|owner| owner != own && first >= of(owner).start + pushed) {
            let peers = (world - 1) as f64;
            let rest = rows.saturating_sub(chunk_rows) * shape.k * shape.dtype.size();
            let fetched = micros(peers * rest as f64, self.machine.link.sm_pull_gbs);
            latency = (waves.wave_us + fetched - peers * time).max(0.0);
        }
        Cost {
            latency,
            time,
            loads: vec![(Resource::Multiprocessors(own), 1.0)],
            product: true,
            ..Cost::default()
        }
    }
}
