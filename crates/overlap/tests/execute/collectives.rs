//! Every collective by every transport, of all ranks and of some, against its definition.

use std::time::Duration;

use warpweave_overlap::execute::{Bound, ExecuteBackend, ExecuteError, Result};
use warpweave_overlap::plan::{
    BufferId, Collective, Placement, Plan, PlanBuilder, Role, StreamId, Transport, shard,
};
use warpweave_symm_mem::{DType, Host};

use crate::fixtures::{element, encode, matrix, on_ranks};
use crate::host;

const COLS: usize = 5;
const TRANSPORTS: [Transport; 2] = [Transport::Nccl, Transport::SymmetricMemory];
const COLLECTIVES: [Collective; 3] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// One collective of `ranks`, each of which gives rows of `input` and gets rows of `output`.
#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    pub transport: Transport,
    pub dtype: DType,
    /// Rows of all shards.
    pub rows: usize,
    pub placement: Placement,
    pub in_place: bool,
}

impl Case {
    /// Rows of the shard at `place` of `ranks`.
    fn shard(&self, place: usize, ranks: usize) -> std::ops::Range<usize> {
        shard(self.rows, place, ranks)
    }

    /// The plan of `rank`, which takes part in each of `sets` that has it, one after the other.
    pub fn plan(&self, rank: usize, world: usize, node_size: usize, sets: &[Vec<usize>]) -> Plan {
        let mut plan = PlanBuilder::new("collective", rank, world);
        plan.nodes_of(node_size);
        let (rows, role) = (self.rows.max(1), Role::Input);
        let mut buffer = |name: String, role| -> BufferId {
            plan.buffer(name, self.placement, role, self.dtype, (rows, COLS))
        };
        let pairs: Vec<_> = (0..sets.len())
            .map(|i| match self.in_place {
                true => {
                    let both = buffer(format!("in{i}"), role);
                    (both, both)
                }
                false => (
                    buffer(format!("in{i}"), role),
                    buffer(format!("out{i}"), Role::Staging),
                ),
            })
            .collect();
        for (set, (input, output)) in sets.iter().zip(pairs) {
            let Some(place) = set.iter().position(|&r| r == rank) else {
                continue;
            };
            let own = self.shard(place, set.len());
            let (given, got) = self.collective.rows(self.rows, place, set.len());
            // In place a shard lies where it belongs; otherwise it begins at the first row.
            let at = |rows: usize, whole: bool| match (whole, self.in_place) {
                (false, true) => own.clone(),
                _ => 0..rows,
            };
            let (gives_all, gets_all) = match self.collective {
                Collective::AllGather => (false, true),
                Collective::ReduceScatter => (true, false),
                _ => (true, true),
            };
            let src = plan.own(input, at(given, gives_all), 0..COLS);
            let dst = plan.own(output, at(got, gets_all), 0..COLS);
            plan.collective_of(
                StreamId::MAIN,
                self.collective,
                (src, dst),
                set.clone(),
                self.transport,
            );
        }
        plan.finish().unwrap()
    }

    /// What `rank` gives to the set `number` in a call.
    fn given(&self, rank: usize, number: usize, call: usize) -> usize {
        (rank * 10 + number) * 100 + call
    }

    /// What the set `number` has computed in a call, by the definition: rows of the result of the rank at `place`.
    fn wanted(&self, set: &[usize], number: usize, place: usize, call: usize) -> Vec<u8> {
        let value = |rank: usize, row: usize, col: usize| {
            element(self.given(rank, number, call), call, row, col)
        };
        let rows = match self.collective {
            Collective::ReduceScatter => self.shard(place, set.len()),
            _ => 0..self.rows,
        };
        let owner = |row: usize| {
            let owns = |&place: &usize| self.shard(place, set.len()).contains(&row);
            set[(0..set.len()).find(owns).unwrap()]
        };
        let one = |row: usize, col: usize| match self.collective {
            Collective::AllGather => value(owner(row), row, col),
            _ => set.iter().map(|&rank| value(rank, row, col)).sum(),
        };
        let places = rows.flat_map(|row| (0..COLS).map(move |col| (row, col)));
        places
            .flat_map(|(row, col)| encode(self.dtype, one(row, col)))
            .collect()
    }

