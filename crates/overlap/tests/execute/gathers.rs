//! All-gathers with GEMMs other than the pipelines: layers with a bias, GEMMs overlapped with a gather,
//! several nodes. And what the operands of every operation hold.

use std::ops::Range;
use std::time::Duration;

use warpweave_comm::collective::norm::arithmetic::add_rms_norm;
use warpweave_gemm::SCALE_BLOCK;
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Problem, Role, Scaling};
use warpweave_symm_mem::DType;

use crate::chunked_matmul::ragged_shards;
use crate::cuda::{gpu, world};
use crate::fixtures::{element, encode, on_ranks, remembered};
use crate::{host, narrow, rows_at};

/// Element (row, col) of a matrix of the problem in call `call`. B and the bias are constant.
fn value(matrix: Matrix, problem: &Problem, call: usize, row: usize, col: usize) -> f32 {
    match matrix {
        Matrix::A => of_a(problem, call, row, col),
        Matrix::B => element(1, 0, row, col),
        Matrix::Bias => element(2, 0, row, col),
        Matrix::X | Matrix::Y => element(3, call, row, col),
        Matrix::Residual => element(4, call, row, col),
        Matrix::NormWeight => element(5, 0, row, col),
        Matrix::ScalesA => scale(problem, 6 + call, row, col),
        Matrix::ScalesB => scale(problem, 7, row, col),
        Matrix::C | Matrix::ResidualOut => {
            let (line, size) = match problem.scaling {
                Scaling::Block => (col / SCALE_BLOCK, SCALE_BLOCK),
                _ => (col, problem.k),
            };
            let terms = (0..problem.k).map(|i| {
                let scales = [(6 + call, row), (7, line)];
                let scales = scales.map(|(which, line)| scale(problem, which, line, i / size));
                of_a(problem, call, row, i) * element(1, 0, i, col) * scales[0] * scales[1]
            });
            terms.sum()
        }
    }
}

/// An element of A. In long rows few are not 0, so that sums stay exact.
fn of_a(problem: &Problem, call: usize, row: usize, col: usize) -> f32 {
    match problem.k > 1000 && !(row + col).is_multiple_of(61) {
        true => 0.0,
        false => element(0, call, row, col),
    }
}

/// The scale of a line of a matrix, of a block of it, or of all lines: a power of two, so that GEMMs stay
/// exact.
fn scale(problem: &Problem, which: usize, line: usize, block: usize) -> f32 {
    match problem.scaling {
        Scaling::None => 1.0,
        Scaling::Block => [0.5, 1.0][(which + line + line / 3 + block + block / 5) % 2],
        Scaling::Row => [0.5, 1.0][(which + line + line / 3) % 2],
        _ => [0.5, 1.0][which % 2],
    }
}

/// The new residual and the normalized row of a row of the GEMM.
fn normalized(problem: &Problem, call: usize, row: usize) -> [Vec<f32>; 2] {
    let whole = |matrix, row| -> Vec<f32> {
        let cols = 0..problem.n;
        cols.map(|col| value(matrix, problem, call, row, col))
            .collect()
    };
    let gemm = whole(Matrix::C, row);
    let (residual, weight) = (whole(Matrix::Residual, row), whole(Matrix::NormWeight, 0));
    add_rms_norm(
        problem.output(),
        [&gemm, &residual, &weight],
        Operation::EPSILON,
    )
}

/// What the buffer of an operand, one of these of a rank, holds in call `call`.
pub fn stored(operand: &Operand, all: &[Operand], problem: &Problem, call: usize) -> Vec<u8> {
    let has = |matrix| all.iter().any(|operand| operand.matrix == matrix);
    let (biased, normed) = (has(Matrix::Bias), has(Matrix::NormWeight));
    remembered(("gather", operand, biased, normed, problem, call), || {
        made(operand, (biased, normed), problem, call)
    })
}

fn made(
    operand: &Operand,
    (biased, normed): (bool, bool),
    problem: &Problem,
    call: usize,
) -> Vec<u8> {
    let dtype = operand.matrix.dtype(problem);
    let rows: Vec<usize> = operand.rows.iter().cloned().flatten().collect();
    let cols = || operand.cols.clone();
    let places: Vec<(usize, usize)> = match operand.transposed {
        false => rows
            .iter()
            .flat_map(|&row| cols().map(move |col| (row, col)))
            .collect(),
        true => cols()
            .flat_map(|col| rows.iter().map(move |&row| (row, col)))
            .collect(),
    };
    let bias = |col: usize| match operand.matrix == Matrix::C && biased {
        true => value(Matrix::Bias, problem, call, 0, col),
        false => 0.0,
    };
    if normed && operand.role() == Role::Output {
        let of = usize::from(operand.matrix == Matrix::C);
        let row = |&row: &usize| normalized(problem, call, row)[of].clone();
        let values = rows.iter().flat_map(row);
        return encode(dtype, values);
    }
    let one = |(row, col)| value(operand.matrix, problem, call, row, col) + bias(col);
    encode(dtype, places.into_iter().map(one))
}

