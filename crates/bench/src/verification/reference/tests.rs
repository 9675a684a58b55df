use super::*;
use crate::inputs::tests::rows_from;
use warpweave_overlap::{Operation, Problem};
use warpweave_symm_mem::ThreadExchange;
use warpweave_symm_mem::host::{encode, rounded};

/// The bytes of `part` of `matrix`, which has `cols` columns, element by element.
fn stored(matrix: &[f32], cols: usize, part: &Operand, dtype: DType) -> Vec<u8> {
    let (lines, length) = part.stored();
    let (rows, first) = (rows_of(part), part.cols.start);
    let at = |line: usize, place: usize| match part.transposed {
        false => matrix[rows[line] * cols + first + place],
        true => matrix[rows[place] * cols + first + line],
    };
    let each = (0..lines).flat_map(|line| (0..length).map(move |place| (line, place)));
    encode(
        dtype,
        &each
            .map(|(line, place)| at(line, place))
            .collect::<Vec<_>>(),
    )
}

/// The reference of a rank alone.
fn alone(of: ReferenceOf) -> Reference {
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    Reference::compute(&exchange, of, 1).unwrap()
}

/// A row of a matrix that goes in.
fn row(of: &ReferenceOf, matrix: Matrix, row: usize, cols: usize) -> Vec<f32> {
    of.source(matrix).row(row, 0..cols)
}

/// C by the definition, in f64, from the elements that go in.
fn by_definition(of: &ReferenceOf) -> Vec<f32> {
    let gemm = gemm_by_definition(of);
    match of.matrices.normalized {
        true => norm_by_definition(of, &gemm)[1].clone(),
        false => gemm,
    }
}

/// The new residual and the normalized rows.
fn norm_by_definition(of: &ReferenceOf, gemm: &[f32]) -> [Vec<f32>; 2] {
    let Problem { n, dtype, .. } = of.matrices.problem;
    let weight = row(of, Matrix::NormWeight, 0, n);
    let (mut sums, mut normalized) = (Vec::new(), Vec::new());
    for (i, gemm) in gemm.chunks(n).enumerate() {
        let add = |(x, residual): (&f32, &f32)| rounded(dtype, rounded(dtype, *x) + residual);
        let residual = row(of, Matrix::Residual, i, n);
        let r: Vec<f32> = gemm.iter().zip(&residual).map(add).collect();
        let squares: f64 = r.iter().map(|r| f64::from(*r).powi(2)).sum();
        let root = (squares / n as f64 + f64::from(Operation::EPSILON)).sqrt();
        let norm = |(r, weight): (&f32, &f32)| (f64::from(*r) / root * f64::from(*weight)) as f32;
        normalized.extend(r.iter().zip(&weight).map(norm));
        sums.extend(r);
    }
    [sums, normalized]
}

fn gemm_by_definition(of: &ReferenceOf) -> Vec<f32> {
    let Problem { m, n, k, .. } = of.matrices.problem;
    let b: Vec<_> = (0..k).map(|term| row(of, Matrix::B, term, n)).collect();
    let bias = match of.matrices.biased {
        true => row(of, Matrix::Bias, 0, n),
        false => vec![0.0; n],
    };
    let mut c = Vec::new();
    for i in 0..m {
        let a = row(of, Matrix::A, i, k);
        for (col, bias) in bias.iter().enumerate() {
            let terms = a
                .iter()
                .zip(&b)
                .map(|(x, b)| f64::from(*x) * f64::from(b[col]));
            c.push((terms.sum::<f64>() + f64::from(*bias)) as f32);
        }
    }
    c
}

/// Compares on each of three ranks what `part` gives of a right C, and of one that is wrong in `wrong`.
fn on_ranks(
    of: ReferenceOf,
    part: impl Fn(usize) -> Operand + Sync,
    wrong: (usize, usize),
) -> Vec<(Comparison, Comparison)> {
    let Problem { n, dtype, .. } = of.matrices.problem;
    on_threads(ThreadExchange::group(3).into_iter(), |exchange| {
        let part = part(exchange.rank());
        let exchange: Arc<dyn Exchange> = Arc::new(exchange);
        let reference = Reference::compute(&exchange, of, 2).unwrap();
        let mut c = by_definition(&of);
        let right = reference.compare(&part, &stored(&c, n, &part, dtype), 2);
        c[wrong.0 * n + wrong.1] += 100.0;
        let wrong = reference.compare(&part, &stored(&c, n, &part, dtype), 3);
        exchange.barrier("end").unwrap();
        (right, wrong)
    })
}

