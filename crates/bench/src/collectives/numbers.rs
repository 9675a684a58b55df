//! The inputs of collectives: integers so small that every reduction over the ranks is exact in every type.

use warpweave_symm_mem::DType;

use crate::inputs::{mix, on_threads, share};
use warpweave_symm_mem::host::encode;

/// Values from one hash.
const LANES: usize = 8;

/// The elements that one rank brings in one input set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    key: u64,
    shift: u32,
}

impl Input {
    /// Those of `rank` in input set `set`: from −128 to 127 for one or two ranks, half of that for up to
    /// four, and so on, so that sums stay within 256 and are exact in bf16.
    pub fn new(rank: usize, set: usize, world: usize) -> Self {
        let shift = world.next_power_of_two().ilog2().saturating_sub(1).min(6);
        Self {
            key: mix((set as u64) << 32 | (rank as u64 + 1)),
            shift,
        }
    }

    /// Adds the elements from `first` on to `sums`.
    pub fn add(&self, first: usize, sums: &mut [f32]) {
        let add = |sums: &mut [f32], word: usize, skip: usize| {
            let lanes = mix(self.key.wrapping_add(word as u64)).to_le_bytes();
            for (sum, lane) in sums.iter_mut().zip(&lanes[skip..]) {
                *sum += f32::from(*lane as i8 >> self.shift);
            }
        };
        let head = first.next_multiple_of(LANES) - first;
        let (head, rest) = sums.split_at_mut(head.min(sums.len()));
        add(head, first / LANES, first % LANES);
        for (sums, word) in rest.chunks_mut(LANES).zip(first.div_ceil(LANES)..) {
            add(sums, word, 0);
        }
    }

    /// The first `count` elements in the element type, made on `threads` threads.
    pub fn bytes(&self, dtype: DType, count: usize, threads: usize) -> Vec<u8> {
        let size = dtype.size();
        let mut bytes = vec![0; count * size];
        let share = share(count, threads, 1 << 16);
        on_threads(bytes.chunks_mut(share * size).enumerate(), |(i, part)| {
            let mut values = [0.0; BLOCK];
            for (j, out) in part.chunks_mut(BLOCK * size).enumerate() {
                let values = &mut values[..out.len() / size];
                values.fill(0.0);
                self.add(i * share + j * BLOCK, values);
                out.copy_from_slice(&encode(dtype, values));
            }
        });
        bytes
    }
}

/// Elements that are made at once.
pub(super) const BLOCK: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::host::decode;

    #[test]
    fn elements_do_not_depend_on_where_one_begins() {
        let input = Input::new(2, 1, 4);
        let mut all = vec![0.0; 100];
        input.add(0, &mut all);
        for (first, count) in [(0, 8), (3, 2), (5, 30), (8, 92), (99, 1), (7, 0)] {
            let mut some = vec![0.0; count];
            input.add(first, &mut some);
            assert_eq!(some, all[first..first + count], "{first} {count}");
        }
        let bytes = input.bytes(DType::F32, 100, 3);
        assert_eq!(decode(DType::F32, &bytes), all);
    }

    #[test]
    fn sums_over_all_ranks_are_exact_in_every_type() {
        for world in 1..=8 {
            let mut sums = vec![0.0; 10_000];
            let mut largest = 0.0f32;
            for rank in 0..world {
                let mut own = vec![0.0; sums.len()];
                Input::new(rank, 0, world).add(0, &mut own);
                largest = own.iter().copied().fold(largest, f32::max);
                sums.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            }
            assert!(
                largest >= 15.0,
                "{world}: values too much alike, up to {largest}"
            );
            assert!(sums.iter().all(|sum| sum.abs() <= 256.0), "{world}");
        }
        // Every integer within 256 survives each type.
        let values: Vec<_> = (-256..=256).map(|value| value as f32).collect();
        for dtype in [DType::F16, DType::Bf16] {
            assert_eq!(decode(dtype, &encode(dtype, &values)), values, "{dtype}");
        }
    }

    #[test]
    fn sets_and_ranks_differ() {
        let of = |rank, set| Input::new(rank, set, 4).bytes(DType::Bf16, 4000, 1);
        for other in [of(0, 1), of(1, 0), of(3, 2)] {
            let first = of(0, 0);
            let pairs = first.chunks(2).zip(other.chunks(2));
            let equal = pairs.filter(|(a, b)| a == b).count();
            assert!(equal < 80, "{equal} of 4000 are equal");
        }
    }
}
