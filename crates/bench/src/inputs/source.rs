//! The elements of one matrix.

use warpweave_symm_mem::DType;

use super::{Numbers, on_threads, rows_of, share};
use warpweave_overlap::operation::Operand;
use warpweave_symm_mem::host::{encode, rounded};

/// The fewest elements that a thread makes.
const LEAST_SHARE: usize = 1 << 16;

/// One matrix of one input set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// What kind of numbers.
    pub numbers: Numbers,
    /// Seed of the elements: matrices and sets have different ones.
    pub seed: u64,
    /// Element type.
    pub dtype: DType,
    /// Whether the elements are scales.
    pub is_scale: bool,
    /// Columns of the matrix.
    pub cols: usize,
    /// Of this many adjacent columns all but one, chosen at random for each row, are 0.
    pub stride: usize,
}

impl Source {
    /// The element at a place, as f32; rounded to the element type it is what goes in.
    fn element(&self, key: u64, row: usize, col: usize) -> f32 {
        if self.stride > 1 {
            let block = row * self.cols.div_ceil(self.stride) + col / self.stride;
            let chosen = mix(!key ^ block as u64) % self.stride as u64;
            if chosen != (col % self.stride) as u64 {
                return 0.0;
            }
        }
        let bits = mix(key.wrapping_add((row * self.cols + col) as u64));
        match self.numbers {
            Numbers::Integers if self.is_scale => ((bits >> 33) % 2 + 1) as f32 / 2.0,
            Numbers::Reals if self.is_scale => 0.5 + (bits >> 41) as f32 / (1u32 << 24) as f32,
            Numbers::Integers => ((bits >> 33) % 5) as f32 - 2.0,
            // 23 bits: exact in f32, rounded once when it is stored.
            Numbers::Reals => (bits >> 41) as f32 / (1u32 << 22) as f32 - 1.0,
        }
    }

    fn key(&self) -> u64 {
        mix(self.seed ^ (self.numbers as u64) << 63)
    }

    /// The elements of `row` at `cols`, as the element type holds them.
    pub fn row(&self, row: usize, cols: std::ops::Range<usize>) -> Vec<f32> {
        let key = self.key();
        cols.map(|col| rounded(self.dtype, self.element(key, row, col)))
            .collect()
    }

    /// The elements of `part` as stored, without gaps, made by `threads` threads.
    pub fn values(&self, part: &Operand, threads: usize) -> Vec<f32> {
        let round = |values: &[f32], out: &mut [f32]| {
            let each = out.iter_mut().zip(values);
            each.for_each(|(out, &value)| *out = rounded(self.dtype, value));
        };
        self.make(part, threads, 1, round)
    }

    /// The same as bytes of the element type.
    pub fn bytes(&self, part: &Operand, threads: usize) -> Vec<u8> {
        let size = self.dtype.size();
        self.make(part, threads, size, |values, out| {
            out.copy_from_slice(&encode(self.dtype, values))
        })
    }

    /// What `put` makes of each line of the buffer, `size` items an element.
    fn make<T: Clone + Default + Send>(
        &self,
        part: &Operand,
        threads: usize,
        size: usize,
        put: impl Fn(&[f32], &mut [T]) + Sync,
    ) -> Vec<T> {
        let (lines, length) = part.stored();
        let mut all = vec![T::default(); lines * length * size];
        if all.is_empty() {
            return all;
        }
        let (rows, key, first) = (rows_of(part), self.key(), part.cols.start);
        let element = |line: usize, i: usize| match part.transposed {
            false => self.element(key, rows[line], first + i),
            true => self.element(key, rows[i], first + line),
        };
        let share = share(lines, threads, LEAST_SHARE.div_ceil(length));
        on_threads(
            all.chunks_mut(share * length * size).enumerate(),
            |(i, lines)| {
                let mut values = vec![0.0; length];
                for (line, out) in (i * share..).zip(lines.chunks_mut(length * size)) {
                    let each = values.iter_mut().enumerate();
                    each.for_each(|(i, value)| *value = element(line, i));
                    put(&values, out);
                }
            },
        );
        all
    }
}

/// One round of SplitMix64 (Steele, Lea and Flood 2014): neighbours become independent.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
