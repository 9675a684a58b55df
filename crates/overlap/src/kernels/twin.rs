//! Whether a host twin keeps to the lanes of its kernel.
//!
//! *check* proves lanes; what runs is code. [`Bound::run_recorded`](crate::execute::Bound::run_recorded) says
//! what the host twin of a kernel did in a call, and [`departures`] where that is not what the lanes declare.

use std::collections::{HashMap, VecDeque};

use crate::plan::{Effect, Region, SlotId};

/// A signal or a wait of one flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sync {
    Signal { slot: SlotId, to: usize },
    Wait { slot: SlotId, from: usize, lag: u32 },
}

/// Whether an access writes.
type Writes = bool;

fn syncs(effect: &Effect) -> Vec<Sync> {
    match *effect {
        Effect::Signal { slot, ref to } => to.iter().map(|&to| Sync::Signal { slot, to }).collect(),
        Effect::Wait {
            slot,
            ref from,
            lag,
        } => {
            let wait = |&from| Sync::Wait { slot, from, lag };
            from.iter().map(wait).collect()
        }
        _ => Vec::new(),
    }
}

fn regions(effect: &Effect, world: usize) -> Vec<(Writes, Region)> {
    match effect {
        Effect::Read(region) => vec![(false, region.clone())],
        Effect::Write(region) => vec![(true, region.clone())],
        Effect::WriteMulticast(region) => (0..world).map(|on| (true, region.on(on))).collect(),
        _ => Vec::new(),
    }
}

/// An access that a lane declares.
struct Declared {
    lane: usize,
    index: usize,
    writes: Writes,
    region: Region,
    /// The lane's signals and waits before it are done after this step of the trace,
    after: usize,
    /// and those after it begin with this one.
    before: usize,
}

/// The steps of a trace that its lanes do not allow, and those of the lanes that it lacks. None: every read,
/// write, signal and wait of the trace is in a lane, in its order, and every signal and wait of the lanes is
/// in the trace.
///
/// `trace` is what one call did, each signal and wait with one peer. A kernel may keep more order than its
/// lanes.
pub fn departures(world: usize, lanes: &[Vec<Effect>], trace: &[Effect]) -> Vec<String> {
    let mut found = Vec::new();
    let declared = windows(world, lanes, trace, &mut found);
    for (at, effect) in trace.iter().enumerate() {
        for (writes, region) in regions(effect, world) {
            let same = declared.iter().filter(|d| d.writes == writes);
            let allowed = same.filter(|d| (d.after + 1..d.before).contains(&(at + 1)));
            let rest = region.minus_all(allowed.map(|d| &d.region));
            if let Some(rest) = rest.first() {
                let verb = if writes { "writes" } else { "reads" };
                found.push(format!("step {at} {verb} {rest:?} where no lane does"));
            }
        }
    }
    found.extend(conflicts(world, lanes, &declared, trace));
    found
}

/// The accesses of the lanes that the trace lacks. A kernel may declare more than its twin needs.
pub fn untouched(world: usize, lanes: &[Vec<Effect>], trace: &[Effect]) -> Vec<Effect> {
    let touched: Vec<(Writes, Region)> = trace.iter().flat_map(|e| regions(e, world)).collect();
    let is_touched = |(writes, region): &(Writes, Region)| {
        let same = touched.iter().filter(|(theirs, _)| theirs == writes);
        region.minus_all(same.map(|(_, region)| region)).is_empty()
    };
    let all = lanes.iter().flatten();
    all.filter(|effect| !regions(effect, world).iter().all(is_touched))
        .cloned()
        .collect()
}

