//! Happens-before: which steps every run does before which others.

use super::program::NodeId;
use super::run::Run;

/// For each step that ran, the set of steps that ran before it in every possible run.
pub(super) struct HappensBefore<'a> {
    run: &'a Run,
    /// Row p: the past of the step at place p, as a set of places.
    past: Vec<u64>,
    stride: usize,
}

impl<'a> HappensBefore<'a> {
    pub(super) fn of(run: &'a Run) -> Self {
        let stride = run.order.len().div_ceil(64);
        let mut past = vec![0u64; run.order.len() * stride];
        for (place, &id) in run.order.iter().enumerate() {
            let (before, rest) = past.split_at_mut(place * stride);
            let mine = &mut rest[..stride];
            for pred in run.preds[id].iter().filter_map(|&p| run.position[p]) {
                let theirs = &before[pred * stride..(pred + 1) * stride];
                mine.iter_mut().zip(theirs).for_each(|(m, t)| *m |= t);
                mine[pred / 64] |= 1 << (pred % 64);
            }
        }
        HappensBefore { run, past, stride }
    }

    /// Whether `earlier` is over before `later` begins in every run. Both must have run.
    pub(super) fn before(&self, earlier: NodeId, later: NodeId) -> bool {
        match (self.run.position[earlier], self.run.position[later]) {
            (Some(earlier), Some(later)) => {
                self.past[later * self.stride + earlier / 64] >> (earlier % 64) & 1 == 1
            }
            _ => false,
        }
    }

    /// Whether the step ran.
    pub(super) fn ran(&self, id: NodeId) -> bool {
        self.run.position[id].is_some()
    }

    /// A run in which `late` comes after `early` and waits for it to be over, although nothing makes it:
    /// first the steps that both wait for, then what `early` waits for and `early`, then what `late` waits
    /// for and `late`. Gives the number of the steps that both wait for, and the steps.
    pub(super) fn schedule(&self, early: NodeId, late: NodeId) -> (usize, Vec<NodeId>) {
        let ran = || self.run.order.iter().copied();
        let in_past = |id: NodeId, of: NodeId| id == of || self.before(id, of);
        let both = |id: &NodeId| self.before(*id, early) && in_past(*id, late);
        let mut steps: Vec<NodeId> = ran().filter(both).collect();
        let shared = steps.len();
        steps.extend(ran().filter(|&id| in_past(id, early) && !both(&id)));
        steps.extend(ran().filter(|&id| in_past(id, late) && !in_past(id, early)));
        (shared, steps)
    }
}
