//! Every algorithm, three calls back to back with values that change, under random schedules.

use std::collections::BTreeSet;

use crate::ranks::{Rank, effort, explore, seed};
use warpweave_comm::collective::norm::arithmetic::normalize;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::ExecuteError;
use warpweave_overlap::operation::{Matrix, Operand, Operation};
use warpweave_overlap::plan::{Problem, Role};
use warpweave_symm_mem::{DType, Error};

const CALLS: usize = 3;

/// Element (row, col) of a matrix in a call: small integers, so that sums are exact. Weights are the same in
/// all calls.
fn element(
    operation: Operation,
    matrix: Matrix,
    call: usize,
    row: usize,
    col: usize,
    problem: &Problem,
) -> f32 {
    let given = |which: usize, call: usize| {
        let mixed =
            (which * 7919 + call * 104_729 + row * 31 + col * 17).wrapping_mul(2_654_435_761);
        ((mixed >> 13) % 5) as f32 - 2.0
    };
    let at = |matrix, row, col| element(operation, matrix, call, row, col, problem);
    let gemm = |row, col| -> f32 {
        let terms = (0..problem.k).map(|i| at(Matrix::A, row, i) * at(Matrix::B, i, col));
        terms.sum()
    };
    match matrix {
        Matrix::A => given(0, call),
        Matrix::B => given(1, 0),
        Matrix::Bias => given(2, 0),
        Matrix::X | Matrix::Y => given(3, call),
        Matrix::Residual => given(4, call),
        Matrix::NormWeight => given(5, 0),
        Matrix::ScalesA | Matrix::ScalesB => unreachable!("no operation has scales"),
        Matrix::ResidualOut => gemm(row, col) + at(Matrix::Residual, row, col),
        Matrix::C => match operation {
            Operation::ColumnParallelLinear => gemm(row, col) + at(Matrix::Bias, 0, col),
            Operation::RowParallelLinearNorm => {
                let whole = |matrix, row| -> Vec<f32> {
                    (0..problem.n).map(|col| at(matrix, row, col)).collect()
                };
                let (sums, weight) = (
                    whole(Matrix::ResidualOut, row),
                    whole(Matrix::NormWeight, 0),
                );
                normalize(&sums, &weight, Operation::EPSILON)[col]
            }
            _ => gemm(row, col),
        },
    }
}

/// What the buffer of `operand` holds in a call.
fn bytes(operation: Operation, operand: &Operand, call: usize, problem: &Problem) -> Vec<u8> {
    let rows: Vec<usize> = operand.rows.iter().flat_map(Clone::clone).collect();
    let at = |row, col| element(operation, operand.matrix, call, row, col, problem);
    let values: Vec<f32> = if operand.transposed {
        let places = operand
            .cols
            .clone()
            .flat_map(|col| rows.iter().map(move |&row| (row, col)));
        places.map(|(row, col)| at(row, col)).collect()
    } else {
        let places = rows
            .iter()
            .flat_map(|&row| operand.cols.clone().map(move |col| (row, col)));
        places.map(|(row, col)| at(row, col)).collect()
    };
    values.into_iter().flat_map(f32::to_ne_bytes).collect()
}

/// Why the host does not run a plan; any other error fails the test.
fn left_out(error: ExecuteError) -> String {
    let invalid = matches!(
        error,
        ExecuteError::InvalidPlan { .. } | ExecuteError::Memory(Error::PeerFailed { .. })
    );
    assert!(invalid || error.is_unavailable(), "{error}");
    error.to_string()
}

/// The first output that is wrong, or why the host does not run the plan.
fn wrong(
    rank: &Rank,
    algorithm: &Configuration,
    world: usize,
    problem: &Problem,
) -> Result<Option<String>, String> {
    let (me, operation) = (rank.index(), algorithm.operation());
    let operands = algorithm.operands(me, world, problem);
    let of = |role| {
        operands
            .iter()
            .filter(move |operand| operand.role() == role)
    };
    let plan = algorithm.plan(me, world, problem);
    let plan = plan.map_err(|error| error.to_string())?;
    let mut bound = rank.bind(plan).map_err(left_out)?;
    for weight in of(Role::Weight) {
        bound
            .write(weight.buffer, &bytes(operation, weight, 0, problem))
            .unwrap();
    }
    bound.capture().unwrap();
    let mut wrong = None;
    for call in 0..CALLS {
        for input in of(Role::Input) {
            bound
                .write(input.buffer, &bytes(operation, input, call, problem))
                .unwrap();
        }
        if call % 2 == 0 {
            bound.run()
        } else {
            bound.replay()
        }
        .unwrap();
        for output in of(Role::Output) {
            let wanted = bytes(operation, output, call, problem);
            let mut got = vec![0xff; wanted.len()];
            bound.read(output.buffer, &mut got).unwrap();
            if got != wanted {
                wrong.get_or_insert(format!("`{}` in call {call}", output.buffer));
            }
        }
    }
    bound.synchronize().unwrap();
    rank.exchange.barrier("end").unwrap();
    Ok(wrong)
}

/// Two tests, since a schedule is taken by one thread.
#[test]
fn every_algorithm_is_right_under_every_schedule_of_two_ranks() {
    every_algorithm_is_right(2, effort(60));
}

#[test]
fn every_algorithm_is_right_under_every_schedule_of_three_ranks() {
    every_algorithm_is_right(3, effort(30));
}

fn every_algorithm_is_right(world: usize, schedules: usize) {
    let mut ran = BTreeSet::new();
    // Shards of different sizes.
    let problem = Problem::new(2 * world + 1, 2, world + 1, DType::F32);
    for configuration in algorithms::every() {
        let (name, seed) = (configuration.name(), seed());
        let algorithm = configuration.algorithm();
        println!("{name}, {world} ranks, WARPWEAVE_SHUTTLE_SEED={seed}");
        let run = move |rank: Rank| wrong(&rank, &configuration, world, &problem);
        for ranks in explore(seed, schedules, world, run) {
            for (rank, outcome) in ranks.into_iter().enumerate() {
                match outcome {
                    Ok(wrong) => {
                        assert_eq!(wrong, None, "{name}, rank {rank} of {world}");
                        ran.insert(algorithm.name);
                    }
                    Err(why) => println!("  left out: {why}"),
                }
            }
        }
    }
    let pipelines = ["ringGet", "ringPut", "pushChunks", "directExchangePipeline"];
    assert!(pipelines.iter().all(|name| ran.contains(name)), "{ran:?}");
}