fn reference_of(operation: Operation, dtype: DType, numbers: Numbers) -> ReferenceOf {
    let problem = Problem::new(7, 5, 33, dtype);
    ReferenceOf {
        matrices: Matrices::of(Some(operation), 3, &problem),
        set: Set { numbers, index: 2 },
    }
}

#[test]
fn every_rank_sees_its_part_of_c_and_finds_a_wrong_element_in_it() {
    for operation in Operation::ALL {
        for (dtype, numbers) in [
            (DType::F16, Numbers::Integers),
            (DType::Bf16, Numbers::Reals),
            (DType::F32, Numbers::Reals),
        ] {
            let of = reference_of(operation, dtype, numbers);
            let part_of = |rank| {
                let operands = operation.operands((rank, 3), &of.matrices.problem, None);
                let c = |o: &&Operand| o.matrix == Matrix::C;
                operands.iter().find(c).unwrap().clone()
            };
            let found = on_ranks(of, part_of, (6, 4));
            let mut holders = 0;
            for (rank, (right, wrong)) in found.into_iter().enumerate() {
                let label = format!("{operation} {dtype} {numbers:?}, rank {rank}: {wrong:?}");
                let part = part_of(rank);
                assert_eq!(
                    right.elements as usize,
                    rows_of(&part).len() * part.cols.len(),
                    "{label}"
                );
                assert_eq!(right.wrong, 0, "{label}: {right:?}");
                assert!(
                    right.relative_error() <= of.expectation(Matrix::C).tolerance(),
                    "{label}"
                );
                if rows_of(&part).contains(&6) {
                    holders += 1;
                    let first = wrong.first.unwrap();
                    assert_eq!((wrong.wrong, first.row, first.col), (1, 6, 4));
                } else {
                    assert_eq!(wrong.wrong, 0, "{label}");
                }
            }
            assert!(holders > 0, "{operation}");
        }
    }
}

#[test]
fn rows_in_any_order_and_transposed_boxes_are_compared_where_they_belong() {
    let of = reference_of(Operation::RowParallelLinear, DType::F16, Numbers::Integers);
    for transposed in [false, true] {
        let part = Operand {
            buffer: "c",
            matrix: Matrix::C,
            rows: vec![5..7, 0..1, 3..4],
            cols: 1..4,
            transposed,
        };
        let found = on_ranks(of, |_| part.clone(), (3, 2));
        for (right, wrong) in found {
            assert_eq!((right.elements, right.wrong), (12, 0), "{right:?}");
            let first = wrong.first.unwrap();
            assert_eq!((wrong.wrong, first.row, first.col), (1, 3, 2));
        }
        // What belongs to other rows is wrong, although it is of C.
        let other = Operand {
            rows: vec![0..1, 5..7, 3..4],
            ..part.clone()
        };
        let reference = alone(of);
        let swapped = stored(&by_definition(&of), 5, &other, DType::F16);
        assert!(reference.compare(&part, &swapped, 1).wrong > 0);
        let short = &swapped[..swapped.len() - 1];
        assert!(reference.compare(&other, short, 1).wrong > 0);
    }
}

#[test]
fn the_bias_is_part_of_c() {
    let of = reference_of(
        Operation::ColumnParallelLinear,
        DType::F32,
        Numbers::Integers,
    );
    let mut without = of;
    without.matrices.biased = false;
    let reference = alone(of);
    let part = rows_from(Matrix::C, 0..7, 5);
    let bytes = |of| stored(&by_definition(of), 5, &part, DType::F32);
    assert_eq!(reference.compare(&part, &bytes(&of), 1).wrong, 0);
    let bias = row(&of, Matrix::Bias, 0, 5);
    let nonzero = bias.iter().filter(|bias| **bias != 0.0).count() as u64;
    assert!(nonzero > 0, "{bias:?}");
    let missing = reference.compare(&part, &bytes(&without), 1);
    assert_eq!(missing.wrong, 7 * nonzero, "a C without its bias");
}

