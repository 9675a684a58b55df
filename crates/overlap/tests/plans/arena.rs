//! Calls of different schedules, one after the other on one arena of staging memory and one signal pad: what
//! follows from closed calls is proved here of the calls written out as one.

use crate::fixtures::{MAIN, problem};
use proptest::prelude::*;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::check::{Sequence, Site, check_closed};
use warpweave_overlap::kernels::{AnyKernel, KernelShape, NaiveRemoteRead};
use warpweave_overlap::plan::{
    BufferId, Effect, EventId, MulticastRegion, Op, OpKind, Placement, Plan, PlanBuilder, Region,
    Role, SlotId, StreamId,
};
use warpweave_overlap::{Schedule, Violation, check};
use warpweave_symm_mem::DType;

/// All staging memory of a rank: one element, so that whatever touches any of it touches all.
const ARENA: BufferId = BufferId(0);

/// The two copies of what alternates, of one element each too.
const COPIES: [BufferId; 2] = [BufferId(1), BufferId(2)];

/// Several calls as one plan.
struct Calls {
    plan: Plan,
    /// The first operation of each call.
    first: Vec<usize>,
    /// Between how many copies calls alternate.
    copies: usize,
}

impl Calls {
    fn new(rank: usize, world: usize, copies: usize) -> Self {
        let mut builder = PlanBuilder::new("calls", rank, world);
        for name in ["arena", "copy 0", "copy 1"] {
            let one = (Placement::Multicast, Role::Staging, (1, 1));
            builder.buffer(name, one.0, one.1, DType::F32, one.2);
        }
        Calls {
            plan: builder.draft().clone(),
            first: Vec::new(),
            copies,
        }
    }

    /// Appends a call.
    fn add(&mut self, plan: &Plan) {
        let all = &mut self.plan;
        let call = self.first.len();
        let copy = COPIES[call % self.copies];
        self.first.push(all.ops.len());
        let (streams, events) = (all.streams.len(), all.events);
        while all.slots.len() < plan.slots.len() {
            all.slots.push(plan.slots[all.slots.len()].clone());
        }
        all.slots
            .iter_mut()
            .for_each(|slot| slot.name = "any".into());
        all.streams.extend(plan.streams.iter().skip(1));
        all.events += plan.events;
        // Each call has operands of its own, on all ranks the same ones at the same places.
        let of_call = all.buffers.len();
        for buffer in &plan.buffers {
            let mut buffer = buffer.clone();
            buffer.name = format!("{call} {}", buffer.name);
            buffer.alternating = false;
            all.buffers.push(buffer);
        }
        let region = |region: &Region| match plan.buffers[region.buffer.0].role {
            Role::Staging => Region {
                rows: 0..usize::from(!region.is_empty()),
                cols: 0..1,
                buffer: match plan.buffers[region.buffer.0].alternating {
                    true => copy,
                    false => ARENA,
                },
                ..region.clone()
            },
            _ => Region {
                buffer: BufferId(of_call + region.buffer.0),
                ..region.clone()
            },
        };
        let multicast = |on_all: &MulticastRegion| {
            let Region {
                buffer, rows, cols, ..
            } = region(&on_all.on(0));
            Effect::WriteMulticast(MulticastRegion { buffer, rows, cols })
        };
        for op in &plan.ops {
            let stream = match op.stream {
                StreamId(0) => MAIN,
                StreamId(other) => StreamId(streams + other - 1),
            };
            // What reads and writes becomes a kernel: no other operation may have source and result in one
            // place.
            let kind = match &op.kind {
                OpKind::Record { event } => OpKind::Record {
                    event: EventId(events + event.0),
                },
                OpKind::WaitEvent { event } => OpKind::WaitEvent {
                    event: EventId(events + event.0),
                },
                signal @ (OpKind::Signal { .. } | OpKind::Wait { .. }) => signal.clone(),
                OpKind::Kernel { lanes, .. } => {
                    let effect = |effect: &Effect| match effect {
                        Effect::Read(r) => Effect::Read(region(r)),
                        Effect::Write(r) => Effect::Write(region(r)),
                        Effect::WriteMulticast(r) => multicast(r),
                        other => other.clone(),
                    };
                    let lane = |effects: &Vec<Effect>| effects.iter().map(effect).collect();
                    kernel(lanes.iter().map(lane).collect())
                }
                OpKind::MulticastCopy { src, dst } => {
                    kernel(vec![vec![Effect::Read(region(src)), multicast(dst)]])
                }
                // As copies of its members: its order is that of its ranks' entries.
                other => {
                    let reads = other.reads();
                    let writes = other.writes(plan.node_of(plan.rank));
                    let reads = reads.iter().map(|r| Effect::Read(region(r)));
                    let writes = writes.iter().map(|r| Effect::Write(region(r)));
                    kernel(vec![reads.chain(writes).collect()])
                }
            };
            all.ops.push(Op { stream, kind });
        }
    }

