//! A GEMM overlapped with an all-gather.

use crate::fixtures::{holds, plans, problem};
use crate::flow::outputs_come_from_their_inputs;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::plan::{OpKind, Plan, Problem, StreamId, Transport};
use warpweave_overlap::{Operation, PlanError, check, show};
use warpweave_symm_mem::DType;

fn all() -> Vec<Configuration> {
    algorithms::candidates(Operation::MatmulOverlappingAllGather)
}

fn plan(name: &str) -> Plan {
    let algorithm = algorithms::find(name).unwrap();
    algorithm.plan(1, 4, &problem(6)).unwrap()
}

#[test]
fn every_plan_holds_at_every_world_and_shape() {
    for algorithm in all() {
        for world in 1..=8 {
            for m in [16, 7, 1] {
                let problem = problem(m);
                let plans = plans(&algorithm, world, &problem);
                holds(&check(&plans, 3));
                outputs_come_from_their_inputs(&algorithm, &plans, &problem);
            }
        }
    }
}

#[test]
fn launches_and_transports_are_those_of_the_name() {
    for (name, transports, launches, streams) in [
        ("sequentialAllGather", Transport::Nccl, 2, 1),
        (
            "sequentialAllGather:transport=symmetric",
            Transport::SymmetricMemory,
            2,
            1,
        ),
        ("overlappedAllGather", Transport::Nccl, 2, 2),
        (
            "overlappedAllGather:transport=symmetric",
            Transport::SymmetricMemory,
            2,
            2,
        ),
        ("copyEngineAllGather", Transport::CopyEngine, 1, 2),
    ] {
        let plan = plan(name);
        assert_eq!(plan.transports(), [transports], "{name}");
        assert_eq!(plan.launches(), launches, "{name}");
        assert_eq!(plan.streams.len(), streams, "{name}");
    }
    assert_eq!(all().len(), 5);
}

#[test]
fn the_copy_engine_pulls_in_the_order_that_spreads_the_load() {
    let plan = plan("copyEngineAllGather");
    let copies = plan.ops.iter().filter_map(|op| match &op.kind {
        OpKind::Copy { src, .. } => Some((op.stream, src.rank)),
        _ => None,
    });
    let side = StreamId(1);
    assert_eq!(
        copies.collect::<Vec<_>>(),
        [(side, 2), (side, 3), (side, 0), (side, 1)]
    );
}

#[test]
fn impossible_problems_are_errors() {
    for algorithm in all() {
        let huge = Problem::new(usize::MAX, usize::MAX, 2, DType::F16);
        assert!(matches!(
            algorithm.plan(3, 4, &huge),
            Err(PlanError::TooLarge { .. })
        ));
    }
}

#[test]
fn the_overlapped_gather_is_printed() {
    insta::assert_snapshot!(show(&plan("overlappedAllGather")));
}

#[test]
fn the_gather_by_copy_engine_is_printed() {
    insta::assert_snapshot!(show(&plan("copyEngineAllGather")));
}
