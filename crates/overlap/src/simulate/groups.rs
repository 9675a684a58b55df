//! What the products of groups of rows cost within one launch.

use super::cost::{Cost, Costs};
use super::sharing::Resource;
use crate::plan::{Kernel, KernelShape, OneShot, Region};

/// Rows of a tile.
const TILE_ROWS: usize = 128;

impl Costs<'_> {
    /// The product of a group of rows, if the kernel takes such and `region` is where it reads A. One launch: the groups share
    /// the waves of tiles, so that each holds its part of those that have its tiles, from the begin of the first to the end of the last.
    pub(super) fn group_gemm(&self, kernel: &Kernel, region: &Region) -> Option<Cost> {
        let reduction = match kernel {
            Kernel::ReducingMatmul(reduction) => reduction,
            Kernel::OneShotMatmul(of) => return self.one_shot_gemm(of, region),
            _ => return None,
        };
        if region.buffer != reduction.a {
            return None;
        }
        let (own, shape) = (self.plan.rank, reduction.shape);
        let depth = region.cols.len();
        let order = reduction.order(own, self.plan.world);
        // No tile has rows of two groups.
        let padded = |rows: usize| rows.next_multiple_of(TILE_ROWS);
        let all: usize = order.iter().map(|group| padded(group.rows.len())).sum();
        let waves = self
            .machine
            .waves_in((all, shape.n, depth), shape.dtype, TILE_ROWS);
        let earlier = order
            .iter()
            .take_while(|group| group.rows.start != region.rows.start);
        let before: usize = earlier.map(|group| padded(group.rows.len())).sum();
        let wave_of = |rows: usize| waves.tiles * rows as f64 / all as f64;
        let (from, to) = (wave_of(before), wave_of(before + padded(region.rows.len())));
        // Groups that share a wave begin and end with it.
        let (took, held) = ((to - from).max(1.0), (to - from).min(1.0));
        Some(Cost {
            latency: (to.ceil() - took) * waves.wave_us,
            time: took * waves.wave_us,
            loads: vec![(Resource::Sms(own), held), (Resource::Power(own), held)],
            gemm: true,
            ..Cost::default()
        })
    }

    /// All of the product, if `region` is where it reads A.
    fn one_shot_gemm(&self, of: &OneShot, region: &Region) -> Option<Cost> {
        let KernelShape { m, n, dtype, .. } = of.shape;
        let own = self.plan.rank;
        let waves = self.machine.fast_waves((m, n, region.cols.len()), dtype);
        (region.buffer == of.a).then(|| Cost {
            time: waves.count() * waves.wave_us,
            loads: vec![
                (Resource::Sms(own), 1.0),
                (Resource::Power(own), waves.tiles.min(1.0)),
            ],
            gemm: true,
            ..Cost::default()
        })
    }

    /// What every rank does behind all parts: it reads them, and writes their sums.
    pub(super) fn one_shot_sums(&self, of: &OneShot, region: &Region) -> Cost {
        let matrices = self.plan.world + 1;
        match region.buffer == of.c {
            true => self.local(self.bytes(region) * matrices as f64 / 2.0),
            // This rank's part in its own staging.
            false => Cost::default(),
        }
    }
}
