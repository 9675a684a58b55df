//! GEMM + reduction: K is sharded, and the owner of each row reduces all ranks' partials in the same
//! launch.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use warpweave_gemm as gemm;
use warpweave_gemm::matmul_reduce::{Group, ReduceOutput, order};
use warpweave_gemm::{GemmProblem, Layout, ReduceOperands};
use warpweave_symm_mem::DevicePtr;

use super::{
    AnyKernel, Kernel, KernelBuffer, KernelScales, KernelShape, on_both_backends, scales,
    slots_from,
};
use crate::execute::{Addresses, Binding, BoxedLaunch, ExecuteBackend, Launch, Result};
use crate::plan::{BufferId, Effect, Placement, Region, SlotId, Transport, layout_of, shard};
use crate::simulate::{Cost, Costs, micros};

/// Computes this rank's partial result of all of C, and reduces the partial tiles of its own rows, for itself
/// or for all.
///
/// K is sharded, so that each rank has a partial result of all of C; the rows of C are sharded, and each rank
/// reduces its own. A shard is cut into groups of rows from its first on. Each group is signalled in slots of
/// its own, and has lanes of its own: neither the tiles of different groups nor the pulls are ordered. A rank
/// writes its own memory alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MatmulReduce {
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
    /// Local with this rank's rows of C; or, where all get the result, symmetric with all rows.
    pub c: BufferId,
    /// Where this rank has its C, if that is local and all get the result: the launch stores all rows here,
    /// and those that it reduces in `c` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_c: Option<BufferId>,
    /// Symmetric: this rank's partials of the rows of each other rank, in order, with as many rows as the
    /// largest shard has.
    pub staging: BufferId,
    /// Local: of the same size, for the partials that this rank pulls.
    #[serde(alias = "fetched")]
    pub pulled: BufferId,
    /// First of `groups` slots: "my partials of the group may be pulled".
    pub ready: SlotId,
    /// Where all get the result, first of `groups` slots: "my group is reduced, and may be pulled from my C".
    #[serde(alias = "summed")]
    pub reduced: Option<SlotId>,
    /// "I have pulled everything of yours."
    pub done: SlotId,
    /// Rows of a group, but the last of a shard.
    pub rows: usize,
    /// Groups of the largest shard.
    pub groups: usize,
}

