//! The kernel as a plan knows it: operands, lanes and launches.

use serde::{Deserialize, Serialize};
use warpweave_overlap::execute::{Addresses, Binding, BoxedLaunch, Result};
use warpweave_overlap::kernels::{AnyKernel, Kernel, KernelBuffer, KernelShape};
use warpweave_overlap::plan::{
    BufferId, Effect, Placement, Region, Role, SlotId, StreamId, Transport,
};
use warpweave_overlap::{Plan, PlanBuilder};
use warpweave_symm_mem::{Cuda, DType, Host};

use crate::launch::RotateLaunch;

/// Puts this rank's block into its right neighbour's receive buffer, and what came from the left into `out`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Rotate {
    /// Elements of a block, f32.
    pub count: usize,
    /// Local.
    pub block: BufferId,
    /// Symmetric: the left neighbour writes it.
    pub receive: BufferId,
    /// Local.
    pub out: BufferId,
    /// "The block is in your receive buffer."
    pub sent: SlotId,
    /// "Your block has been taken out of my receive buffer."
    pub taken: SlotId,
}

impl Kernel for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    /// A row of `count` elements on each rank.
    fn shape(&self) -> KernelShape {
        KernelShape {
            m: 1,
            n: 0,
            k: self.count,
            dtype: DType::F32,
        }
    }

    fn transport(&self) -> Transport {
        Transport::ThreadLoads
    }

    fn operands(&self, _: usize, _: usize) -> Vec<KernelBuffer> {
        vec![
            KernelBuffer::new(self.block, 1, self.count),
            KernelBuffer::new(self.receive, 1, self.count).placed(Placement::Symmetric),
            KernelBuffer::new(self.out, 1, self.count),
        ]
    }

    fn slots(&self) -> Vec<SlotId> {
        vec![self.sent, self.taken]
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
        let row = |rank, buffer| Region {
            rank,
            buffer,
            rows: 0..1,
            cols: 0..self.count,
        };
        vec![vec![
            Effect::Wait {
                slot: self.taken,
                from: vec![right],
                lag: 1,
            },
            Effect::Read(row(rank, self.block)),
            Effect::Write(row(right, self.receive)),
            Effect::Signal {
                slot: self.sent,
                to: vec![right],
            },
            Effect::Wait {
                slot: self.sent,
                from: vec![left],
                lag: 0,
            },
            Effect::Read(row(rank, self.receive)),
            Effect::Write(row(rank, self.out)),
            Effect::Signal {
                slot: self.taken,
                to: vec![left],
            },
        ]]
    }

    fn on_host(&self, _: &Binding<'_, Host>) -> Result<BoxedLaunch<Host>> {
        Ok(Box::new(*self))
    }

    fn on_cuda(&self, _: &Binding<'_, Cuda>) -> Result<BoxedLaunch<Cuda>> {
        Ok(Box::new(*self))
    }
}

impl Rotate {
    /// What a launch is told at the addresses of a call.
    pub fn launch(&self, at: &Addresses<'_>) -> Result<RotateLaunch> {
        let right = (at.rank() + 1) % at.world();
        Ok(RotateLaunch {
            block: at.own(self.block),
            receive: at.own(self.receive),
            there: at.copy_of(self.receive, right),
            out: at.own(self.out),
            pad: at.pad()?,
            count: self.count as u32,
            sent: self.sent.0 as u32,
            taken: self.taken.0 as u32,
            reserved: 0,
        })
    }
}

/// The plan of one rank: the kernel, or at a world of one a copy.
pub fn plan(rank: usize, world: usize, count: usize) -> crate::Outcome<Plan> {
    let mut plan = PlanBuilder::new("rotate", rank, world);
    let mut buffer =
        |name, placement, role| plan.buffer(name, placement, role, DType::F32, (1, count));
    let block = buffer("block", Placement::Local, Role::Input);
    let receive = buffer("receive", Placement::Symmetric, Role::Staging);
    let out = buffer("out", Placement::Local, Role::Output);
    let (sent, taken) = (plan.slot("sent"), plan.slot("taken"));
    let kernel = Rotate {
        count,
        block,
        receive,
        out,
        sent,
        taken,
    };
    match world {
        1 => {
            let (from, to) = (plan.whole(block), plan.whole(out));
            plan.copy(StreamId::MAIN, from, to);
        }
        _ => {
            plan.kernel(StreamId::MAIN, AnyKernel::outside(kernel)?);
        }
    }
    Ok(plan.finish()?)
}
