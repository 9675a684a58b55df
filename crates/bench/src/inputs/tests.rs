use super::*;
use warpweave_symm_mem::DType;
use warpweave_symm_mem::host::decode;

const INTEGERS: Set = Set {
    numbers: Numbers::Integers,
    index: 1,
};

/// Whole rows of a matrix.
pub(crate) fn rows_from(matrix: Matrix, rows: Range<usize>, cols: usize) -> Operand {
    part("", matrix, rows, 0..cols)
}

fn matrices(operation: Operation, world: usize, problem: Problem) -> Matrices {
    Matrices::of(Some(operation), world, &problem)
}

fn of_f32(matrix: Matrix, set: Set) -> Vec<f32> {
    let problem = Problem::new(64, 64, 64, DType::F32);
    let source = Matrices::of(None, 1, &problem).source(matrix, set);
    decode(DType::F32, &source.bytes(&rows_from(matrix, 0..64, 64), 2))
}

#[test]
fn a_rank_makes_the_same_elements_as_any_other() {
    let problem = Problem::new(2000, 1, 77, DType::F16);
    let matrices = matrices(Operation::AllGatherMatmul, 4, problem);
    let source = matrices.source(Matrix::A, Set::reals(3));
    let all = source.bytes(&rows_from(Matrix::A, 0..2000, 77), 3);
    let some = source.bytes(&rows_from(Matrix::A, 500..1500, 77), 1);
    assert_eq!(all[500 * 77 * 2..1500 * 77 * 2], some);
}

#[test]
fn every_box_is_cut_out_of_the_same_matrix() {
    let problem = Problem::new(9, 1, 13, DType::F32);
    let source = Matrices::of(None, 1, &problem).source(Matrix::A, Set::reals(0));
    let whole = decode(
        DType::F32,
        &source.bytes(&rows_from(Matrix::A, 0..9, 13), 1),
    );
    let cyclic = Operand {
        rows: vec![7..9, 0..1, 4..5],
        cols: 3..8,
        ..rows_from(Matrix::A, 0..9, 13)
    };
    let transposed = Operand {
        transposed: true,
        ..cyclic.clone()
    };
    let rows = [7, 8, 0, 4];
    let at = |row: usize, col: usize| whole[row * 13 + col];
    let as_is = rows
        .iter()
        .flat_map(|&row| (3..8).map(move |col| at(row, col)));
    let as_is: Vec<_> = as_is.collect();
    let as_transposed: Vec<_> = (3..8)
        .flat_map(|col| rows.map(|row| at(row, col)))
        .collect();
    assert_eq!(decode(DType::F32, &source.bytes(&cyclic, 2)), as_is);
    assert_eq!(
        decode(DType::F32, &source.bytes(&transposed, 2)),
        as_transposed
    );
    assert_eq!((cyclic.stored(), transposed.stored()), ((4, 5), (5, 4)));
    assert_eq!(source.row(8, 3..8), whole[8 * 13 + 3..8 * 13 + 8]);
}

#[test]
fn integers_have_five_values_and_reals_fill_their_range() {
    let integers = of_f32(Matrix::A, INTEGERS);
    for wanted in -2..=2 {
        let count = integers.iter().filter(|&&v| v == wanted as f32).count();
        assert!((600..1050).contains(&count), "{wanted}: {count} of 4096");
    }
    let reals = of_f32(Matrix::A, Set::reals(0));
    assert!(reals.iter().all(|v| (-1.0..1.0).contains(v)));
    let mean = reals.iter().sum::<f32>() / 4096.0;
    let square = reals.iter().map(|v| v * v).sum::<f32>() / 4096.0;
    assert!(
        mean.abs() < 0.05 && (square - 1.0 / 3.0).abs() < 0.03,
        "{mean} {square}"
    );
}

#[test]
fn sets_and_matrices_differ_and_weights_stay() {
    let reals = |matrix, set| of_f32(matrix, Set::reals(set));
    let weights = [Matrix::B, Matrix::Bias, Matrix::NormWeight];
    let inputs = [Matrix::A, Matrix::X, Matrix::Residual];
    let inputs = inputs
        .into_iter()
        .flat_map(|matrix| [0, 1].map(|set| reals(matrix, set)));
    let all: Vec<_> = inputs
        .chain(weights.map(|matrix| reals(matrix, 0)))
        .collect();
    for (i, one) in all.iter().enumerate() {
        for two in &all[..i] {
            assert!(one.iter().zip(two).filter(|(x, y)| x == y).count() < 8);
        }
    }
    for weight in weights {
        assert_eq!(reals(weight, 0), reals(weight, 1));
    }
}

