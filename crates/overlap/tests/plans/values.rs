//! What plans compute: their operations carried out on small integers, where sums in any order are exact.
//!
//! All ranks run in one thread, a step at a time, whichever is next in an order that a seed gives: any order
//! that streams, events, signals and collectives allow may come. Calls follow each other back to back with
//! other inputs each time, and memory holds nonsense before the first.

mod machine;

use crate::fixtures::has_kernels;
use machine::Machine;
use std::collections::BTreeSet;
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{OpKind, Problem, Role};
use warpweave_symm_mem::DType;

/// Rows of a matrix.
pub type Rows = Vec<Vec<i64>>;

const CALLS: usize = 3;

/// What each rank reads after the last of some calls, from the buffers of its outputs in the order of its
/// operands.
pub fn results(
    configuration: &Configuration,
    world: usize,
    problem: &Problem,
    seed: usize,
) -> Vec<Vec<Rows>> {
    let plans = configuration.plans(world, problem).unwrap();
    let operands = (0..world).map(|rank| configuration.operands(rank, world, problem));
    let mut machine = Machine::new(&plans, operands.collect());
    machine.run(seed);
    machine.outputs
}

/// What each rank should read then, by the definition of the operation.
pub fn wanted(configuration: &Configuration, world: usize, problem: &Problem) -> Vec<Vec<Rows>> {
    let biased = configuration.operation() == Operation::ColumnParallelLinear;
    let norm = configuration.operation() == Operation::RowParallelLinearNorm;
    let gemm = |row: usize, col: usize| {
        let term = |i| element(Matrix::A, CALLS - 1, row, i) * element(Matrix::B, 0, i, col);
        let bias = i64::from(biased) * element(Matrix::Bias, 0, 0, col);
        (0..problem.k).map(term).sum::<i64>() + bias
    };
    let sum = |row, col| gemm(row, col) + element(Matrix::Residual, CALLS - 1, row, col);
    let value = |matrix: Matrix, row: usize, col: usize| match matrix {
        Matrix::Y => element(Matrix::X, CALLS - 1, row, col),
        Matrix::ResidualOut => sum(row, col),
        _ if norm => {
            let cols = 0..problem.n;
            let sums: Vec<i64> = cols.clone().map(|col| sum(row, col)).collect();
            let weight = cols.map(|col| element(Matrix::NormWeight, 0, 0, col));
            normalized(&sums, &Vec::from_iter(weight))[col]
        }
        _ => gemm(row, col),
    };
    let of_rank = |rank| {
        let operands = configuration.operands(rank, world, problem);
        let outputs = operands.iter().filter(|o| o.role() == Role::Output);
        outputs
            .map(|o| stored(o, |row, col| value(o.matrix, row, col)))
            .collect()
    };
    (0..world).map(of_rank).collect()
}

/// What stands for the RMSNorm of a row: an integer that depends on all that the RMSNorm does.
fn normalized(row: &[i64], weight: &[i64]) -> Vec<i64> {
    let squares: i64 = row.iter().map(|x| x * x).sum();
    let elements = row.iter().zip(weight);
    elements.map(|(x, w)| x * (squares + 1) * (w + 7)).collect()
}

/// Small integers that differ from call to call where the caller may change them.
fn element(matrix: Matrix, call: usize, row: usize, col: usize) -> i64 {
    let mixed = matrix as usize * 7919 + call * 104_729 + row * 31 + col * 17;
    (mixed.wrapping_mul(2_654_435_761) >> 13) as i64 % 7 - 3
}

/// An operand as its buffer holds it.
fn stored(operand: &Operand, value: impl Fn(usize, usize) -> i64) -> Rows {
    let rows: Vec<usize> = operand.rows.iter().cloned().flatten().collect();
    let cols: Vec<usize> = operand.cols.clone().collect();
    match operand.transposed {
        false => rows
            .iter()
            .map(|&row| cols.iter().map(|&col| value(row, col)).collect())
            .collect(),
        true => cols
            .iter()
            .map(|&col| rows.iter().map(|&row| value(row, col)).collect())
            .collect(),
    }
}

#[test]
fn every_algorithm_computes_its_operation() {
    let mut with_kernels = BTreeSet::new();
    for configuration in algorithms::every() {
        for world in 1..=8 {
            // Even, ragged, fewer rows than ranks, a single row; from six ranks on some have no part of a
            // sharded K.
            for m in [8 * world, 8 * world + 3, 3, 1] {
                let problem = Problem::new(m, 3, 5, DType::F32);
                let multicast = problem.with_multicast(true);
                let plans = |problem| configuration.plans(world, problem).unwrap();
                if plans(&problem).iter().any(has_kernels) {
                    with_kernels.insert(configuration.algorithm().name);
                    continue;
                }
                let mut problems = vec![problem];
                if plans(&multicast) != plans(&problem) {
                    problems.push(multicast);
                }
                for problem in problems {
                    let wanted = wanted(&configuration, world, &problem);
                    // More ranks have more orders within one run.
                    for seed in 0..if world <= 4 { 3 } else { 1 } {
                        let results = results(&configuration, world, &problem, seed);
                        assert_eq!(results, wanted, "{configuration}, {world} ranks, M = {m}");
                    }
                }
            }
        }
    }
    assert_eq!(
        Vec::from_iter(with_kernels),
        [
            "fusedAllGather",
            "fusedAllReduce",
            "fusedColumnParallelLinear",
            "fusedLinearReduceScatter",
            "fusedReduceScatter",
            "fusedRowParallelLinear",
            "multimemGatherScalarCompute",
            "multimemGatherThenCutlass",
            "naiveRemoteRead",
            "pushChunksWaitingGemm",
            "threadloadGatherScalarCompute",
            "threadloadGatherThenCutlass",
        ]
    );
}

#[test]
fn another_plan_computes_something_else() {
    let problem = Problem::new(9, 3, 5, DType::F32);
    let configuration = algorithms::find("reduceScatterPipeline").unwrap();
    let operands = (0..3).map(|rank| configuration.operands(rank, 3, &problem));
    let operands: Vec<_> = operands.collect();
    let mut plans = configuration.plans(3, &problem).unwrap();
    for op in plans.iter_mut().flat_map(|plan| &mut plan.ops) {
        if let OpKind::Reduce { srcs, .. } = &mut op.kind {
            srcs.pop();
        }
    }
    let mut machine = Machine::new(&plans, operands);
    machine.run(0);
    assert_ne!(machine.outputs, wanted(&configuration, 3, &problem));
}
