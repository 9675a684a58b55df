//! Every collective by every transport, of all ranks and of some, against its definition.

mod case;

use std::time::Duration;

use warpweave_comm::collective::launch::MAX_WORLD;
use warpweave_overlap::execute::{ExecuteBackend, ExecuteError};
use warpweave_overlap::plan::{Collective, Placement, PlanBuilder, Role, StreamId, Transport};
use warpweave_symm_mem::{DType, Host};

use crate::fixtures::on_ranks;
use crate::host;
use case::{COLLECTIVES, TRANSPORTS, cases};

pub use case::Case;

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
    for world in [9, MAX_WORLD + 1] {
        on_ranks(world, host, |rank| {
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
                let bound = rank.bind(case.plan(me, world, world, &everybody));
                if transport == Transport::SymmetricMemory && world > MAX_WORLD {
                    let error = bound.unwrap_err();
                    assert!(error.is_unavailable(), "{error}");
                    assert!(error.to_string().contains("16 ranks at most"), "{error}");
                    continue;
                }
                case.is_right(&mut bound.unwrap(), &everybody, 2).unwrap();
                rank.exchange.barrier("end").unwrap();
            }
        });
    }
}

#[test]
fn some_ranks_have_collectives_of_their_own() {
    // Two groups next to each other, then two across them; a group in another order, and one that leaves
    // ranks out.
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
                let timeout = fault.signal_fault();
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
fn what_was_captured_before_a_recovery_of_a_shared_group_is_not_replayed() {
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
