//! The all-gather GEMM: gathers the rows of the others chunk by chunk and computes C meanwhile.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use warpweave_gemm as gemm;
use warpweave_gemm::all_gather_matmul::AllGatherOperands;
use warpweave_gemm::{Activation, GatheredScales, GemmProblem, Layout, Peers, Protocol};
use warpweave_symm_mem::{BackendKind, DType, DevicePtr};

use super::owner_lane::OwnerLane;
use super::{
    AnyKernel, Kernel, KernelBuffer, KernelScales, KernelShape, on_both_backends, scales,
    slots_from,
};
use crate::execute::{Addresses, Binding, BoxedLaunch, ExecuteBackend, Launch, Result};
use crate::plan::{
    ActivationName, BufferId, Effect, Placement, Region, SlotId, Transport, is_none, layout_of,
    shard,
};
use crate::simulate::{Cost, Costs, Waves, micros};

/// Gathers the rows of the others in staging, chunk after chunk, and computes C meanwhile: from this rank's
/// rows where they lie and from the others' in staging, each chunk once it is there. The protocol says how
/// they come.
///
/// `a` is the rank's own shard, in rows 0 .. shard length; `staging` holds all M rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AllGatherMatmul {
    /// Sizes.
    pub shape: KernelShape,
    /// Symmetric where peers pull, else local.
    pub a: BufferId,
    /// Where this rank's shard is, if it is not in `a` yet: the launch reads it here, and copies it to `a`
    /// before the first signal. Only where everything is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_a: Option<BufferId>,
    /// Local.
    pub b: BufferId,
    /// Whether `b` is stored n × k.
    pub b_transposed: bool,
    /// Local: what is added to each row of C.
    pub bias: Option<BufferId>,
    /// Local.
    pub c: BufferId,
    /// What C is of the sums.
    #[serde(default, skip_serializing_if = "is_none", with = "ActivationName")]
    pub activation: Activation,
    /// Symmetric where peers write, else local. Alternating with the eager protocol.
    pub staging: BufferId,
    /// Of operands of e4m3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<RowScales>,
    /// What a rank signals about its rows: see [`GatherProtocol`].
    pub ready: SlotId,
    /// Rows of a chunk; the last of a shard may have fewer.
    pub chunk_rows: usize,
    /// How rows come.
    pub protocol: GatherProtocol,
}

/// The scales of operands of e4m3 in [`AllGatherMatmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowScales {
    /// Those that this rank has: of the rows of its shard, where these have some, which lie as `a` does, and
    /// of B.
    pub own: KernelScales,
    /// Where rows have some: those of all M rows, as `staging`. They come with the rows, but for pushed ones,
    /// whose scales are pulled as the others are.
    pub staging: Option<BufferId>,
}

/// How rows come from their owners in [`AllGatherMatmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GatherProtocol {
    /// They are pulled after `ready`, "my A may be read", which needs a symmetric `a`. Copies of the plan may
    /// push the first of them; then the plan signals `ready` after those copies, from each rank that has any
    /// rows.
    Rendezvous {
        /// "I have read your A", and what you pushed.
        done: SlotId,
        /// The chunks of a shard, from its first, that copies of the plan push.
        pushed: usize,
    },
    /// Their owner writes them into the staging of all others as soon as its launch begins, and signals each
    /// chunk in a slot of its own, from `ready` on. To a plan those flags are one, that of the first chunk: a
    /// tile that waits for less than all of them reads no other rows.
    Eager {
        /// Chunks of the largest shard.
        chunks: usize,
    },
}

