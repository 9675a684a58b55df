//! The pipelines hold, and are the pipelines that their names say.

use crate::fixtures::{holds, plans, problem};
use warpweave_gemm::{AllGatherMatmul, GemmProblem};
use warpweave_overlap::algorithms::{self, Capabilities, Configuration};
use warpweave_overlap::kernels::AnyKernel;
use warpweave_overlap::plan::{Effect, OpKind, Plan, Problem, Transport};
use warpweave_overlap::{Operation, PlanError, check, show};
use warpweave_symm_mem::DType;

fn all() -> Vec<Configuration> {
    let mut all = algorithms::every();
    all.retain(|c| c.operation() == Operation::AllGatherMatmul);
    all.split_off(algorithms::table().len())
}

fn plan(name: &str, rank: usize, world: usize, problem: &Problem) -> Plan {
    algorithms::find(name)
        .unwrap()
        .plan(rank, world, problem)
        .unwrap()
}

#[test]
fn every_pipeline_holds_at_every_world_and_shape() {
    for algorithm in all() {
        for world in 1..=8 {
            // Even, ragged, fewer rows than ranks, a single row.
            for m in [8 * world, 8 * world + 3, 3, 1] {
                let plans = plans(&algorithm, world, &problem(m));
                holds(&check(&plans, 3));
            }
        }
    }
}

#[test]
fn pipelines_are_found_by_their_exact_names() {
    let names: Vec<String> = all().iter().map(|a| a.name()).collect();
    assert_eq!(
        names,
        [
            "allGatherThenMatmul",
            "directExchangePipeline",
            "directExchangePipeline:streams=1",
            "directExchangePipeline:streams=2",
            "directExchangePipeline:streams=8",
            "ringGet",
            "ringPut",
            "pushChunks",
            "pushChunks:chunks=1",
            "pushChunks:chunks=2",
            "pushChunks:chunks=8",
            "pushChunks:streams=1",
            "pushChunks:streams=3",
            "pushChunksWaitingGemm",
            "pushChunksWaitingGemm:chunks=1",
            "pushChunksWaitingGemm:chunks=4",
            "pushChunksWaitingGemm:chunks=8",
            "fusedAllGather",
            "fusedAllGather:pulled=3",
            "fusedAllGather:protocol=eager",
            "broadcastPipeline",
            "hierarchical",
            "hierarchical:nodes=1",
            "hierarchical:nodes=4",
            "hierarchical:chunks=2",
            "hierarchical:chunks=4",
        ]
    );
    for name in names {
        let algorithm = algorithms::find(&name).unwrap();
        let sm90 = name.contains("Waiting") || name.contains("fused");
        let needs = Capabilities {
            sm90,
            ..Capabilities::NONE
        };
        assert_eq!(algorithm.needs(), needs);
        let plans = plans(&algorithm, 4, &problem(8));
        assert!(plans.iter().all(|p| p.name == name));
        let transports: &[Transport] = match name.as_str() {
            "hierarchical" | "hierarchical:chunks=2" | "hierarchical:chunks=4" => {
                &[Transport::Nccl, Transport::CopyEngine]
            }
            "allGatherThenMatmul" => &[Transport::SymmetricMemory],
            "hierarchical:nodes=4" => &[Transport::Nccl],
            "fusedAllGather:pulled=3" => &[Transport::CopyEngine, Transport::ThreadLoads],
            _ if name.contains("fused") => &[Transport::ThreadLoads],
            _ => &[Transport::CopyEngine],
        };
        assert!(plans.iter().all(|p| p.transports() == transports));
    }
    assert!(algorithms::find("pushChunks:chunks=3").is_ok());
    for wrong in ["chunks", "chunks=0", "chunks=x", "nodes=2", "3"] {
        let error = algorithms::find(&format!("pushChunks:{wrong}")).unwrap_err();
        assert!(matches!(&error, PlanError::UnknownOption { option, .. } if option == wrong));
        assert!(error.to_string().contains("chunks=4|1|2|8|…"), "{error}");
    }
    assert!(algorithms::find("ringGet:chunks=2").is_err());
}

#[test]
fn impossible_problems_are_errors() {
    for algorithm in all() {
        assert!(matches!(
            algorithm.plan(2, 2, &problem(4)),
            Err(PlanError::RankOutsideWorld { rank: 2, world: 2 })
        ));
        let empty = Problem::new(1, 1, 0, DType::F16);
        assert!(matches!(
            algorithm.plan(0, 1, &empty),
            Err(PlanError::EmptyProblem { .. })
        ));
        let huge = Problem::new(usize::MAX, usize::MAX, 2, DType::F16);
        assert!(matches!(
            algorithm.plan(0, 2, &huge),
            Err(PlanError::TooLarge { .. })
        ));
    }
}

