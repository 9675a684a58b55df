//! The collectives of a plan: process groups, and calls with their addresses.

use std::sync::Arc;

use warpweave_comm::Collectives;
use warpweave_comm::collective::{MOVED, Operation};
use warpweave_symm_mem::{Exchange, SubExchange, agree};

use super::Binder;
use crate::execute::addresses::{Nowhere, Place};
use crate::execute::collective::{
    GroupCall, NcclCall, Norm, Places, ProcessGroup, Round, SymmetricCall, rounds,
};
use crate::execute::error::Result;
use crate::execute::interface::{Interface, SharedCollective};
use crate::execute::prepared::unforeseen;
use crate::execute::step::Action;
use crate::execute::{ExecuteBackend, Executor};
use crate::plan::{Collective, Op, OpKind, Placement, Plan, Region, Transport, shard};

/// The process groups of a plan, one for each round.
pub(in crate::execute) type ProcessGroups<B> = Vec<(Round, Arc<ProcessGroup<B>>)>;

impl<B: ExecuteBackend> Executor<B> {
    /// The process groups of a plan. Makes those that no earlier plan left. Collective: all ranks decide
    /// alike, from what all share.
    pub(in crate::execute) fn groups(
        &self,
        plan: &Plan,
        all: &[Interface],
    ) -> Result<ProcessGroups<B>> {
        let collectives = || all.iter().flat_map(|rank| &rank.collectives);
        let sets = collectives().map(|c| (c.transport, c.ranks.clone()));
        let (exchange, size) = (&self.0.exchange, plan.node_size);
        let nodes: Vec<_> = (0..plan.world)
            .step_by(size)
            .map(|rank| plan.node_of(rank))
            .collect();
        let mut groups = Vec::new();
        for round in rounds(sets, &nodes) {
            let largest = round.groups.iter().map(Vec::len).max().unwrap_or(0);
            if round.transport == Transport::SymmetricMemory {
                Collectives::<B>::require_world(largest)?;
                let what = "a collective over symmetric memory";
                round.groups.iter().try_for_each(|group| {
                    let nodes = exchange.nodes()?.of_ranks(group);
                    nodes.require_one(0..group.len(), what)
                })?;
            }
            let in_round = |c: &&SharedCollective| {
                c.transport == round.transport && round.groups.contains(&c.ranks)
            };
            let bytes = collectives().filter(in_round).map(|c| c.bytes).max();
            let group = self.group(&round, bytes.unwrap_or(0))?;
            groups.push((round, group));
        }
        Ok(groups)
    }

    /// This rank's process group that can do `bytes`: that of an earlier plan, if it is large enough.
    /// Collective.
    fn group(&self, round: &Round, bytes: usize) -> Result<Arc<ProcessGroup<B>>> {
        if let Some(group) = self.0.groups.lock().get(round)
            && group.capacity() >= bytes
        {
            return Ok(group.clone());
        }
        let exchange = &self.0.exchange;
        let (nodes, rank) = (exchange.nodes()?, exchange.rank());
        let made = part_of(exchange, round.group_of(rank)).and_then(|part| {
            ProcessGroup::new(&self.0.backend, &part, round, (&nodes, rank), bytes)
        });
        let group = Arc::new(agree(exchange.as_ref(), "collectives", made)?);
        self.0.all_groups.lock().push(Arc::downgrade(&group));
        self.0.groups.lock().insert(round.clone(), group.clone());
        Ok(group)
    }
}

/// The exchange of the ranks of this rank's node of `plan`. Collective; an error is one on all ranks.
///
/// # Errors
/// Unavailable where ranks of a node of the plan are in different nodes of the job, naming two.
pub(in crate::execute) fn node_of(
    exchange: &Arc<dyn Exchange>,
    plan: &Plan,
) -> Result<Arc<dyn Exchange>> {
    if plan.shares_memory() {
        let (nodes, what) = (exchange.nodes()?, format!("the memory of `{}`", plan.name));
        let mut firsts = (0..plan.world).step_by(plan.node_size.max(1));
        firsts.try_for_each(|first| nodes.require_one(plan.node_of(first), &what))?;
    }
    part_of(exchange, &plan.node_of(plan.rank).collect::<Vec<_>>())
}

/// The exchange of `ranks`, in their order. All ranks of `exchange` ask for the part that they belong to.
fn part_of(exchange: &Arc<dyn Exchange>, ranks: &[usize]) -> Result<Arc<dyn Exchange>> {
    if ranks.iter().copied().eq(0..exchange.world()) {
        return Ok(exchange.clone());
    }
    let part = SubExchange::new(exchange.clone(), ranks.iter().copied())?;
    Ok(Arc::new(part))
}

