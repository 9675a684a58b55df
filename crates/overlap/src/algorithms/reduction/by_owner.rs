//! The pipeline by owner: each rank reduces its rows, and receives partials while the others multiply.

use super::{PartialGemm, Stored};
use crate::algorithms::Options;
use crate::error::PlanError;
use crate::plan::{BufferId, Placement, Plan, Problem, Region, SlotId, StreamId, chunks};
use std::ops::Range;
use warpweave_symm_mem::Priority;

/// Who gets the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithms) enum Reach {
    /// Each rank those of its rows: a reduce-scatter.
    Owner,
    /// Each rank all: an all-reduce.
    Everyone,
}

/// Multiplies one owner's rows after the other's, starting with rank + 1 and ending with its own, each in
/// `chunks` chunks round-robin on the `streams` streams. As soon as a chunk is multiplied it is pushed into
/// its owner's `staging`, by copy engine on one stream: every rank receives from one other at a time. The
/// caller's stream reduces this rank's chunks in the order of ranks, which is the same in every run. It reads
/// its own partial where the GEMM wrote it. After the last GEMM only the last chunk's reduction remains.
///
/// For [`Reach::Everyone`] the stream of the pushes then sends the results to all others, chunk by chunk. On
/// GPUs that is done by SMs, because C is an operand: a failed wait must be able to stop it. The partials lie
/// in C itself: an owner's result arrives only after the owner has received the partial that it overwrites.
///
/// `ready`: its n-th signal of a call says "my partial of the n-th chunk of your rows is in your staging".
/// `free`: "I have reduced your partials", a credit for the next call's pushes. Where everyone gets the
/// result, `reduced` takes its place: "my rows of your C are final".
pub(in crate::algorithms) fn by_owner(
    name: &str,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
    reach: Reach,
) -> Result<Plan, PlanError> {
    let c = match reach {
        Reach::Owner => (Placement::Local, problem.shard(rank, world)),
        Reach::Everyone => (Placement::Symmetric, 0..problem.m),
    };
    let mut plan = PartialGemm::new(name, (rank, world), problem, stored, c);
    if world == 1 {
        let c = plan.builder.whole(plan.c);
        plan.gemm(StreamId::MAIN, 0..problem.m, c);
        return plan.builder.finish();
    }
    let mut plan = Pipeline::new(plan, reach);
    let order = plan.peers.iter().copied().chain([rank]);
    let parts: Vec<(usize, Range<usize>)> = order
        .flat_map(|owner| {
            let rows = chunks(problem.shard(owner, world), options.count("chunks"));
            rows.map(move |rows| (owner, rows))
        })
        .collect();
    let streams = options.count("streams").min(parts.len());
    let streams = plan.gemm.builder.pool(streams, Priority::Normal);
    for ((owner, rows), &stream) in parts.into_iter().zip(streams.iter().cycle()) {
        let part = plan.part(owner, rows.clone());
        plan.gemm.gemm(stream, rows.clone(), part.clone());
        if owner == rank {
            plan.reduce(stream, rows, part);
        } else {
            plan.push(stream, owner, rows, part);
        }
    }
    plan.finish()
}

/// The plan under construction.
struct Pipeline {
    gemm: PartialGemm,
    reach: Reach,
    /// This rank's partials of other owners' rows, by row of C.
    partial: BufferId,
    /// Partials of this rank's rows: as many rows as the largest shard for each peer.
    staging: BufferId,
    ready: SlotId,
    /// `free` or `reduced`.
    over: SlotId,
    peers: Vec<usize>,
    /// The stream of the pushes, once there is something to push.
    pushes: Option<StreamId>,
}

impl Pipeline {
    fn new(mut gemm: PartialGemm, reach: Reach) -> Self {
        let PartialGemm { problem, world, .. } = gemm;
        let partial = match reach {
            Reach::Owner => gemm.buffer("partial", Placement::Local, problem.m),
            Reach::Everyone => gemm.c,
        };
        let parts = problem.max_shard(world).saturating_mul(world - 1);
        Pipeline {
            partial,
            staging: gemm.buffer("staging", Placement::Symmetric, parts),
            ready: gemm.builder.slot("ready"),
            over: gemm.builder.slot(match reach {
                Reach::Owner => "free",
                Reach::Everyone => "reduced",
            }),
            peers: gemm.builder.peers(),
            pushes: None,
            gemm,
            reach,
        }
    }

