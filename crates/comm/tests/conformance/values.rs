//! The values that ranks give, and what a collective makes of them.

use std::ops::Range;

use warpweave_comm::collective::Operation;
use warpweave_symm_mem::DType;
use warpweave_symm_mem::host::{decode, encode};

use crate::case::{Case, Limits};

/// Elements `range` of the input of `rank` in the call of `seed`: numbers whose reductions have to be
/// rounded, some zeros of either sign, some tiny ones.
pub fn given(dtype: DType, seed: u64, rank: usize, range: Range<usize>) -> Vec<f32> {
    let start = (seed << 8 | rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = |index: usize| {
        let mixed = (start ^ index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let value = (mixed >> 40) as f32 / (1 << 22) as f32 - 2.0;
        match mixed & 63 {
            0 => -0.0,
            1 => 0.0,
            2 => value / (1 << 23) as f32,
            _ => value,
        }
    };
    decode(dtype, &encode(dtype, &range.map(value).collect::<Vec<_>>()))
}

/// What `rank` has afterwards, before it is rounded to the type.
pub fn result(case: &Case, limits: &Limits, seed: u64, rank: usize) -> Vec<f32> {
    let (world, count) = (limits.world, case.count);
    let of = |source: usize, range: Range<usize>| given(case.dtype, seed, source, range);
    let chunk = rank * count..(rank + 1) * count;
    match case.operation {
        Operation::AllGather => (0..world).flat_map(|source| of(source, 0..count)).collect(),
        Operation::AllToAll => (0..world).flat_map(|s| of(s, chunk.clone())).collect(),
        Operation::Broadcast => of(case.root, 0..count),
        Operation::ReduceScatter => summed((0..world).map(|s| of(s, chunk.clone())), count),
        _ => summed((0..world).map(|source| of(source, 0..count)), count),
    }
}

/// Reductions in the order of ranks.
fn summed(inputs: impl Iterator<Item = Vec<f32>>, count: usize) -> Vec<f32> {
    let mut sums = vec![-0.0f32; count];
    for input in inputs {
        for (sum, value) in sums.iter_mut().zip(&input) {
            *sum += value;
        }
    }
    sums
}
