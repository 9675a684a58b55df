//! A second reading of what a plan means, independent of *check*: it runs plans step by step, in every order
//! if asked to.
//!
//! It shares nothing with the proof but the names of the steps: there is no happens-before, no box algebra,
//! and flags are plain counters.

mod orders;

use orders::{Done, Rules};
use std::collections::{HashMap, HashSet};
use warpweave_overlap::check::Site;
use warpweave_overlap::plan::{Effect, OpKind, Plan, Region, Role};
use warpweave_overlap::{Report, Violation};

type Key = (usize, usize, Site);

/// One step: it may run after all of `after` have, and when the flags it waits for are high enough.
struct Atom {
    key: Key,
    after: Vec<usize>,
    /// It waits for something that no rank ever does.
    never: bool,
    waits: Vec<((usize, usize, usize), i64)>,
    signals: Vec<(usize, usize, usize)>,
}

/// An access that may happen at any time between two steps.
struct Access {
    begin: usize,
    end: usize,
    write: bool,
    elements: HashSet<(usize, usize, usize, usize)>,
}

/// All steps of all ranks over some calls.
pub struct Machine {
    atoms: Vec<Atom>,
    accesses: Vec<Access>,
    /// Of each rank: where its part begins and ends, and who takes part.
    collectives: Vec<Vec<(usize, usize, Vec<usize>)>>,
}

/// What can happen in some run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Two conflicting accesses can be under way at once.
    pub race: bool,
    /// A run can get stuck.
    pub deadlock: bool,
    /// Two signals or waits on one flag, or two collectives of one rank, can be under way at once.
    pub ambiguous: bool,
}

impl Machine {
    pub fn new(plans: &[Plan], calls: usize) -> Self {
        let mut machine = Machine {
            atoms: Vec::new(),
            accesses: Vec::new(),
            collectives: vec![Vec::new(); plans.len()],
        };
        for plan in plans {
            let mut tails: HashMap<usize, usize> = HashMap::new();
            for call in 0..calls {
                machine.caller(plan, call, Site::CallerWrites, &mut tails);
                let mut recorded = HashMap::new();
                for (index, op) in plan.ops.iter().enumerate() {
                    let mut after: Vec<usize> =
                        tails.get(&op.stream.0).copied().into_iter().collect();
                    if let OpKind::WaitEvent { event } = &op.kind {
                        after.push(recorded[&event.0]);
                    }
                    let tail = machine.op(plan, call, index, after);
                    if let OpKind::Record { event } = &op.kind {
                        recorded.insert(event.0, tail);
                    }
                    tails.insert(op.stream.0, tail);
                }
                machine.caller(plan, call, Site::CallerReads, &mut tails);
            }
        }
        for rank in 0..plans.len() {
            let mine = machine.collectives[rank].clone();
            for (i, (_, end, ranks)) in mine.iter().enumerate() {
                let same = |entry: &&(usize, usize, Vec<usize>)| entry.2 == *ranks;
                let (end, index) = (*end, mine[..i].iter().filter(same).count());
                for &peer in ranks {
                    match machine.collectives[peer].iter().filter(same).nth(index) {
                        Some(&(begin, ..)) => machine.atoms[end].after.push(begin),
                        None => machine.atoms[end].never = true,
                    }
                }
            }
        }
        machine
    }

    fn atom(&mut self, key: Key, after: Vec<usize>) -> usize {
        self.atoms.push(Atom {
            key,
            after,
            never: false,
            waits: Vec::new(),
            signals: Vec::new(),
        });
        self.atoms.len() - 1
    }

    fn access(&mut self, (begin, end): (usize, usize), write: bool, region: &Region) {
        let Region {
            rank,
            buffer,
            rows,
            cols,
        } = region.clone();
        let elements = rows.flat_map(|r| cols.clone().map(move |c| (rank, buffer.0, r, c)));
        let elements = elements.collect();
        self.accesses.push(Access {
            begin,
            end,
            write,
            elements,
        });
    }