    fn call_of(&self, site: Site) -> Option<usize> {
        let (Site::Op(op) | Site::Begin(op) | Site::End(op) | Site::Effect { op, .. }) = site
        else {
            return None;
        };
        Some(self.first.partition_point(|&first| first <= op))
    }
}

/// A kernel that stands for any.
fn kernel(lanes: Vec<Vec<Effect>>) -> OpKind {
    let kernel = AnyKernel::from(NaiveRemoteRead {
        shape: KernelShape {
            m: 1,
            n: 1,
            k: 1,
            dtype: DType::F32,
        },
        a: ARENA,
        b: ARENA,
        c: ARENA,
        ready: SlotId(0),
        done: SlotId(0),
    });
    OpKind::Kernel { kernel, lanes }
}

/// What goes wrong between calls of the plans, with `copies` copies of what alternates.
fn between_calls(calls: &[Vec<Plan>], copies: usize) -> Vec<Violation> {
    let world = calls[0].len();
    let mut all: Vec<Calls> = (0..world)
        .map(|rank| Calls::new(rank, world, copies))
        .collect();
    for plans in calls {
        for (calls, plan) in all.iter_mut().zip(plans) {
            calls.add(plan);
        }
    }
    for calls in &mut all {
        if calls.plan.slots.is_empty() {
            calls
                .plan
                .slots
                .push(warpweave_overlap::plan::Slot { name: "any".into() });
        }
    }
    let plans: Vec<Plan> = all.iter().map(|calls| calls.plan.clone()).collect();
    let report = check(&plans, 2);
    let within = |violation: &Violation| match violation {
        // One element of staging: within a call almost everything touches it.
        Violation::Race { first, second, .. } => {
            let [one, other] = [first, second].map(|touch| {
                let calls = &all[touch.step.rank];
                (touch.step.call, calls.call_of(touch.step.site))
            });
            one == other
        }
        // Flags and streams are the calls' own, and an order of launches within one.
        Violation::Unordered { sequence, .. } => *sequence == Sequence::Collectives,
        _ => false,
    };
    let violations = report.violations.into_iter();
    violations.filter(|violation| !within(violation)).collect()
}

/// The most steps of a rank's call: pairs of them are many, since all touch one element.
const MOST_STEPS: usize = 50;

/// Those whose buffers are the arena's, and whose transfers are their own.
fn shares_the_arena(configuration: &Configuration) -> bool {
    let plans = configuration.plans(3, &problem(9)).unwrap();
    plans.iter().all(|plan| {
        let library = |op: &Op| matches!(op.kind, OpKind::Collective { .. });
        let alternates = plan.buffers.iter().any(|b| b.alternating);
        !alternates && !plan.ops.iter().any(library) && plan.steps() <= MOST_STEPS
    })
}

fn configurations() -> Vec<Configuration> {
    let all = algorithms::every().into_iter();
    all.filter(shares_the_arena).collect()
}

fn closed(configuration: &Configuration, world: usize, m: usize) -> Vec<Plan> {
    let schedule = Schedule::new(configuration.clone(), world, problem(40)).unwrap();
    schedule.plans(m).unwrap()
}

fn texts(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations.iter().map(Violation::to_string).collect();
    texts.join("\n")
}