impl Kernel for AllGatherMatmul {
    fn name(&self) -> &'static str {
        gemm::AllGatherMatmul::NAME
    }

    fn shape(&self) -> KernelShape {
        self.shape
    }

    fn transport(&self) -> Transport {
        Transport::ThreadLoads
    }

    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer> {
        let KernelShape { m, n, k, .. } = self.shape;
        let (b_rows, b_cols) = layout_of(self.b_transposed).stored(k, n);
        // A buffer of the rows of this rank's shard, and one of those of all ranks.
        let rows = |own, staging, cols| {
            let staging = KernelBuffer::new(staging, m, cols);
            match self.protocol {
                GatherProtocol::Eager { .. } => [
                    KernelBuffer::new(own, shard(m, rank, world).len(), cols),
                    staging.placed(Placement::Symmetric).alternating(),
                ],
                GatherProtocol::Rendezvous { pushed, .. } => [
                    KernelBuffer::new(own, m.div_ceil(world), cols).placed(Placement::Symmetric),
                    match pushed {
                        0 => staging,
                        _ => staging.placed(Placement::Symmetric),
                    },
                ],
            }
        };
        let output = self.shape.output();
        let [a, staging] = rows(self.a, self.staging, k);
        let bias = self
            .bias
            .map(|bias| KernelBuffer::new(bias, 1, n).of(output));
        let own = shard(m, rank, world).len();
        let local = self.local_a.map(|local| KernelBuffer::new(local, own, k));
        let scales = self.scales.iter().flat_map(|scales| {
            let [of_a, of_b] = scales.own.operands(m, n);
            let of_rows = scales.staging.map(|staging| rows(of_a.id, staging, 1));
            let of_rows = of_rows.map(|both| both.map(|buffer| buffer.of(DType::F32)));
            let of_all = of_rows.is_none().then_some(of_a);
            of_rows.into_iter().flatten().chain(of_all).chain([of_b])
        });
        [a, KernelBuffer::new(self.b, b_rows, b_cols)]
            .into_iter()
            .chain(bias)
            .chain([
                KernelBuffer::new(self.c, m, self.c_columns()).of(output),
                staging,
            ])
            .chain(scales)
            .chain(local)
            .collect()
    }

    fn result(&self) -> Option<BufferId> {
        Some(self.c)
    }

    fn most_ranks(&self) -> usize {
        warpweave_gemm::AllGatherMatmul::MAX_WORLD
    }

    fn slots(&self) -> Vec<SlotId> {
        match self.protocol {
            GatherProtocol::Rendezvous { done, .. } => vec![self.ready, done],
            GatherProtocol::Eager { chunks } => slots_from(self.ready, chunks).collect(),
        }
    }

    fn counts_calls(&self) -> bool {
        matches!(self.protocol, GatherProtocol::Eager { .. })
    }

    fn agreed(&self) -> String {
        let how = match self.protocol {
            GatherProtocol::Rendezvous { pushed, .. } => format!("{pushed} pushed"),
            GatherProtocol::Eager { .. } => "eager".into(),
        };
        let scales = scales::agreed(self.own_scales());
        format!("chunks of {} rows, {how}{scales}", self.chunk_rows)
    }

    fn validate(&self, _: usize, world: usize) -> Result<(), String> {
        let GatherProtocol::Eager { chunks } = self.protocol else {
            return Ok(());
        };
        let rows = self.chunk_rows;
        let needed = self.shape.m.div_ceil(world).div_ceil(rows.max(1));
        match chunks == needed && rows > 0 {
            true => Ok(()),
            false => Err(format!("{needed} chunks of {rows} rows, not {chunks}")),
        }
    }

    fn copying(&self, staged: BufferId, local: BufferId) -> Option<AnyKernel> {
        let pulls = matches!(self.protocol, GatherProtocol::Rendezvous { pushed: 0, .. });
        let kernel = AllGatherMatmul {
            local_a: Some(local),
            ..*self
        };
        (pulls && staged == self.a).then(|| kernel.into())
    }

    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let lanes = OwnerLane::all(self.shape, (rank, world));
        match self.protocol {
            GatherProtocol::Eager { .. } => {
                let all = |owner: &OwnerLane| vec![(self.ready, owner.rows())];
                self.eager_lanes((rank, world), &[peers(rank, world).collect()], all)
            }
            GatherProtocol::Rendezvous { done, pushed: 0 } => {
                let (mut all, copied) = self.copy_lane((rank, world));
                all.extend(lanes.map(|lane| match lane.is_own() {
                    true => self.own_lane(&lane),
                    false => [copied.clone(), self.pulling_lane(&lane, done)].concat(),
                }));
                all
            }
            GatherProtocol::Rendezvous { done, pushed } => {
                let (own, others): (Vec<_>, _) = lanes.partition(OwnerLane::is_own);
                let mut lanes = self.pushed_lanes(&others, (done, pushed));
                lanes.extend(own.iter().map(|lane| self.own_lane(lane)));
                lanes
            }
        }
    }

    fn lanes_by_piece(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        match self.protocol {
            GatherProtocol::Eager { .. } => {
                let each: Vec<_> = peers(rank, world).map(|peer| vec![peer]).collect();
                self.eager_lanes((rank, world), &each, |owner| self.chunks_of(owner))
            }
            GatherProtocol::Rendezvous { done, pushed: 0 } => {
                self.chunked_lanes((rank, world), done)
            }
            GatherProtocol::Rendezvous { .. } => self.lanes(rank, world),
        }
    }

    fn cost(&self, costs: &Costs<'_>, rest: &[Effect]) -> Option<Cost> {
        let own = costs.plan.rank;
        let (effect, later) = rest.split_first()?;
        match effect {
            // Scales are few.
            Effect::Read(region) | Effect::Write(region) if self.is_row_scales(region.buffer) => {
                Some(Cost::default())
            }
            Effect::Read(region) if region.rank != own => Some(self.first_slice(costs, region)),
            Effect::Write(region) if region.rank != own => Some(costs.push(region, later, FELT)),
            Effect::Write(region) if costs.is_own(region, self.c) && !region.rows.is_empty() => {
                Some(self.gemm_cost(costs, region))
            }
            Effect::Write(region) if costs.is_own(region, self.a) => {
                Some(costs.local(costs.bytes(region)))
            }
            // What is written to staging is not worth a figure.
            Effect::Write(_) => Some(Cost::default()),
            _ => None,
        }
    }

    on_both_backends!();
}

