//! The pipeline by owner: each rank sums its rows, and gets the parts of the others while they multiply.

use super::{PartialProduct, Stored};
use crate::algorithms::Options;
use crate::error::PlanError;
use crate::plan::{BufferId, Placement, Plan, Problem, Region, StreamId, chunks};
use std::ops::Range;
use warpweave_symm_mem::Priority;

/// Who gets the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithms) enum Reach {
    /// Each rank those of its rows: a reduce-scatter.
    Owner,
    /// Each rank all: an all-reduce.
    Everyone,
}

/// Multiplies the rows of one owner after the other, those of rank + 1 first and the own ones last, each in the parameter
/// `chunks` chunks, by turns on the streams of the parameter `streams`. A chunk is pushed into its owner's `staging` as soon
/// as it is multiplied, by copy engine on one stream: at each time every rank receives from one other. The caller's stream
/// sums the own chunks in the order of ranks, which is fixed and the same in every run, reading the own part where the
/// product wrote it; behind the last product there is only the last chunk's sum to wait for.
///
/// For [`Reach::Everyone`] the stream of the pushes then sends the chunks of sums to all others. The partial products lie in
/// C itself: an owner's sums come only after it has got the part that they overwrite.
///
/// `ready`: its n-th signal of a call says "my part of the n-th chunk of your rows is in your staging". `free`: "I have
/// summed your parts", a credit for the next call's pushes. Where everyone gets the sums, these say so: `summed`, "my rows of
/// your C are sums".
pub(in crate::algorithms) fn by_owner(
    name: &str,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
    reach: Reach,
) -> Result<Plan, PlanError> {
    let c = match (reach, world) {
        (Reach::Owner, _) => (Placement::Local, problem.shard(rank, world)),
        (Reach::Everyone, 1) => (Placement::Local, 0..problem.m),
        (Reach::Everyone, _) => (Placement::Symmetric, 0..problem.m),
    };
    let mut plan = PartialProduct::new(name, (rank, world), problem, stored, c);
    let main = StreamId::MAIN;
    if world == 1 {
        let c = plan.builder.whole(plan.c);
        plan.product(main, 0..problem.m, c);
        return plan.builder.finish();
    }
    let places = Places::new(&mut plan, (rank, world), problem, reach);
    let ready = plan.builder.slot("ready");
    let [free, summed] = match reach {
        Reach::Owner => [Some(plan.builder.slot("free")), None],
        Reach::Everyone => [None, Some(plan.builder.slot("summed"))],
    };
    let peers = plan.builder.peers();
    let mut pushes = Pushes(None);

    let owners = peers.iter().copied().chain([rank]);
    let parts: Vec<(usize, Range<usize>)> = owners
        .flat_map(|owner| {
            chunks(problem.shard(owner, world), options.count("chunks")).map(move |r| (owner, r))
        })
        .collect();
    let products: Vec<StreamId> = (0..options.count("streams").min(parts.len()))
        .map(|_| plan.builder.fork_with(Priority::Normal))
        .collect();
    for ((owner, rows), &stream) in parts.iter().zip(products.iter().cycle()) {
        let part = places.product(&plan, *owner, rows.clone());
        plan.product(stream, rows.clone(), part.clone());
        if *owner != rank {
            let pushes = pushes.behind(&mut plan, stream);
            if let Some(free) = free
                && rows.start == problem.shard(*owner, world).start
            {
                plan.builder.wait_credit(pushes, free, [*owner]);
            }
            let there = places.staged(&plan, rank, *owner, rows.clone());
            plan.builder
                .copy(pushes, part, there)
                .signal(pushes, ready, [*owner]);
            continue;
        }
        let summands = (0..world).map(|source| match source == rank {
            true => part.clone(),
            false => places.staged(&plan, source, rank, rows.clone()),
        });
        let summands = summands.collect();
        plan.builder
            .order(stream, main)
            .wait(main, ready, peers.clone())
            .sum(main, summands, part.clone());
        if reach == Reach::Everyone {
            let pushes = pushes.behind(&mut plan, main);
            for &to in &peers {
                let there = plan.on(to, plan.c, rows.clone());
                plan.builder.copy(pushes, part.clone(), there);
            }
        }
    }

    let owns = |rank: &usize| !problem.shard(*rank, world).is_empty();
    if let (Some(summed), Some(pushes), true) = (summed, pushes.0, owns(&rank)) {
        plan.builder.signal(pushes, summed, peers.clone());
    }
    if let (Some(free), true) = (free, owns(&rank)) {
        plan.builder.signal(main, free, peers.clone());
    }
    if let Some(pushes) = pushes.0 {
        plan.builder.join(pushes);
    }
    if let Some(summed) = summed {
        let owners = peers.into_iter().filter(owns);
        plan.builder.wait(main, summed, owners);
    }
    plan.builder.finish()
}

/// The stream of the pushes, once there is something to push.
struct Pushes(Option<StreamId>);

impl Pushes {
    /// The stream, which goes on only after what is on `earlier` so far.
    fn behind(&mut self, plan: &mut PartialProduct, earlier: StreamId) -> StreamId {
        match self.0 {
            Some(stream) => {
                plan.builder.order(earlier, stream);
                stream
            }
            None => *self
                .0
                .insert(plan.builder.fork_from(earlier, Priority::High)),
        }
    }
}

/// Where partial products lie.
struct Places {
    /// Those of other owners' rows, by row of C.
    partial: BufferId,
    /// Those of the other ranks, one part of the largest shard's rows for each.
    staging: BufferId,
    rank: usize,
    world: usize,
    problem: Problem,
    reach: Reach,
}

impl Places {
    fn new(
        plan: &mut PartialProduct,
        (rank, world): (usize, usize),
        problem: &Problem,
        reach: Reach,
    ) -> Self {
        let partial = match reach {
            Reach::Owner => plan.buffer("partial", Placement::Local, problem.m),
            Reach::Everyone => plan.c,
        };
        let rows = problem.max_shard(world).saturating_mul(world - 1);
        Places {
            partial,
            staging: plan.buffer("staging", Placement::Symmetric, rows),
            rank,
            world,
            problem: *problem,
            reach,
        }
    }

    /// Where this rank's product of these rows of `owner` goes; the own one's place is that of its sum.
    fn product(&self, plan: &PartialProduct, owner: usize, rows: Range<usize>) -> Region {
        if self.reach == Reach::Owner && owner == self.rank {
            return plan.own(plan.c, self.in_shard(owner, &rows));
        }
        plan.own(self.partial, rows)
    }

    /// Where the part of `source` of these rows lies in the staging of `owner`, which keeps none for itself.
    fn staged(
        &self,
        plan: &PartialProduct,
        source: usize,
        owner: usize,
        rows: Range<usize>,
    ) -> Region {
        let before = (source - usize::from(source > owner)) * self.problem.max_shard(self.world);
        let Range { start, end } = self.in_shard(owner, &rows);
        plan.on(owner, self.staging, before + start..before + end)
    }

    fn in_shard(&self, owner: usize, rows: &Range<usize>) -> Range<usize> {
        let first = self.problem.shard(owner, self.world).start;
        rows.start - first..rows.end - first
    }
}
