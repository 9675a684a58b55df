//! The grid of a transfer: enough blocks to fill a link, never more than SMs, so that all are resident at
//! once (invariant 6).

/// Threads of a block of `transfer_sm`: `kCopyThreads`.
pub(super) const SM_THREADS: u32 = 512;
/// Threads of a block of `transfer_bulk`: `kBulkThreads`.
pub(super) const BULK_THREADS: u32 = 64;

/// Blocks that saturate an NVLink of Hopper: loads and stores reach 372 GB/s with 32 blocks and 343 with 8,
/// bulk copies 370 with 16 (measured between two of four H200s).
const SM_BLOCKS: u32 = 32;
const BULK_BLOCKS: u32 = 16;
/// Bytes for each block: two loads of 16 bytes a thread, or two chunks of the smallest size.
const SM_SHARE: usize = 2 * 16 * SM_THREADS as usize;
const BULK_SHARE: usize = 2 * SMALLEST_CHUNK;
/// Bytes of a stage of `transfer_bulk`.
const SMALLEST_CHUNK: usize = 4 << 10;
const LARGEST_CHUNK: usize = 16 << 10;
/// Most stages of `transfer_bulk`: `kStages`. With the largest chunks they fill most of shared memory.
const STAGES: usize = 12;
/// Bytes of shared memory of a block at most.
pub(super) const MOST_SHARED: u32 = (STAGES * LARGEST_CHUNK) as u32;

/// Shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub blocks: u32,
    /// Bytes of a stage.
    pub chunk: u32,
    pub stages: u32,
}

impl Shape {
    pub fn shared_bytes(&self) -> u32 {
        self.chunk * self.stages
    }
}

/// Limits of the device and the caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub sms: u32,
    pub max_blocks: Option<u32>,
}

impl Limits {
    fn blocks(&self, bytes: usize, share: usize, enough: u32) -> u32 {
        let most = self.max_blocks.unwrap_or(enough).min(self.sms).max(1);
        let wanted = u32::try_from(bytes.div_ceil(share)).unwrap_or(u32::MAX);
        wanted.clamp(1, most)
    }
}

/// By loads and stores.
pub(super) fn sm(bytes: usize, limits: Limits) -> Shape {
    Shape {
        blocks: limits.blocks(bytes, SM_SHARE, SM_BLOCKS),
        chunk: 0,
        stages: 0,
    }
}

/// By bulk copies: four chunks a block for small transfers, so that a block's loads and stores overlap.
pub(super) fn bulk(bytes: usize, limits: Limits) -> Shape {
    let blocks = limits.blocks(bytes, BULK_SHARE, BULK_BLOCKS);
    let share = bytes.div_ceil(blocks as usize);
    let chunk = share
        .div_ceil(4)
        .next_multiple_of(16)
        .clamp(SMALLEST_CHUNK, LARGEST_CHUNK);
    let each = bytes.div_ceil(chunk).div_ceil(blocks as usize);
    Shape {
        blocks,
        chunk: chunk as u32,
        stages: each.clamp(1, STAGES) as u32,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const H200: Limits = Limits {
        sms: 132,
        max_blocks: None,
    };

    #[test]
    fn small_transfers_take_few_blocks_and_large_ones_what_fills_a_link() {
        assert_eq!(
            [0, 1, 16384, 16385].map(|b| sm(b, H200).blocks),
            [1, 1, 1, 2]
        );
        assert_eq!(sm(1 << 30, H200).blocks, 32);
        let few = Limits {
            max_blocks: Some(3),
            ..H200
        };
        let many = Limits {
            max_blocks: Some(4096),
            ..H200
        };
        assert_eq!([few, many].map(|l| sm(1 << 30, l).blocks), [3, 132]);
        assert_eq!([few, many].map(|l| bulk(1 << 30, l).blocks), [3, 132]);
    }

    #[test]
    fn rings_fit_the_transfer_and_the_shared_memory() {
        for bytes in (0..28).map(|i| (1 << i) + i) {
            let shape = bulk(bytes, H200);
            let each = bytes
                .div_ceil(shape.chunk as usize)
                .div_ceil(shape.blocks as usize);
            assert!(shape.chunk.is_multiple_of(16), "{bytes}: {shape:?}");
            assert!((1..=STAGES as u32).contains(&shape.stages), "{shape:?}");
            assert!(shape.shared_bytes() <= MOST_SHARED && MOST_SHARED <= 220 << 10);
            // As `bulk_ring.cuh` asks: a stage for each chunk, or more than four that stores may hold.
            assert!(
                shape.stages as usize >= each || shape.stages > 4,
                "{shape:?}"
            );
        }
        let large = bulk(256 << 20, H200);
        assert_eq!(
            (large.blocks, large.chunk, large.stages),
            (16, 16 << 10, 12)
        );
    }
}