/// The other ranks, the next one first.
fn peers(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (1..world).map(move |step| (rank + step) % world)
}

/// The lanes.
impl AllGatherMatmul {
    /// The scales that this rank has.
    fn own_scales(&self) -> Option<&KernelScales> {
        self.scales.as_ref().map(|scales| &scales.own)
    }

    /// The buffers of the scales of rows, where rows have some: of this rank's shard, and of all.
    fn row_scales(&self) -> Option<[BufferId; 2]> {
        let scales = self.scales.as_ref()?;
        Some([scales.own.a, scales.staging?])
    }

    fn is_row_scales(&self, id: BufferId) -> bool {
        self.row_scales().is_some_and(|both| both.contains(&id))
    }

    /// The same rows of the scales as `rows` is of A or of its staging.
    fn scales_of(&self, rows: &Region) -> Option<Region> {
        let [own, staging] = self.row_scales()?;
        Some(Region {
            buffer: match rows.buffer == self.staging {
                true => staging,
                false => own,
            },
            cols: 0..1,
            ..rows.clone()
        })
    }

    /// Rows of A or of its staging with their scales.
    fn with_scales(&self, rows: Region) -> impl Iterator<Item = Region> {
        let scales = self.scales_of(&rows);
        std::iter::once(rows).chain(scales)
    }

    /// A GEMM on `rows` of A in the buffer `a`, and of C.
    fn multiply(&self, lane: &OwnerLane, a: Region, rows: Range<usize>) -> Vec<Effect> {
        let n = self.shape.n;
        let scales = self.own_scales().map(|scales| {
            let mut of = scales.regions(lane.rank, 0..1, n);
            of.a = self.scales_of(&a).unwrap_or(of.a);
            [of.a, of.b]
        });
        let mut effects = vec![Effect::Read(a), lane.read_weight(self.b, self.b_transposed)];
        effects.extend(scales.into_iter().flatten().map(Effect::Read));
        effects.extend(
            self.bias
                .map(|bias| Effect::Read(lane.own_box(bias, 0..1, n))),
        );
        effects.push(Effect::Write(lane.own_box(self.c, rows, self.c_columns())));
        effects
    }

    fn c_columns(&self) -> usize {
        self.activation.columns(self.shape.n)
    }

    fn multiply_staged(&self, lane: &OwnerLane, rows: Range<usize>) -> Vec<Effect> {
        let a = lane.own_box(self.staging, rows.clone(), self.shape.k);
        self.multiply(lane, a, rows)
    }

    /// This rank's rows are read where they lie.
    fn own_lane(&self, lane: &OwnerLane) -> Vec<Effect> {
        let a = self.local_a.unwrap_or(self.a);
        self.multiply(lane, lane.shard_rows(a, lane.rows()), lane.rows())
    }

