//! Gathers A into staging by loads from its owners, and computes C from there if asked to.

use serde::{Deserialize, Serialize};
use warpweave_kernels::{GatherMatmul, GatherMode};
use warpweave_symm_mem::DevicePtr;

use super::owner_lane::OwnerLane;
use super::{Kernel, KernelBuffer, KernelShape, on_both_backends};
use crate::execute::{Binding, BoxedLaunch, ExecuteBackend, Launch, Result, without_peers};
use crate::plan::{BufferId, Effect, Placement, SlotId, Transport};
use crate::simulate::{Cost, Costs};

/// Gathers A into staging by loads from its owners and computes C from there.
///
/// `a` is the rank's own shard, in rows 0 .. shard length; `staging` holds all M rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadloadGatherMatmul {
    /// Sizes.
    pub shape: KernelShape,
    /// Symmetric.
    pub a: BufferId,
    /// Local.
    pub b: BufferId,
    /// Local.
    pub c: BufferId,
    /// Local.
    pub staging: BufferId,
    /// "My A may be read."
    pub ready: SlotId,
    /// "I have read your A."
    pub done: SlotId,
}

/// Gathers A into staging by loads from its owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ThreadloadGather {
    /// Sizes, with n = 0.
    pub shape: KernelShape,
    /// Symmetric.
    pub a: BufferId,
    /// Local.
    pub staging: BufferId,
    /// "My A may be read."
    pub ready: SlotId,
    /// "I have read your A."
    pub done: SlotId,
}

impl Kernel for ThreadloadGatherMatmul {
    fn name(&self) -> &'static str {
        "threadload_gather_matmul"
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::ThreadLoads
    }

    fn operands(&self, _: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, k, .. } = self.shape;
        vec![
            KernelBuffer::new(self.a, m.div_ceil(world), k).placed(Placement::Symmetric),
            KernelBuffer::new(self.b, k, n),
            KernelBuffer::new(self.c, m, n),
            KernelBuffer::new(self.staging, m, k),
        ]
    }

    fn result(&self) -> Option<BufferId> {
        Some(self.c)
    }

    fn slots(&self) -> Vec<SlotId> {
        vec![self.ready, self.done]
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let lane = |lane: OwnerLane| {
            let mut effects = lane.pull((self.a, self.staging), (self.ready, self.done));
            effects.extend([
                Effect::Read(lane.staged(self.staging)),
                lane.read_weight(self.b, false),
                lane.write_result(self.c),
                lane.wait(self.done),
            ]);
            effects
        };
        OwnerLane::all(self.shape, (rank, world))
            .map(lane)
            .collect()
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        scalar_gemm(self.c, self.shape.k, costs, rest)
    }

    on_both_backends!();
}

impl ThreadloadGatherMatmul {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let mode = by_loads(with, self.a, self.done);
        let buffers = (self.a, self.staging, Some((self.b, self.c)));
        descriptor(with, self.shape, mode, buffers, self.ready)
    }
}

impl Kernel for ThreadloadGather {
    fn name(&self) -> &'static str {
        "threadload_gather"
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::ThreadLoads
    }

    fn operands(&self, _: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, k, .. } = self.shape;
        vec![
            KernelBuffer::new(self.a, m.div_ceil(world), k).placed(Placement::Symmetric),
            KernelBuffer::new(self.staging, m, k),
        ]
    }

    fn slots(&self) -> Vec<SlotId> {
        vec![self.ready, self.done]
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let lane = |lane: OwnerLane| {
            let mut effects = lane.pull((self.a, self.staging), (self.ready, self.done));
            effects.push(lane.wait(self.done));
            effects
        };
        OwnerLane::all(self.shape, (rank, world))
            .map(lane)
            .collect()
    }

    on_both_backends!();
}

impl ThreadloadGather {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let mode = by_loads(with, self.a, self.done);
        let buffers = (self.a, self.staging, None);
        descriptor(with, self.shape, mode, buffers, self.ready)
    }
}

fn by_loads<B: ExecuteBackend>(with: &Binding<'_, B>, a: BufferId, done: SlotId) -> GatherMode {
    GatherMode::ThreadLoad {
        a_peers: with.table(a),
        done: done.0,
    }
}

/// The launch of a gather in either mode, with B and C where it also multiplies.
pub(super) fn descriptor<B: ExecuteBackend>(
    with: &Binding<'_, B>,
    shape: KernelShape,
    mode: GatherMode,
    (a, staging, gemm): (BufferId, BufferId, Option<(BufferId, BufferId)>),
    ready: SlotId,
) -> Result<BoxedLaunch<B>> {
    let KernelShape { m, n, k, dtype } = shape;
    let (b, c) = match gemm {
        Some((b, c)) => (with.own(b), with.own(c)),
        None => (DevicePtr::NULL, DevicePtr::NULL),
    };
    Ok(Box::new(GatherMatmul {
        mode,
        a: with.own(a),
        staging: with.own(staging),
        b,
        c,
        m,
        n,
        k,
        dtype,
        pad: with.pad()?,
        ready: ready.0,
        max_blocks: None,
    }))
}

/// What the GEMM of a gather costs: that of rows of C.
pub(super) fn scalar_gemm(
    c: BufferId,
    k: usize,
    costs: &Costs<'_>,
    rest: &[Effect],
) -> Option<Cost> {
    match rest.first() {
        Some(Effect::Write(region)) if costs.is_own(region, c) => {
            let rates = &costs.machine.gemm;
            // A row of threads computes so many columns, also where C has fewer.
            let tile = (rates.scalar_columns, rates.scalar_tflops);
            Some(costs.scalar_gemm(region, k, tile))
        }
        _ => None,
    }
}

impl<B: ExecuteBackend> Launch<B> for GatherMatmul {
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream) -> Result<()> {
        // SAFETY: the caller's obligation; sizes were checked against the buffers.
        unsafe { backend.gather_matmul(stream, self)? };
        Ok(())
    }

    fn probe(&self, backend: &B, stream: &B::Stream) -> Result<()> {
        let empty = GatherMatmul {
            m: 0,
            pad: without_peers(self.pad),
            ..*self
        };
        // SAFETY: the launch reads and writes no row and signals no peer.
        unsafe { backend.gather_matmul(stream, &empty)? };
        Ok(())
    }
}
