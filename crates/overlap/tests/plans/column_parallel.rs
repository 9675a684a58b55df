//! The column-parallel linear layer.

use crate::fixtures::{has_kernels, holds, plans, problem};
use crate::flow::outputs_come_from_their_inputs;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::operation::Matrix;
use warpweave_overlap::plan::{Activation, Batch, Collective, OpKind, Plan, Problem, Transport};
use warpweave_overlap::{Operation, PlanError, check, show};
use warpweave_symm_mem::DType;

fn find(options: &str) -> Configuration {
    algorithms::find(&format!("columnParallelLinear{options}")).unwrap()
}

fn plan(options: &str, m: usize) -> Plan {
    find(options).plan(1, 4, &problem(m)).unwrap()
}

fn sound(algorithm: &Configuration, world: usize, m: usize) {
    let problem = problem(m);
    let plans = plans(algorithm, world, &problem);
    holds(&check(&plans, 3));
    if !plans.iter().any(has_kernels) {
        outputs_come_from_their_inputs(algorithm, &plans, &problem);
    }
}

#[test]
fn every_variation_holds_at_every_world_and_shape() {
    let mut all = algorithms::every();
    all.retain(|c| c.operation() == Operation::ColumnParallelLinear);
    assert_eq!(all.len(), 18);
    for algorithm in all {
        for world in 1..=8 {
            // Even, ragged, fewer rows than ranks, a single row.
            for m in [8 * world, 8 * world + 3, 3, 1] {
                sound(&algorithm, world, m);
            }
        }
    }
}

#[test]
fn every_combination_holds_at_four_ranks() {
    for algorithm in algorithms::candidates(Operation::ColumnParallelLinear) {
        for m in [32, 41, 6] {
            sound(&algorithm, 4, m);
        }
    }
}

#[test]
fn every_row_of_a_is_held_once() {
    for algorithm in algorithms::candidates(Operation::ColumnParallelLinear) {
        for m in [1, 6, 41] {
            let problem = problem(m);
            let mut rows: Vec<usize> = Vec::new();
            for plan in plans(&algorithm, 4, &problem) {
                let operands = algorithm.operands(plan.rank, 4, &problem);
                for operand in &operands {
                    let buffer = plan.buffer_named(operand.buffer).unwrap();
                    let buffer = plan.buffer(buffer).unwrap();
                    let (stored, cols) = operand.stored();
                    assert_eq!(buffer.role, operand.role());
                    assert_eq!(buffer.cols, cols);
                    assert!(buffer.rows == stored || operand.buffer == "a" && buffer.rows > stored);
                }
                rows.extend(operands[0].rows.iter().cloned().flatten());
            }
            rows.sort_unstable();
            assert_eq!(rows, (0..m).collect::<Vec<_>>(), "{}", algorithm.name());
        }
    }
}

#[test]
fn cyclic_is_the_sharding_of_the_benchmark() {
    // [S, D, M / (S · D)] = [4, 4, 2].
    let rows = &find(":sharding=cyclic").operands(1, 4, &problem(32))[0].rows;
    assert_eq!(*rows, [2..4, 10..12, 18..20, 26..28]);
    let rows = &find("").operands(1, 4, &problem(32))[0].rows;
    assert_eq!(*rows, [8..10, 10..12, 12..14, 14..16]);
}

/// The batches of a plan's GEMMs.
fn batches(plan: &Plan) -> Vec<Batch> {
    let batches = plan.ops.iter().filter_map(|op| match &op.kind {
        OpKind::Gemm { batch, .. } => Some(*batch),
        _ => None,
    });
    batches.collect()
}

#[test]
fn gemms_are_as_few_as_the_sharding_allows() {
    let batch = |count, a_stride, c_stride| Batch {
        count,
        a_stride,
        c_stride,
    };
    // Of 16 pieces each is a GEMM, or four are one.
    assert_eq!(batches(&plan("", 32)), [Batch::ONE; 16]);
    for gather in ["nccl", "symmetric", "push"] {
        let cyclic = format!(":sharding=cyclic:gather={gather}");
        assert_eq!(batches(&plan(&cyclic, 41)), [Batch::ONE; 4]);
        // Whole blocks are neighbours.
        let whole = format!(":chunks=1:gather={gather}");
        assert_eq!(batches(&plan(&whole, 41)), [Batch::ONE; 1]);
    }
    // What was pushed lies as in C.
    let pushed = ":gemms=batched:gather=push";
    assert_eq!(batches(&plan(pushed, 32)), [batch(4, 8, 8); 4]);
    assert_eq!(
        batches(&plan(&format!("{pushed}:chunks=3"), 32)),
        [batch(4, 8, 8); 3]
    );
    // What a collective gathered lies closer together.
    let gathered = ":gemms=batched";
    assert_eq!(batches(&plan(gathered, 32)), [batch(4, 2, 8); 4]);
    assert_eq!(
        batches(&plan(&format!("{gathered}:chunks=3"), 32)),
        [batch(4, 3, 8), batch(4, 3, 8), batch(4, 2, 8)]
    );
    // Blocks of 9, 9, 8 and 8 rows; the first chunk has 3 of each of the first two.
    let uneven = |first| [batch(2, first, 9), batch(2, 2, 8)];
    assert_eq!(
        batches(&plan(pushed, 34)),
        [[batch(2, 9, 9), batch(2, 8, 8)]; 4].concat()
    );
    assert_eq!(
        batches(&plan(gathered, 34)),
        [3, 2, 2, 2].map(uneven).concat()
    );
}