impl Kernel for MatmulReduce {
    fn name(&self) -> &'static str {
        gemm::MatmulReduce::NAME
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::ThreadLoads
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, .. } = self.shape;
        let depth = self.shape.depth(rank, world);
        let partials = m.div_ceil(world).saturating_mul(world - 1);
        let c = match self.everyone() {
            false => KernelBuffer::new(self.c, shard(m, rank, world).len(), n),
            true => KernelBuffer::new(self.c, m, n).placed(Placement::Symmetric),
        };
        let local = self.local_c.map(|local| KernelBuffer::new(local, m, n));
        let c = [
            c,
            KernelBuffer::new(self.staging, partials, n).placed(Placement::Symmetric),
            KernelBuffer::new(self.pulled, partials, n),
        ];
        let c = c.into_iter().chain(local);
        let stored = (self.b_transposed, self.scales);
        partial_operands(self.shape, depth, [self.a, self.b], stored, c)
    }

    fn result(&self) -> Option<BufferId> {
        Some(self.own_c())
    }

    fn most_ranks(&self) -> usize {
        warpweave_gemm::AllGatherMatmul::MAX_WORLD
    }

    fn slots(&self) -> Vec<SlotId> {
        let reduced = self.reduced.into_iter();
        let reduced = reduced.flat_map(|first| slots_from(first, self.groups));
        slots_from(self.ready, self.groups)
            .chain(reduced)
            .chain([self.done])
            .collect()
    }

    fn agreed(&self) -> String {
        let to = if self.everyone() { "all" } else { "owners" };
        let scales = scales::agreed(self.scales.as_ref());
        format!("groups of {} rows, result to {to}{scales}", self.rows)
    }

    fn validate(&self, _: usize, world: usize) -> Result<(), String> {
        if self.local_c.is_some() && !self.everyone() {
            return Err("a C that only owners get is local as it is".into());
        }
        check_groups(self.shape.m, world, (self.rows, self.groups))
    }

    fn about_effects(&self, world: usize) -> usize {
        about_effects(self.shape.m, self.rows, world)
    }

    fn copying(&self, staged: BufferId, local: BufferId) -> Option<AnyKernel> {
        let kernel = MatmulReduce {
            local_c: Some(local),
            ..*self
        };
        (self.everyone() && staged == self.c).then(|| kernel.into())
    }

    /// The lanes are in the order in which the host takes them: of another rank's group one; of an own group
    /// one for the partials of each other rank, and one; then one for the result of each group that is
    /// pulled, and one for the signal that all is pulled.
    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let on = OnRank {
            kernel: self,
            rank,
            world,
        };
        let order = self.order(rank, world);
        let (mut lanes, mut pulls) = (Vec::new(), Vec::new());
        for group in &order {
            if group.owner != rank {
                lanes.push(on.offer(group));
                continue;
            }
            let partials: Vec<usize> = (lanes.len()..).take(world - 1).collect();
            let peers = on.peers().into_iter().rev();
            lanes.extend(peers.map(|peer| on.pull_partials(group, peer)));
            lanes.push(on.reduce(group, partials.clone()));
            pulls.extend(partials);
        }
        if let Some(reduced) = self.reduced {
            for group in order.iter().filter(|group| group.owner != rank) {
                pulls.push(lanes.len());
                lanes.push(on.pull_result(group, reduced));
            }
        }
        // A call ends when nobody will read this rank's memory any more.
        lanes.push(all_done(pulls, self.done, on.peers()));
        lanes
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        let own = costs.plan.rank;
        match rest.first()? {
            Effect::Read(region) if region.buffer == self.a => {
                // Tiles of own rows also add what the others have computed.
                let (world, shape) = (costs.plan.world, self.shape);
                let adding = match shard(shape.m, own, world).contains(&region.rows.start) {
                    true => {
                        let partials = (world - 1) * region.rows.len() * shape.n;
                        let bytes = partials * shape.output().size();
                        micros(bytes as f64, costs.machine.gpu.memory_gbs)
                    }
                    false => 0.0,
                };
                let order = self.order(own, world);
                Some(group_cost(costs, (shape, &order), region, adding))
            }
            Effect::Read(region) if region.rank != own => {
                Some(costs.pull(region.rank, costs.bytes(region), 1.0).arriving())
            }
            Effect::Write(region) if region.rank == own => {
                let is_result = costs.is_own(region, self.c) && !region.rows.is_empty();
                let rows = shard(self.shape.m, own, costs.plan.world);
                // Results of others are written as they come. What goes to staging is not worth a figure, nor
                // are reduced rows in `local_c`.
                let is_reduced =
                    is_result && (!self.everyone() || rows.contains(&region.rows.start));
                (!is_reduced).then(Cost::default)
            }
            _ => None,
        }
    }

    on_both_backends!();
}

/// Rows of a tile.
const TILE_ROWS: usize = 128;

impl MatmulReduce {
    /// Whether every rank gets the result.
    pub fn everyone(&self) -> bool {
        self.reduced.is_some()
    }

    /// The C that this rank has for itself.
    fn own_c(&self) -> BufferId {
        self.local_c.unwrap_or(self.c)
    }

    /// The groups in the order in which `rank` takes them.
    pub fn order(&self, rank: usize, world: usize) -> Vec<Group> {
        let shards = self.shape.shards(world);
        order(&shards, rank, self.rows.max(1), self.everyone())
    }

    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let (rank, world) = (with.rank(), with.world());
        let stored = (self.b_transposed, self.scales);
        let descriptor = gemm::MatmulReduce {
            problem: partial_gemm(self.shape, self.shape.depth(rank, world), stored),
            shards: self.shape.shards(world),
            c: match self.everyone() {
                false => ReduceOutput::Owner,
                true => ReduceOutput::Everyone,
            },
            rank,
            world,
            ready: self.ready.0,
            // Where only owners get the result, the slot is not used.
            reduced: self.reduced.unwrap_or(self.ready).0,
            done: self.done.0,
            group_rows: self.rows,
            tiling: None,
            max_blocks: with.max_blocks(),
        };
        prepare(*self, with, &descriptor)
    }
}