    /// Where this rank's partial of these rows of `owner` goes; that of its own rows lies where the result
    /// will.
    fn part(&self, owner: usize, rows: Range<usize>) -> Region {
        let gemm = &self.gemm;
        if self.reach == Reach::Owner && owner == gemm.rank {
            return gemm.own(gemm.c, self.in_shard(owner, &rows));
        }
        gemm.own(self.partial, rows)
    }

    /// Where the partial of `source` of these rows lies in the staging of `owner`, which has none of its own.
    fn staged(&self, source: usize, owner: usize, rows: &Range<usize>) -> Region {
        let PartialGemm { problem, world, .. } = &self.gemm;
        let above = (source - usize::from(source > owner)) * problem.max_shard(*world);
        let Range { start, end } = self.in_shard(owner, rows);
        self.gemm
            .on(owner, self.staging, above + start..above + end)
    }

    /// These rows of C, counted from the first that `owner` has.
    fn in_shard(&self, owner: usize, rows: &Range<usize>) -> Range<usize> {
        let first = self.gemm.rows_of(owner).start;
        rows.start - first..rows.end - first
    }

    /// The stream of the pushes, ordered after the work on `earlier` so far.
    fn pushes_after(&mut self, earlier: StreamId) -> StreamId {
        let builder = &mut self.gemm.builder;
        if let Some(pushes) = self.pushes {
            builder.order(earlier, pushes);
            return pushes;
        }
        let pushes = builder.fork_from(earlier, Priority::High);
        *self.pushes.insert(pushes)
    }

    /// Pushes a partial that is multiplied on `stream`.
    fn push(&mut self, stream: StreamId, owner: usize, rows: Range<usize>, part: Region) {
        let pushes = self.pushes_after(stream);
        let there = self.staged(self.gemm.rank, owner, &rows);
        let first = rows.start == self.gemm.rows_of(owner).start;
        let builder = &mut self.gemm.builder;
        if first && self.reach == Reach::Owner {
            builder.wait_credit(pushes, self.over, [owner]);
        }
        builder.put(pushes, part, there, self.ready);
    }

    /// Reduces a chunk of this rank's rows, whose own partial is multiplied on `stream`, and sends the result
    /// on.
    fn reduce(&mut self, stream: StreamId, rows: Range<usize>, part: Region) {
        let PartialGemm { rank, world, c, .. } = self.gemm;
        let main = StreamId::MAIN;
        let parts = (0..world).map(|source| match source == rank {
            true => part.clone(),
            false => self.staged(source, rank, &rows),
        });
        let parts = parts.collect();
        self.gemm
            .builder
            .order(stream, main)
            .wait(main, self.ready, self.peers.clone())
            .reduce(main, parts, part.clone());
        if self.reach == Reach::Everyone {
            let pushes = self.pushes_after(main);
            for &to in &self.peers {
                let there = self.gemm.on(to, c, rows.clone());
                self.gemm.builder.copy(pushes, part.clone(), there);
            }
        }
    }

    /// Signals that this rank's rows are reduced, and waits for what the others have pushed.
    fn finish(self) -> Result<Plan, PlanError> {
        let mut gemm = self.gemm;
        let main = StreamId::MAIN;
        let PartialGemm { problem, world, .. } = gemm;
        let owns = |rank: &usize| !problem.shard(*rank, world).is_empty();
        if owns(&gemm.rank) {
            let stream = match (self.reach, self.pushes) {
                (Reach::Everyone, Some(pushes)) => pushes,
                _ => main,
            };
            let peers = self.peers.iter().copied();
            gemm.builder.signal(stream, self.over, peers);
        }
        if let Some(pushes) = self.pushes {
            gemm.builder.join(pushes);
        }
        if self.reach == Reach::Everyone {
            let owners = self.peers.into_iter().filter(owns);
            gemm.builder.wait(main, self.over, owners);
        }
        gemm.builder.finish()
    }
}