impl<B: ExecuteBackend> Binder<'_, B> {
    /// The collectives of the plan, in order; `None` for other operations.
    pub(super) fn collectives(&self) -> Result<Vec<Option<Action<B>>>> {
        let mut seen = vec![0; self.groups.len()];
        let mut bind = |op: &Op| {
            let OpKind::Collective {
                ranks, transport, ..
            } = &op.kind
            else {
                return Ok(None);
            };
            let mine = |(round, _): &(Round, _)| {
                round.transport == *transport && round.group_of(self.plan.rank) == ranks
            };
            let Some(place) = self.groups.iter().position(mine) else {
                let needs = format!("a process group of ranks {ranks:?} by {transport}");
                return Err(unforeseen(self.plan, needs, "others".into()));
            };
            seen[place] += 1;
            let group = &self.groups[place].1;
            let call = self.group_call(group, &op.kind, seen[place] - 1)?;
            let group = group.clone();
            Ok(Some(Action::Collective { group, call }))
        };
        self.plan.ops.iter().map(&mut bind).collect()
    }

    /// The collective `number` of its group.
    fn group_call(
        &self,
        group: &ProcessGroup<B>,
        kind: &OpKind,
        number: usize,
    ) -> Result<GroupCall> {
        let OpKind::Collective {
            collective,
            src,
            dst,
            ranks,
            transport,
            then,
        } = kind
        else {
            return Ok(GroupCall::Symmetric(Vec::new()));
        };
        let dtype = self.plan.buffers[dst.buffer.0].dtype;
        let (rows, cols) = (collective.all_rows(src, dst), dst.cols.len());
        let counts: Vec<usize> = (0..ranks.len())
            .map(|index| shard(rows, index, ranks.len()).len() * cols)
            .collect();
        // The rows that are normalized lie in `dst` after NCCL, and after a reduction in place in `src`.
        let norm = |input| {
            then.as_ref().map(|norm| Norm {
                dtype,
                shape: (rows, cols),
                epsilon: norm.epsilon,
                input: self.place(input),
                residual: self.place(&norm.residual),
                weight: self.place(&norm.weight),
                residual_out: self.place(&norm.residual_out),
                normalized: self.place(dst),
                quantized: norm
                    .quantized
                    .as_ref()
                    .map(|to| [&to.values, &to.scales].map(|region| self.place(region))),
            })
        };
        if *transport != Transport::SymmetricMemory {
            if then.is_some() && self.probes() {
                // A build or a device without the kernel is found before any rank waits for this one.
                self.executor.0.backend.preload_collectives()?;
            }
            let call = NcclCall {
                collective: *collective,
                counts,
                dtype,
            };
            let (src, result) = (self.place(src), self.place(dst));
            let norm = norm(dst).map(Box::new);
            return Ok(GroupCall::Nccl(call, src, result, norm));
        }
        let boxes: Vec<&SharedCollective> = ranks
            .iter()
            .filter_map(|&rank| {
                self.interfaces[rank]
                    .of_group(ranks, *transport)
                    .nth(number)
            })
            .collect();
        let input = self.places(src, ranks, &boxes, |peer| &peer.src, 0);
        let output = |start| self.places(dst, ranks, &boxes, |peer| &peer.dst, start);
        let even = counts.iter().all(|count| *count == counts[0]);
        let call = |operation, (dtype, count), root, output| SymmetricCall {
            operation,
            dtype,
            count,
            root,
            input: input.clone(),
            output,
            norm: None,
        };
        // Single bytes are moved in pairs.
        let (unit, each) = match dtype.size() {
            1 => (MOVED, MOVED.size()),
            _ => (dtype, 1),
        };
        let moved = |count| (unit, count / each);
        if counts.iter().any(|count| !count.is_multiple_of(each)) {
            return Err(warpweave_symm_mem::Error::Unavailable {
                what: format!(
                    "a collective of {rows} rows of {cols} {dtype} over symmetric memory"
                ),
                why: "each shard must have an even number of bytes there: use NCCL".into(),
            }
            .into());
        }
        let calls = match collective {
            Collective::AllReduce => {
                let result = match then {
                    None => output(0),
                    Some(_) => input.clone(),
                };
                let reduction = call(Operation::AllReduce, (dtype, rows * cols), 0, result);
                vec![SymmetricCall {
                    norm: norm(src),
                    ..reduction
                }]
            }
            Collective::ReduceScatter if !even => {
                return Err(warpweave_symm_mem::Error::Unavailable {
                    what: format!(
                        "a reduce-scatter of {rows} rows among {} ranks over symmetric memory",
                        ranks.len()
                    ),
                    why: "shards must be equal there: use a number of rows that the ranks divide, \
                          or NCCL"
                        .into(),
                }
                .into());
            }
            Collective::ReduceScatter => {
                vec![call(
                    Operation::ReduceScatter,
                    (dtype, counts[0]),
                    0,
                    output(0),
                )]
            }
            Collective::AllGather if even => {
                vec![call(Operation::AllGather, moved(counts[0]), 0, output(0))]
            }
            Collective::AllGather => {
                let mut calls = Vec::new();
                let mut start = 0;
                for (root, &count) in counts.iter().enumerate() {
                    calls.push(call(
                        Operation::Broadcast,
                        moved(count),
                        root,
                        output(start * dtype.size()),
                    ));
                    start += count;
                }
                calls
            }
        };
        let nowhere = Nowhere::of(self.plan, self.pad);
        group.select(calls, &nowhere.addresses(self.plan))
    }

    /// Memory of a collective over symmetric memory, `start` bytes into the box of each rank.
    fn places(
        &self,
        own: &Region,
        ranks: &[usize],
        boxes: &[&SharedCollective],
        of: impl Fn(&SharedCollective) -> &Region,
        start: usize,
    ) -> Places {
        let place = |region: &Region| {
            let place = self.place(region);
            Place {
                offset: place.offset + start,
                ..place
            }
        };
        if self.plan.buffers[own.buffer.0].placement == Placement::Local {
            return Places::Own(place(own));
        }
        // The same buffer, whose number may be another there.
        let there = |(&rank, shared): (&usize, &&SharedCollective)| {
            place(&Region {
                rank,
                buffer: own.buffer,
                ..of(shared).clone()
            })
        };
        let me = ranks.iter().position(|&rank| rank == self.plan.rank);
        Places::OfAll {
            places: ranks.iter().zip(boxes).map(there).collect(),
            me: me.unwrap_or(ranks.len()),
        }
    }
}
