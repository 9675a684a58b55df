//! The one linear system of a regression, by Cholesky's decomposition.

/// The x with K·x = `values`, where K, n × n for n values, has the elements `covariance(row, column)`:
/// symmetric and, as what is measured has noise, positive definite.
pub(super) fn weights(values: &[f64], covariance: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(values.len());
    // Forward: factor · y = values, row by row as the factor's rows come.
    let mut solved: Vec<f64> = Vec::with_capacity(values.len());
    for (row, value) in values.iter().enumerate() {
        let mut new: Vec<f64> = Vec::with_capacity(row + 1);
        for (column, earlier) in factor.iter().enumerate() {
            let rest = covariance(row, column) - dot(&new, earlier);
            new.push(rest / earlier[column]);
        }
        let square = covariance(row, row) - dot(&new, &new);
        let diagonal = square.max(f64::MIN_POSITIVE).sqrt();
        solved.push((value - dot(&new, &solved)) / diagonal);
        new.push(diagonal);
        factor.push(new);
    }
    // Backward: the transposed factor · x = y.
    for row in (0..values.len()).rev() {
        solved[row] /= factor[row][row];
        let known = solved[row];
        for (earlier, element) in solved.iter_mut().zip(&factor[row][..row]) {
            *earlier -= element * known;
        }
    }
    solved
}

/// Of as many as the shorter one has.
fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::weights;

    #[test]
    fn the_system_is_solved() {
        let matrix = [[4.0, 2.0, -1.0], [2.0, 5.0, 0.5], [-1.0, 0.5, 3.0]];
        let values = [1.0, -2.0, 0.25];
        let found = weights(&values, |i, j| matrix[i][j]);
        for (row, value) in matrix.iter().zip(values) {
            let gemm: f64 = row.iter().zip(&found).map(|(a, b)| a * b).sum();
            assert!((gemm - value).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(weights(&[], |_, _| 1.0), [0.0; 0]);
    }
}