/// The GEMM of a group of rows among those that a launch takes in this `order`, where `region` is what it
/// reads of A, and what it adds, µs. One launch: the groups share the waves of tiles, so that each holds its
/// part of those that have its tiles, from the begin of the first to the end of the last.
pub(super) fn group_cost(
    costs: &Costs<'_>,
    (shape, order): (KernelShape, &[Group]),
    region: &Region,
    adding: f64,
) -> Cost {
    let own = costs.plan.rank;
    let depth = region.cols.len();
    // No tile has rows of two groups.
    let padded = |rows: usize| rows.next_multiple_of(TILE_ROWS);
    let all: usize = order.iter().map(|group| padded(group.rows.len())).sum();
    let waves = costs
        .machine
        .waves_in((all, shape.n, depth), shape.dtype, TILE_ROWS);
    let earlier = order
        .iter()
        .take_while(|group| group.rows.start != region.rows.start);
    let before: usize = earlier.map(|group| padded(group.rows.len())).sum();
    let wave_of = |rows: usize| waves.tiles * rows as f64 / all as f64;
    let (from, to) = (wave_of(before), wave_of(before + padded(region.rows.len())));
    // Groups that share a wave begin and end with it.
    let (took, held) = ((to - from).max(1.0), (to - from).min(1.0));
    Cost {
        latency: (to.ceil() - took) * waves.wave_us,
        ..costs
            .gemm(took * waves.wave_us + adding, held)
            .with_power(own, held)
    }
}

/// What the GEMM of some rows reads: of A, of B and of their scales.
pub(super) fn multiply(
    shape: KernelShape,
    [a, b]: [BufferId; 2],
    (b_transposed, scales): (bool, Option<KernelScales>),
    (rank, world): (usize, usize),
    rows: &Range<usize>,
) -> Vec<Effect> {
    let depth = shape.depth(rank, world);
    let stored = layout_of(b_transposed).stored(depth, shape.n);
    let own = |buffer, rows, cols| {
        Effect::Read(Region {
            rank,
            buffer,
            rows,
            cols: 0..cols,
        })
    };
    let scales = scales.iter();
    let scales = scales.flat_map(|scales| scales.reads(rank, rows.clone(), shape.n));
    [own(a, rows.clone(), depth), own(b, 0..stored.0, stored.1)]
        .into_iter()
        .chain(scales)
        .collect()
}

/// That groups of so many rows are as many as the largest shard has.
pub(super) fn check_groups(
    m: usize,
    world: usize,
    (rows, groups): (usize, usize),
) -> Result<(), String> {
    let needed = m.div_ceil(world).div_ceil(rows.max(1));
    match groups == needed && rows > 0 {
        true => Ok(()),
        false => Err(format!("{needed} groups of {rows} rows, not {groups}")),
    }
}

/// The GEMM of a rank with so many columns of A. `b` is stored transposed or not; both operands may have
/// scales.
pub(super) fn partial_gemm(
    shape: KernelShape,
    depth: usize,
    (b_transposed, scales): (bool, Option<KernelScales>),
) -> GemmProblem {
    let KernelShape { m, n, dtype, .. } = shape;
    GemmProblem {
        scaling: scales::scaling(scales.as_ref()),
        ..GemmProblem::new(m, n, depth, dtype)
            .with_output(shape.output())
            .with_layouts(Layout::RowMajor, layout_of(b_transposed))
    }
}