/// Finds each signal and wait of the lanes in the trace, and with them when each access may be.
fn windows(
    world: usize,
    lanes: &[Vec<Effect>],
    trace: &[Effect],
    found: &mut Vec<String>,
) -> Vec<Declared> {
    // Steps count from 1 here, so that 0 is before all of them.
    let mut steps: HashMap<Sync, VecDeque<usize>> = HashMap::new();
    for (at, effect) in trace.iter().enumerate() {
        for sync in syncs(effect) {
            steps.entry(sync).or_default().push_back(at + 1);
        }
    }
    let mut declared = Vec::new();
    let mut done = vec![0; lanes.len()];
    // The first and the last step of each effect that signals or waits.
    let mut spans = HashMap::new();
    for (lane, effects) in lanes.iter().enumerate() {
        let mut after = 0;
        for (index, effect) in effects.iter().enumerate() {
            if let Effect::After(others) = effect {
                let last = others.iter().filter_map(|&other| done.get(other)).max();
                after = after.max(last.copied().unwrap_or(0));
            }
            let (mut first, mut last) = (usize::MAX, 0);
            for sync in syncs(effect) {
                let step = steps.get_mut(&sync).and_then(VecDeque::pop_front);
                let Some(step) = step else {
                    found.push(format!("lane {lane} has {sync:?}, and the twin does not"));
                    continue;
                };
                if step <= after {
                    found.push(format!("{sync:?} of lane {lane} comes too early"));
                }
                (first, last) = (first.min(step), last.max(step));
            }
            if last > 0 {
                spans.insert((lane, index), first);
                after = after.max(last);
            }
            for (writes, region) in regions(effect, world) {
                declared.push(Declared {
                    lane,
                    index,
                    writes,
                    region,
                    after,
                    before: usize::MAX,
                });
            }
        }
        done[lane] = after;
    }
    for (sync, steps) in &steps {
        if !steps.is_empty() {
            found.push(format!("the twin has {sync:?}, and no lane does"));
        }
    }
    // What comes after a lane as a whole bounds all of its accesses.
    let mut released = vec![usize::MAX; lanes.len()];
    for (lane, effects) in lanes.iter().enumerate().rev() {
        let mut before = released[lane];
        for (index, effect) in effects.iter().enumerate().rev() {
            before = before.min(*spans.get(&(lane, index)).unwrap_or(&usize::MAX));
            if let Effect::After(others) = effect {
                for &other in others {
                    released[other] = released[other].min(before);
                }
            }
            for access in &mut declared {
                if (access.lane, access.index) == (lane, index) {
                    access.before = before;
                }
            }
        }
    }
    declared
}

/// Accesses to one element, of which one writes, that stand in another order than their lanes have.
fn conflicts(
    world: usize,
    lanes: &[Vec<Effect>],
    declared: &[Declared],
    trace: &[Effect],
) -> Vec<String> {
    let earlier = earlier_lanes(lanes);
    let precedes = |a: &Declared, b: &Declared| match a.lane == b.lane {
        true => a.index < b.index,
        false => earlier[b.lane][b.index].contains(&a.lane),
    };
    let steps: Vec<(usize, Writes, Region)> = trace
        .iter()
        .enumerate()
        .flat_map(|(at, effect)| {
            let regions = regions(effect, world).into_iter();
            regions.map(move |(writes, region)| (at, writes, region))
        })
        .collect();
    let mut found = Vec::new();
    for a in declared {
        for b in declared {
            let both = a.region.intersection(&b.region);
            let Some(both) = both.filter(|_| (a.writes || b.writes) && precedes(a, b)) else {
                continue;
            };
            let of = |writes: Writes| {
                let same = steps.iter().filter(move |step| step.1 == writes);
                same.filter(|step| step.2.overlaps(&both))
            };
            for (at, _, region) in of(a.writes) {
                let late = of(b.writes).find(|step| step.0 < *at && step.2.overlaps(region));
                if let Some((early, ..)) = late {
                    found.push(format!(
                        "step {early} touches {both:?} before step {at}, which lane {} has first",
                        a.lane
                    ));
                }
            }
        }
    }
    found
}

/// For each effect, the lanes that are over before it.
fn earlier_lanes(lanes: &[Vec<Effect>]) -> Vec<Vec<Vec<usize>>> {
    let mut earlier: Vec<Vec<Vec<usize>>> = Vec::new();
    for effects in lanes {
        let mut over: Vec<usize> = Vec::new();
        let mut of_lane = Vec::new();
        for effect in effects {
            if let Effect::After(others) = effect {
                for &other in others {
                    over.push(other);
                    over.extend(
                        earlier
                            .get(other)
                            .and_then(|of| of.last())
                            .into_iter()
                            .flatten(),
                    );
                }
            }
            of_lane.push(over.clone());
        }
        earlier.push(of_lane);
    }
    earlier
}
