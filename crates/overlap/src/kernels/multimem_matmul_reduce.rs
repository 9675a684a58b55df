//! GEMM + all-reduce by multimem: K is sharded, and for the owner of each row the switch adds all ranks'
//! partials, and copies the result to all, in the same launch.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use warpweave_gemm as gemm;
use warpweave_gemm::ReduceOperands;
use warpweave_gemm::matmul_reduce::{Group, ReduceOutput, order};
use warpweave_symm_mem::DevicePtr;

use super::matmul_reduce::{
    ReduceLaunch, about_effects, addresses_of, all_done, check_groups, group_cost, multiply,
    partial_gemm, partial_operands, prepare, slot,
};
use super::{
    Kernel, KernelBuffer, KernelScales, KernelShape, on_both_backends, scales, slots_from,
};
use crate::execute::{Addresses, Binding, BoxedLaunch, ExecuteBackend, Result};
use crate::plan::{BufferId, Effect, MulticastRegion, Placement, Region, SlotId, Transport};
use crate::simulate::{Cost, Costs};

/// Computes this rank's partial result of all of C, and reduces the partials of its own rows, for all.
///
/// As [`MatmulReduce`](super::MatmulReduce), but the owner of a row loads the reduction of all ranks'
/// partials from the multicast address of staging, and stores it to that of C. The order in which the switch
/// adds is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MultimemMatmulReduce {
    /// Sizes of the whole GEMM.
    pub shape: KernelShape,
    /// Local: this rank's columns of A.
    pub a: BufferId,
    /// Local: this rank's rows of B.
    pub b: BufferId,
    /// Whether `b` is stored transposed.
    pub b_transposed: bool,
    /// Of `a` and `b`, if they are e4m3: by these a partial is scaled before it is rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<KernelScales>,
    /// Multicast: all rows of C.
    pub c: BufferId,
    /// Multicast: this rank's partials of all rows of C.
    pub staging: BufferId,
    /// First of `groups` slots: "my partials of the group are in my staging, and my C may be written".
    pub ready: SlotId,
    /// "I have loaded everything of yours, and stored my rows to your C."
    pub done: SlotId,
    /// Rows of a group, but the last of a shard.
    pub rows: usize,
    /// Groups of the largest shard.
    pub groups: usize,
}

