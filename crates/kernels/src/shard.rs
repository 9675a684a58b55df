//! Which rows of a row-sharded matrix belong to which rank.

use std::ops::Range;

/// The rows of `total` that `rank` of `world` owns: as even as can be, the first `total % world` ranks have
/// one more.
///
/// With a `world` of 0 nobody has any. `gather.cuh` has the same rule for the device.
///
/// ```
/// use warpweave_kernels::shard;
/// assert_eq!(shard(10, 0, 4), 0..3);
/// assert_eq!(shard(10, 3, 4), 8..10);
/// ```
pub fn shard(total: usize, rank: usize, world: usize) -> Range<usize> {
    if world == 0 {
        return 0..0;
    }
    let (each, extra) = (total / world, total % world);
    let start = |rank: usize| rank * each + rank.min(extra);
    start(rank)..start(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::shard;

    #[test]
    fn shards_cover_all_rows_once_and_evenly() {
        for world in 1..=9 {
            for total in 0..40 {
                let shards: Vec<_> = (0..world).map(|rank| shard(total, rank, world)).collect();
                assert_eq!(shards[0].start, 0);
                assert_eq!(shards[world - 1].end, total);
                for pair in shards.windows(2) {
                    assert_eq!(pair[0].end, pair[1].start);
                    assert!(pair[0].len() - pair[1].len() <= 1);
                }
            }
        }
    }
}
