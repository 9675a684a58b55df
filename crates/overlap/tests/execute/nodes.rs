//! Four ranks as two nodes of two: memory and signals within a node, collectives between them.

use warpweave_overlap::check::check;
use warpweave_overlap::execute::ExecuteError;
use warpweave_overlap::plan::{
    Collective, Placement, Plan, PlanBuilder, Role, StreamId, Transport, shard,
};
use warpweave_symm_mem::{DType, FaultCause, Host};

use crate::collectives::Case;
use crate::fixtures::{element, encode, matrix, on_ranks};
use crate::host;

const COLS: usize = 3;
const ROWS: usize = 8;

/// An all-reduce in three steps: a reduce-scatter within the node, an all-reduce between the nodes, and each
/// shard to the other rank of the node by a put.
fn hierarchical(rank: usize, world: usize) -> Plan {
    let mut plan = PlanBuilder::new("hierarchical", rank, world);
    plan.nodes_of(2);
    let dtype = DType::F32;
    let a = plan.buffer("a", Placement::Symmetric, Role::Input, dtype, (ROWS, COLS));
    let part = plan.buffer(
        "part",
        Placement::Symmetric,
        Role::Staging,
        dtype,
        (ROWS / 2, COLS),
    );
    let c = plan.buffer("c", Placement::Symmetric, Role::Output, dtype, (ROWS, COLS));
    let (free, there) = (plan.slot("free"), plan.slot("there"));
    let (main, neighbour) = (StreamId::MAIN, rank ^ 1);
    let node = vec![rank & !1, rank | 1];
    let across = vec![rank % 2, rank % 2 + 2];
    let (whole, shard_of_a) = (plan.whole(a), plan.whole(part));
    plan.signal(main, free, [neighbour]);
    plan.collective_of(
        main,
        Collective::ReduceScatter,
        (whole, shard_of_a.clone()),
        node,
        Transport::SymmetricMemory,
    );
    plan.collective_of(
        main,
        Collective::AllReduce,
        (shard_of_a.clone(), shard_of_a.clone()),
        across,
        Transport::Nccl,
    );
    plan.wait(main, free, [neighbour]);
    for to in [rank, neighbour] {
        let place = plan.on(to, c, shard(ROWS, rank % 2, 2), 0..COLS);
        plan.copy(main, shard_of_a.clone(), place);
    }
    plan.signal(main, there, [neighbour])
        .wait(main, there, [neighbour]);
    plan.finish().unwrap()
}

fn sum(call: usize) -> Vec<u8> {
    let places = (0..ROWS).flat_map(|row| (0..COLS).map(move |col| (row, col)));
    let one = |row, col| (0..4).map(|rank| element(rank, call, row, col)).sum();
    encode(DType::F32, places.map(|(row, col)| one(row, col)))
}

#[test]
fn memory_and_signals_of_a_node_and_collectives_between_nodes() {
    let plans: Vec<_> = (0..4).map(|rank| hierarchical(rank, 4)).collect();
    let report = check(&plans, 3);
    assert!(report.holds(), "{report}");
    on_ranks(4, host, |rank| {
        let (me, world) = rank.place();
        let mut bound = rank.bind(hierarchical(me, world)).unwrap();
        bound.capture().unwrap();
        for call in 0..6 {
            bound
                .write("a", &matrix(DType::F32, (me, call), 0..ROWS, COLS))
                .unwrap();
            match call % 2 {
                0 => bound.run().unwrap(),
                _ => bound.replay().unwrap(),
            }
            let mut c = vec![0; ROWS * COLS * 4];
            bound.read("c", &mut c).unwrap();
            assert_eq!(c, sum(call), "rank {me}, call {call}");
        }
        bound.synchronize().unwrap();
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn a_neighbour_that_stays_away_has_its_rank_in_the_world() {
    let impatient = |_| Host::with_timeout(std::time::Duration::from_millis(300));
    let faults = on_ranks(4, impatient, |rank| {
        let (me, world) = rank.place();
        let mut plan = PlanBuilder::new("pad", me, world);
        plan.nodes_of(2);
        let slot = plan.slot("here");
        plan.signal(StreamId::MAIN, slot, [me ^ 1])
            .wait(StreamId::MAIN, slot, [me ^ 1]);
        let mut bound = rank.bind(plan.finish().unwrap()).unwrap();
        let fault = (me != 3).then(|| {
            bound.run().unwrap();
            bound.synchronize().err()
        });
        rank.exchange.barrier("after the fault").unwrap();
        bound.recover().unwrap();
        bound.run().unwrap();
        bound.synchronize().unwrap();
        rank.exchange.barrier("end").unwrap();
        fault.flatten()
    });
    let timeout = faults[2].as_ref().unwrap().signal_fault().unwrap();
    assert_eq!((timeout.rank, timeout.peer), (2, 3));
    let missing = FaultCause::Deadline { missing: vec![3] };
    assert_eq!(timeout.cause, missing);
    for rank in [0, 1, 3] {
        assert!(faults[rank].is_none(), "rank {rank}: {:?}", faults[rank]);
    }
}

#[test]
fn symmetric_memory_does_not_reach_another_node() {
    on_ranks(4, host, |rank| {
        let (me, world) = rank.place();
        let case = Case {
            collective: Collective::AllReduce,
            transport: Transport::SymmetricMemory,
            dtype: DType::F32,
            rows: 4,
            placement: Placement::Symmetric,
            in_place: false,
        };
        let error = rank
            .bind(case.plan(me, world, 2, &[(0..world).collect()]))
            .unwrap_err();
        assert!(matches!(error, ExecuteError::InvalidPlan { .. }), "{error}");
        assert!(error.to_string().contains("of a node"), "{error}");
    });
}