impl Kernel for MultimemMatmulReduce {
    fn name(&self) -> &'static str {
        "multimem_reducing_matmul"
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::Multimem
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, .. } = self.shape;
        let c = [self.c, self.staging]
            .map(|id| KernelBuffer::new(id, m, n).placed(Placement::Multicast));
        let (depth, stored) = (
            self.shape.depth(rank, world),
            (self.b_transposed, self.scales),
        );
        partial_operands(self.shape, depth, [self.a, self.b], stored, c)
    }

    fn result(&self) -> Option<BufferId> {
        Some(self.c)
    }

    fn most_ranks(&self) -> usize {
        warpweave_gemm::AllGatherMatmul::MAX_WORLD
    }

    fn slots(&self) -> Vec<SlotId> {
        slots_from(self.ready, self.groups)
            .chain([self.done])
            .collect()
    }

    fn agreed(&self) -> String {
        let scales = scales::agreed(self.scales.as_ref());
        format!("groups of {} rows, by multimem{scales}", self.rows)
    }

    fn validate(&self, _: usize, world: usize) -> Result<(), String> {
        check_groups(self.shape.m, world, (self.rows, self.groups))
    }

    fn about_effects(&self, world: usize) -> usize {
        about_effects(self.shape.m, self.rows, world)
    }

    /// The lanes are in the order in which the host takes them: of each group one that multiplies, of an own
    /// group one more that reduces; then one for the signal that all is reduced.
    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let peers: Vec<usize> = (1..world).map(|step| (rank + step) % world).collect();
        let stored = (self.b_transposed, self.scales);
        let (mut lanes, mut reductions) = (Vec::new(), Vec::new());
        for Group { owner, index, rows } in self.order(rank, world) {
            let ready = slot(self.ready, index);
            let mut offer = multiply(self.shape, [self.a, self.b], stored, (rank, world), &rows);
            offer.push(Effect::Write(self.staged(rank, &rows)));
            if owner != rank {
                offer.push(Effect::Signal {
                    slot: ready,
                    to: vec![owner],
                });
                lanes.push(offer);
                continue;
            }
            lanes.push(offer);
            let mut reduce = vec![
                Effect::After(vec![lanes.len() - 1]),
                Effect::Wait {
                    slot: ready,
                    from: peers.clone(),
                    lag: 0,
                },
            ];
            // The peers' first: the first of these loads stands for all.
            let sources = peers.iter().chain([&rank]);
            reduce.extend(sources.map(|&source| Effect::Read(self.staged(source, &rows))));
            reduce.push(Effect::WriteMulticast(MulticastRegion {
                buffer: self.c,
                rows,
                cols: 0..self.shape.n,
            }));
            reductions.push(lanes.len());
            lanes.push(reduce);
        }
        // A call ends when nobody will read this rank's staging any more, or write its C.
        lanes.push(all_done(reductions, self.done, peers));
        lanes
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        let (own, world) = (costs.plan.rank, costs.plan.world);
        match rest.first()? {
            Effect::Read(region) if region.buffer == self.a => {
                let order = self.order(own, world);
                Some(group_cost(costs, (self.shape, &order), region, 0.0))
            }
            Effect::Read(region) if region.buffer == self.staging => {
                // One load reduces what all ranks have.
                let is_first = region.rank == (own + 1) % world;
                let rate = costs.machine.link.sm_pull_gbs;
                Some(match is_first {
                    true => costs.reduced(costs.bytes(region), rate).arriving(),
                    false => Cost::default(),
                })
            }
            // What goes to staging is not worth a figure.
            Effect::Write(region) if region.rank == own => Some(Cost::default()),
            _ => None,
        }
    }

    on_both_backends!();
}

impl MultimemMatmulReduce {
    /// The groups in the order in which `rank` takes them.
    pub fn order(&self, rank: usize, world: usize) -> Vec<Group> {
        order(&self.shape.shards(world), rank, self.rows.max(1), true)
    }

    /// The partials of `rank` of these rows.
    fn staged(&self, rank: usize, rows: &Range<usize>) -> Region {
        Region {
            rank,
            buffer: self.staging,
            rows: rows.clone(),
            cols: 0..self.shape.n,
        }
    }

    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let (rank, world) = (with.rank(), with.world());
        let stored = (self.b_transposed, self.scales);
        let descriptor = gemm::MatmulReduce {
            problem: partial_gemm(self.shape, self.shape.depth(rank, world), stored),
            shards: self.shape.shards(world),
            c: ReduceOutput::Multimem,
            rank,
            world,
            ready: self.ready.0,
            // Nobody pulls results.
            reduced: self.ready.0,
            done: self.done.0,
            group_rows: self.rows,
            tiling: None,
            max_blocks: with.max_blocks(),
        };
        prepare(*self, with, &descriptor)
    }
}

impl ReduceLaunch for MultimemMatmulReduce {
    fn operands(&self, at: &Addresses<'_>) -> Result<ReduceOperands> {
        Ok(ReduceOperands {
            a: at.own(self.a),
            b: at.own(self.b),
            bias: DevicePtr::NULL,
            scales: addresses_of(self.scales.as_ref(), at),
            c: at.copies(self.c).collect(),
            local_c: DevicePtr::NULL,
            staging: at.copies(self.staging).collect(),
            staging_stride: 0,
            multicast: [self.c, self.staging].map(|id| at.multicast(id)),
            pulled: DevicePtr::NULL,
            pad: at.pad()?,
        })
    }
}
