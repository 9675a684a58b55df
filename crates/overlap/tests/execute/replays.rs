//! Graphs of a caller, each with another M, replayed very often while the inputs change.

use crate::fixtures::{Rank, on_ranks};
use crate::host;
use crate::prepared::{Call, one_gpu, schedule};
use warpweave_overlap::execute::{DeviceSlice, ExecuteBackend, Operands};
use warpweave_overlap::plan::Problem;
use warpweave_symm_mem::{DType, Memory};

/// Input sets of a graph: the A of a replay is never that of the one before.
const SETS: usize = 3;

/// A graph of one call at its M, with every A that it is given and every C that it must compute.
struct Subject<'a, B: ExecuteBackend> {
    rank: &'a Rank<B>,
    sets: Vec<Call<B>>,
    /// The operands of the graph: those of the first set, with this A and C.
    a: B::Memory,
    c: B::Memory,
    graph: B::Graph,
}

impl<B: ExecuteBackend> Subject<'_, B> {
    /// Enqueues a replay on the A of `set`.
    fn replay(&self, set: usize) {
        let (backend, stream) = (self.rank.backend(), self.rank.stream());
        let a = self.sets[set].operands().a;
        // SAFETY: both have the bytes of A, and what the graph uses lives until the stream is synchronised.
        unsafe {
            backend
                .copy(stream, self.a.address(), a.address(0), a.bytes())
                .unwrap();
            backend.launch_graph(&self.graph, stream).unwrap();
        }
    }

    /// Whether C is that of `set`. Spoils it.
    fn is_right(&self, set: usize) -> bool {
        let (backend, stream) = (self.rank.backend(), self.rank.stream());
        let wanted = self.sets[set].wanted();
        let mut got = vec![0; wanted.len()];
        let c = self.c.address();
        // SAFETY: C has so many bytes, and nothing else is under way.
        unsafe {
            backend.download(stream, c, &mut got).unwrap();
            backend.fill(stream, c, 0xff, got.len()).unwrap();
        }
        got == wanted
    }
}

/// Replays graphs in an order that is the same on all ranks, and compares every element of C after stretches
/// of random lengths up to `longest`.
fn replay<B: ExecuteBackend>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    (problem, ms): (Problem, [usize; 2]),
    (replays, longest): (usize, usize),
) {
    let names = [
        "fusedAllGather:protocol=eager",
        "fusedRowParallelLinear:shots=1",
    ];
    let checked = on_ranks(world, device, |rank| {
        let stream = rank.stream();
        let prepared = names.map(|name| {
            let schedule = schedule(name, world, problem).batch_invariant();
            rank.executor.prepare(&schedule).unwrap()
        });
        let subjects = prepared.iter().flat_map(|one| {
            let rank = &rank;
            ms.map(|m| {
                let sets = (0..SETS).map(|set| Call::new(rank, one.schedule(), m, 10 * m + set));
                let sets: Vec<_> = sets.collect();
                let given = sets[0].operands();
                let allocate = |of: DeviceSlice<'_>| rank.backend().allocate(of.bytes()).unwrap();
                let (a, c) = (allocate(given.a), allocate(given.c));
                let operands = Operands {
                    a: DeviceSlice::of(&a),
                    c: DeviceSlice::of(&c),
                    ..given
                };
                let capture = || one.run(stream, &operands, m);
                let graph = rank.backend().capture(stream, capture).unwrap();
                Subject {
                    rank,
                    a,
                    c,
                    graph,
                    sets,
                }
            })
        });
        let subjects: Vec<_> = subjects.collect();
        // A capture may wait for a device that ranks share, and so for a peer that waits for this rank.
        rank.exchange.barrier("captured").unwrap();
        // The same numbers on all ranks.
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut latest = vec![None; subjects.len()];
        let (mut done, mut checked) = (0, 0);
        while done < replays {
            let stretch = (1 + random(longest)).min(replays - done);
            for _ in 0..stretch {
                let which = random(subjects.len());
                let set = latest[which].map_or(0, |last| (last + 1) % SETS);
                subjects[which].replay(set);
                latest[which] = Some(set);
            }
            done += stretch;
            rank.executor.synchronize(stream).unwrap();
            for (subject, latest) in subjects.iter().zip(&mut latest) {
                if let Some(set) = *latest {
                    assert!(subject.is_right(set), "after {done} replays");
                    checked += 1;
                    // What was spoilt is compared again only after a replay.
                    *latest = None;
                }
            }
        }
        rank.exchange.barrier("end").unwrap();
        checked
    });
    println!(
        "{world} ranks, {replays} replays: C was compared {} times a rank",
        checked[0]
    );
}

#[test]
fn graphs_at_changing_m_replay_thousands_of_times_with_changing_inputs() {
    let problem = Problem::new(24, 6, 9, DType::F32);
    replay(3, host, (problem, [24, 5]), (3_000, 50));
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn gpus_replay_graphs_at_changing_m_a_million_times_with_changing_inputs() {
    let problem = Problem::new(64, 64, 128, DType::Bf16);
    for world in [1, 2] {
        replay(world, one_gpu, (problem, [64, 9]), (1_000_000, 2_000));
    }
}
