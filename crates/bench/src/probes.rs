//! Micro-benchmarks: plans whose times each give one figure of the machine.

use warpweave_overlap::PlanError;
use warpweave_overlap::plan::{
    BufferId, Placement, Plan, PlanBuilder, Region, Role, StreamId, shard,
};
use warpweave_symm_mem::DType;

const MAIN: StreamId = StreamId::MAIN;

/// Operations of a kind in one plan, so that what one costs stands out of the clock's spread.
pub(crate) const REPEATS: usize = 16;

/// What a plan does, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// Nothing: what the clock costs.
    Empty,
    /// Events from one stream to another and back.
    Events,
    /// All signals to the right neighbour, then all waits for the left one's.
    SignalsThenWaits,
    /// Signal and wait in alternation: each pair is a link crossing.
    Crossings,
    /// Even ranks signal, odd ranks wait, so that signals alone are on the path.
    Signals,
    /// Copies within a device.
    Local,
    /// Pushes to all peers, the next rank first, on one stream or on one for each peer.
    Push { streams: bool },
    /// Pulls in the same order.
    Pull { streams: bool },
}

/// The plan of a probe that moves `bytes` at a time.
pub(crate) fn plan(
    probe: Probe,
    bytes: usize,
    rank: usize,
    world: usize,
) -> Result<Plan, PlanError> {
    let mut plan = PlanBuilder::new(format!("{probe:?}"), rank, world);
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    match probe {
        Probe::Empty => {}
        Probe::Events => {
            let side = plan.fork();
            plan.join(side);
            for _ in 1..REPEATS / 2 {
                plan.order(MAIN, side).join(side);
            }
        }
        Probe::SignalsThenWaits | Probe::Crossings | Probe::Signals => {
            let slots: Vec<_> = (0..REPEATS)
                .map(|i| plan.slot(format!("slot {i}")))
                .collect();
            let sends = probe != Probe::Signals || (rank.is_multiple_of(2) && right != 0);
            let waits = probe != Probe::Signals || !rank.is_multiple_of(2);
            for &slot in slots.iter().filter(|_| sends) {
                plan.signal(MAIN, slot, [right]);
                if probe == Probe::Crossings {
                    plan.wait(MAIN, slot, [left]);
                }
            }
            for &slot in slots.iter().filter(|_| waits && probe != Probe::Crossings) {
                plan.wait(MAIN, slot, [left]);
            }
        }
        Probe::Local => {
            let (part, all) = buffers(&mut plan, bytes);
            let (src, dst) = (plan.whole(part), rows_of(&plan, all, rank, rank));
            plan.copy(MAIN, src, dst);
        }
        Probe::Push { streams } | Probe::Pull { streams } => {
            let (part, all) = buffers(&mut plan, bytes);
            let peers = plan.peers();
            let pool: Vec<StreamId> = peers
                .iter()
                .map(|_| if streams { plan.fork() } else { MAIN })
                .collect();
            for (&peer, &stream) in peers.iter().zip(&pool) {
                let (src, dst) = match probe {
                    Probe::Push { .. } => (plan.whole(part), rows_of(&plan, all, peer, rank)),
                    _ => {
                        let mut src = plan.whole(part);
                        src.rank = peer;
                        (src, rows_of(&plan, all, rank, peer))
                    }
                };
                plan.copy(stream, src, dst);
            }
            for stream in pool.into_iter().filter(|_| streams) {
                plan.join(stream);
            }
            let ready = plan.slot("ready");
            plan.signal(MAIN, ready, peers.clone())
                .wait(MAIN, ready, peers);
        }
    }
    plan.finish()
}

/// Columns of the buffers, one row of which is the least that is copied.
const COLS: usize = 1024;

/// A part of `bytes`, rounded to rows, and a place for those of all ranks.
fn buffers(plan: &mut PlanBuilder, bytes: usize) -> (BufferId, BufferId) {
    let rows = (bytes / (COLS * size_of::<f32>())).max(1);
    let world = plan.draft().world;
    let mut buffer =
        |name, role, rows| plan.buffer(name, Placement::Symmetric, role, DType::F32, (rows, COLS));
    (
        buffer("part", Role::Input, rows),
        buffer("all", Role::Staging, world * rows),
    )
}

/// The rows of `owner` in the buffer of `rank`.
fn rows_of(plan: &PlanBuilder, all: BufferId, rank: usize, owner: usize) -> Region {
    let whole = plan.whole(all);
    let rows = shard(whole.rows.len(), owner, plan.draft().world);
    plan.on(rank, all, rows, 0..COLS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::hold;

    /// Pushes need no credits, for nobody reads what arrives, and neither do pulls of what nobody writes.
    #[test]
    fn the_plans_of_the_probes_belong_together() {
        let [one, all] = [false, true];
        let mut probes = vec![Probe::Empty, Probe::Events, Probe::Local, Probe::Crossings];
        probes.extend([Probe::SignalsThenWaits, Probe::Signals]);
        for streams in [one, all] {
            probes.push(Probe::Push { streams });
        }
        for world in [2, 3, 4] {
            for &probe in &probes {
                hold(world, |rank| plan(probe, 8192, rank, world));
            }
        }
    }
}
