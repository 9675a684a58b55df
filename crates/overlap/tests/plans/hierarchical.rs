//! Plans over several nodes.

use crate::fixtures::{MAIN, holds, only, plans, problem};
use crate::flow::outputs_come_from_their_inputs;
use warpweave_overlap::algorithms;
use warpweave_overlap::check::FaultKind;
use warpweave_overlap::plan::{
    Collective, MulticastRegion, OpKind, Placement, Plan, PlanBuilder, Role, Transport,
};
use warpweave_overlap::{Violation, check, show};
use warpweave_symm_mem::DType;

fn at(nodes: usize, world: usize, m: usize) -> Vec<Plan> {
    let algorithm = algorithms::find(&format!("hierarchical:nodes={nodes}")).unwrap();
    plans(&algorithm, world, &problem(m))
}

#[test]
fn every_number_of_nodes_holds_at_every_world_and_shape() {
    for nodes in [1, 2, 3, 4, 8, 1024] {
        let algorithm = algorithms::find(&format!("hierarchical:nodes={nodes}")).unwrap();
        for world in 1..=8 {
            for m in [8 * world, 8 * world + 3, 3, 1] {
                let problem = problem(m);
                let plans = plans(&algorithm, world, &problem);
                holds(&check(&plans, 3));
                outputs_come_from_their_inputs(&algorithm, &plans, &problem);
            }
        }
    }
}

#[test]
fn every_operation_holds_over_nodes_in_chunks() {
    let names = [
        "hierarchical:chunks=3",
        "hierarchicalColumnParallelLinear:chunks=2",
        "reduceScatterPipeline:chunks=3",
        "allReducePipeline:chunks=3",
        "rowParallelLinearPipeline:streams=2",
        "linearReduceScatterPipeline:streams=2",
    ];
    for (name, nodes) in names
        .iter()
        .flat_map(|name| [2, 3, 4, 8].map(|nodes| (name, nodes)))
    {
        let algorithm = algorithms::find(&format!("{name}:nodes={nodes}")).unwrap();
        for world in [2, 4, 6, 8] {
            // Even, ragged, one row of the second chunk, fewer rows than ranks, a single row.
            for m in [8 * world, 8 * world + 3, 2 * world + 1, 3, 1] {
                let problem = problem(m);
                let plans = plans(&algorithm, world, &problem);
                holds(&check(&plans, 3));
                if name.starts_with("hierarchical") {
                    outputs_come_from_their_inputs(&algorithm, &plans, &problem);
                }
            }
        }
    }
}

#[test]
fn only_the_sum_of_a_node_crosses_the_network() {
    // Of 2 nodes of 4, each rank reduces with its twin: in a reduce-scatter the rows of both, in an
    // all-reduce a quarter of all.
    for (name, collective) in [
        ("reduceScatterPipeline", Collective::ReduceScatter),
        ("allReducePipeline", Collective::AllReduce),
    ] {
        let algorithm = algorithms::find(&format!("{name}:nodes=2")).unwrap();
        for plan in plans(&algorithm, 8, &problem(64)) {
            let crossing = plan.ops.iter().filter_map(|op| match &op.kind {
                OpKind::Collective {
                    collective,
                    src,
                    ranks,
                    ..
                } => Some((*collective, src.rows.len(), ranks.clone())),
                _ => None,
            });
            let twins = vec![plan.rank % 4, plan.rank % 4 + 4];
            let chunk = (collective, 8, twins);
            assert_eq!(
                crossing.collect::<Vec<_>>(),
                [chunk.clone(), chunk],
                "{name}"
            );
        }
    }
}

#[test]
fn nodes_are_equal_parts_of_those_asked_for() {
    for (world, nodes, size) in [
        (8, 1, 8),
        (8, 2, 4),
        (8, 4, 2),
        (6, 2, 3),
        (6, 4, 2),
        // Three and two ranks: no part of three divides five.
        (5, 2, 1),
        // Three, three and two.
        (8, 3, 1),
        (2, 4, 1),
    ] {
        let plans = at(nodes, world, 4 * world);
        assert!(plans.iter().all(|p| p.node_size == size), "{world} {nodes}");
    }
}

