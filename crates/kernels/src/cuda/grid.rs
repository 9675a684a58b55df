//! Grid sizes: at most the blocks that can be resident at once, at most the blocks that have work (invariant
//! 6).

use crate::shard;

/// Rows and columns of a tile of `naive_remote_read`: `kTileRows` and `kTileColumns`.
const NAIVE_TILE: (usize, usize) = (8, 64);
/// Bytes that a block of a gather moves per iteration, with two loads per thread. With more blocks than
/// iterations, tickets cost time; with fewer, the link's latency counts twice.
const GATHER_STEP: usize = 2 * 16 * super::GATHER_THREADS as usize;

/// The limits of one launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Blocks that are resident at once.
    pub resident: u32,
    /// SMs.
    pub sms: u32,
    /// The caller's limit.
    pub max_blocks: Option<u32>,
}

impl Limits {
    fn cap(&self, wanted: usize) -> u32 {
        let most = self
            .max_blocks
            .unwrap_or(u32::MAX)
            .min(self.resident)
            .max(1);
        u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, most)
    }
}

/// Blocks of `naive_remote_read`.
pub(super) fn naive_remote_read(m: usize, n: usize, world: usize, limits: Limits) -> u32 {
    let columns = n.div_ceil(NAIVE_TILE.1);
    limits.cap(lanes(m, world, |rows| {
        rows.div_ceil(NAIVE_TILE.0) * columns
    }))
}

/// Blocks of a gather with a GEMM, in chunks of `chunk` rows.
pub(super) fn gather_matmul(m: usize, world: usize, chunk: usize, limits: Limits) -> u32 {
    limits.cap(lanes(m, world, |rows| rows.div_ceil(chunk)))
}

/// Blocks of a gather without a GEMM: the same number for each of the `world` lanes, at most one per SM,
/// which is enough to fill the link.
pub(super) fn gather(m: usize, row_bytes: usize, world: usize, limits: Limits) -> u32 {
    let bytes = shard(m, 0, world).len() * row_bytes;
    let most = limits.cap(limits.sms as usize) as usize / world;
    (bytes.div_ceil(GATHER_STEP).clamp(1, most.max(1)) * world) as u32
}

/// Blocks of a local reduction: one for each block's share of `units`, of which a thread loads `each` at a
/// time.
pub(super) fn local_reduce(units: usize, each: usize, limits: Limits) -> u32 {
    limits.cap(units.div_ceil(super::REDUCE_THREADS as usize * each))
}

/// Work items of all lanes. A lane without any gets an empty one.
fn lanes(m: usize, world: usize, pieces: impl Fn(usize) -> usize) -> usize {
    (0..world)
        .map(|owner| pieces(shard(m, owner, world).len()).max(1))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Limits = Limits {
        resident: 264,
        sms: 132,
        max_blocks: None,
    };

    #[test]
    fn a_gather_has_the_same_number_of_blocks_for_each_lane() {
        assert_eq!(gather(1024, 2048, 4, H200), 128);
        assert_eq!(gather(16384, 16384, 4, H200), 132);
        assert_eq!(gather(16384, 16384, 8, H200), 128);
        assert_eq!(gather(0, 2048, 4, H200), 4);
        assert_eq!(
            gather(
                1024,
                2048,
                4,
                Limits {
                    max_blocks: Some(2),
                    ..H200
                }
            ),
            4
        );
    }

    #[test]
    fn grids_have_a_block_for_each_piece_of_work_up_to_the_limit() {
        assert_eq!(gather_matmul(1024, 4, 8, H200), 128);
        assert_eq!(gather_matmul(4 * 257, 4, 8, H200), 132);
        assert_eq!(gather_matmul(1 << 20, 4, 8, H200), 264);
        assert_eq!(gather_matmul(2, 4, 8, H200), 4);
        assert_eq!(naive_remote_read(10, 65, 1, H200), 4);
        assert_eq!(naive_remote_read(10, 0, 2, H200), 2);
        assert_eq!(
            naive_remote_read(
                1024,
                1024,
                4,
                Limits {
                    max_blocks: Some(3),
                    ..H200
                }
            ),
            3
        );
    }
}
