//! The host twins of the kernels do what their lanes declare, and nothing else.

use std::collections::BTreeSet;

use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::kernels::AnyKernel;
use warpweave_overlap::kernels::twin::{departures, untouched};
use warpweave_overlap::plan::{Effect, Op, OpKind, Plan, Problem, Region, Scaling};
use warpweave_overlap::schedule::Schedule;
use warpweave_symm_mem::DType;

use crate::fixtures::on_ranks;
use crate::host;

/// A kernel on one rank, and what its twin did in one call.
struct Launch {
    kernel: AnyKernel,
    rank: usize,
    world: usize,
    trace: Vec<Effect>,
}

impl Launch {
    fn lanes(&self) -> Vec<Vec<Effect>> {
        self.kernel.lanes_by_piece(self.rank, self.world)
    }

    /// The kernel's name in a plan's JSON.
    fn type_name(&self) -> String {
        let json = serde_json::to_value(&self.kernel).unwrap();
        json.as_object().unwrap().keys().next().unwrap().clone()
    }

    fn departures(&self, lanes: &[Vec<Effect>]) -> Vec<String> {
        departures(self.world, lanes, &self.trace)
    }
}

/// Sizes, and what has scales if A and B are e4m3.
type Shape = ((usize, usize, usize), Scaling);

fn has_kernel(plan: &Plan) -> bool {
    let is_kernel = |op: &Op| matches!(op.kind, OpKind::Kernel { .. });
    plan.ops.iter().any(is_kernel)
}

/// Before the name of a configuration: its operands are in local memory, which a kernel may copy.
const LOCAL: &str = "local ";

fn find(name: &str) -> Configuration {
    algorithms::find(name.trim_start_matches(LOCAL)).unwrap()
}

fn plan(name: &str, (rank, world): (usize, usize), problem: &Problem) -> Plan {
    match name.starts_with(LOCAL) {
        false => find(name).plan(rank, world, problem).unwrap(),
        true => {
            let schedule = Schedule::new(find(name), world, *problem).unwrap();
            schedule.plans(problem.m).unwrap().swap_remove(rank)
        }
    }
}

/// Every configuration whose plan has a kernel, and those that give a kernel several pieces. Even and ragged
/// shards.
fn cases() -> Vec<(String, [Shape; 2])> {
    let small = [(12, 5, 7), (10, 3, 6)];
    let of_kernels = algorithms::every().into_iter().filter(|configuration| {
        let plan = configuration.plan(0, 3, &problem((small[0], Scaling::None)));
        plan.is_ok_and(|plan| has_kernel(&plan))
    });
    let in_pieces = [
        // Chunks are whole tiles: several a shard.
        (
            "fusedAllGather:chunks=2:pulled=3",
            [(768, 3, 2), (700, 2, 3)],
        ),
        ("local fusedAllGather", small),
        ("fusedReduceScatter:rows=2", small),
        ("fusedAllReduce:rows=2", small),
        ("local fusedAllReduce:rows=2", small),
        ("fusedAllReduce:rows=2:reduce=multimem", small),
        // Units of 64 x 64.
        ("fusedAllReduce:shots=1", [(70, 72, 8), (130, 3, 7)]),
    ];
    let in_pieces = in_pieces.map(|(name, shapes)| (name.to_owned(), shapes));
    let all = of_kernels.map(|configuration| (configuration.name(), small));
    let cases = all.chain(in_pieces).flat_map(|(name, shapes)| {
        let configuration = find(&name);
        let scalings = [Scaling::None, Scaling::Row, Scaling::Tensor].into_iter();
        let scalings = scalings.filter(move |&s| configuration.takes(&problem((shapes[0], s))));
        scalings.map(move |scaling| (name.clone(), shapes.map(|shape| (shape, scaling))))
    });
    cases.collect()
}

fn problem(((m, n, k), scaling): Shape) -> Problem {
    let dtype = match scaling {
        Scaling::None => DType::F32,
        _ => DType::E4m3,
    };
    Problem::new(m, n, k, dtype).with_scaling(scaling)
}

