//! Computes C, each element from its row of A on the rank that holds it.

use serde::{Deserialize, Serialize};
use warpweave_kernels::NaiveRemoteRead as Descriptor;

use super::owner_lane::OwnerLane;
use super::{Kernel, KernelBuffer, KernelShape, on_both_backends};
use crate::execute::{
    Addresses, Binding, BoxedLaunch, ExecuteBackend, Launch, Result, without_peers,
};
use crate::plan::{BufferId, Effect, Placement, SlotId, Transport};
use crate::simulate::{Cost, Costs};

/// Computes C, each element reading its row of A from the rank that holds it.
///
/// `a` is the rank's own shard, in rows 0 .. shard length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NaiveRemoteRead {
    /// Sizes.
    pub shape: KernelShape,
    /// Symmetric.
    pub a: BufferId,
    /// Local.
    pub b: BufferId,
    /// Local.
    pub c: BufferId,
    /// "My A may be read."
    pub ready: SlotId,
    /// "I have read your A."
    pub done: SlotId,
}

impl Kernel for NaiveRemoteRead {
    fn name(&self) -> &'static str {
        Descriptor::NAME
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
            vec![
                lane.signal(self.ready),
                lane.wait(self.ready),
                lane.read_shard(self.a),
                lane.read_weight(self.b, false),
                lane.write_result(self.c),
                lane.signal(self.done),
                lane.wait(self.done),
            ]
        };
        OwnerLane::all(self.shape, (rank, world))
            .map(lane)
            .collect()
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        match rest.first() {
            Some(Effect::Write(region)) if costs.is_own(region, self.c) => {
                let tflops = costs.machine.gemm.naive_tflops;
                Some(costs.scalar_gemm(region, self.shape.k, tflops))
            }
            _ => None,
        }
    }

    on_both_backends!();
}

impl NaiveRemoteRead {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        Ok(Box::new(Ready {
            kernel: *self,
            max_blocks: with.max_blocks(),
        }))
    }
}

/// Ready to be launched.
#[derive(Debug)]
struct Ready {
    kernel: NaiveRemoteRead,
    max_blocks: Option<u32>,
}

impl Ready {
    fn at(&self, at: &Addresses<'_>) -> Result<Descriptor> {
        let kernel = &self.kernel;
        let KernelShape { m, n, k, dtype } = kernel.shape;
        Ok(Descriptor {
            a_peers: at.table(kernel.a)?,
            b: at.own(kernel.b),
            c: at.own(kernel.c),
            m,
            n,
            k,
            dtype,
            pad: at.pad()?,
            ready: kernel.ready.0,
            done: kernel.done.0,
            max_blocks: self.max_blocks,
        })
    }
}

impl<B: ExecuteBackend> Launch<B> for Ready {
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        // SAFETY: the caller's obligation; sizes were checked against the buffers.
        unsafe { backend.naive_remote_read(stream, &self.at(at)?)? };
        Ok(())
    }

    fn probe(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        let empty = Descriptor {
            m: 0,
            k: 0,
            pad: without_peers(at.pad()?),
            ..self.at(at)?
        };
        // SAFETY: the launch reads and writes no row and signals no peer.
        unsafe { backend.naive_remote_read(stream, &empty)? };
        Ok(())
    }
}
