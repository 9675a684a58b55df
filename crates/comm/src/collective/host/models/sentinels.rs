//! Data without flags: calls back to back.

use super::{Memory, Rank, explore, value};
use crate::collective::host::group::Member;
use crate::collective::host::packets::Operands;
use crate::collective::host::sentinel::Call;

/// Calls back to back, of one element each or of one for each rank in turn, each with other values; the
/// results are compared.
fn back_to_back(place: &Rank, calls: &[usize]) {
    let (rank, world) = (place.rank(), place.world());
    for (call, &count) in (1..).zip(calls) {
        let of = |rank: usize, i: usize| value(rank + i, call) as f32;
        let input: Vec<f32> = (0..count).map(|i| of(rank, i)).collect();
        let mut output = vec![0.0f32; count];
        let operands = Operands {
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            bytes: (4 * count).div_ceil(world).next_multiple_of(16),
            total: 4 * count,
            root: 0,
        };
        // SAFETY: both operands have these elements.
        unsafe { Call::begin(place, call, &operands).all_reduce::<f32>() };
        let sum = |i| (0..world).map(|rank| of(rank, i)).sum::<f32>();
        let wanted: Vec<f32> = (0..count).map(sum).collect();
        assert_eq!(output, wanted, "vectors of another call");
    }
}

#[test]
fn loom_vectors_of_calls_back_to_back_stay_apart() {
    explore(
        1,
        || Memory::of_sentinels(2, 3, 2),
        |place| back_to_back(place, &[1; 5]),
    );
}

/// What one call used is zeroed, whether the next uses more or less.
#[test]
fn loom_calls_of_other_sizes_zero_what_each_other_used() {
    let calls = [1, 8, 1, 8, 8];
    explore(
        0,
        || Memory::of_sentinels(2, 3, 2),
        move |place| back_to_back(place, &calls),
    );
}

/// With two generations a rank zeroes what its peer may be writing for the call after.
#[test]
#[should_panic(expected = "vector")]
fn loom_with_two_generations_a_vector_is_lost() {
    explore(
        2,
        || Memory::of_sentinels(2, 2, 2),
        |place| back_to_back(place, &[1; 3]),
    );
}

/// With one, it zeroes what it is about to receive.
#[test]
#[should_panic(expected = "vector")]
fn loom_with_one_generation_a_vector_is_lost() {
    explore(
        1,
        || Memory::of_sentinels(2, 1, 2),
        |place| back_to_back(place, &[1; 2]),
    );
}