#[test]
fn partial_sums_of_integers_are_exact_in_the_element_type() {
    // With scales sums are multiples of ¼.
    for (dtype, scaling, exact) in [
        (DType::F16, Scaling::None, 2048),
        (DType::Bf16, Scaling::None, 256),
        (DType::E4m3, Scaling::Row, 64),
    ] {
        for k in [5, 300, 4099] {
            let problem = Problem::new(100, 3, k, dtype).with_scaling(scaling);
            for world in [2, 3] {
                let matrices = matrices(Operation::MatmulAllReduce, world, problem);
                assert_eq!(matrices.summands, world);
                let a = matrices.source(Matrix::A, INTEGERS);
                let mut used = vec![false; k];
                for row in 0..100 {
                    let values = a.row(row, 0..k);
                    // Elements of B are at most 2: no sum of some of the products is larger than this.
                    let largest: f32 = values.iter().map(|v| 2.0 * v.abs()).sum();
                    assert!(largest <= exact as f32, "{dtype} {k}: {largest}");
                    for (used, value) in used.iter_mut().zip(values) {
                        *used |= value != 0.0;
                    }
                }
                if k <= 300 {
                    let blind = used.iter().filter(|used| !**used).count();
                    assert!(blind * 20 < k, "{blind} of {k} columns are never looked at");
                }
            }
        }
    }
}

#[test]
fn only_sums_over_ranks_are_sparse() {
    let problem = Problem::new(8, 8, 4096, DType::Bf16);
    for operation in Operation::ALL {
        let reduces = matches!(
            operation,
            Operation::MatmulReduceScatter
                | Operation::MatmulAllReduce
                | Operation::RowParallelLinear
                | Operation::RowParallelLinearNorm
                | Operation::LinearReduceScatter
        );
        let many = matrices(operation, 4, problem);
        assert_eq!(many.summands, if reduces { 4 } else { 1 }, "{operation}");
        assert_eq!(many.stride(), if reduces { 64 } else { 1 }, "{operation}");
        assert_eq!(matrices(operation, 1, problem).summands, 1);
        let biased = operation == Operation::ColumnParallelLinear;
        assert_eq!(many.biased, biased, "{operation}");
    }
}

/// Every element of a matrix is on some rank; of a sharded one on exactly one.
#[test]
fn the_operands_of_all_ranks_cover_their_matrices() {
    use std::collections::BTreeMap;
    for operation in Operation::ALL {
        let worlds = [1, 2, 3, 4].into_iter();
        let scalings = [Scaling::None, Scaling::Row, Scaling::Tensor, Scaling::Block];
        for (world, scaling) in worlds.flat_map(|world| scalings.map(|scaling| (world, scaling))) {
            let dtype = match scaling {
                Scaling::None => DType::F16,
                _ => DType::E4m3,
            };
            let problem = Problem::new(7, 5, 10, dtype).with_scaling(scaling);
            let [of_a, of_b] = matrices(operation, world, problem).scales();
            let mut seen: BTreeMap<Matrix, BTreeMap<(usize, usize), usize>> = BTreeMap::new();
            for rank in 0..world {
                for operand in operation.operands((rank, world), &problem, None) {
                    let (places, (rows, cols)) = (rows_of(&operand), operand.stored());
                    assert_eq!(places.len() * operand.cols.len(), rows * cols);
                    let seen = seen.entry(operand.matrix).or_default();
                    for row in places {
                        for col in operand.cols.clone() {
                            *seen.entry((row, col)).or_default() += 1;
                        }
                    }
                }
            }
            let gathered = (7 / 2) * world;
            for (matrix, seen) in seen {
                let (rows, cols) = match matrix {
                    Matrix::A => (7, 10),
                    Matrix::B => (10, 5),
                    Matrix::Bias | Matrix::NormWeight => (1, 5),
                    Matrix::C | Matrix::Residual | Matrix::ResidualOut => (7, 5),
                    Matrix::X | Matrix::Y => (gathered, 10),
                    Matrix::ScalesA => of_a,
                    Matrix::ScalesB => of_b,
                };
                let label = format!("{operation}, {world} ranks, {problem:?}, {matrix:?}");
                assert_eq!(seen.len(), rows * cols, "{label}");
                let last = seen.keys().next_back();
                assert_eq!(last, Some(&(rows - 1, cols - 1)), "{label}");
                let copies: Vec<_> = seen.values().collect();
                assert!(
                    copies.iter().all(|&&count| count == *copies[0]),
                    "{label}: {copies:?}"
                );
                assert!([1, world].contains(copies[0]), "{label}");
            }
        }
    }
}

#[test]
fn integers_are_few_where_the_gemm_is_large() {
    let dense = Problem::new(8192, 3584, 8192, DType::Bf16);
    let large = Problem::new(32768, 8192, 16384, DType::Bf16);
    for (problem, few) in [(dense, false), (large, true)] {
        let matrices = matrices(Operation::AllGatherMatmul, 4, problem);
        assert_eq!(matrices.is_large(), few);
        for (numbers, sparse) in [(Numbers::Integers, few), (Numbers::Reals, false)] {
            let row = matrices
                .source(Matrix::A, Set { numbers, index: 1 })
                .row(5, 0..problem.k);
            let used = row.iter().filter(|value| **value != 0.0).count();
            assert_eq!(used <= 64, sparse, "{problem:?}, {numbers:?}: {used}");
            assert!(used > 32, "{problem:?}, {numbers:?}: {used}");
        }
        let b = matrices.source(Matrix::B, INTEGERS);
        assert_eq!(b.stride, 1);
    }
}
