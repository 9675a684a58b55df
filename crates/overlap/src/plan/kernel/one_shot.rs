//! The product whose K is sharded, with the sums of all ranks' parts made by every rank in the same launch.

use super::{BufferId, KernelShape, SlotId, layout_of, shard};
use crate::plan::{Effect, Region};
use serde::{Deserialize, Serialize};
use warpweave_gemm::matmul_reduce::Units;

/// The operands of [`Kernel::OneShotMatmul`](super::Kernel::OneShotMatmul).
///
/// K is sharded, so that each rank has a part of all of C. It writes this into the staging of every rank as soon as it is multiplied,
/// and says of each unit of C that it is there, in `ready` and behind it, a slot for each. To a plan those words are one, that of the
/// first unit: who sums a unit reads only what its words speak of, and its own part, which the launch has written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OneShot {
    /// Sizes of the whole product.
    pub shape: KernelShape,
    /// Local: this rank's columns of A.
    pub a: BufferId,
    /// Local: this rank's rows of B.
    pub b: BufferId,
    /// Whether `b` is stored transposed.
    pub b_transposed: bool,
    /// Local: all rows of C.
    pub c: BufferId,
    /// Symmetric and alternating: the parts of all ranks, in their order, each as large as C.
    pub staging: BufferId,
    /// First of `units` slots: "my part of the unit is in your staging".
    pub ready: SlotId,
    /// Units of C.
    pub units: usize,
    /// A slot in which nothing is said: the launch counts its calls there.
    pub calls: SlotId,
}

impl OneShot {
    /// The units of a C of this size, each with a slot of its own.
    pub fn units(shape: KernelShape) -> usize {
        Units::of(shape.m, shape.n).count()
    }

    /// Columns of A that `rank` has.
    pub fn depth(&self, rank: usize, world: usize) -> usize {
        shard(self.shape.k, rank, world).len()
    }

    pub(super) fn slots(&self) -> Vec<SlotId> {
        let units =
            (0..self.units.min(Units::MOST)).map(|unit| SlotId(self.ready.0.saturating_add(unit)));
        units.chain([self.calls]).collect()
    }

    /// One lane that multiplies and sends, and one that sums.
    pub(super) fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let KernelShape { m, n, .. } = self.shape;
        let depth = self.depth(rank, world);
        let (b_rows, b_cols) = layout_of(self.b_transposed).stored(depth, n);
        let on = |rank, buffer, rows, cols| Region {
            rank,
            buffer,
            rows,
            cols: 0..cols,
        };
        let peers: Vec<usize> = (1..world).map(|step| (rank + step) % world).collect();
        let mut send = vec![
            Effect::Read(on(rank, self.a, 0..m, depth)),
            Effect::Read(on(rank, self.b, 0..b_rows, b_cols)),
        ];
        let parts = |ranks: usize| ranks.saturating_mul(m);
        let part = parts(rank)..parts(rank + 1);
        let ranks = peers.iter().chain([&rank]);
        send.extend(ranks.map(|&to| Effect::Write(on(to, self.staging, part.clone(), n))));
        send.push(Effect::Signal {
            slot: self.ready,
            to: peers.clone(),
        });
        let sum = vec![
            Effect::After(vec![0]),
            Effect::Wait {
                slot: self.ready,
                from: peers,
                lag: 0,
            },
            Effect::Read(on(rank, self.staging, 0..parts(world), n)),
            Effect::Write(on(rank, self.c, 0..m, n)),
        ];
        vec![send, sum]
    }
}