    /// Where this rank's rows are copied first: the lane that does, and what comes before a signal in others.
    fn copy_lane(&self, (rank, world): (usize, usize)) -> (Vec<Vec<Effect>>, Vec<Effect>) {
        let own = OwnerLane::all(self.shape, (rank, world)).nth(rank);
        match (self.local_a, own) {
            (Some(local), Some(lane)) if !lane.rows().is_empty() => {
                let rows = |buffer| lane.shard_rows(buffer, lane.rows());
                let copy = vec![Effect::Read(rows(local)), Effect::Write(rows(self.a))];
                (vec![copy], vec![Effect::After(vec![0])])
            }
            _ => Default::default(),
        }
    }

    /// Pulls an owner's rows and their scales, and gives them back.
    fn pull(&self, lane: &OwnerLane, done: SlotId) -> Vec<Effect> {
        let mut effects = lane.pull((self.a, self.staging), (self.ready, done));
        let scales = self.pull_scales(lane);
        let end = effects.len() - 1;
        effects.splice(end..end, scales);
        effects
    }

    /// Pulls the scales of an owner's rows, where these have some.
    fn pull_scales(&self, lane: &OwnerLane) -> impl Iterator<Item = Effect> + use<> {
        let from = self.scales_of(&lane.shard_rows(self.a, lane.rows()));
        let to = self.scales_of(&lane.staged(self.staging));
        let pulled = from.zip(to).into_iter();
        pulled.flat_map(|(from, to)| [Effect::Read(from), Effect::Write(to)])
    }

    /// The GEMM comes last here. In truth it begins with the first chunk, as [`Self::chunked_lanes`] has it.
    /// Nothing outside can tell: what follows the last signal is seen by this rank alone.
    fn pulling_lane(&self, lane: &OwnerLane, done: SlotId) -> Vec<Effect> {
        let mut effects = self.pull(lane, done);
        effects.extend(self.multiply_staged(lane, lane.rows()));
        effects.push(lane.wait(done));
        effects
    }

    /// For each peer a lane that pulls, one for the GEMM on what is pulled, and one that gives the rows back.
    fn chunked_lanes(&self, (rank, world): (usize, usize), done: SlotId) -> Vec<Vec<Effect>> {
        let all = OwnerLane::all(self.shape, (rank, world));
        let (own, others): (Vec<_>, Vec<_>) = all.partition(OwnerLane::is_own);
        let (mut lanes, copied) = self.copy_lane((rank, world));
        for lane in others {
            let after_pull = Effect::After(vec![lanes.len()]);
            let mut pull = [copied.clone(), self.pull(&lane, done)].concat();
            let signal = pull.pop();
            let mut multiply = vec![after_pull.clone()];
            multiply.extend(self.multiply_staged(&lane, lane.rows()));
            let give_back = std::iter::once(after_pull).chain(signal);
            let give_back = give_back.chain([lane.wait(done)]).collect();
            lanes.extend([pull, multiply, give_back]);
        }
        lanes.extend(own.iter().map(|lane| self.own_lane(lane)));
        lanes
    }

    /// Where rows are pushed, what is done for the other ranks: for each with any rows a lane for the wait
    /// for its pushed rows, after which its scales are pulled, one for the GEMM on those and one for what is
    /// pulled, after all those waits; and one at the end, in which all get theirs back.
    fn pushed_lanes(
        &self,
        others: &[OwnerLane],
        (done, pushed): (SlotId, usize),
    ) -> Vec<Vec<Effect>> {
        let pushed_rows = pushed.saturating_mul(self.chunk_rows);
        let middle = |lane: &OwnerLane| {
            let Range { start, end } = lane.rows();
            end.min(start.saturating_add(pushed_rows))
        };
        let present: Vec<&OwnerLane> = others
            .iter()
            .filter(|lane| !lane.rows().is_empty())
            .collect();
        let waits = 0..present.len();
        let mut lanes: Vec<Vec<Effect>> = present
            .iter()
            .map(|lane| {
                let scales = self.pull_scales(lane);
                std::iter::once(lane.wait(self.ready))
                    .chain(scales)
                    .collect()
            })
            .collect();
        for (wait, lane) in present.iter().enumerate() {
            let mut effects = vec![Effect::After(vec![wait])];
            effects.extend(self.multiply_staged(lane, lane.rows().start..middle(lane)));
            lanes.push(effects);
        }
        for lane in &present {
            let rows = middle(lane)..lane.rows().end;
            let mut effects = vec![
                Effect::After(waits.clone().collect()),
                Effect::Read(lane.shard_rows(self.a, rows.clone())),
                Effect::Write(lane.own_box(self.staging, rows.clone(), self.shape.k)),
            ];
            effects.extend(self.multiply_staged(lane, rows));
            lanes.push(effects);
        }
        let to: Vec<usize> = others.iter().map(|lane| lane.owner).collect();
        lanes.push(vec![
            Effect::After((waits.end..lanes.len()).collect()),
            Effect::Signal {
                slot: done,
                to: to.clone(),
            },
            Effect::Wait {
                slot: done,
                from: to,
                lag: 0,
            },
        ]);
        lanes
    }

