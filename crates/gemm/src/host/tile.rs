//! The arithmetic of a host GEMM: an element of C is the sum of its terms from k = 0 upwards, in f32,
//! starting from zero.
//!
//! Each element has an accumulator of its own, and multiplications and additions are separate operations. So
//! its bits depend on its row of A and its column of B alone: not on the rows and columns that are computed
//! with it, and not on the CPU.

/// Columns computed together: two AVX registers of f32.
pub(super) const COLUMNS: usize = 16;
/// Rows computed together; with `COLUMNS` their accumulators fit the registers.
pub(super) const ROWS: usize = 6;

/// The sums of `ROWS` rows and `COLUMNS` columns: `a` has the rows' elements by k, `b` the columns'.
pub(super) type Sums = [[f32; COLUMNS]; ROWS];

/// One tile of C, with the widest vectors of the CPU.
pub(super) fn tile(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]]) -> Sums {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the feature.
        return unsafe { tile_avx2(a, b) };
    }
    tile_portable(a, b)
}

/// By intrinsics: the compiler does not keep the accumulators in registers by itself.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn tile_avx2(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]]) -> Sums {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps,
    };
    const WIDTH: usize = 8;
    const { assert!(COLUMNS == 2 * WIDTH) };
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for (a, b) in a.iter().zip(b) {
        // SAFETY: the loads are of the first and the second half of the 16 columns.
        let columns = unsafe { [_mm256_loadu_ps(&b[0]), _mm256_loadu_ps(&b[WIDTH])] };
        for (sums, a) in sums.iter_mut().zip(a) {
            let a = _mm256_set1_ps(*a);
            sums[0] = _mm256_add_ps(sums[0], _mm256_mul_ps(a, columns[0]));
            sums[1] = _mm256_add_ps(sums[1], _mm256_mul_ps(a, columns[1]));
        }
    }
    let mut stored = [[0.0; COLUMNS]; ROWS];
    for (to, sums) in stored.iter_mut().zip(sums) {
        // SAFETY: the stores are to the first and the second half of the 16 columns.
        unsafe {
            _mm256_storeu_ps(&mut to[0], sums[0]);
            _mm256_storeu_ps(&mut to[WIDTH], sums[1]);
        }
    }
    stored
}

fn tile_portable(a: &[[f32; ROWS]], b: &[[f32; COLUMNS]]) -> Sums {
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
    fn every_cpu_computes_the_same_bits() {
        let element = |i: usize| ((i * 7919 + 13).wrapping_mul(2_654_435_761) >> 9) as f32 / 3e7;
        for k in [0, 1, 7, 300] {
            let a: Vec<[f32; ROWS]> = (0..k)
                .map(|i| std::array::from_fn(|r| element(i * ROWS + r)))
                .collect();
            let b: Vec<[f32; COLUMNS]> = (0..k)
                .map(|i| std::array::from_fn(|c| element(i * COLUMNS + c + 1_000_003)))
                .collect();
            let bits = |sums: Sums| sums.map(|row| row.map(f32::to_bits));
            assert_eq!(bits(tile(&a, &b)), bits(tile_portable(&a, &b)), "k = {k}");
        }
    }
}
