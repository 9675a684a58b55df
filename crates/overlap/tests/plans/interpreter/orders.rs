//! The orders in which steps can run, and what can then be under way at once.

use super::{Access, Atom, Machine};
use std::collections::HashMap;

/// A set of steps: those that have run.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Done(Vec<u64>);

impl Done {
    /// None of so many steps.
    pub(super) fn none(of: usize) -> Self {
        Done(vec![0; of.div_ceil(64)])
    }

    pub(super) fn has(&self, atom: usize) -> bool {
        self.0[atom / 64] >> (atom % 64) & 1 == 1
    }

    pub(super) fn add(&mut self, atom: usize) {
        self.0[atom / 64] |= 1 << (atom % 64);
    }

    fn count(&self, of: &[usize]) -> i64 {
        of.iter().filter(|&&a| self.has(a)).count() as i64
    }
}

/// When a step can run, and what must not be under way together.
pub(super) struct Rules<'a> {
    machine: &'a Machine,
    signals: HashMap<(usize, usize, usize), Vec<usize>>,
    waits: HashMap<(usize, usize, usize), Vec<usize>>,
    /// Pairs of accesses to a common element, one of them writing.
    conflicts: Vec<(&'a Access, &'a Access)>,
}

impl<'a> Rules<'a> {
    pub(super) fn of(machine: &'a Machine) -> Self {
        let mut rules = Rules {
            machine,
            signals: HashMap::new(),
            waits: HashMap::new(),
            conflicts: Vec::new(),
        };
        for (index, atom) in machine.atoms.iter().enumerate() {
            for &flag in &atom.signals {
                rules.signals.entry(flag).or_default().push(index);
            }
            for &(flag, _) in &atom.waits {
                rules.waits.entry(flag).or_default().push(index);
            }
        }
        rules
    }

    pub(super) fn find_conflicts(&mut self) {
        let accesses = &self.machine.accesses;
        for (i, x) in accesses.iter().enumerate() {
            for y in &accesses[i + 1..] {
                let conflict = (x.write || y.write) && x.begin != y.begin;
                if conflict && !x.elements.is_disjoint(&y.elements) {
                    self.conflicts.push((x, y));
                }
            }
        }
    }

    pub(super) fn all(&self) -> std::ops::Range<usize> {
        0..self.machine.atoms.len()
    }

    /// It is this step's turn, though it may still have to wait for a flag.
    fn reached(&self, done: &Done, atom: usize) -> bool {
        let Atom { after, never, .. } = &self.machine.atoms[atom];
        !done.has(atom) && !never && after.iter().all(|&a| done.has(a))
    }

    pub(super) fn can_run(&self, done: &Done, atom: usize) -> bool {
        let count = |of: &HashMap<_, Vec<usize>>, flag| of.get(flag).map_or(0, |a| done.count(a));
        self.reached(done, atom)
            && self.machine.atoms[atom]
                .waits
                .iter()
                .all(|(flag, lag)| count(&self.signals, flag) >= count(&self.waits, flag) + 1 - lag)
    }

    fn under_way(&self, done: &Done, (begin, end): (usize, usize)) -> bool {
        !done.has(end) && (done.has(begin) || self.can_run(done, begin))
    }

    pub(super) fn races(&self, done: &Done) -> bool {
        let under_way = |a: &Access| self.under_way(done, (a.begin, a.end));
        self.conflicts
            .iter()
            .any(|(x, y)| under_way(x) && under_way(y))
    }

    pub(super) fn is_ambiguous(&self, done: &Done) -> bool {
        let crowded =
            |atoms: &Vec<usize>| atoms.iter().filter(|&&a| self.reached(done, a)).count() > 1;
        let matched = |mine: &Vec<(usize, usize, Vec<usize>)>| {
            let under_way = |c: &&(usize, usize, Vec<usize>)| self.under_way(done, (c.0, c.1));
            mine.iter().filter(under_way).count() > 1
        };
        self.signals
            .values()
            .chain(self.waits.values())
            .any(crowded)
            || self.machine.collectives.iter().any(matched)
    }
}