fn is_race(violation: &Violation) -> bool {
    matches!(violation, Violation::Race { .. })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn closed_calls_follow_each_other_on_one_arena(
        configurations in prop::collection::vec(prop::sample::select(configurations()), 2..4),
        world in 2usize..4,
        ms in prop::collection::vec(1usize..14, 3),
    ) {
        let calls = configurations.iter().zip(ms);
        let calls: Vec<_> = calls.map(|(c, m)| closed(c, world, m)).collect();
        let violations = between_calls(&calls, 2);
        prop_assert!(violations.is_empty(), "{}", texts(&violations));
    }

    /// Whatever rows two calls touch, every second one may have the same copy.
    #[test]
    fn calls_whose_buffers_alternate_follow_each_other_at_any_m(
        configuration in prop::sample::select(alternating()),
        world in 2usize..5,
        ms in prop::collection::vec(1usize..20, 4),
    ) {
        let calls: Vec<_> = ms.into_iter().map(|m| closed(&configuration, world, m)).collect();
        let violations = between_calls(&calls, 2);
        prop_assert!(violations.is_empty(), "{}", texts(&violations));
        // One copy would not do.
        prop_assert!(between_calls(&calls, 1).iter().any(is_race));
    }
}

/// Those with buffers that alternate.
fn alternating() -> Vec<Configuration> {
    let alternates = |configuration: &Configuration| {
        let plan = configuration.plan(0, 2, &problem(9)).unwrap();
        plan.buffers.iter().any(|b| b.alternating)
    };
    let found: Vec<_> = algorithms::every().into_iter().filter(alternates).collect();
    assert_eq!(found.len(), 4);
    found
}

fn slot_named(plan: &Plan, name: &str) -> Option<SlotId> {
    let place = plan.slots.iter().position(|slot| slot.name == name);
    place.map(SlotId)
}

/// The flag by which a kernel counts its calls is the same at every M.
#[test]
fn kernels_that_count_calls_keep_their_counter() {
    for configuration in alternating() {
        let counter = |m: usize| {
            let plans = closed(&configuration, 2, m);
            match slot_named(&plans[0], "calls") {
                Some(slot) => slot,
                None => slot_named(&plans[0], "arrived").expect("it counts by the first flag"),
            }
        };
        let counters: Vec<SlotId> = (1..=40).map(counter).collect();
        assert!(
            counters.iter().all(|&slot| slot == SlotId(0)),
            "{configuration}"
        );
    }
}

/// With three ranks, of which 1 and 2 do not hear from each other, 1 may be two calls ahead of 2.
#[test]
fn a_rank_that_does_not_hear_from_another_is_reported_where_a_buffer_alternates() {
    let configuration = algorithms::find("fusedAllGather:protocol=eager").unwrap();
    let mut plans = configuration.plans(3, &problem(9)).unwrap();
    assert!(check_closed(&plans, 3).holds());
    for (rank, deaf) in [(1, 2), (2, 1)] {
        for op in &mut plans[rank].ops {
            let OpKind::Kernel { lanes, .. } = &mut op.kind else {
                continue;
            };
            for effect in lanes.iter_mut().flatten() {
                match effect {
                    Effect::Signal { to: peers, .. } | Effect::Wait { from: peers, .. } => {
                        peers.retain(|&peer| peer != deaf);
                    }
                    _ => {}
                }
            }
        }
    }
    let report = check_closed(&plans, 3);
    let mut unheard: Vec<(usize, usize)> = Vec::new();
    for violation in &report.violations {
        match violation {
            Violation::Unheard { rank, peer, buffer } => {
                assert_eq!(buffer, "staging");
                unheard.push((*rank, *peer));
            }
            other => assert!(is_race(other), "{report}"),
        }
    }
    assert_eq!(unheard, [(1, 2), (2, 1)], "{report}");
}

/// The test above finds what is not closed: every algorithm that is changed races with another as it is.
#[test]
fn calls_that_are_not_closed_race() {
    let other = algorithms::find("reduceScatterRing").unwrap();
    let mut found = 0;
    for configuration in configurations() {
        let built = configuration.plans(3, &problem(12)).unwrap();
        let changed = closed(&configuration, 3, 12) != built;
        // An operand that is staged changes the plan, too.
        let staged = built.iter().flat_map(|plan| &plan.buffers);
        let staged = staged.filter(|b| b.role != Role::Staging && b.placement != Placement::Local);
        if !changed || staged.count() > 0 {
            continue;
        }
        let violations = between_calls(&[closed(&other, 3, 12), built], 2);
        assert!(violations.iter().any(is_race), "{configuration}");
        found += 1;
    }
    assert!(found >= 8, "{found}");
}
