//! Random numbers that follow from a seed.

pub use fastrand::Rng as Random;

/// A number that follows from another, and shows nothing of its neighbours'.
pub fn mixed(bits: u64) -> u64 {
    Random::with_seed(bits).u64(..)
}

pub trait Draw {
    /// True once in `times`.
    fn once_in(&mut self, times: usize) -> bool;

    fn of<T: Copy>(&mut self, all: &[T]) -> T;

    /// A number from 1 to `most`, small ones as often as large ones.
    fn size(&mut self, most: usize) -> usize;
}

impl Draw for Random {
    fn once_in(&mut self, times: usize) -> bool {
        self.usize(..times) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.usize(..all.len())]
    }

    fn size(&mut self, most: usize) -> usize {
        let bits = self.usize(..most.ilog2() as usize + 2);
        (1 + self.usize(..1 << bits)).min(most)
    }
}