#[test]
fn each_shard_crosses_the_network_once_for_each_other_node() {
    // Of 2 nodes of 4, each rank's collective is with its twin; inside, each shard of its place is pushed to
    // 3 peers.
    for plan in at(2, 8, 16) {
        let mut pushed = Vec::new();
        for op in &plan.ops {
            match &op.kind {
                OpKind::Collective { ranks, .. } => {
                    assert_eq!(*ranks, [plan.rank % 4, plan.rank % 4 + 4]);
                }
                OpKind::Copy { src, dst, .. } => {
                    assert_eq!((src.rank, src.rows.len()), (plan.rank, 2));
                    pushed.push((dst.rank, dst.rows.start / 2));
                }
                _ => {}
            }
        }
        let (first, place) = (plan.rank / 4 * 4, plan.rank % 4);
        let peers = (1..4).map(|step| first + (place + step) % 4);
        let shards = [plan.rank, (plan.rank + 4) % 8];
        let wanted: Vec<_> = shards
            .into_iter()
            .flat_map(|shard| peers.clone().map(move |to| (to, shard)))
            .collect();
        assert_eq!(pushed, wanted);
        // A collective and a GEMM for each shard.
        assert_eq!(plan.launches(), 9);
    }
}

#[test]
fn a_copy_to_another_node_is_reported() {
    let mut plans = at(2, 4, 8);
    let copy = plans[1].ops.iter_mut().find_map(|op| match &mut op.kind {
        OpKind::Copy { dst, .. } => Some(dst),
        _ => None,
    });
    let dst = copy.unwrap();
    assert_eq!(dst.rank, 0);
    dst.rank = 2;
    let report = check(&plans, 3);
    let Violation::Fault(fault) = only(&report) else {
        panic!("{report}");
    };
    assert_eq!((fault.rank, fault.kind), (1, FaultKind::Unreachable));
    assert!(fault.what.contains("another node"), "{report}");
}

#[test]
fn a_signal_to_another_node_is_reported() {
    let mut plans = at(2, 4, 8);
    for op in &mut plans[1].ops {
        if let OpKind::Signal { to, .. } = &mut op.kind {
            *to = vec![3];
        }
    }
    let report = check(&plans, 3);
    // Its own shard, the one that landed, and the credit.
    assert_eq!(report.violations.len(), 3, "{report}");
    for violation in &report.violations {
        assert!(
            matches!(violation, Violation::Fault(fault) if fault.kind == FaultKind::Unreachable),
            "{report}"
        );
    }
}

/// Four ranks in nodes of two. Those of `from` send their input by the multicast address; all others meet
/// them, take what came if they are of `to`, and meet again.
fn multicasts(from: &[usize], to: &[usize]) -> Vec<Plan> {
    let plan = |rank| {
        let mut plan = PlanBuilder::new("multicasts", rank, 4);
        plan.nodes_of(2);
        let mut buffer =
            |name, placement, role| plan.buffer(name, placement, role, DType::F32, (1, 4));
        let input = buffer("in", Placement::Local, Role::Input);
        let staging = buffer("staging", Placement::Multicast, Role::Staging);
        let sum = buffer("sum", Placement::Local, Role::Staging);
        let output = buffer("out", Placement::Local, Role::Output);
        let [input, arrived, sum, output] =
            [input, staging, sum, output].map(|buffer| plan.whole(buffer));
        if from.contains(&rank) {
            let dst = MulticastRegion {
                buffer: staging,
                rows: 0..1,
                cols: 0..4,
            };
            plan.multicast_copy(MAIN, input.clone(), dst);
        }
        let (reduce, nccl) = (Collective::AllReduce, Transport::Nccl);
        plan.collective(MAIN, reduce, input.clone(), sum.clone(), nccl);
        let taken = match to.contains(&rank) {
            true => arrived,
            false => input.clone(),
        };
        plan.copy(MAIN, taken, output);
        plan.collective(MAIN, reduce, input, sum, nccl);
        plan.finish().expect("a sound plan")
    };
    (0..4).map(plan).collect()
}

#[test]
fn multicast_memory_is_that_of_a_node() {
    holds(&check(&multicasts(&[0], &[0, 1]), 3));
    holds(&check(&multicasts(&[0, 2], &[0, 1, 2, 3]), 3));
    let report = check(&multicasts(&[0], &[0, 1, 2]), 3);
    let unwritten = |v: &Violation| matches!(v, Violation::Unwritten { .. });
    assert!(
        !report.violations.is_empty(),
        "rank 2 takes what nobody wrote"
    );
    assert!(report.violations.iter().all(unwritten), "{report}");
}

#[test]
fn two_nodes_of_two_are_printed() {
    insta::assert_snapshot!(show(&at(2, 4, 10)[1]));
}