/// The kernels of a plan in its first two calls, on all ranks.
fn launches(name: &str, world: usize, shape: Shape) -> [Vec<Launch>; 2] {
    let problem = problem(shape);
    let ranks = on_ranks(world, host, |rank| {
        let (me, world) = rank.place();
        let bound = rank.bind(plan(name, (me, world), &problem)).unwrap();
        let traces = [0, 1].map(|_| bound.run_recorded().unwrap());
        rank.exchange.barrier("end").unwrap();
        traces.map(|traces| {
            let ops = bound.plan().ops.iter().zip(traces);
            let kernels = ops.filter_map(|(op, trace)| match &op.kind {
                OpKind::Kernel { kernel, .. } => Some(Launch {
                    kernel: kernel.clone(),
                    rank: me,
                    world,
                    trace,
                }),
                _ => None,
            });
            kernels.collect::<Vec<_>>()
        })
    });
    let (first, second): (Vec<_>, Vec<_>) = ranks.into_iter().map(|[a, b]| (a, b)).unzip();
    [first, second].map(|ranks| ranks.into_iter().flatten().collect())
}

#[test]
fn every_access_signal_and_wait_of_a_twin_is_in_a_lane_in_its_order() {
    let mut kernels = BTreeSet::new();
    for (name, shapes) in cases() {
        for world in 2..=4 {
            for shape in shapes {
                for launches in launches(&name, world, shape) {
                    assert_eq!(launches.len(), world, "{name}");
                    for launch in launches {
                        let found = launch.departures(&launch.lanes());
                        let place = format!("{name}, rank {} of {world}", launch.rank);
                        assert!(found.is_empty(), "{place}, {shape:?}: {found:#?}");
                        kernels.insert(launch.type_name());
                    }
                }
            }
        }
    }
    let kernels: Vec<&str> = kernels.iter().map(String::as_str).collect();
    let mut all = AnyKernel::NAMES.to_vec();
    all.sort_unstable();
    assert_eq!(kernels, all);
}

#[test]
fn twins_touch_all_that_their_lanes_declare() {
    for (name, shapes) in cases() {
        for launch in &launches(&name, 3, shapes[1])[0] {
            let left = untouched(3, &launch.lanes(), &launch.trace);
            // The CUTLASS kernel stages own rows that share a tile with others; the twin has no tiles.
            let is_staged = |effect: &Effect| match (&launch.kernel, effect) {
                (AnyKernel::ChunkedMatmul(of), Effect::Read(region) | Effect::Write(region)) => {
                    region.buffer == of.staging
                }
                _ => false,
            };
            assert!(left.iter().all(is_staged), "{name}: {left:#?}");
        }
    }
}

fn is_sync(effect: &Effect) -> bool {
    matches!(effect, Effect::Signal { .. } | Effect::Wait { .. })
}

/// The access of an effect, if it is one: whether it writes, and where.
fn access(effect: &Effect) -> Option<(bool, Region)> {
    match effect {
        Effect::Read(region) => Some((false, region.clone())),
        Effect::Write(region) => Some((true, region.clone())),
        // This rank's copy stands for all.
        Effect::WriteMulticast(region) => Some((true, region.on(0))),
        _ => None,
    }
}

/// Whether another effect of the lanes declares the same access, so that this one can be missed.
fn is_elsewhere(lanes: &[Vec<Effect>], place: (usize, usize)) -> bool {
    let Some((writes, region)) = access(&lanes[place.0][place.1]) else {
        return false;
    };
    let others = lanes.iter().enumerate().flat_map(|(lane, effects)| {
        let effects = effects.iter().enumerate();
        effects.filter_map(move |(index, effect)| Some(((lane, index), access(effect)?)))
    });
    let mut others = others.filter(|(other, _)| *other != place);
    others.any(|(_, (theirs, other))| theirs == writes && other.overlaps(&region))
}