#[test]
fn streams_and_chunks_are_those_of_the_name() {
    let at = |name: &str, world: usize| plan(name, 1, world, &problem(16 * world));
    for (name, streams) in [
        ("", 4),
        (":streams=1", 1),
        (":streams=2", 2),
        (":streams=8", 8),
    ] {
        let plan = at(&format!("directExchangePipeline{name}"), 8);
        assert_eq!((plan.streams.len(), plan.launches()), (1 + streams, 8));
        // Step j is on stream j mod p, after the caller's.
        let gemms = plan.ops.iter().filter_map(|op| match op.kind {
            OpKind::Gemm { .. } => Some(op.stream.0),
            _ => None,
        });
        let wanted: Vec<usize> = (0..8).map(|j| 1 + j % streams).collect();
        assert_eq!(gemms.collect::<Vec<_>>(), wanted);
    }
    for (name, chunks) in [
        ("", 4),
        (":chunks=1", 1),
        (":chunks=2", 2),
        (":chunks=8", 8),
    ] {
        let plan = at(&format!("pushChunks{name}"), 4);
        assert_eq!((plan.streams.len(), plan.launches()), (3, 1 + 3 * chunks));
        let plan = at(&format!("pushChunksWaitingGemm{name}"), 4);
        assert_eq!((plan.streams.len(), plan.launches()), (2, 1));
        let name = format!(
            "fusedAllGather{}",
            if name.is_empty() { ":chunks=4" } else { name }
        );
        let plan = at(&name, 4);
        assert_eq!((plan.streams.len(), plan.ops.len()), (1, 1));
        let OpKind::Kernel { kernel, .. } = &plan.ops[0].kind else {
            panic!("{:?}", plan.ops[0]);
        };
        // Whole tiles, so that small shards have fewer chunks; and no more chunks than are best.
        let Problem { m, n, k, dtype, .. } = problem(16 * 4);
        let best = AllGatherMatmul::best_chunks(&GemmProblem::new(m, n, k, dtype), 4);
        let rows = AllGatherMatmul::chunk_rows(16, chunks.min(best));
        assert!(matches!(kernel, AnyKernel::AllGatherMatmul(of) if of.chunk_rows == rows));
    }
    // Eighths of the chunks there are are pushed, whole ones.
    for (name, chunks, pushed) in [
        (":pulled=3", 8, 5),
        (":chunks=4:pulled=3", 4, 2),
        (":chunks=4:pulled=9", 4, 0),
        (":chunks=1:pulled=1", 1, 0),
    ] {
        let plan = at(&format!("fusedAllGather{name}"), 4);
        let rows = 16usize.div_ceil(chunks) * pushed;
        let pushes = match pushed {
            0 => vec![],
            _ => vec![(1, 2), (1, 3), (1, 0)],
        };
        assert_eq!(transfers(&plan), pushes, "{name}");
        let copies = plan.ops.iter().filter_map(|op| match &op.kind {
            OpKind::Copy { src, .. } => Some(src.rows.clone()),
            _ => None,
        });
        assert!(copies.into_iter().all(|copied| copied == (0..rows)));
    }
    for streams in 1..=3 {
        let plan = at(&format!("pushChunks:streams={streams}"), 4);
        assert_eq!((plan.streams.len(), plan.launches()), (1 + streams, 13));
        // After the pushes' come the GEMMs' streams, besides the caller's.
        let gemms = plan.ops.iter().filter_map(|op| match op.kind {
            OpKind::Gemm { .. } => Some(op.stream.0.saturating_sub(1)),
            _ => None,
        });
        let wanted: Vec<usize> = (0..13).map(|gemm| gemm % streams).collect();
        assert_eq!(gemms.collect::<Vec<_>>(), wanted);
    }
}