    /// Runs `calls` calls, odd ones as replays, and compares every result.
    pub fn is_right<B: ExecuteBackend>(
        &self,
        bound: &mut Bound<B>,
        sets: &[Vec<usize>],
        calls: usize,
    ) -> Result<()> {
        let rank = bound.plan().rank;
        let bytes = COLS * self.dtype.size();
        bound.capture()?;
        for call in 0..calls {
            for (i, set) in sets.iter().enumerate() {
                let Some(place) = set.iter().position(|&r| r == rank) else {
                    continue;
                };
                let own = self.shard(place, set.len());
                let given = (self.given(rank, i, call), call);
                let mut input = matrix(self.dtype, given, 0..self.rows.max(1), COLS);
                if self.collective == Collective::AllGather && !self.in_place {
                    input = matrix(self.dtype, given, own, COLS);
                }
                bound.write(&format!("in{i}"), &input)?;
            }
            match call % 2 {
                0 => bound.run()?,
                _ => bound.replay()?,
            }
            for (i, set) in sets.iter().enumerate() {
                let Some(place) = set.iter().position(|&r| r == rank) else {
                    continue;
                };
                let name = if self.in_place { "in" } else { "out" };
                let mut all = vec![0; self.rows.max(1) * bytes];
                bound.read(&format!("{name}{i}"), &mut all)?;
                let wanted = self.wanted(set, i, place, call);
                let first = match (self.collective, self.in_place) {
                    (Collective::ReduceScatter, true) => self.shard(place, set.len()).start,
                    _ => 0,
                };
                let got = &all[first * bytes..][..wanted.len()];
                assert!(
                    got == wanted,
                    "{self:?}, rank {rank} of {set:?}, call {call}"
                );
            }
        }
        bound.synchronize()
    }
}

