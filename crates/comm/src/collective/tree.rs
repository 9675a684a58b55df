//! All-reduce along two binary trees: the shape of the trees, and the launches of a call. `cuda/tree.cu`
//! describes the protocol.
//!
//! Ranks take places 1 to `world` of a binary search tree. The height of a place is its number of trailing
//! zero bits, so every odd place is a leaf. The second tree shifts the ranks by one place: an inner node of
//! one tree is a leaf of the other. The depth of both is the number of bits of `world`, minus one.

use warpweave_symm_mem::Result;

use super::Collectives;
use super::backend::{CollectiveKernels, Kernel};
use super::call::SignedCall;
use super::enqueue::PACKET_THREADS;
use super::launch::{PAYLOAD, Packets, Tree};

/// No rank: `kNone`.
pub const NOBODY: u32 = u32::MAX;

/// A rank's neighbours in one of the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// The rank that takes this rank's partial results and returns the result; [`NOBODY`] for the root.
    pub parent: u32,
    /// The ranks whose partial results this rank adds to its own, in this order; [`NOBODY`] if there is none.
    pub children: [u32; 2],
}

impl Neighbours {
    /// The neighbours of `rank` in tree 0 or 1.
    pub fn of(tree: usize, rank: usize, world: usize) -> Self {
        let rank_at = |place: usize| ((place - 1 + tree) % world) as u32;
        let place = (rank + world - tree) % world + 1;
        let mut children = (1..=world)
            .filter(|&child| parent(child, world) == Some(place))
            .map(rank_at);
        Neighbours {
            parent: parent(place, world).map_or(NOBODY, rank_at),
            children: [(); 2].map(|()| children.next().unwrap_or(NOBODY)),
        }
    }
}

/// The parent of `place`, unless it is the root.
fn parent(place: usize, world: usize) -> Option<usize> {
    let step = place & place.wrapping_neg();
    let (below, above) = (place - step, place + step);
    // One of the two is one level up, the other further. The further one is the parent if the first is past
    // the end.
    let next = if below & step << 1 == 0 { above } else { below };
    let parent = if next <= world { next } else { below };
    (parent != 0).then_some(parent)
}

/// Most bytes that one launch can reduce, with sections of `capacity` packets: a multiple of all vectors.
fn piece(capacity: usize, element: usize) -> usize {
    // Partial results take a packet for each element of a word.
    const VECTORS: usize = 16 * PAYLOAD;
    capacity / (4 / element) * PAYLOAD / VECTORS * VECTORS
}

impl<B: CollectiveKernels> Collectives<B> {
    /// One launch for as much as the packets' sections hold; launches may follow each other as calls do.
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub(super) unsafe fn by_tree(&self, stream: &B::Stream, call: &SignedCall) -> Result<()> {
        let (input, output) = (call.input.address(), call.output.address());
        let aligned = (input.0 | output.0).is_multiple_of(4);
        let trees = [0, 1].map(|tree| Neighbours::of(tree, self.rank, self.world));
        let piece = piece(self.capacity, call.dtype.size());
        for start in (0..call.bytes()).step_by(piece) {
            let bytes = (call.bytes() - start).min(piece);
            let launch = Tree {
                packets: Packets {
                    input: input.add(start),
                    output: output.add(start),
                    bytes: bytes as u64,
                    total: bytes as u64,
                    aligned: u32::from(aligned),
                    ..self.packets(call.signature)
                },
                parent: trees.map(|tree| tree.parent),
                children: trees.map(|tree| tree.children),
            };
            let blocks = bytes.div_ceil(PAYLOAD).div_ceil(PACKET_THREADS) as u32;
            let blocks = blocks.clamp(1, self.blocks);
            // SAFETY: the caller's obligations.
            unsafe {
                self.backend
                    .launch_collective(stream, Kernel::Tree(call.dtype, &launch), blocks)?
            };
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn depth(tree: usize, rank: usize, world: usize) -> usize {
        let (mut at, mut steps) = (rank, 0);
        while Neighbours::of(tree, at, world).parent != NOBODY {
            at = Neighbours::of(tree, at, world).parent as usize;
            steps += 1;
            assert!(steps < world, "rank {rank} of {world} goes round");
        }
        steps
    }

    #[test]
    fn every_rank_is_once_in_each_tree_and_no_deeper_than_it_must_be() {
        for world in 1..=64 {
            for tree in [0, 1] {
                let all: Vec<_> = (0..world)
                    .map(|rank| Neighbours::of(tree, rank, world))
                    .collect();
                let roots = all.iter().filter(|node| node.parent == NOBODY).count();
                assert_eq!(roots, 1, "{world}");
                for (rank, node) in all.iter().enumerate() {
                    assert!(depth(tree, rank, world) <= world.ilog2() as usize);
                    for child in node.children.into_iter().filter(|&child| child != NOBODY) {
                        assert_eq!(all[child as usize].parent, rank as u32, "{world}");
                    }
                }
                let children = all.iter().flat_map(|node| node.children);
                assert_eq!(children.filter(|&child| child != NOBODY).count(), world - 1);
            }
        }
    }

    #[test]
    fn nobody_passes_sums_on_in_both_trees() {
        for world in 2..=64 {
            for rank in 0..world {
                let inner = |tree| Neighbours::of(tree, rank, world).children != [NOBODY; 2];
                assert!(!(inner(0) && inner(1)), "rank {rank} of {world}");
            }
        }
    }

    #[test]
    fn four_ranks() {
        let tree = |parent, left, right| Neighbours {
            parent,
            children: [left, right],
        };
        let first = [0, 1, 2, 3].map(|rank| Neighbours::of(0, rank, 4));
        assert_eq!(
            first,
            [
                tree(1, NOBODY, NOBODY),
                tree(3, 0, 2),
                tree(1, NOBODY, NOBODY),
                tree(NOBODY, 1, NOBODY),
            ]
        );
        let second = [1, 2, 3, 0].map(|rank| Neighbours::of(1, rank, 4));
        assert_eq!(second[3], tree(NOBODY, 2, NOBODY));
        assert_eq!(second[1], tree(0, 1, 3));
    }

    #[test]
    fn a_piece_fits_in_its_section() {
        for capacity in (64..4096).step_by(64) {
            assert!(piece(capacity, 4).div_ceil(PAYLOAD) <= capacity);
            assert!(2 * piece(capacity, 2).div_ceil(PAYLOAD) <= capacity);
            assert!(piece(capacity, 2) >= 192);
            assert!(piece(capacity, 2).is_multiple_of(16) && piece(capacity, 4).is_multiple_of(16));
        }
    }
}
