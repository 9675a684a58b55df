//! GEMM + all-reduce in one shot: K is sharded, and every rank reduces all partials itself in the same
//! launch.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use warpweave_gemm as gemm;
use warpweave_gemm::ReduceOperands;
use warpweave_gemm::matmul_reduce::{ReduceOutput, Units};
use warpweave_symm_mem::DevicePtr;

use super::matmul_reduce::{ReduceLaunch, addresses_of, partial_gemm, partial_operands, prepare};
use super::{
    Kernel, KernelBuffer, KernelScales, KernelShape, on_both_backends, scales, slots_from,
};
use crate::execute::{Addresses, Binding, BoxedLaunch, ExecuteBackend, Result};
use crate::plan::{BufferId, Effect, Placement, Region, SlotId, Transport, layout_of};
use crate::simulate::{Cost, Costs};

/// Computes this rank's partial result of all of C, and reduces the partials of all ranks, for itself.
///
/// K is sharded, so that each rank has a partial result of all of C. It writes this into the staging of every
/// rank as soon as it is computed, and signals each unit of C in a slot of its own, from `ready` on. To a
/// plan those flags are one, that of the first unit: the reduction of a unit reads only what its flags are
/// for, and the own partials, which the launch has written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OneShotMatmul {
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
    /// Local: all rows of C.
    pub c: BufferId,
    /// Symmetric and alternating: the partials of all ranks, in their order, each as large as C.
    pub staging: BufferId,
    /// First of `units` slots: "my partials of the unit are in your staging".
    pub ready: SlotId,
    /// Units of C.
    pub units: usize,
    /// A slot without signals: the launch counts its calls there.
    pub calls: SlotId,
}

/// A piece of C, signalled in a slot of its own.
type Piece = (SlotId, [Range<usize>; 2]);

impl Kernel for OneShotMatmul {
    fn name(&self) -> &'static str {
        "one_shot_matmul"
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::ThreadLoads
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, .. } = self.shape;
        let c = [
            KernelBuffer::new(self.c, m, n),
            KernelBuffer::new(self.staging, m.saturating_mul(world), n)
                .placed(Placement::Symmetric)
                .alternating(),
        ];
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
        slots_from(self.ready, self.units.min(Units::MOST))
            .chain([self.calls])
            .collect()
    }

    fn counts_calls(&self) -> bool {
        true
    }

    fn agreed(&self) -> String {
        format!("one shot{}", scales::agreed(self.scales.as_ref()))
    }

    fn validate(&self, _: usize, _: usize) -> Result<(), String> {
        let units = Self::units(self.shape);
        match self.units == units {
            true => Ok(()),
            false => Err(format!("{units} units, not {}", self.units)),
        }
    }

    /// One lane that multiplies and sends, and one that reduces.
    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let KernelShape { m, n, .. } = self.shape;
        self.lanes_of((rank, world), &[(self.ready, [0..m, 0..n])])
    }

    fn lanes_by_piece(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let units = Units::of(self.shape.m, self.shape.n).all();
        let slots = slots_from(self.ready, self.units);
        let pieces: Vec<Piece> = slots.zip(units).collect();
        self.lanes_of((rank, world), &pieces)
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        let own = costs.plan.rank;
        let (first, later) = rest.split_first()?;
        match first {
            // All of the GEMM.
            Effect::Read(region) if region.buffer == self.a => {
                let KernelShape { m, n, dtype, .. } = self.shape;
                let waves = costs.machine.waves((m, n, region.cols.len()), dtype);
                let gemm = costs.gemm(waves.time(), 1.0);
                Some(gemm.with_power(own, waves.tiles.min(1.0)))
            }
            // This rank's partials in its own staging, and the reductions: a tile is reduced while the link
            // brings the next.
            Effect::Write(region) if region.rank == own => Some(Cost::default()),
            // Tiles are stored while others are multiplied, which hides most of the links' start. Fitted.
            Effect::Write(region) => Some(costs.push(region, later, 0.2)),
            _ => None,
        }
    }

    on_both_backends!();
}