/// Runs `calls` on every rank, alternately run and replayed, with a rank that dawdles, and compares every
/// element of every call.
fn computes(algorithm: &Configuration, world: usize, problem: &Problem, calls: Range<usize>) {
    computes_on(host, algorithm, world, problem, calls);
}

fn computes_on<B: ExecuteBackend>(
    device: impl Fn(usize) -> B + Sync,
    algorithm: &Configuration,
    world: usize,
    problem: &Problem,
    calls: Range<usize>,
) {
    let wrong = on_ranks(world, device, |rank| {
        let (me, world) = rank.place();
        let operands = algorithm.operands(me, world, problem);
        let of = |role: Role| {
            operands
                .iter()
                .filter(move |operand| operand.role() == role)
        };
        let mut bound = rank
            .bind(algorithm.plan(me, world, problem).unwrap())
            .unwrap();
        for weight in of(Role::Weight) {
            bound
                .write(weight.buffer, &stored(weight, &operands, problem, 0))
                .unwrap();
        }
        bound.capture().unwrap();
        let mut wrong = Vec::new();
        for call in calls.clone() {
            if call % world == me {
                std::thread::sleep(Duration::from_micros(300));
            }
            for input in of(Role::Input) {
                bound
                    .write(input.buffer, &stored(input, &operands, problem, call))
                    .unwrap();
            }
            match call % 2 {
                0 => bound.run().unwrap(),
                _ => bound.replay().unwrap(),
            }
            for output in of(Role::Output) {
                let wanted = stored(output, &operands, problem, call);
                let mut found = vec![0xff; wanted.len()];
                bound.read(output.buffer, &mut found).unwrap();
                if found != wanted {
                    wrong.push((call, output.buffer));
                }
            }
        }
        bound.synchronize().unwrap();
        rank.exchange.barrier("end").unwrap();
        wrong
    });
    let right = wrong.iter().all(Vec::is_empty);
    assert!(right, "{}, world {world}: {wrong:?}", algorithm.name());
}

#[test]
fn every_variation_of_a_layer_computes_it_at_every_world() {
    let mut all = algorithms::every();
    all.retain(|c| c.operation() == Operation::ColumnParallelLinear);
    for algorithm in &all {
        for world in 1..=8 {
            for m in rows_at(world) {
                computes(algorithm, world, &Problem::new(m, 7, 18, DType::F32), 0..4);
            }
        }
    }
}

/// Scales of A go where its rows go, those of W and of partials stay.
#[test]
fn layers_of_e4m3_compute_theirs_with_scales() {
    let operations = [
        Operation::ColumnParallelLinear,
        Operation::RowParallelLinearNorm,
    ];
    let mut taken = 0;
    for algorithm in &operations.map(algorithms::candidates).concat() {
        for world in [1, 2, 4] {
            for m in [5 * world + 3, world.max(2) - 1] {
                for problem in &narrow(algorithm, m) {
                    computes(algorithm, world, problem, 0..4);
                    taken += 1;
                }
            }
        }
    }
    assert!(taken > 12 * 20, "{taken}");
}

/// Halves, whose sums are rounded once, after the bias.
#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_compute_a_layer_in_one_launch() {
    let world = world();
    for options in ["", ":pulled=3", ":chunks=2:pulled=4"] {
        let name = format!("fusedColumnParallelLinear{options}");
        let algorithm = algorithms::find(&name).unwrap();
        for problem in ragged_shards(world) {
            computes_on(gpu, &algorithm, world, &problem, 0..6);
        }
    }
}

#[test]
fn every_combination_of_a_layer_computes_it_at_four_ranks() {
    for algorithm in &algorithms::candidates(Operation::ColumnParallelLinear) {
        computes(algorithm, 4, &Problem::new(41, 3, 5, DType::F32), 0..6);
    }
}

#[test]
fn a_gemm_and_what_is_gathered_next_to_it_are_right() {
    for algorithm in &algorithms::candidates(Operation::MatmulOverlappingAllGather) {
        for world in 1..=8 {
            computes(algorithm, world, &Problem::new(9, 4, 6, DType::F32), 0..8);
        }
    }
}

#[test]
fn nodes_compute_the_gemm_at_every_world() {
    for nodes in ["1", "2", "3", "4", "2:chunks=3"] {
        let algorithm = algorithms::find(&format!("hierarchical:nodes={nodes}")).unwrap();
        for world in 1..=8 {
            for m in rows_at(world) {
                computes(&algorithm, world, &Problem::new(m, 7, 18, DType::F32), 0..6);
            }
        }
    }
}
