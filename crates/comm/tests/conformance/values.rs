//! The values that ranks give, and what a collective makes of them.

use std::ops::Range;

use warpweave_comm::collective::launch::PAYLOAD;
use warpweave_comm::collective::tree::{NOBODY, Neighbours};
use warpweave_comm::collective::{Operation, Variant};
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
        _ if case.variant == Variant::Tree && world > 1 => {
            let inputs: Vec<_> = (0..world).map(|source| of(source, 0..count)).collect();
            along_trees(case, limits, &inputs)
        }
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

/// Reductions in the order of the two trees, which carry runs of 32 units of 12 bytes in alternation.
fn along_trees(case: &Case, limits: &Limits, inputs: &[Vec<f32>]) -> Vec<f32> {
    let world = inputs.len();
    let roots = [0, 1].map(|tree| {
        let is_root = |&rank: &usize| Neighbours::of(tree, rank, world).parent == NOBODY;
        let root = (0..world).find(is_root).expect("a tree has a root");
        climbed(tree, root, inputs)
    });
    let size = case.dtype.size();
    let launch = limits.packet_bytes / PAYLOAD / (4 / size) * PAYLOAD / 192 * 192;
    (0..case.count)
        .map(|index| {
            let unit = index * size % launch / PAYLOAD;
            roots[unit / 32 % 2][index]
        })
        .collect()
}

fn climbed(tree: usize, rank: usize, inputs: &[Vec<f32>]) -> Vec<f32> {
    let mut sums = inputs[rank].clone();
    let children = Neighbours::of(tree, rank, inputs.len()).children;
    for child in children.into_iter().filter(|&child| child != NOBODY) {
        let below = climbed(tree, child as usize, inputs);
        for (sum, value) in sums.iter_mut().zip(below) {
            *sum += value;
        }
    }
    sums
}
