//! Gathers A into staging by loads from its owners, and computes C from there if asked to.

use serde::{Deserialize, Serialize};
use warpweave_kernels::{GatherMatmul, GatherMode};
use warpweave_symm_mem::DevicePtr;

use super::owner_lane::OwnerLane;
use super::{Kernel, KernelBuffer, KernelShape, on_both_backends};
use crate::execute::{
    Addresses, Binding, BoxedLaunch, ExecuteBackend, Launch, Result, without_peers,
};
use crate::plan::{BufferId, Effect, Placement, SlotId, Transport, shard};
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
        storing(self.staging, self.shape.m, costs, rest)
            .or_else(|| scalar_gemm(self.c, self.shape, costs, rest))
    }

    on_both_backends!();
}

impl ThreadloadGatherMatmul {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        Ok(Box::new(Gather {
            shape: self.shape,
            mode: Mode::ThreadLoad { done: self.done },
            a: self.a,
            staging: self.staging,
            gemm: Some((self.b, self.c)),
            ready: self.ready,
            max_blocks: with.max_blocks(),
        }))
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

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        storing(self.staging, self.shape.m, costs, rest)
    }

    on_both_backends!();
}

impl ThreadloadGather {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        Ok(Box::new(Gather {
            shape: self.shape,
            mode: Mode::ThreadLoad { done: self.done },
            a: self.a,
            staging: self.staging,
            gemm: None,
            ready: self.ready,
            max_blocks: with.max_blocks(),
        }))
    }
}

/// A gather in either mode, ready to be launched.
#[derive(Debug)]
pub(super) struct Gather {
    pub shape: KernelShape,
    pub mode: Mode,
    pub a: BufferId,
    pub staging: BufferId,
    /// B and C, where it also multiplies.
    pub gemm: Option<(BufferId, BufferId)>,
    pub ready: SlotId,
    pub max_blocks: Option<u32>,
}

/// How a gather gets its rows.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// It loads them from their owners' A.
    ThreadLoad { done: SlotId },
    /// Their owners store them by the multicast address.
    Multimem { free: SlotId, signal_free: bool },
}

impl Gather {
    fn at(&self, at: &Addresses<'_>) -> Result<GatherMatmul> {
        let KernelShape { m, n, k, dtype } = self.shape;
        let mode = match self.mode {
            Mode::ThreadLoad { done } => GatherMode::ThreadLoad {
                a_peers: at.table(self.a)?,
                done: done.0,
            },
            Mode::Multimem { free, signal_free } => GatherMode::Multimem {
                address: at.multicast(self.staging),
                staging_peers: at.table(self.staging)?,
                free: free.0,
                signal_free,
            },
        };
        let (b, c) = match self.gemm {
            Some((b, c)) => (at.own(b), at.own(c)),
            None => (DevicePtr::NULL, DevicePtr::NULL),
        };
        Ok(GatherMatmul {
            mode,
            a: at.own(self.a),
            staging: at.own(self.staging),
            b,
            c,
            m,
            n,
            k,
            dtype,
            pad: at.pad()?,
            ready: self.ready.0,
            max_blocks: self.max_blocks,
        })
    }
}

impl<B: ExecuteBackend> Launch<B> for Gather {
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        // SAFETY: the caller's obligation; sizes were checked against the buffers.
        unsafe { backend.gather_matmul(stream, &self.at(at)?)? };
        Ok(())
    }

    fn probe(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        let empty = GatherMatmul {
            m: 0,
            // An empty chunk would still read B.
            k: 0,
            pad: without_peers(at.pad()?),
            ..self.at(at)?
        };
        // SAFETY: the launch reads and writes no row and signals no peer.
        unsafe { backend.gather_matmul(stream, &empty)? };
        Ok(())
    }
}

/// What storing the rows of others in staging costs: nothing, for each is stored as it comes.
fn storing(staging: BufferId, m: usize, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
    let Some(Effect::Write(region)) = rest.first() else {
        return None;
    };
    let own = shard(m, costs.plan.rank, costs.plan.world);
    let is_own = own.contains(&region.rows.start);
    (costs.is_own(region, staging) && !is_own).then(Cost::default)
}

/// Rows of a block: the former where the latter would leave SMs without one.
const BLOCK_ROWS: [usize; 2] = [8, 16];

/// What the GEMM of a gather costs: that of rows of C, as a part of the whole. Blocks take their rows tile
/// of columns by tile. What their loads take does not become less with rows or columns, and no other block
/// of the SM hides it.
pub(super) fn scalar_gemm(
    c: BufferId,
    shape: KernelShape,
    costs: &Costs<'_>,
    rest: &[Effect],
) -> Option<Cost> {
    let Some(Effect::Write(region)) = rest.first() else {
        return None;
    };
    if !costs.is_own(region, c) {
        return None;
    }
    let (rates, sms) = (&costs.machine.gemm, costs.machine.gpu.sms);
    let KernelShape { m, n, k, .. } = shape;
    let [few, many] = BLOCK_ROWS;
    let rows = if m >= many * sms { many } else { few };
    let per_sm = m.div_ceil(rows).div_ceil(sms) as f64;
    let full = 2.0 * (many * rates.scalar_columns) as f64 * k as f64 * sms as f64;
    let full_us = full / (rates.scalar_tflops * 1e6);
    let loads = rates.scalar_loads * n.div_ceil(rates.scalar_columns) as f64;
    let columns = n.next_multiple_of(WARP_COLUMNS) as f64 / rates.scalar_columns as f64;
    let multiplying = (1.0 - rates.scalar_loads) * columns * rows as f64 / many as f64;
    let part = region.rows.len() as f64 / m as f64;
    Some(costs.on_sms(part * per_sm * (loads + multiplying) * full_us, 1.0))
}

/// Columns of a warp.
const WARP_COLUMNS: usize = 128;
