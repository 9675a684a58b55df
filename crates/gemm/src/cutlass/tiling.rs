//! What can be chosen: a compiled kernel and its run-time arguments.

use std::fmt;

use crate::GemmProblem;

/// A compiled kernel shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Unique name: family, tile (M×N×K) and cluster (M×N).
    pub name: &'static str,
    /// Rows, columns and depth of the tile of one thread block.
    pub tile: [u32; 3],
    /// Thread blocks of a cluster along M and N.
    pub cluster: [u32; 2],
    /// Two warp groups share a tile; otherwise each has its own, one in its epilogue while the other
    /// multiplies.
    pub cooperative: bool,
    /// Tiles of the last wave are split along K and reduced in a fixed order.
    pub stream_k: bool,
}

impl Config {
    /// Whether the kernel gives the bits that the problem asks for: which tiles stream-K splits depends on m,
    /// so it is not batch-invariant.
    pub fn serves(&self, problem: &GemmProblem) -> bool {
        !(problem.batch_invariant && self.stream_k)
    }
}

/// The order in which the persistent thread blocks tile schedule over the tiles of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Raster {
    /// CUTLASS chooses by the shape of C.
    Heuristic,
    /// Down the columns of tiles first.
    AlongM,
    /// Along the rows of tiles first.
    AlongN,
}

/// A configuration, by its index in the library's table, with its run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Index into [`configs`](super::configs).
    pub config: usize,
    /// Order of the tiles.
    pub raster: Raster,
    /// Width in tiles of the groups in which the tile schedule proceeds, for L2 reuse: at most 1, 2, 4 or 8.
    pub swizzle: u32,
}

impl fmt::Display for Raster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Raster::Heuristic => "auto",
            Raster::AlongM => "m",
            Raster::AlongN => "n",
        })
    }
}
