//! What the products of groups of rows cost within one launch.

use super::cost::{Cost, Costs};
use super::sharing::Resource;
use crate::plan::{Kernel, Region};

impl Costs<'_> {
    /// The product of a group of rows, if the kernel takes such and `region` is where it reads A. One launch: the groups share
    /// the waves of tiles, so that each costs its part of the whole and begins when those before it would have ended.
    pub(super) fn group_product(&self, kernel: &Kernel, region: &Region) -> Option<Cost> {
        let Kernel::ReducingMatmul(reduction) = kernel else {
            return None;
        };
        if region.buffer != reduction.a {
            return None;
        }
        let (own, shape) = (self.plan.rank, reduction.shape);
        let depth = region.cols.len();
        let (whole, held) = self.machine.product((shape.m, shape.n, depth), shape.dtype);
        let order = reduction.order(own, self.plan.world);
        let earlier = order
            .iter()
            .take_while(|group| group.rows.start != region.rows.start);
        let before: usize = earlier.map(|group| group.rows.len()).sum();
        let part = |rows: usize| whole * rows as f64 / shape.m as f64;
        Some(Cost {
            latency: part(before),
            time: part(region.rows.len()),
            loads: vec![
                (Resource::Multiprocessors(own), held),
                (Resource::Power(own), held),
            ],
            product: true,
            ..Cost::default()
        })
    }
}