#[test]
fn the_new_residual_and_the_norm_are_compared_with_all_that_they_are_made_of() {
    for (dtype, numbers) in [
        (DType::Bf16, Numbers::Integers),
        (DType::F16, Numbers::Reals),
        (DType::F32, Numbers::Reals),
    ] {
        let of = reference_of(Operation::RowParallelLinearNorm, dtype, numbers);
        let reference = alone(of);
        let gemm = gemm_by_definition(&of);
        let [sums, normalized] = norm_by_definition(&of, &gemm);
        let compare = |matrix, rows: &[f32]| {
            let part = rows_from(matrix, 0..7, 5);
            reference.compare(&part, &stored(rows, 5, &part, dtype), 2)
        };
        for (matrix, rows) in [(Matrix::ResidualOut, &sums), (Matrix::C, &normalized)] {
            let right = compare(matrix, rows);
            assert_eq!(
                (right.elements, right.wrong),
                (35, 0),
                "{matrix:?}: {right:?}"
            );
            let tolerance = of.expectation(matrix).tolerance();
            assert!(right.relative_error() <= tolerance, "{matrix:?}: {right:?}");
        }
        // The residual, the norm or the weight left out.
        let plain = norm_by_definition(&of, &sums)[1].clone();
        let weight = row(&of, Matrix::NormWeight, 0, 5);
        let scaled = sums.iter().zip(weight.iter().cycle());
        let without_norm: Vec<f32> = scaled.map(|(r, w)| r * w).collect();
        for (matrix, rows) in [
            (Matrix::ResidualOut, &gemm),
            (Matrix::C, &sums),
            (Matrix::C, &plain),
            (Matrix::C, &without_norm),
        ] {
            let wrong = compare(matrix, rows);
            assert!(wrong.wrong > 7, "{dtype} {matrix:?}: {wrong:?}");
            assert!(wrong.relative_error() > of.expectation(matrix).tolerance());
        }
    }
}

#[test]
fn y_is_x_to_the_bit() {
    let problem = Problem::new(6, 2, 4, DType::Bf16);
    let of = ReferenceOf {
        matrices: Matrices::of(Some(Operation::MatmulOverlappingAllGather), 3, &problem),
        set: Set::reals(1),
    };
    let reference = alone(of);
    let x = of.source(Matrix::X);
    let mut gathered = x.bytes(&rows_from(Matrix::X, 0..9, 4), 1);
    let y = rows_from(Matrix::Y, 0..9, 4);
    let right = reference.compare(&y, &gathered, 2);
    assert_eq!((right.elements, right.wrong), (36, 0));
    gathered[2 * 35] ^= 1;
    let wrong = reference.compare(&y, &gathered, 2);
    let first = wrong.first.as_ref().unwrap();
    assert_eq!((wrong.wrong, first.row, first.col), (1, 8, 3));
    assert_eq!(of.expectation(Matrix::Y).tolerance(), 0.0);
    assert!(wrong.relative_error() > 0.0);
}

/// Most of A is 0 where partials are summed, and where the GEMM is large; each has its own reference
/// code.
#[test]
fn a_sparse_gemm_is_that_of_the_definition() {
    for (operation, summands) in [
        (Operation::MatmulAllReduce, 3),
        (Operation::AllGatherMatmul, 1),
    ] {
        let problem = Problem::new(7, 5, 300, DType::Bf16);
        let mut of = ReferenceOf {
            matrices: Matrices::of(Some(operation), 3, &problem),
            set: Set {
                numbers: Numbers::Integers,
                index: 1,
            },
        };
        assert_eq!(of.matrices.summands, summands);
        of.matrices.summands = 3;
        assert!(of.source(Matrix::A).stride > 1);
        let wanted = by_definition(&of);
        assert!(wanted.iter().any(|c| *c != 0.0));
        let mut out = vec![f32::NAN; 7 * 5];
        of.gemm((0..7, 0..300), 2, &mut out).unwrap();
        assert_eq!(out, wanted);
    }
}

/// An element that is off within a row that is compared at once is found, and so is a row that ends early.
#[test]
fn rows_that_are_equal_bytes_are_right_and_no_others() {
    let of = reference_of(Operation::AllGatherMatmul, DType::Bf16, Numbers::Integers);
    let reference = alone(of);
    let part = rows_from(Matrix::C, 0..7, 5);
    let bytes = stored(&by_definition(&of), 5, &part, DType::Bf16);
    for place in 0..bytes.len() / 2 {
        let mut off = bytes.clone();
        off[2 * place + 1] ^= 0x40;
        let found = reference.compare(&part, &off, 2);
        let first = found.first.unwrap();
        assert_eq!((found.elements, found.wrong), (35, 1));
        assert_eq!((first.row, first.col), (place / 5, place % 5));
    }
    let right = reference.compare(&part, &bytes, 2);
    assert_eq!(
        (right.elements, right.wrong, right.relative_error()),
        (35, 0, 0.0)
    );
    let short = reference.compare(&part, &bytes[..bytes.len() - 2], 2);
    assert_eq!((short.elements, short.wrong), (35, 1));
}