    fn caller(&mut self, plan: &Plan, call: usize, site: Site, tails: &mut HashMap<usize, usize>) {
        let after = tails.get(&0).copied().into_iter().collect();
        let atom = self.atom((plan.rank, call, site), after);
        tails.insert(0, atom);
        let write = site == Site::CallerWrites;
        let roles: &[Role] = match write {
            true => &[Role::Input, Role::Output],
            false => &[Role::Output],
        };
        for buffer in plan.buffers.iter().filter(|b| roles.contains(&b.role)) {
            let whole = Region {
                rank: plan.rank,
                buffer: plan.buffer_named(&buffer.name).unwrap(),
                rows: 0..buffer.rows,
                cols: 0..buffer.cols,
            };
            self.access((atom, atom), write, &whole);
        }
    }

    fn synchronise(&mut self, atom: usize, rank: usize, effect: &Effect) {
        match effect {
            Effect::Signal { slot, to } => {
                let flags = to.iter().map(|&to| (slot.0, rank, to));
                self.atoms[atom].signals.extend(flags);
            }
            Effect::Wait { slot, from, lag } => {
                let flags = from
                    .iter()
                    .map(|&from| ((slot.0, from, rank), i64::from(*lag)));
                self.atoms[atom].waits.extend(flags);
            }
            _ => {}
        }
    }

    fn op(&mut self, plan: &Plan, call: usize, op: usize, after: Vec<usize>) -> usize {
        let kind = &plan.ops[op].kind;
        let key = |site| (plan.rank, call, site);
        match kind {
            OpKind::Kernel { lanes, .. } => {
                let begin = self.atom(key(Site::Begin(op)), after);
                let mut tails = vec![begin];
                for (lane, effects) in lanes.iter().enumerate() {
                    let mut tail = begin;
                    for (index, effect) in effects.iter().enumerate() {
                        let mut after = vec![tail];
                        if let Effect::After(lanes) = effect {
                            after.extend(lanes.iter().map(|lane| tails[lane + 1]));
                        }
                        tail = self.atom(key(Site::Effect { op, lane, index }), after);
                        self.synchronise(tail, plan.rank, effect);
                        match effect {
                            Effect::Read(r) => self.access((tail, tail), false, r),
                            Effect::Write(r) => self.access((tail, tail), true, r),
                            Effect::WriteMulticast(r) => {
                                for rank in plan.node_of(plan.rank) {
                                    self.access((tail, tail), true, &r.on(rank));
                                }
                            }
                            Effect::Signal { .. } | Effect::Wait { .. } | Effect::After(_) => {}
                        }
                    }
                    tails.push(tail);
                }
                self.atom(key(Site::End(op)), tails)
            }
            OpKind::Collective {
                src,
                dst,
                ranks,
                then,
                ..
            } => {
                let begin = self.atom(key(Site::Begin(op)), after);
                let end = self.atom(key(Site::End(op)), vec![begin]);
                self.access((begin, end), false, src);
                self.access((begin, end), true, dst);
                if let Some(norm) = then {
                    self.access((begin, end), false, &norm.residual);
                    self.access((begin, end), false, &norm.weight);
                    self.access((begin, end), true, &norm.residual_out);
                    if let Some(to) = &norm.quantized {
                        self.access((begin, end), true, &to.values);
                        self.access((begin, end), true, &to.scales);
                    }
                    // It may leave anything there.
                    self.access((begin, end), true, src);
                }
                self.collectives[plan.rank].push((begin, end, ranks.clone()));
                end
            }
            _ => {
                let atom = self.atom(key(Site::Op(op)), after);
                let here = (atom, atom);
                match kind {
                    OpKind::Copy { src, dst, .. } => {
                        self.access(here, false, src);
                        self.access(here, true, dst);
                    }
                    OpKind::MulticastCopy { src, dst } => {
                        self.access(here, false, src);
                        for rank in plan.node_of(plan.rank) {
                            self.access(here, true, &dst.on(rank));
                        }
                    }
                    OpKind::Gemm {
                        a,
                        b,
                        c,
                        bias,
                        batch,
                        ..
                    } => {
                        self.access(here, false, b);
                        if let Some(bias) = bias {
                            self.access(here, false, bias);
                        }
                        for i in 0..batch.count {
                            let mut a = a.clone();
                            let mut c = c.clone();
                            for (rows, stride) in
                                [(&mut a.rows, batch.a_stride), (&mut c.rows, batch.c_stride)]
                            {
                                rows.start += i * stride;
                                rows.end += i * stride;
                            }
                            self.access(here, false, &a);
                            self.access(here, true, &c);
                        }
                    }
                    OpKind::Reduce { srcs, dst } => {
                        for src in srcs {
                            self.access(here, false, src);
                        }
                        self.access(here, true, dst);
                    }
                    OpKind::Signal { slot, to } => {
                        let effect = Effect::Signal {
                            slot: *slot,
                            to: to.clone(),
                        };
                        self.synchronise(atom, plan.rank, &effect);
                    }
                    OpKind::Wait { slot, from, lag } => {
                        let effect = Effect::Wait {
                            slot: *slot,
                            from: from.clone(),
                            lag: *lag,
                        };
                        self.synchronise(atom, plan.rank, &effect);
                    }
                    _ => {}
                }
                atom
            }
        }
    }

