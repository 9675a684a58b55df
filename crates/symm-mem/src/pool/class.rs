//! Size classes: which requests share blocks, and how blocks lie in a chunk.

/// The smallest block, and the minimum alignment of every block.
pub const SMALLEST_BLOCK: usize = 512;

/// The smallest chunk of small blocks.
const SMALLEST_CHUNK: usize = 2 << 20;

/// The block and chunk sizes that serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    /// Bytes of a block.
    pub block: usize,
    /// Blocks in a chunk.
    pub blocks: usize,
}

impl Class {
    /// The class of requests of `bytes`; none if they exceed the address space. Below the size of a chunk,
    /// blocks are powers of two. From there on, each block is a chunk of its own, and sizes are a quarter of
    /// a power of two apart.
    pub fn of(bytes: usize, granularity: usize) -> Option<Class> {
        let chunk = SMALLEST_CHUNK.max(granularity.next_power_of_two());
        let bytes = bytes.max(SMALLEST_BLOCK);
        if bytes < chunk {
            let block = bytes.next_power_of_two();
            return Some(Class {
                block,
                blocks: chunk / block,
            });
        }
        let below = 1usize << bytes.ilog2();
        let block = bytes.checked_next_multiple_of(below / 4)?;
        Some(Class {
            block: block.checked_next_multiple_of(granularity)?,
            blocks: 1,
        })
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> usize {
        self.block * self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_its_requests_and_wastes_little() {
        for granularity in [4096, 2 << 20, 512 << 20] {
            let sizes = (0..40).flat_map(|p| [(1usize << p) - 1, 1 << p, (1 << p) + 1, 3 << p]);
            for bytes in sizes {
                let class = Class::of(bytes, granularity).unwrap();
                assert!(class.block >= bytes, "{bytes} in {class:?}");
                assert_eq!(
                    Class::of(class.block, granularity),
                    Some(class),
                    "a fixed point"
                );
                let chunk = SMALLEST_CHUNK.max(granularity);
                let limit = if bytes < chunk {
                    2 * bytes.max(512)
                } else {
                    bytes + bytes / 4 + granularity
                };
                assert!(class.block <= limit, "{bytes} in {class:?}");
                assert!(class.chunk() >= chunk && class.chunk().is_multiple_of(granularity));
                assert!(class.block.is_multiple_of(SMALLEST_BLOCK));
            }
        }
    }

    #[test]
    fn a_request_beyond_the_address_space_has_no_class() {
        assert_eq!(Class::of(usize::MAX, 2 << 20), None);
        assert_eq!(Class::of(usize::MAX - 5000, 4096), None);
    }
}
