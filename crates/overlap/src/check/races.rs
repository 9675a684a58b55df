//! Pairs of conflicting accesses that nothing orders.

use super::Extent;
use super::access::{Access, by_copy};
use super::order::HappensBefore;
use super::program::{Program, Site};
use super::report::{Schedule, Violation};
use crate::show;
use std::collections::HashMap;

/// Two operations, wherever the unrolled calls repeat them: ranks, sites, and the distance of their calls.
type PairKey = ((usize, Site), (usize, Site), usize);

/// All races, those of the same two operations as one, or the first; and the number of conflicting pairs that
/// were looked at.
pub(super) fn races(
    program: &Program<'_>,
    order: &HappensBefore<'_>,
    extent: Extent,
) -> (Vec<Violation>, usize) {
    let mut found: Vec<(&Access, &Access, usize)> = Vec::new();
    let mut known: HashMap<PairKey, usize> = HashMap::new();
    let mut conflicts = 0;
    for accesses in by_copy(&program.accesses).values() {
        if !accesses.iter().any(|a| a.writes()) {
            continue;
        }
        let pairs = accesses
            .iter()
            .enumerate()
            .flat_map(|(i, x)| accesses[i + 1..].iter().map(move |y| (*x, *y)));
        for (x, y) in pairs {
            let conflict = (x.writes() || y.writes())
                && x.begin != y.begin
                && order.ran(x.begin)
                && order.ran(y.begin)
                && x.region.overlaps(&y.region);
            if !conflict {
                continue;
            }
            conflicts += 1;
            if order.before(x.end, y.begin) || order.before(y.end, x.begin) {
                continue;
            }
            let (first, second) = in_order(program, x, y);
            let key = key(program, first, second);
            let index = *known.entry(key).or_insert(found.len());
            match found.get_mut(index) {
                Some((_, _, occurrences)) => *occurrences += 1,
                None => found.push((first, second, 1)),
            }
            if extent == Extent::First {
                let violation = race(program, order, first, second, 1);
                return (vec![violation], conflicts);
            }
        }
    }
    let violations = found
        .into_iter()
        .map(|(first, second, occurrences)| race(program, order, first, second, occurrences))
        .collect();
    (violations, conflicts)
}

/// The order in which the two come where all goes well: the earlier call first, in one call the write before
/// the read.
fn in_order<'a>(
    program: &Program<'_>,
    one: &'a Access,
    other: &'a Access,
) -> (&'a Access, &'a Access) {
    let key = |a: &Access| (program.nodes[a.begin].call, !a.writes(), a.begin);
    if key(one) <= key(other) {
        (one, other)
    } else {
        (other, one)
    }
}

fn key(program: &Program<'_>, first: &Access, second: &Access) -> PairKey {
    let [x, y] = [first, second].map(|a| &program.nodes[a.begin]);
    ((x.rank, x.site), (y.rank, y.site), y.call - x.call)
}

fn race(
    program: &Program<'_>,
    order: &HappensBefore<'_>,
    first: &Access,
    second: &Access,
    occurrences: usize,
) -> Violation {
    let overlap = first.region.intersection(&second.region);
    let rank = program.nodes[first.begin].rank;
    // A collective that a deadlock keeps from ending is under way from its beginning on.
    let over = if order.ran(first.end) {
        first.end
    } else {
        first.begin
    };
    let (shared, steps) = order.schedule(second.begin, over);
    Violation::Race {
        first: Box::new(program.touch(first)),
        second: Box::new(program.touch(second)),
        overlap: overlap.map_or_else(String::new, |r| show::region(program.plans[rank], &r)),
        occurrences,
        schedule: Schedule {
            steps: steps.into_iter().map(|id| program.step(id)).collect(),
            shared,
        },
    }
}