/// Whether two effects cannot change places without a kernel doing something else.
fn are_ordered(lanes: &[Vec<Effect>], lane: usize, index: usize) -> bool {
    let (first, second) = (&lanes[lane][index], &lanes[lane][index + 1]);
    match (
        is_sync(first),
        is_sync(second),
        access(first),
        access(second),
    ) {
        (true, true, ..) => true,
        (true, false, _, Some(_)) => !is_elsewhere(lanes, (lane, index + 1)),
        (false, true, Some(_), _) => !is_elsewhere(lanes, (lane, index)),
        (_, _, Some((a, here)), Some((b, there))) => (a || b) && here.overlaps(&there),
        _ => false,
    }
}

/// What the test above would miss if it compared nothing: each effect of each lane is dropped, and each two
/// that follow each other change places, where that makes other lanes of them.
#[test]
fn a_lane_that_is_not_what_the_twin_does_is_found() {
    for (name, shapes) in cases() {
        let (mut dropped, mut late, mut swapped) = (0, 0, 0);
        for launch in &launches(&name, 3, shapes[0])[1] {
            let lanes = launch.lanes();
            let idle = untouched(3, &lanes, &launch.trace);
            assert!(launch.departures(&lanes).is_empty(), "{name}");
            let expect = |changed: &[Vec<Effect>], what: &str, effect: &Effect| {
                let found = launch.departures(changed);
                let rank = launch.rank;
                assert!(!found.is_empty(), "{name}, rank {rank}: {effect:?} {what}");
            };
            for (lane, effects) in lanes.iter().enumerate() {
                for (index, effect) in effects.iter().enumerate() {
                    if idle.contains(effect) {
                        continue;
                    }
                    let mut changed = lanes.clone();
                    let is_found = is_sync(effect) || access(effect).is_some();
                    if is_found && !is_elsewhere(&lanes, (lane, index)) {
                        changed[lane].remove(index);
                        expect(&changed, "dropped", effect);
                        dropped += 1;
                    }
                    let mut changed = lanes.clone();
                    if let Effect::Wait { lag, .. } = &mut changed[lane][index] {
                        *lag += 1;
                        expect(&changed, "with more lag", effect);
                        late += 1;
                    }
                    if index + 1 < effects.len() && are_ordered(&lanes, lane, index) {
                        let mut changed = lanes.clone();
                        changed[lane].swap(index, index + 1);
                        expect(&changed, "and the next swapped", effect);
                        swapped += 1;
                    }
                }
            }
        }
        assert!(dropped > 0 && late > 0 && swapped > 0, "{name}");
    }
}

#[test]
fn lanes_by_piece_are_the_lanes_with_slots_of_their_own() {
    for (name, shapes) in cases() {
        for launch in &launches(&name, 3, shapes[0])[0] {
            let (whole, pieces) = (
                launch.kernel.lanes(launch.rank, launch.world),
                launch.lanes(),
            );
            // The same accesses, and the same peers in one of the kernel's slots.
            let of = |lanes: &[Vec<Effect>]| lanes.iter().flatten().cloned().collect::<Vec<_>>();
            let left = untouched(3, &whole, &of(&pieces));
            assert!(left.is_empty(), "{name}: {left:?}");
            let left = untouched(3, &pieces, &of(&whole));
            assert!(left.is_empty(), "{name}: {left:?}");
            let first = launch.kernel.slots()[0];
            let peers = |lanes: &[Vec<Effect>]| {
                let of_effect = |effect: Effect| match effect {
                    Effect::Signal { slot, to } => (true, slot, to),
                    Effect::Wait { slot, from, .. } => (false, slot, from),
                    _ => (false, first, Vec::new()),
                };
                let all = of(lanes).into_iter().map(of_effect);
                let all = all.flat_map(|(signals, slot, peers)| {
                    let slot = match launch.kernel.counts_calls() {
                        true => first,
                        false => slot,
                    };
                    peers.into_iter().map(move |peer| (signals, slot, peer))
                });
                all.collect::<BTreeSet<_>>()
            };
            assert_eq!(peers(&whole), peers(&pieces), "{name}");
        }
    }
}
