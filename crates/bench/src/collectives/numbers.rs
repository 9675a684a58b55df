//! The numbers that go in: integers so small that every sum over the ranks is exact in every type.

use half::f16;
use warpweave_symm_mem::DType;

use crate::inputs::mix;

/// Values from one hash.
const LANES: usize = 8;

/// The elements that one rank brings in one input set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    key: u64,
    shift: u32,
}

impl Stream {
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
    pub fn add(&self, first: usize, sums: &mut [i32]) {
        let lanes = |word: usize| mix(self.key.wrapping_add(word as u64)).to_le_bytes();
        let value = |lane: u8| i32::from(lane as i8 >> self.shift);
        let (mut word, skip) = (first / LANES, first % LANES);
        let head = if skip > 0 {
            (LANES - skip).min(sums.len())
        } else {
            0
        };
        let (head, rest) = sums.split_at_mut(head);
        if !head.is_empty() {
            let lanes = lanes(word);
            head.iter_mut()
                .zip(&lanes[skip..])
                .for_each(|(sum, &lane)| *sum += value(lane));
            word += 1;
        }
        for sums in rest.chunks_mut(LANES) {
            let lanes = lanes(word);
            sums.iter_mut()
                .zip(lanes)
                .for_each(|(sum, lane)| *sum += value(lane));
            word += 1;
        }
    }

    /// The first `count` elements in the element type, made on `threads` threads.
    pub fn bytes(&self, dtype: DType, count: usize, threads: usize) -> Vec<u8> {
        let size = dtype.size();
        let mut bytes = vec![0; count * size];
        let share = count.div_ceil(threads.max(1)).max(1 << 16);
        std::thread::scope(|scope| {
            for (i, part) in bytes.chunks_mut(share * size).enumerate() {
                scope.spawn(move || {
                    let mut sums = [0; BLOCK];
                    for (j, out) in part.chunks_mut(BLOCK * size).enumerate() {
                        let sums = &mut sums[..out.len() / size];
                        sums.fill(0);
                        self.add(i * share + j * BLOCK, sums);
                        encode(dtype, sums, out);
                    }
                });
            }
        });
        bytes
    }
}

/// Elements that are made at once.
pub(super) const BLOCK: usize = 4096;

/// Integers within ±256 in the element type.
pub(super) fn encode(dtype: DType, values: &[i32], out: &mut [u8]) {
    fn put<const N: usize>(values: &[i32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
        for (&value, out) in values.iter().zip(out.chunks_exact_mut(N)) {
            out.copy_from_slice(&bytes(value as f32));
        }
    }
    match dtype {
        DType::F16 => put(values, out, |v| f16::from_f32(v).to_ne_bytes()),
        // Eight bits of mantissa hold them: what is cut off is zero.
        DType::Bf16 => put(values, out, |v| ((v.to_bits() >> 16) as u16).to_ne_bytes()),
        DType::F32 => put(values, out, f32::to_ne_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_do_not_depend_on_where_one_begins() {
        let stream = Stream::new(2, 1, 4);
        let mut all = vec![0; 100];
        stream.add(0, &mut all);
        for (first, count) in [(0, 8), (3, 2), (5, 30), (8, 92), (99, 1), (7, 0)] {
            let mut some = vec![0; count];
            stream.add(first, &mut some);
            assert_eq!(some, all[first..first + count], "{first} {count}");
        }
        let bytes = stream.bytes(DType::F32, 100, 3);
        let floats = bytes
            .chunks_exact(4)
            .map(|b| f32::from_ne_bytes(b.try_into().unwrap()));
        assert!(
            floats
                .zip(&all)
                .all(|(float, &value)| float == value as f32)
        );
    }

    #[test]
    fn sums_over_all_ranks_are_exact_in_every_type() {
        for world in 1..=8 {
            let mut sums = vec![0; 10_000];
            let mut largest = 0;
            for rank in 0..world {
                let mut own = vec![0; sums.len()];
                Stream::new(rank, 0, world).add(0, &mut own);
                largest = largest.max(*own.iter().max().unwrap());
                sums.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
            }
            assert!(
                largest >= 15,
                "{world}: values too much alike, up to {largest}"
            );
            assert!(sums.iter().all(|sum| sum.abs() <= 256), "{world}");
        }
        // Every integer within 256 survives each type.
        let values: Vec<_> = (-256..=256).collect();
        for dtype in [DType::F16, DType::Bf16] {
            let mut out = vec![0; values.len() * 2];
            encode(dtype, &values, &mut out);
            for (bits, value) in out.chunks_exact(2).zip(&values) {
                let bits = u16::from_ne_bytes(bits.try_into().unwrap());
                let back = match dtype {
                    DType::F16 => f16::from_bits(bits).to_f32(),
                    DType::Bf16 => half::bf16::from_bits(bits).to_f32(),
                    DType::F32 => unreachable!("of two bytes"),
                };
                assert_eq!(back, *value as f32, "{dtype}");
            }
        }
    }

    #[test]
    fn sets_and_ranks_differ() {
        let of = |rank, set| Stream::new(rank, set, 4).bytes(DType::Bf16, 4000, 1);
        for other in [of(0, 1), of(1, 0), of(3, 2)] {
            let equal = of(0, 0)
                .chunks(2)
                .zip(other.chunks(2))
                .filter(|(a, b)| a == b)
                .count();
            assert!(equal < 80, "{equal} of 4000 are equal");
        }
    }
}