    /// The owner writes its rows piece by piece to the peers of a group and signals each piece, group by
    /// group; then the rows of each owner, after the waits for its pieces. A rank without rows signals one
    /// empty piece.
    fn eager_lanes(
        &self,
        (rank, world): (usize, usize),
        groups: &[Vec<usize>],
        pieces: impl Fn(&OwnerLane) -> Vec<(SlotId, Range<usize>)>,
    ) -> Vec<Vec<Effect>> {
        let (mut send, mut multiply) = (Vec::new(), Vec::new());
        for lane in OwnerLane::all(self.shape, (rank, world)) {
            if !lane.is_own() {
                let waits = pieces(&lane).into_iter().map(|(slot, _)| lane.wait(slot));
                let mut effects: Vec<Effect> = waits.collect();
                effects.extend(self.multiply_staged(&lane, lane.rows()));
                multiply.push(effects);
                continue;
            }
            let pieces = pieces(&lane);
            send.extend(groups.iter().map(|to| self.push(&lane, to, &pieces)));
            multiply.push(self.own_lane(&lane));
        }
        send.into_iter().chain(multiply).collect()
    }

    /// Writes own pieces to some peers, and signals each.
    fn push(
        &self,
        lane: &OwnerLane,
        to: &[usize],
        pieces: &[(SlotId, Range<usize>)],
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (slot, rows) in pieces {
            let own = self.with_scales(lane.shard_rows(self.a, rows.clone()));
            effects.extend(own.map(Effect::Read));
            let staged = lane.own_box(self.staging, rows.clone(), self.shape.k);
            for staged in self.with_scales(staged) {
                effects.extend(to.iter().map(|&peer| {
                    Effect::Write(Region {
                        rank: peer,
                        ..staged.clone()
                    })
                }));
            }
            effects.push(Effect::Signal {
                slot: *slot,
                to: to.to_vec(),
            });
        }
        effects
    }

    /// The chunks of an owner's rows with their slots. A rank without rows signals the first all the same.
    fn chunks_of(&self, owner: &OwnerLane) -> Vec<(SlotId, Range<usize>)> {
        let Range { start, end } = owner.rows();
        let step = self.chunk_rows.max(1);
        let count = (end - start).div_ceil(step).max(1);
        slots_from(self.ready, count)
            .enumerate()
            .map(|(chunk, slot)| {
                let first = end.min(start.saturating_add(chunk.saturating_mul(step)));
                (slot, first..end.min(first.saturating_add(step)))
            })
            .collect()
    }
}

/// The part of the links' start that is felt, since rows are multiplied as they come. Fitted.
const FELT: f64 = 0.5;

/// Rows of a tile.
const TILE_ROWS: usize = 128;

/// The cost.
impl AllGatherMatmul {
    /// Of a peer's shard, read in slices of chunks, the first: it precedes the GEMM, the others overlap with
    /// it.
    fn first_slice(&self, costs: &Costs<'_>, shard: &Region) -> Cost {
        let rows = shard.rows.len();
        let first = self.slice(rows, costs.plan.world) / rows.max(1) as f64;
        let bytes = first * costs.bytes(shard);
        costs.pull(shard.rank, bytes, FELT).arriving()
    }

    fn problem(&self) -> GemmProblem {
        let KernelShape { m, n, k, dtype } = self.shape;
        GemmProblem::new(m, n, k, dtype)
    }

