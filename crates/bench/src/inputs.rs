//! The numbers that go in: every element a function of its place, so that each rank makes the parts that it needs.

use std::ops::Range;

use half::{bf16, f16};
use warpweave_symm_mem::DType;

/// What kind of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Numbers {
    /// Integers from −2 to 2: every sum of products is exact in f32, so each element of C has one right value.
    Integers,
    /// Uniform in \[−1, 1\), rounded to the element type.
    Reals,
}

/// Which matrix of which input set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// What kind of numbers.
    pub numbers: Numbers,
    /// Sets differ in every element, with chance.
    pub seed: u64,
    /// Element type.
    pub dtype: DType,
    /// Columns of the matrix.
    pub cols: usize,
}

impl Source {
    /// A of input set `set`.
    pub fn a(numbers: Numbers, set: usize, dtype: DType, cols: usize) -> Self {
        Self {
            numbers,
            seed: 2 * set as u64 + 1,
            dtype,
            cols,
        }
    }

    /// B, which is the same for all sets of its kind.
    pub fn b(numbers: Numbers, dtype: DType, cols: usize) -> Self {
        Self {
            numbers,
            seed: 0,
            dtype,
            cols,
        }
    }

    /// These rows, row-major, as f32 that the element type holds exactly.
    fn fill(&self, first: usize, out: &mut [f32]) {
        let key = mix(self.seed ^ (self.numbers as u64) << 63);
        for (i, value) in out.iter_mut().enumerate() {
            let bits = mix(key.wrapping_add((first + i) as u64));
            *value = match self.numbers {
                Numbers::Integers => ((bits >> 33) % 5) as f32 - 2.0,
                // 23 bits: exact in f32, rounded once below.
                Numbers::Reals => (bits >> 41) as f32 / (1u32 << 22) as f32 - 1.0,
            };
        }
    }

    /// The bytes of `rows`, row-major without gaps, made by all cores that this rank may use.
    pub fn bytes(&self, rows: Range<usize>, threads: usize) -> Vec<u8> {
        let size = self.dtype.size();
        let first = rows.start * self.cols;
        let mut bytes = vec![0; rows.len() * self.cols * size];
        let share = (rows.len() * self.cols)
            .div_ceil(threads.max(1))
            .max(1 << 16);
        std::thread::scope(|scope| {
            for (i, part) in bytes.chunks_mut(share * size).enumerate() {
                scope.spawn(move || self.encode(first + i * share, part));
            }
        });
        bytes
    }

    fn encode(&self, mut first: usize, out: &mut [u8]) {
        let size = self.dtype.size();
        let mut values = [0.0; 4096];
        for part in out.chunks_mut(values.len() * size) {
            let values = &mut values[..part.len() / size];
            self.fill(first, values);
            first += values.len();
            encode(self.dtype, values, part);
        }
    }
}

fn encode(dtype: DType, values: &[f32], out: &mut [u8]) {
    fn put<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
        for (value, out) in values.iter().zip(out.chunks_exact_mut(N)) {
            out.copy_from_slice(&bytes(*value));
        }
    }
    match dtype {
        DType::F16 => put(values, out, |v| f16::from_f32(v).to_ne_bytes()),
        DType::Bf16 => put(values, out, |v| bf16::from_f32(v).to_ne_bytes()),
        _ => put(values, out, f32::to_ne_bytes),
    }
}

/// One round of SplitMix64 (Steele, Lea and Flood 2014): neighbours become independent.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes(b.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn a_rank_makes_the_same_rows_as_any_other() {
        let source = Source::a(Numbers::Reals, 3, DType::F16, 77);
        let all = source.bytes(0..2000, 3);
        assert_eq!(all[500 * 77 * 2..1500 * 77 * 2], source.bytes(500..1500, 1));
    }

    #[test]
    fn integers_have_five_values_and_reals_fill_their_range() {
        let integers = floats(&Source::a(Numbers::Integers, 0, DType::F32, 64).bytes(0..64, 2));
        for wanted in -2..=2 {
            let count = integers.iter().filter(|&&v| v == wanted as f32).count();
            assert!((600..1050).contains(&count), "{wanted}: {count} of 4096");
        }
        let reals = floats(&Source::a(Numbers::Reals, 0, DType::F32, 64).bytes(0..64, 2));
        assert!(reals.iter().all(|v| (-1.0..1.0).contains(v)));
        let mean = reals.iter().sum::<f32>() / 4096.0;
        let square = reals.iter().map(|v| v * v).sum::<f32>() / 4096.0;
        assert!(
            mean.abs() < 0.05 && (square - 1.0 / 3.0).abs() < 0.03,
            "{mean} {square}"
        );
    }

    #[test]
    fn sets_differ_from_each_other_and_from_b() {
        let set = |set| Source::a(Numbers::Reals, set, DType::F32, 32).bytes(0..32, 1);
        let b = Source::b(Numbers::Reals, DType::F32, 32).bytes(0..32, 1);
        let (one, two) = (floats(&set(0)), floats(&set(1)));
        assert!(one.iter().zip(&two).filter(|(x, y)| x == y).count() < 4);
        assert_ne!(b, set(0));
    }
}