#[test]
fn gemms_and_gathers_go_round_the_pool() {
    for gather in ["nccl", "symmetric", "push"] {
        for streams in [1, 2, 4, 16] {
            let options = format!(":sharding=cyclic:streams={streams}:gather={gather}");
            let plan = plan(&options, 32);
            let used = |wanted: fn(&OpKind) -> bool| -> Vec<usize> {
                let ops = plan.ops.iter().filter(|op| wanted(&op.kind));
                ops.map(|op| op.stream.0).collect()
            };
            let pushes = usize::from(gather == "push");
            // One stream is the caller's.
            let (pool, first) = match streams.min(4) {
                1 => (1, 0),
                some => (some, 1 + pushes),
            };
            assert_eq!(plan.streams.len(), (first + pool).max(1 + pushes));
            let round: Vec<usize> = (0..4).map(|chunk| first + chunk % pool).collect();
            assert_eq!(used(|kind| matches!(kind, OpKind::Gemm { .. })), round);
            let gathers = used(|kind| matches!(kind, OpKind::Collective { .. }));
            assert_eq!(gathers, if pushes == 0 { round } else { Vec::new() });
        }
    }
}

#[test]
fn launches_and_transports_are_those_of_the_options() {
    for (gather, transport, gathers) in [
        ("nccl", Transport::Nccl, 4),
        ("symmetric", Transport::SymmetricMemory, 4),
        ("push", Transport::CopyEngine, 0),
    ] {
        for (sharding, gemms) in [("blocked", 16), ("cyclic", 4)] {
            let plan = plan(&format!(":gather={gather}:sharding={sharding}"), 32);
            assert_eq!(plan.transports(), [transport]);
            assert_eq!(plan.launches(), gathers + gemms);
        }
    }
}

#[test]
fn every_gemm_is_a_linear_layer_and_every_collective_an_all_gather() {
    for algorithm in algorithms::candidates(Operation::ColumnParallelLinear) {
        for op in &algorithm.plan(1, 4, &problem(32)).unwrap().ops {
            match &op.kind {
                OpKind::Gemm {
                    bias, b_transposed, ..
                } => assert!(bias.is_some() && *b_transposed),
                OpKind::Collective { collective, .. } => {
                    assert_eq!(*collective, Collective::AllGather);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn impossible_problems_are_errors() {
    for algorithm in algorithms::candidates(Operation::ColumnParallelLinear) {
        let huge = Problem::new(usize::MAX, usize::MAX, 2, DType::F16);
        assert!(matches!(
            algorithm.plan(1, 4, &huge),
            Err(PlanError::TooLarge { .. })
        ));
    }
}

#[test]
fn blocked_chunks_by_nccl_are_printed() {
    insta::assert_snapshot!(show(&plan(":chunks=2", 10)));
}

#[test]
fn cyclic_chunks_by_nccl_are_printed() {
    insta::assert_snapshot!(show(&plan(":sharding=cyclic", 18)));
}

#[test]
fn gathered_chunks_in_batches_are_printed() {
    insta::assert_snapshot!(show(&plan(":chunks=2:gemms=batched", 18)));
}

#[test]
fn pushed_chunks_in_batches_are_printed() {
    insta::assert_snapshot!(show(&plan(":chunks=2:gather=push:gemms=batched", 18)));
}

/// C is half as wide, and nothing else changes; of other operations there is none.
#[test]
fn plans_with_swiglu_hold() {
    let plain = Problem::new(50, 48, 33, DType::Bf16);
    let gated = plain.with_activation(Activation::SwiGlu);
    let every = algorithms::every();
    let (takes, refuses): (Vec<_>, Vec<_>) = every.into_iter().partition(|c| c.takes(&gated));
    assert!(takes.len() > 10);
    for configuration in takes {
        let plans = configuration.plans(3, &gated).unwrap();
        let report = check(&plans, 3);
        assert!(report.holds(), "{configuration}: {report}");
        for (rank, plan) in plans.iter().enumerate() {
            let wide = configuration.plan(rank, 3, &plain).unwrap();
            let (ops, wide) = (plan.ops.iter(), wide.ops.iter());
            assert!(ops.map(|op| op.stream).eq(wide.map(|op| op.stream)));
        }
        let c = configuration.operands(1, 3, &gated);
        let c = c.iter().find(|operand| operand.matrix == Matrix::C);
        assert_eq!(c.unwrap().cols, 0..24, "{configuration}");
    }
    for configuration in refuses {
        let error = configuration.plan(0, 3, &gated).unwrap_err();
        assert!(matches!(error, PlanError::Activation { .. }), "{error}");
    }
    let odd = Problem { n: 40, ..gated };
    let error = algorithms::find("columnParallelLinear")
        .unwrap()
        .plan(0, 3, &odd);
    let error = error.unwrap_err();
    assert!(error.to_string().contains("a multiple of 16"), "{error}");
}