    /// Slices of a chunk of a shard of so many rows.
    fn slices(&self, rows: usize, world: usize) -> usize {
        let KernelShape { k, dtype, .. } = self.shape;
        let rows = self.chunk_rows.min(rows);
        let bytes = gemm::AllGatherMatmul::slice_bytes(&self.problem(), world, rows);
        (k * dtype.size()).div_ceil(bytes).max(1)
    }

    /// What it takes to pull so many of a shard's rows from all peers, but for the first slice of a chunk,
    /// µs.
    fn after_first_slice(&self, costs: &Costs<'_>, rows: usize, of_shard: usize) -> f64 {
        let KernelShape { k, dtype, .. } = self.shape;
        let world = costs.plan.world;
        let chunks = rows.div_ceil(self.chunk_rows.max(1)).max(1);
        let slices = chunks * self.slices(of_shard, world) - 1;
        let rest = (rows as f64 - self.slice(of_shard, world)) * (world - 1) as f64;
        let bytes = rest * (k * dtype.size()) as f64;
        let counting = slices as f64 * gemm::AllGatherMatmul::COUNTING_US;
        micros(bytes, costs.pull_gbs(FELT)) + counting
    }

    /// A slice of a chunk, as a number of whole rows.
    fn slice(&self, rows: usize, world: usize) -> f64 {
        self.chunk_rows.min(rows) as f64 / self.slices(rows, world) as f64
    }

    /// The waves of the GEMM. Tiles are small where all rows come at once, or where the kernel chooses them.
    fn waves(&self, costs: &Costs<'_>) -> Waves {
        let KernelShape { m, n, k, dtype } = self.shape;
        let world = costs.plan.world;
        // No tile has rows of two shards.
        let padded = (0..world).map(|rank| shard(m, rank, world).len().next_multiple_of(TILE_ROWS));
        let shape = (padded.sum(), n, k);
        let problem = self.problem();
        let is_small = match self.protocol {
            GatherProtocol::Eager { .. } => true,
            GatherProtocol::Rendezvous { pushed, .. } => {
                pushed == 0 && gemm::AllGatherMatmul::is_narrow(&problem, world, self.chunk_rows)
            }
        };
        match is_small {
            true => costs.machine.late_waves(shape, dtype),
            false => costs.machine.large_waves(shape, dtype),
        }
    }

    /// The GEMM on one rank's rows, which takes its part of the whole: no measurement shows that pulling
    /// slows it. Rows of others, but what is pushed of each shard, end no earlier than the tiles of the last
    /// chunks, which come from all peers at about the same time: a wave of these multiplies each slice as it
    /// comes, if it takes no longer. Of the rows that are pulled, one slice is there at the begin; the others
    /// share a link.
    fn gemm_cost(&self, costs: &Costs<'_>, result: &Region) -> Cost {
        let (own, world) = (costs.plan.rank, costs.plan.world);
        let KernelShape { m, k, dtype, .. } = self.shape;
        let waves = self.waves(costs);
        let rows = result.rows.len();
        let mut time = rows as f64 / m as f64 * waves.time();
        let first = result.rows.start;
        let owner = (0..world).find(|&rank| shard(m, rank, world).contains(&first));
        if owner == Some(own) && self.counts_calls() {
            let bytes = ((world - 1) * rows * k * dtype.size()) as f64;
            time += (1.0 - costs.machine.gemm.during_pushes)
                * micros(bytes, costs.machine.link.sm_push_gbs);
        }
        let arrival = match (owner.filter(|&owner| owner != own), self.protocol) {
            (None, _) => None,
            (_, GatherProtocol::Eager { .. }) => Some(0.0),
            (Some(owner), GatherProtocol::Rendezvous { pushed, .. }) => {
                let pushed = pushed.saturating_mul(self.chunk_rows);
                let pulling = self.after_first_slice(costs, rows, rows);
                let is_pulled = first >= shard(m, owner, world).start.saturating_add(pushed);
                is_pulled.then_some(pulling + costs.machine.latency.signal_us)
            }
        };
        let others = (world - 1) as f64 * time;
        let last = match self.counts_calls() {
            true => 1.0,
            false => {
                let chunk = self.chunk_rows.min(rows);
                let beyond_wave = (chunk * (world - 1)) as f64 / m as f64 * waves.tiles - 1.0;
                let meanwhile = self.after_first_slice(costs, chunk, rows) / waves.wave_us;
                let slice = 1.0 / self.slices(rows, world) as f64;
                beyond_wave.max(0.0) + slice.max(1.0 - meanwhile)
            }
        } * waves.wave_us;
        let latency = arrival.map_or(0.0, |arrival| (last + arrival - others).max(0.0));
        Cost {
            latency,
            ..costs.gemm(time, 1.0)
        }
    }
}

