//! Owners store their rows of A to every rank's staging by the multicast address; C is computed from there if
//! asked for.

use serde::{Deserialize, Serialize};

use super::owner_lane::OwnerLane;
use super::threadload_gather::{Gather, Mode, scalar_gemm};
use super::{Kernel, KernelBuffer, KernelShape, on_both_backends};
use crate::execute::{Binding, BoxedLaunch, ExecuteBackend, Result};
use crate::plan::{BufferId, Effect, Placement, SlotId, Transport, shard};
use crate::simulate::{Cost, Costs};

/// Each owner stores its rows of A to every rank's staging by the multicast address; all compute C from their
/// own staging.
///
/// `a` is the rank's own shard, in rows 0 .. shard length; `staging` holds all M rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MultimemGatherMatmul {
    /// Sizes.
    pub shape: KernelShape,
    /// Local.
    pub a: BufferId,
    /// Local.
    pub b: BufferId,
    /// Local.
    pub c: BufferId,
    /// Multicast.
    pub staging: BufferId,
    /// "My rows are in your staging."
    pub ready: SlotId,
    /// "I have read your rows from my staging."
    pub free: SlotId,
}

/// Each owner stores its rows of A to every rank's staging by the multicast address. The plan signals `free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MultimemGather {
    /// Sizes, with n = 0.
    pub shape: KernelShape,
    /// Local.
    pub a: BufferId,
    /// Multicast.
    pub staging: BufferId,
    /// "My rows are in your staging."
    pub ready: SlotId,
    /// "I have read your rows from my staging."
    pub free: SlotId,
}

impl Kernel for MultimemGatherMatmul {
    fn name(&self) -> &'static str {
        "multimem_gather_matmul"
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::Multimem
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, k, .. } = self.shape;
        vec![
            KernelBuffer::new(self.a, shard(m, rank, world).len(), k),
            KernelBuffer::new(self.b, k, n),
            KernelBuffer::new(self.c, m, n),
            KernelBuffer::new(self.staging, m, k).placed(Placement::Multicast),
        ]
    }

    fn result(&self) -> Option<BufferId> {
        Some(self.c)
    }

    fn slots(&self) -> Vec<SlotId> {
        vec![self.ready, self.free]
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let lane = |lane: OwnerLane| {
            let slots = (self.ready, self.free);
            let mut effects = lane.multicast_or_wait((self.a, self.staging), slots);
            effects.extend([
                Effect::Read(lane.staged(self.staging)),
                lane.read_weight(self.b, false),
                lane.write_result(self.c),
                lane.signal(self.free),
            ]);
            effects
        };
        OwnerLane::all(self.shape, (rank, world))
            .map(lane)
            .collect()
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        scalar_gemm(self.c, self.shape, costs, rest)
    }

    on_both_backends!();
}

impl MultimemGatherMatmul {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        Ok(Box::new(Gather {
            shape: self.shape,
            mode: Mode::Multimem {
                free: self.free,
                signal_free: true,
            },
            a: self.a,
            staging: self.staging,
            gemm: Some((self.b, self.c)),
            ready: self.ready,
            max_blocks: with.max_blocks(),
        }))
    }
}

impl Kernel for MultimemGather {
    fn name(&self) -> &'static str {
        "multimem_gather"
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::Multimem
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, k, .. } = self.shape;
        vec![
            KernelBuffer::new(self.a, shard(m, rank, world).len(), k),
            KernelBuffer::new(self.staging, m, k).placed(Placement::Multicast),
        ]
    }

    fn slots(&self) -> Vec<SlotId> {
        vec![self.ready, self.free]
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let slots = (self.ready, self.free);
        OwnerLane::all(self.shape, (rank, world))
            .map(|lane| lane.multicast_or_wait((self.a, self.staging), slots))
            .collect()
    }

    on_both_backends!();
}

impl MultimemGather {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        Ok(Box::new(Gather {
            shape: self.shape,
            mode: Mode::Multimem {
                free: self.free,
                signal_free: false,
            },
            a: self.a,
            staging: self.staging,
            gemm: None,
            ready: self.ready,
            max_blocks: with.max_blocks(),
        }))
    }
}
