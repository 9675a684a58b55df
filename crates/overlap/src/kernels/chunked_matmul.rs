//! The GEMM that waits per chunk: copies of the plan bring the rows of the others, and tiles begin as their
//! chunk arrives.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use warpweave_gemm as gemm;
use warpweave_gemm::GemmProblem;
use warpweave_gemm::chunked_matmul::{Arrival, ChunkedOperands};

use super::owner_lane::OwnerLane;
use super::{Kernel, KernelBuffer, KernelShape, on_both_backends};
use crate::execute::{Addresses, Binding, BoxedLaunch, ExecuteBackend, Launch, Result};
use crate::plan::{BufferId, Effect, Placement, SlotId, Transport, chunks, shard};
use crate::simulate::{Cost, Costs};

/// Computes C from this rank's rows where they lie and from the others' in staging, in the order of
/// [`ChunkedMatmul::arrivals`], each chunk of rows after the signal of its owner.
///
/// `a` is the rank's own shard, in rows 0 .. shard length; `staging` holds all M rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChunkedMatmul {
    /// Sizes.
    pub shape: KernelShape,
    /// Local.
    pub a: BufferId,
    /// Local.
    pub b: BufferId,
    /// Local.
    pub c: BufferId,
    /// Symmetric: the peers write their rows.
    pub staging: BufferId,
    /// "The next chunk of my rows is in your staging."
    pub ready: SlotId,
    /// Chunks of a shard, less those that are empty.
    pub chunks: usize,
}

impl Kernel for ChunkedMatmul {
    fn name(&self) -> &'static str {
        gemm::ChunkedMatmul::NAME
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::CopyEngine
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, k, .. } = self.shape;
        vec![
            KernelBuffer::new(self.a, shard(m, rank, world).len(), k),
            KernelBuffer::new(self.b, k, n),
            KernelBuffer::new(self.c, m, n),
            KernelBuffer::new(self.staging, m, k).placed(Placement::Symmetric),
        ]
    }

    fn result(&self) -> Option<BufferId> {
        Some(self.c)
    }

    fn slots(&self) -> Vec<SlotId> {
        vec![self.ready]
    }

    fn agreed(&self) -> String {
        format!("{} chunks", self.chunks)
    }

    fn about_effects(&self, world: usize) -> usize {
        let rows = self.shape.m.div_ceil(world.max(1));
        self.chunks
            .min(rows)
            .saturating_mul(world)
            .saturating_mul(8)
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        OwnerLane::all(self.shape, (rank, world))
            .map(|lane| match lane.is_own() {
                true => self.own_lane(&lane),
                false => self.lane_of(&lane),
            })
            .collect()
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        let (effect, later) = rest.split_first()?;
        let Effect::Write(region) = effect else {
            return None;
        };
        if !costs.is_own(region, self.c) || region.rows.is_empty() {
            // What is written to staging is not worth a figure.
            return (region.rank == costs.plan.rank).then(Cost::default);
        }
        Some(self.chunk_cost(costs, region.rows.len(), later))
    }

    on_both_backends!();
}

impl ChunkedMatmul {
    /// The chunks of rows that it waits for, with their owners: those of rank r − 1 first, which has this
    /// rank as the first of its peers, then those of r − 2 and so on.
    pub fn arrivals(
        &self,
        rank: usize,
        world: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (m, count) = (self.shape.m, self.chunks);
        (1..world)
            .map(move |step| (rank + world - step) % world)
            .flat_map(move |owner| {
                chunks(shard(m, owner, world), count).map(move |rows| (owner, rows))
            })
    }

    /// A flag counts, so that the waits for one owner are in order. The tiles of its chunks are not: those of
    /// two chunks may overlap. Nothing outside can tell, because the kernel signals nothing and only its end
    /// releases C and staging.
    fn lane_of(&self, lane: &OwnerLane) -> Vec<Effect> {
        chunks(lane.rows(), self.chunks)
            .flat_map(|rows| {
                [
                    lane.wait(self.ready),
                    Effect::Read(lane.own_box(self.staging, rows.clone(), self.shape.k)),
                    lane.read_weight(self.b, false),
                    Effect::Write(lane.own_box(self.c, rows, self.shape.n)),
                ]
            })
            .collect()
    }

    /// Own rows that share a tile with others are read from staging, so they are written there first.
    fn own_lane(&self, lane: &OwnerLane) -> Vec<Effect> {
        vec![
            lane.read_shard(self.a),
            Effect::Write(lane.staged(self.staging)),
            Effect::Read(lane.staged(self.staging)),
            lane.read_weight(self.b, false),
            lane.write_result(self.c),
        ]
    }

    /// One launch: its rows share the waves of tiles, so that each chunk takes its part of the whole, but
    /// none ends before a wave does. The chunks of a lane overlap, so only the last one shows that.
    fn chunk_cost(&self, costs: &Costs<'_>, rows: usize, later: &[Effect]) -> Cost {
        let goes_on = |effect: &Effect| matches!(effect, Effect::Write(r) if r.buffer == self.c);
        let KernelShape { m, n, k, dtype } = self.shape;
        let waves = costs.machine.waves((m, n, k), dtype);
        let cutlass = costs.machine.gemm.cutlass;
        let share = rows as f64 / m as f64 * waves.count() * waves.wave_us / cutlass;
        let time = match later.iter().any(goes_on) {
            true => share,
            false => share.max(waves.wave_us / cutlass),
        };
        costs.gemm(time, share / time)
    }

    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let KernelShape { m, n, k, dtype } = self.shape;
        let (rank, world) = (with.rank(), with.world());
        let arrivals = self.arrivals(rank, world);
        let descriptor = gemm::ChunkedMatmul {
            problem: GemmProblem::new(m, n, k, dtype),
            own: shard(m, rank, world),
            arrivals: arrivals
                .map(|(from, rows)| Arrival { rows, from })
                .collect(),
            rank,
            world,
            ready: self.ready.0,
        };
        Ok(Box::new(Prepared::<B> {
            kernel: *self,
            gemm: with.backend().prepare_chunked(with.gemm(), &descriptor)?,
        }))
    }
}

#[derive(Debug)]
struct Prepared<B: ExecuteBackend> {
    kernel: ChunkedMatmul,
    gemm: B::PreparedChunked,
}

impl<B: ExecuteBackend> Launch<B> for Prepared<B> {
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        let operands = ChunkedOperands {
            a: at.own(self.kernel.a),
            staging: at.own(self.kernel.staging),
            b: at.own(self.kernel.b),
            c: at.own(self.kernel.c),
            pad: at.pad()?,
        };
        // SAFETY: the caller's obligation; the peers' plans signal as often as this rank's kernel declares to
        // wait.
        unsafe { backend.chunked_matmul(stream, &self.gemm, &operands)? };
        Ok(())
    }
}