/// What a kernel needs of the buffers `a` and `b` of that GEMM, of their scales, and of those of C's type.
pub(super) fn partial_operands(
    shape: KernelShape,
    depth: usize,
    [a, b]: [BufferId; 2],
    (b_transposed, scales): (bool, Option<KernelScales>),
    c: impl IntoIterator<Item = KernelBuffer>,
) -> Vec<KernelBuffer> {
    let KernelShape { m, n, .. } = shape;
    let (b_rows, b_cols) = layout_of(b_transposed).stored(depth, n);
    let c = c.into_iter().map(|buffer| buffer.of(shape.output()));
    let scales = scales.iter().flat_map(|scales| scales.operands(m, n));
    [
        KernelBuffer::new(a, m, depth),
        KernelBuffer::new(b, b_rows, b_cols),
    ]
    .into_iter()
    .chain(c)
    .chain(scales)
    .collect()
}

/// About how many effects the lanes of all groups of `rows` rows have.
pub(super) fn about_effects(m: usize, rows: usize, world: usize) -> usize {
    // Of each group of each rank: what is waited for, read, written and signalled.
    m.div_ceil(world.max(1))
        .div_ceil(rows.max(1))
        .saturating_mul(world)
        .saturating_mul(8)
}

/// The last lane of a call, after these: this rank is done, and so are its peers.
pub(super) fn all_done(after: Vec<usize>, done: SlotId, peers: Vec<usize>) -> Vec<Effect> {
    vec![
        Effect::After(after),
        Effect::Signal {
            slot: done,
            to: peers.clone(),
        },
        Effect::Wait {
            slot: done,
            from: peers,
            lag: 0,
        },
    ]
}

/// The addresses of a launch's scales, which a GEMM without them does not look at.
pub(super) fn addresses_of(scales: Option<&KernelScales>, at: &Addresses<'_>) -> [DevicePtr; 2] {
    scales.map_or([DevicePtr::NULL; 2], |scales| scales.addresses(at))
}

/// A GEMM + reduction, by owners or in one shot, ready to be launched.
#[derive(Debug)]
struct Prepared<B: ExecuteBackend, K> {
    kernel: K,
    gemm: B::PreparedReduce,
}

/// The launch of `kernel`, whose GEMM + reduction `descriptor` describes.
pub(super) fn prepare<B: ExecuteBackend, K: ReduceLaunch + 'static>(
    kernel: K,
    with: &Binding<'_, B>,
    descriptor: &gemm::MatmulReduce,
) -> Result<BoxedLaunch<B>> {
    let gemm = with.backend().prepare_reduce(with.gemm(), descriptor)?;
    Ok(Box::new(Prepared::<B, K> { kernel, gemm }))
}

/// Where the operands of a launch are.
pub(super) trait ReduceLaunch: std::fmt::Debug + Send + Sync {
    fn operands(&self, at: &Addresses<'_>) -> Result<ReduceOperands>;
}

impl ReduceLaunch for MatmulReduce {
    fn operands(&self, at: &Addresses<'_>) -> Result<ReduceOperands> {
        Ok(ReduceOperands {
            a: at.own(self.a),
            b: at.own(self.b),
            bias: DevicePtr::NULL,
            scales: addresses_of(self.scales.as_ref(), at),
            c: match self.everyone() {
                false => [at.own(self.c)].into_iter().collect(),
                true => at.copies(self.c).collect(),
            },
            local_c: self.local_c.map_or(DevicePtr::NULL, |c| at.own(c)),
            staging: at.copies(self.staging).collect(),
            staging_stride: 0,
            multicast: [DevicePtr::NULL; 2],
            pulled: at.own(self.pulled),
            pad: at.pad()?,
        })
    }
}

impl<B: ExecuteBackend, K: ReduceLaunch> Launch<B> for Prepared<B, K> {
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        let operands = self.kernel.operands(at)?;
        // SAFETY: the caller's obligation; every rank's kernel has the same shards and groups, in slots of
        // its own.
        unsafe { backend.matmul_reduce(stream, &self.gemm, &operands)? };
        Ok(())
    }
}

/// The slot of a group.
pub(super) fn slot(first: SlotId, group: usize) -> SlotId {
    SlotId(first.0.saturating_add(group))
}

/// The index of `one` among all ranks but `without`.
fn index_of(one: usize, without: usize) -> usize {
    one - usize::from(one > without)
}