    /// Runs the machine in every order; `None` if that takes more than `limit` states.
    pub fn explore(&self, limit: usize) -> Option<Outcome> {
        let mut rules = Rules::of(self);
        rules.find_conflicts();
        let mut outcome = Outcome::default();
        let start = Done::none(self.atoms.len());
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(done) = open.pop() {
            if seen.len() > limit {
                return None;
            }
            outcome.race |= rules.races(&done);
            outcome.ambiguous |= rules.is_ambiguous(&done);
            let enabled: Vec<usize> = rules.all().filter(|&a| rules.can_run(&done, a)).collect();
            outcome.deadlock |= enabled.is_empty() && rules.all().any(|a| !done.has(a));
            for atom in enabled {
                let mut next = done.clone();
                next.add(atom);
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        Some(outcome)
    }
}

/// Follows the schedule of every race of a report: each step must be possible when its turn comes, and the
/// second access must be under way before the first is over.
pub fn replay(plans: &[Plan], report: &Report) {
    let machine = Machine::new(plans, report.calls);
    let rules = Rules::of(&machine);
    let deadlock = |v: &Violation| matches!(v, Violation::Deadlock { .. });
    let report_deadlocks = report.violations.iter().any(deadlock);
    let atoms: HashMap<Key, usize> = machine
        .atoms
        .iter()
        .enumerate()
        .map(|(index, atom)| (atom.key, index))
        .collect();
    for violation in &report.violations {
        let Violation::Race {
            first,
            second,
            schedule,
            ..
        } = violation
        else {
            continue;
        };
        let atom =
            |step: &warpweave_overlap::check::Step| atoms[&(step.rank, step.call - 1, step.site)];
        let end_of = |begin: usize| {
            let access = machine.accesses.iter().find(|a| a.begin == begin);
            access.expect("a race is between accesses").end
        };
        let first_end = end_of(atom(&first.step));
        let mut done = Done::none(machine.atoms.len());
        for step in &schedule.steps {
            assert!(
                rules.can_run(&done, atom(step)),
                "{step} is not possible in {violation}"
            );
            done.add(atom(step));
            if step == &second.step {
                assert!(!done.has(first_end), "no race in {violation}");
            }
        }
        assert!(
            done.has(atom(&second.step)),
            "the schedule stops early in {violation}"
        );
        let first_begin = atom(&first.step);
        assert!(
            done.has(first_end) || done.has(first_begin) && report_deadlocks,
            "the schedule stops early in {violation}"
        );
    }
}
