//! The arithmetic of the host references: rows of A times B, accumulated in f32 from k = 0 upwards, rounded
//! once.
//!
//! B is widened once per kernel into panels that the inner loop reads contiguously. Multiplications and
//! additions are separate operations, so every CPU computes the same bits.

use warpweave_symm_mem::host::{Element, record};

/// Columns of a panel: two AVX registers of f32.
const COLUMNS: usize = 16;
/// Rows computed together; with `COLUMNS` their accumulators fit the registers.
pub(super) const ROWS: usize = 4;

/// B as `[n / COLUMNS][k][COLUMNS]` in f32, with the last panel padded with zeros.
pub(super) struct Gemm {
    n: usize,
    k: usize,
    panels: Vec<[f32; COLUMNS]>,
}

impl Gemm {
    /// Widens B, `[k][n]`.
    ///
    /// # Safety
    /// `b` points to `k * n` elements that no other thread writes.
    pub unsafe fn new<T: Element>(b: *const T, n: usize, k: usize) -> Self {
        let mut panels = vec![[0.0; COLUMNS]; n.div_ceil(COLUMNS) * k];
        let mut row = vec![0.0; n];
        if n > 0 {
            for i in 0..k {
                // SAFETY: row `i` is one of the caller's `k`.
                T::widen(unsafe { record::read(b.add(i * n), n) }, &mut row);
                for (panel, columns) in row.chunks(COLUMNS).enumerate() {
                    panels[panel * k + i][..columns.len()].copy_from_slice(columns);
                }
            }
        }
        Gemm { n, k, panels }
    }

    /// Computes `rows` rows: C\[rows,n\] = A\[rows,k\]·B.
    ///
    /// # Safety
    /// `a` points to `rows * k` elements that no other thread writes; `c` points to `rows * n` elements that
    /// no other thread accesses.
    pub unsafe fn rows<T: Element>(&self, a: *const T, c: *mut T, rows: usize) {
        let (n, k) = (self.n, self.k);
        if n == 0 || rows == 0 {
            return;
        }
        let mut wide = vec![0.0; k];
        let mut lanes = vec![[0.0; ROWS]; k];
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            lanes.fill([0.0; ROWS]);
            for r in 0..count {
                // SAFETY: row `first + r` is one of the caller's `rows`.
                let row = unsafe { record::read(a.add((first + r) * k), k) };
                T::widen(row, &mut wide);
                for (lane, &value) in lanes.iter_mut().zip(&wide) {
                    lane[r] = value;
                }
            }
            for column in (0..n).step_by(COLUMNS) {
                let panel = &self.panels[column / COLUMNS * k..][..k];
                let sums = tile(&lanes, panel);
                let width = COLUMNS.min(n - column);
                for (r, sums) in sums.iter().enumerate().take(count) {
                    // SAFETY: the elements lie in row `first + r` of C, from `column` on, `width` of them up
                    // to its end.
                    let c = unsafe { record::write(c.add((first + r) * n + column), width) };
                    T::round(&sums[..width], c);
                }
            }
        }
    }
}

/// One tile of C, with the widest vectors of the CPU.
fn tile(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature.
        return unsafe { tile_avx2(a, b) };
    }
    tile_portable(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn tile_avx2(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    tile_portable(a, b)
}

#[inline(always)]
fn tile_portable(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (a, b) in a.iter().zip(b) {
        for (sums, &a) in sums.iter_mut().zip(a) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_gemms_equal_three_loops() {
        for (m, n, k) in [(1, 1, 1), (5, 17, 3), (4, 16, 8), (7, 33, 0), (9, 3, 41)] {
            let a: Vec<f32> = (0..m * k).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..k * n).map(|i| (i % 5) as f32 - 2.0).collect();
            let mut c = vec![f32::NAN; m * n];
            // SAFETY: the vectors have the given sizes.
            unsafe { Gemm::new(b.as_ptr(), n, k).rows(a.as_ptr(), c.as_mut_ptr(), m) };
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                    assert_eq!(c[i * n + j], sum, "({i}, {j}) of {m}x{n}x{k}");
                }
            }
        }
    }
}