/// All collectives by all transports among all ranks, whose shards are even or not.
fn cases(world: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in COLLECTIVES {
        for transport in TRANSPORTS {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                for placement in [Placement::Local, Placement::Symmetric] {
                    for (rows, in_place) in [
                        (4 * world, false),
                        (4 * world, true),
                        (3 * world + 1, dtype == DType::F32),
                    ] {
                        cases.push(Case {
                            collective,
                            transport,
                            dtype,
                            rows,
                            placement,
                            in_place,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// Runs every case on every rank, and sees that what cannot be done is said to be unavailable.
pub fn every_collective_is_right<B: ExecuteBackend>(world: usize, device: fn(usize) -> B) {
    let cases = cases(world);
    on_ranks(world, device, |rank| {
        let (me, world) = rank.place();
        let everybody = [(0..world).collect()];
        for case in &cases {
            let uneven = case.rows % world != 0;
            let bound = rank.bind(case.plan(me, world, world, &everybody));
            if uneven
                && case.transport == Transport::SymmetricMemory
                && case.collective == Collective::ReduceScatter
            {
                let error = bound.unwrap_err();
                assert!(error.is_unavailable(), "{error}");
                assert!(
                    error.to_string().contains("shards must be equal"),
                    "{error}"
                );
                continue;
            }
            case.is_right(&mut bound.unwrap(), &everybody, 4).unwrap();
            rank.exchange.barrier("next case").unwrap();
        }
    });
}

#[test]
fn every_collective_is_right_call_after_call() {
    for world in 1..=4 {
        every_collective_is_right(world, host);
    }
}

#[test]
fn more_ranks_than_symmetric_memory_serves_are_for_nccl() {
    on_ranks(9, host, |rank| {
        let (me, world) = rank.place();
        let everybody = [(0..world).collect()];
        for transport in TRANSPORTS {
            let case = Case {
                collective: Collective::AllReduce,
                transport,
                dtype: DType::F32,
                rows: 3,
                placement: Placement::Symmetric,
                in_place: true,
            };
            match rank.bind(case.plan(me, world, world, &everybody)) {
                Ok(mut bound) => {
                    assert_eq!(transport, Transport::Nccl);
                    case.is_right(&mut bound, &everybody, 2).unwrap();
                    rank.exchange.barrier("end").unwrap();
                }
                Err(error) => {
                    assert_eq!(transport, Transport::SymmetricMemory);
                    assert!(error.is_unavailable(), "{error}");
                }
            }
        }
    });
}

#[test]
fn some_ranks_have_collectives_of_their_own() {
    // Two groups beside each other, then two across them; a group in another order, and one that leaves ranks out.
    let hierarchy = [vec![0, 1], vec![2, 3], vec![0, 2], vec![1, 3]];
    let ragged = [vec![2, 0], vec![1, 2, 3]];
    on_ranks(4, host, |rank| {
        let (me, world) = rank.place();
        for sets in [&hierarchy[..], &ragged] {
            for collective in COLLECTIVES {
                for transport in TRANSPORTS {
                    let case = Case {
                        collective,
                        transport,
                        dtype: DType::F32,
                        rows: 6,
                        placement: Placement::Symmetric,
                        in_place: false,
                    };
                    let mut bound = rank.bind(case.plan(me, world, world, sets)).unwrap();
                    case.is_right(&mut bound, sets, 4).unwrap();
                    rank.exchange.barrier("next case").unwrap();
                }
            }
        }
    });
}

#[test]
fn plans_share_what_does_their_collectives_and_a_larger_one_gets_more() {
    on_ranks(2, host, |rank| {
        let (me, world) = rank.place();
        let everybody = [vec![0, 1]];
        for transport in TRANSPORTS {
            // The second does not fit what the first was given, nor does that one move.
            let mut bound: Vec<_> = [4, 20_000]
                .map(|rows| Case {
                    collective: Collective::AllReduce,
                    transport,
                    dtype: DType::F32,
                    rows,
                    placement: Placement::Symmetric,
                    in_place: false,
                })
                .into_iter()
                .map(|case| {
                    let plan = case.plan(me, world, world, &everybody);
                    (rank.bind(plan).unwrap(), case)
                })
                .collect();
            for _ in 0..2 {
                for (bound, case) in &mut bound {
                    case.is_right(bound, &everybody, 2).unwrap();
                }
            }
            rank.exchange.barrier("next transport").unwrap();
        }
    });
}

#[test]
fn a_peer_that_stays_away_from_a_collective_is_named_and_the_plan_recovers() {
    let impatient = |_| Host::with_timeout(Duration::from_millis(300));
    for collective in COLLECTIVES {
        for transport in TRANSPORTS {
            // Rank 1 has nothing to do with it: places in the set are not ranks.
            for (sets, away) in [([vec![0, 1, 2]], 2), ([vec![0, 2]], 2)] {
                let case = Case {
                    collective,
                    transport,
                    dtype: DType::F32,
                    rows: 6,
                    placement: Placement::Symmetric,
                    in_place: false,
                };
                let faults = on_ranks(3, impatient, |rank| {
                    let (me, world) = rank.place();
                    let mut bound = rank.bind(case.plan(me, world, world, &sets)).unwrap();
                    let fault = (me == 0).then(|| {
                        bound.run().unwrap();
                        bound.synchronize().unwrap_err()
                    });
                    rank.exchange.barrier("after the fault").unwrap();
                    bound.recover().unwrap();
                    case.is_right(&mut bound, &sets, 4).unwrap();
                    rank.exchange.barrier("end").unwrap();
                    fault
                });
                let fault = faults[0].as_ref().unwrap();
                let timeout = fault.signal_timeout();
                let timeout = timeout.unwrap_or_else(|| panic!("{case:?}: {fault}"));
                assert_eq!(timeout.rank, 0, "{case:?}");
                // Who of several that did not come is named first is up to the protocol.
                assert!(
                    sets[0].contains(&timeout.peer) && timeout.peer != 0,
                    "{case:?}: {fault}"
                );
                if sets[0].len() == 2 {
                    assert_eq!(timeout.peer, away, "{case:?}");
                }
            }
        }
    }
}

#[test]
fn what_was_captured_before_a_recovery_of_a_shared_team_is_not_replayed() {
    on_ranks(2, host, |rank| {
        let (me, world) = rank.place();
        let everybody = [vec![0, 1]];
        let case = Case {
            collective: Collective::AllReduce,
            transport: Transport::Nccl,
            dtype: DType::F32,
            rows: 3,
            placement: Placement::Local,
            in_place: false,
        };
        let [mut one, mut other] = [(); 2].map(|()| {
            let plan = case.plan(me, world, world, &everybody);
            rank.bind(plan).unwrap()
        });
        case.is_right(&mut other, &everybody, 2).unwrap();
        rank.exchange.barrier("quiet").unwrap();
        one.recover().unwrap();
        let stale = other.replay().unwrap_err();
        assert!(matches!(stale, ExecuteError::NotCaptured { .. }), "{stale}");
        case.is_right(&mut other, &everybody, 2).unwrap();
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn collectives_that_ranks_do_not_agree_on_are_refused() {
    let errors = on_ranks(2, host, |rank| {
        let (me, world) = rank.place();
        let placement = [Placement::Local, Placement::Symmetric][me];
        let mut plan = PlanBuilder::new("mixed", me, world);
        let a = plan.buffer("a", placement, Role::Input, DType::F32, (2, 3));
        let whole = plan.whole(a);
        let (all_reduce, by) = (Collective::AllReduce, Transport::SymmetricMemory);
        plan.collective(StreamId::MAIN, all_reduce, whole.clone(), whole, by);
        rank.bind(plan.finish().unwrap()).unwrap_err()
    });
    for error in errors {
        assert!(
            matches!(error, ExecuteError::Disagreement { .. }),
            "{error}"
        );
    }
}
