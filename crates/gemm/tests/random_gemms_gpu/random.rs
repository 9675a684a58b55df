//! Random numbers that follow from a seed.

/// SplitMix64 (Steele, Lea and Flood, 2014): its steps through all numbers, and what makes neighbours
/// independent.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

pub fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(mixed(seed ^ STEP))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(STEP);
        (mixed(self.0) % end as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A number from 1 to `most`, small ones as often as large ones.
    pub fn size(&mut self, most: usize) -> usize {
        let bits = self.below(most.ilog2() as usize + 2);
        (1 + self.below(1 << bits)).min(most)
    }
}