/// The launch.
impl AllGatherMatmul {
    fn launch<B: ExecuteBackend>(&self, with: &Binding<'_, B>) -> Result<BoxedLaunch<B>> {
        let KernelShape { m, n, k, dtype } = self.shape;
        let world = with.world();
        // With the eager protocol nobody signals that rows have been read.
        let (done, protocol) = match self.protocol {
            GatherProtocol::Rendezvous { done, pushed } => {
                (done.0, Protocol::Rendezvous { pushed })
            }
            GatherProtocol::Eager { .. } => (0, Protocol::Eager),
        };
        let descriptor = gemm::AllGatherMatmul {
            problem: GemmProblem {
                bias: self.bias.is_some(),
                scaling: scales::scaling(self.own_scales()),
                ..GemmProblem::new(m, n, k, dtype)
                    .with_output(self.shape.output())
                    .with_layouts(Layout::RowMajor, layout_of(self.b_transposed))
                    .with_activation(self.activation)
            },
            shards: (0..world).map(|rank| shard(m, rank, world)).collect(),
            chunk_rows: self.chunk_rows,
            rank: with.rank(),
            world,
            ready: self.ready.0,
            done,
            protocol,
            tiling: None,
            max_blocks: with.max_blocks(),
        };
        let is_copied_first = B::KIND == BackendKind::Cuda && descriptor.is_late();
        let own_bytes = descriptor.shards[with.rank()].len() * k * dtype.size();
        Ok(Box::new(Prepared::<B> {
            kernel: *self,
            copied_first: is_copied_first.then_some(own_bytes),
            gemm: with
                .backend()
                .prepare_all_gather(with.gemm(), &descriptor)?,
        }))
    }
}

#[derive(Debug)]
struct Prepared<B: ExecuteBackend> {
    kernel: AllGatherMatmul,
    /// Bytes in `local_a`, if the device copies these before the launch.
    copied_first: Option<usize>,
    gemm: B::PreparedAllGather,
}

impl<B: ExecuteBackend> Launch<B> for Prepared<B> {
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()> {
        let kernel = &self.kernel;
        let mut local_a = kernel.local_a.map(|local| at.own(local));
        if let Some(bytes) = self.copied_first
            && let Some(from) = local_a.take()
        {
            // SAFETY: the caller's obligation.
            unsafe { backend.copy(stream, at.own(kernel.a), from, bytes)? };
        }
        let operands = AllGatherOperands {
            a: at.copies(kernel.a).collect(),
            local_a: local_a.unwrap_or(DevicePtr::NULL),
            staging: at.copies(kernel.staging).collect(),
            staging_stride: at.alternate(kernel.staging),
            b: at.own(kernel.b),
            c: at.own(kernel.c),
            bias: kernel.bias.map_or(DevicePtr::NULL, |bias| at.own(bias)),
            scales: kernel.scales.map_or(GatheredScales::default(), |scales| {
                let RowScales { own, staging } = scales;
                GatheredScales {
                    a: match staging {
                        Some(_) => at.copies(own.a).collect(),
                        None => at.own(own.a).into(),
                    },
                    staging: staging.map_or(Peers::NONE, |staging| at.copies(staging).collect()),
                    staging_stride: staging.map_or(0, |staging| at.alternate(staging)),
                    b: at.own(own.b),
                }
            }),
            pad: at.pad()?,
        };
        // SAFETY: the caller's obligation; all ranks enqueue plans with this kernel, whose interfaces the
        // executor found equal.
        unsafe { backend.all_gather_matmul(stream, &self.gemm, &operands)? };
        Ok(())
    }

    fn algorithm(&self) -> Option<String> {
        Some(B::all_gather_algorithm(&self.gemm))
    }
}