impl OneShotMatmul {
    /// The units of a C of this size, each with a slot of its own.
    pub fn units(shape: KernelShape) -> usize {
        Units::of(shape.m, shape.n).count()
    }

    /// The lanes where each of `pieces` is signalled by itself.
    fn lanes_of(&self, (rank, world): (usize, usize), pieces: &[Piece]) -> Vec<Vec<Effect>> {
        let KernelShape { m, n, .. } = self.shape;
        let depth = self.shape.depth(rank, world);
        let (b_rows, b_cols) = layout_of(self.b_transposed).stored(depth, n);
        let own = |buffer, rows, cols| Region {
            rank,
            buffer,
            rows,
            cols,
        };
        // The partials of `source` in the staging of `on`.
        let partials = |on: usize, source: usize, [rows, cols]: &[Range<usize>; 2]| {
            let above = source.saturating_mul(m);
            let down = |row: usize| row.saturating_add(above);
            Region {
                rank: on,
                ..own(self.staging, down(rows.start)..down(rows.end), cols.clone())
            }
        };
        let peers: Vec<usize> = (1..world).map(|step| (rank + step) % world).collect();
        let mut send = vec![
            Effect::Read(own(self.a, 0..m, 0..depth)),
            Effect::Read(own(self.b, 0..b_rows, 0..b_cols)),
        ];
        send.extend((self.scales.iter()).flat_map(|scales| scales.reads(rank, 0..m, n)));
        let mut lanes = Vec::new();
        for (slot, piece) in pieces {
            let ranks = peers.iter().chain([&rank]);
            send.extend(ranks.map(|&to| Effect::Write(partials(to, rank, piece))));
            send.push(Effect::Signal {
                slot: *slot,
                to: peers.clone(),
            });
            let mut reduce = vec![
                Effect::After(vec![0]),
                Effect::Wait {
                    slot: *slot,
                    from: peers.clone(),
                    lag: 0,
                },
            ];
            let sources = (0..world).map(|source| partials(rank, source, piece));
            match pieces {
                [_] => reduce.push(Effect::Read(own(
                    self.staging,
                    0..world.saturating_mul(m),
                    0..n,
                ))),
                _ => reduce.extend(sources.map(Effect::Read)),
            }
            let [rows, cols] = piece;
            reduce.push(Effect::Write(own(self.c, rows.clone(), cols.clone())));
            lanes.push(reduce);
        }
        lanes.insert(0, send);
        lanes
    }

    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let (rank, world) = (with.rank(), with.world());
        let stored = (self.b_transposed, self.scales);
        let descriptor = gemm::MatmulReduce {
            problem: partial_gemm(self.shape, self.shape.depth(rank, world), stored),
            c: ReduceOutput::Each,
            rank,
            world,
            ready: self.ready.0,
            done: self.calls.0,
            tiling: None,
            max_blocks: with.max_blocks(),
            // What only owners of rows have.
            shards: Vec::new(),
            reduced: self.calls.0,
            group_rows: 0,
        };
        prepare(*self, with, &descriptor)
    }
}

impl ReduceLaunch for OneShotMatmul {
    fn operands(&self, at: &Addresses<'_>) -> Result<ReduceOperands> {
        Ok(ReduceOperands {
            a: at.own(self.a),
            b: at.own(self.b),
            bias: DevicePtr::NULL,
            scales: addresses_of(self.scales.as_ref(), at),
            c: [at.own(self.c)].into_iter().collect(),
            local_c: DevicePtr::NULL,
            staging: at.copies(self.staging).collect(),
            staging_stride: at.alternate(self.staging),
            multicast: [DevicePtr::NULL; 2],
            pulled: DevicePtr::NULL,
            pad: at.pad()?,
        })
    }
}
