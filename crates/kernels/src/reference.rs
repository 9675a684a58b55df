//! The reference GEMM that results are compared with.

use warpweave_symm_mem::DType;
use warpweave_symm_mem::host::decode;

/// Columns accumulated together: with [`ROWS`] they fit the L1 cache.
const COLUMNS: usize = 256;
/// Rows that share one pass over B.
const ROWS: usize = 8;

/// C\[m,n\] = A\[m,k\]·B\[k,n\], row-major, accumulated in f64 without rounding, on all cores.
///
/// `a` and `b` hold the elements as stored in memory. `None` if their lengths do not match the sizes. Exact
/// for integers while the sums stay below 2⁵³.
pub fn matmul(a: &[u8], b: &[u8], m: usize, n: usize, k: usize, dtype: DType) -> Option<Vec<f64>> {
    let a = widen(a, m.checked_mul(k)?, dtype)?;
    let b = widen(b, k.checked_mul(n)?, dtype)?;
    let mut c = vec![0.0; m.checked_mul(n)?];
    if c.is_empty() || k == 0 {
        return Some(c);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = m.div_ceil(cores).next_multiple_of(ROWS);
    std::thread::scope(|scope| {
        for (a, c) in a.chunks(share * k).zip(c.chunks_mut(share * n)) {
            let b = &b;
            scope.spawn(move || {
                for (a, c) in a.chunks(ROWS * k).zip(c.chunks_mut(ROWS * n)) {
                    for column in (0..n).step_by(COLUMNS) {
                        block(a, b, c, n, k, column);
                    }
                }
            });
        }
    });
    Some(c)
}

/// Accumulates a few rows of C, in [`COLUMNS`] columns from `column` on.
fn block(a: &[f32], b: &[f32], c: &mut [f64], n: usize, k: usize, column: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature.
        return unsafe { block_avx2(a, b, c, n, k, column) };
    }
    block_portable(a, b, c, n, k, column);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn block_avx2(a: &[f32], b: &[f32], c: &mut [f64], n: usize, k: usize, column: usize) {
    block_portable(a, b, c, n, k, column);
}

#[inline(always)]
fn block_portable(a: &[f32], b: &[f32], c: &mut [f64], n: usize, k: usize, column: usize) {
    let width = COLUMNS.min(n - column);
    for l in 0..k {
        let b = &b[l * n + column..][..width];
        for (a, c) in a.chunks_exact(k).zip(c.chunks_exact_mut(n)) {
            let a = f64::from(a[l]);
            for (c, &b) in c[column..][..width].iter_mut().zip(b) {
                *c += a * f64::from(b);
            }
        }
    }
}

fn widen(bytes: &[u8], elements: usize, dtype: DType) -> Option<Vec<f32>> {
    (elements.checked_mul(dtype.size())? == bytes.len()).then(|| decode(dtype, bytes))
}

#[cfg(test)]
mod tests {
    use warpweave_symm_mem::host::encode;

    use super::*;

    #[test]
    fn gemms_equal_three_loops() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for (m, n, k) in [
                (1, 1, 1),
                (37, 300, 19),
                (8, 5, 64),
                (0, 3, 3),
                (3, 0, 3),
                (2, 3, 0),
            ] {
                let a: Vec<f32> = (0..m * k).map(|i| (i % 11) as f32 - 5.0).collect();
                let b: Vec<f32> = (0..k * n).map(|i| (i % 13) as f32 - 6.0).collect();
                let c = matmul(&encode(dtype, &a), &encode(dtype, &b), m, n, k, dtype).unwrap();
                for i in 0..m {
                    for j in 0..n {
                        let sum: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                        assert_eq!(
                            c[i * n + j],
                            f64::from(sum),
                            "({i}, {j}) of {m}x{n}x{k} {dtype}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        assert_eq!(matmul(&[0; 8], &[0; 4], 2, 1, 1, DType::F16), None);
        assert_eq!(matmul(&[0; 4], &[0; 4], 1, usize::MAX, 2, DType::F16), None);
    }
}