/// The schedule that the column-parallel layer has, too.
#[test]
fn the_collective_over_symmetric_memory_is_one_and_one_gemm_follows() {
    let schedule = |plan: Plan| {
        let kinds = plan.ops.iter().map(|op| match op.kind {
            OpKind::Collective { transport, .. } => Some(transport),
            OpKind::Gemm { .. } => None,
            ref other => panic!("{other:?}"),
        });
        (kinds.collect::<Vec<_>>(), plan.streams.len())
    };
    let layer = "columnParallelLinear:chunks=1:streams=1:gather=symmetric";
    for (world, m) in [(1, 8), (2, 8), (4, 10), (8, 3)] {
        let [own, of_layer] =
            ["allGatherThenMatmul", layer].map(|name| plan(name, 0, world, &problem(m)));
        let gather = (world > 1).then_some(Some(Transport::SymmetricMemory));
        let expected: Vec<_> = gather.into_iter().chain([None]).collect();
        assert_eq!(schedule(own), (expected.clone(), 1));
        assert_eq!(schedule(of_layer), (expected, 1));
    }
}

/// Source and destination rank of each copy.
fn transfers(plan: &Plan) -> Vec<(usize, usize)> {
    let copies = plan.ops.iter().filter_map(|op| match &op.kind {
        OpKind::Copy { src, dst, .. } => Some((src.rank, dst.rank)),
        _ => None,
    });
    copies.collect()
}

#[test]
fn transfers_go_the_way_of_the_algorithm() {
    let of = |name| transfers(&plan(name, 1, 4, &problem(8)));
    assert_eq!(of("directExchangePipeline"), [(2, 1), (3, 1), (0, 1)]);
    assert_eq!(of("ringGet"), [(0, 1); 3]);
    assert_eq!(of("ringPut"), [(1, 2); 3]);
    assert_eq!(of("pushChunks:chunks=1"), [(1, 2), (1, 3), (1, 0)]);
    assert_eq!(of("broadcastPipeline"), [(1, 2), (1, 3), (1, 0)]);
}

#[test]
fn a_ragged_collective_over_symmetric_memory_is_printed() {
    insta::assert_snapshot!(show(&plan("allGatherThenMatmul", 1, 4, &problem(10))));
}

#[test]
fn the_direct_exchange_is_printed() {
    insta::assert_snapshot!(show(&plan(
        "directExchangePipeline:streams=2",
        1,
        4,
        &problem(10)
    )));
}

#[test]
fn the_ring_with_get_is_printed() {
    insta::assert_snapshot!(show(&plan("ringGet", 1, 4, &problem(10))));
}

#[test]
fn a_ragged_push_in_chunks_after_one_gemm_is_printed() {
    insta::assert_snapshot!(show(&plan("pushChunksWaitingGemm", 1, 4, &problem(6))));
}

#[test]
fn a_ragged_launch_that_gathers_is_printed() {
    insta::assert_snapshot!(show(&plan("fusedAllGather:chunks=2", 1, 4, &problem(14))));
}

#[test]
fn a_ragged_launch_that_gathers_eagerly_is_printed() {
    let configuration = "fusedAllGather:protocol=eager";
    insta::assert_snapshot!(show(&plan(configuration, 1, 4, &problem(14))));
}

/// The order in which the host reference takes the lanes: it opens its rows and multiplies them, pulls and
/// multiplies those of each other rank, gives them back, and waits for its own.
#[test]
fn a_launch_that_gathers_in_the_order_of_the_host_holds_too() {
    let turn = |lane: &[Effect], index: usize| match &lane[index] {
        Effect::Signal { .. } if index == 0 => 0,
        _ if matches!(lane[0], Effect::Read(_)) => 1,
        Effect::Signal { .. } => 3,
        Effect::Wait { .. } if index + 1 == lane.len() => 4,
        _ => 2,
    };
    for world in 2..=8 {
        for m in [8 * world, 9 * world + 5, 3] {
            let algorithm = algorithms::find("fusedAllGather:chunks=3").unwrap();
            let mut plans = algorithm.plans(world, &problem(m)).unwrap();
            holds(&check(&plans, 3));
            for op in plans.iter_mut().flat_map(|plan| &mut plan.ops) {
                let OpKind::Kernel { lanes, .. } = &mut op.kind else {
                    continue;
                };
                let indices = lanes.iter().map(|lane| 0..lane.len());
                let mut effects: Vec<(usize, &Effect)> = std::iter::zip(lanes.iter(), indices)
                    .flat_map(|(lane, indices)| indices.map(|i| (turn(lane, i), &lane[i])))
                    .collect();
                effects.sort_by_key(|&(turn, _)| turn);
                *lanes = vec![effects.into_iter().map(|(_, e)| e.clone()).collect()];
            }
            holds(&check(&plans, 3));
        }
    }
}

#[test]
fn a_ragged_push_in_chunks_is_printed() {
    insta::assert_snapshot!(show(&plan("pushChunks", 1, 4, &problem(6))));
}