/// One rank's launch.
struct OnRank<'a> {
    kernel: &'a MatmulReduce,
    rank: usize,
    world: usize,
}

impl OnRank<'_> {
    /// The other ranks, the next one first.
    fn peers(&self) -> Vec<usize> {
        (1..self.world)
            .map(|step| (self.rank + step) % self.world)
            .collect()
    }

    /// Another rank's group: the partials, left where their owner pulls them.
    fn offer(&self, group: &Group) -> Vec<Effect> {
        let mut lane = self.multiply(group);
        lane.extend([
            Effect::Write(self.staged(self.rank, group)),
            Effect::Signal {
                slot: slot(self.kernel.ready, group.index),
                to: vec![group.owner],
            },
        ]);
        lane
    }

    /// The partials that `peer` has of an own group.
    fn pull_partials(&self, group: &Group, peer: usize) -> Vec<Effect> {
        vec![
            Effect::Wait {
                slot: slot(self.kernel.ready, group.index),
                from: vec![peer],
                lag: 0,
            },
            Effect::Read(self.staged(peer, group)),
            Effect::Write(self.pulled(peer, group)),
        ]
    }

    /// An own group: its GEMM, the partials of the others, pulled in the lanes `partials`, and their
    /// reduction.
    fn reduce(&self, group: &Group, partials: Vec<usize>) -> Vec<Effect> {
        let mut lane = self.multiply(group);
        lane.push(Effect::After(partials));
        let sources = (0..self.world).filter(|&source| source != self.rank);
        lane.extend(sources.map(|source| Effect::Read(self.pulled(source, group))));
        let places = [self.kernel.c].into_iter().chain(self.kernel.local_c);
        lane.extend(places.map(|c| Effect::Write(self.result((self.rank, c), group))));
        lane.extend(self.kernel.reduced.map(|reduced| Effect::Signal {
            slot: slot(reduced, group.index),
            to: self.peers(),
        }));
        lane
    }

    /// The result of another rank's group.
    fn pull_result(&self, group: &Group, reduced: SlotId) -> Vec<Effect> {
        vec![
            Effect::Wait {
                slot: slot(reduced, group.index),
                from: vec![group.owner],
                lag: 0,
            },
            Effect::Read(self.result((group.owner, self.kernel.c), group)),
            Effect::Write(self.result((self.rank, self.kernel.own_c()), group)),
        ]
    }

    fn multiply(&self, group: &Group) -> Vec<Effect> {
        let MatmulReduce {
            shape,
            a,
            b,
            b_transposed,
            scales,
            ..
        } = *self.kernel;
        let place = (self.rank, self.world);
        multiply(shape, [a, b], (b_transposed, scales), place, &group.rows)
    }

    /// Where the partials of `source` are in its staging.
    fn staged(&self, source: usize, group: &Group) -> Region {
        let rows = self.rows_at(index_of(group.owner, source), group);
        self.all_columns(source, self.kernel.staging, rows)
    }

    /// Where the partials of `source` of an own group are pulled to.
    fn pulled(&self, source: usize, group: &Group) -> Region {
        let rows = self.rows_at(index_of(source, self.rank), group);
        self.all_columns(self.rank, self.kernel.pulled, rows)
    }

    /// The result of a group in a C of `rank`: an own group, where only owners have it.
    fn result(&self, (rank, c): (usize, BufferId), group: &Group) -> Region {
        let rows = match self.kernel.everyone() {
            true => group.rows.clone(),
            false => self.rows_at(0, group),
        };
        self.all_columns(rank, c, rows)
    }

    /// The rows of a group after `above` shards of the largest size.
    fn rows_at(&self, above: usize, group: &Group) -> Range<usize> {
        let m = self.kernel.shape.m;
        let first = shard(m, group.owner, self.world).start;
        let start = above * m.div_ceil(self.world) + group.rows.start - first;
        start..start + group.rows.len()
    }

    fn all_columns(&self, rank: usize, buffer: BufferId, rows: Range<usize>) -> Region {
        Region {
            rank,
            buffer,
            rows,
            cols: 0..self.kernel.shape.n,
        }
    }
}
