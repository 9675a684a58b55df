//! When launches are expected to end whose tiles other ranks want: links work beside the tensor cores, and behind them.

use super::config::{LINK_RATE, blocks, cluster_tile};
use crate::cutlass::{self, Config};
use crate::reduction::Sums;
use crate::{GemmProblem, ReducingMatmul};

/// From the end of what is sent to its use: words and ways, seconds.
const KNOWN: f64 = 5e-6;
/// What a cluster takes longer to begin than a block, seconds.
const CLUSTER: f64 = 2.5e-6;
/// What it saves of a tile.
const SAVED: f64 = 0.02;

/// The tiles of a configuration, a wave at a time.
struct Waves {
    begin: f64,
    wave: f64,
    slots: u64,
}

impl Waves {
    fn new(config: &Config, problem: &GemmProblem, multiprocessors: u32) -> Self {
        let (multiply, store) = cutlass::tile_seconds(config, problem);
        let (begin, kept) = match blocks(config) {
            1 => (0.0, 1.0),
            _ => (CLUSTER, 1.0 - SAVED),
        };
        Self {
            begin,
            wave: kept * multiply + store,
            slots: cutlass::slots(config, multiprocessors),
        }
    }

    /// When so many tiles end.
    fn end(&self, tiles: u64) -> f64 {
        self.begin + tiles.div_ceil(self.slots) as f64 * self.wave
    }

    /// Of so many tiles those of the last wave.
    fn last(&self, tiles: u64) -> u64 {
        tiles.checked_sub(1).map_or(0, |before| before % self.slots + 1)
    }

    /// When the bytes of so many tiles have crossed a link: those of the last wave behind the product, or all behind the first wave.
    fn sent(&self, tiles: u64, bytes: f64) -> f64 {
        let last = self.last(tiles) as f64 / tiles.max(1) as f64;
        let behind = self.end(tiles) + last * bytes / LINK_RATE;
        behind.max(self.begin + self.wave + bytes / LINK_RATE)
    }
}

/// A product whose parts go to every rank, but for the sums behind it, seconds.
pub(super) fn one_shot(
    config: &Config,
    problem: &GemmProblem,
    world: usize,
    multiprocessors: u32,
) -> f64 {
    let waves = Waves::new(config, problem, multiprocessors);
    let part = problem.m * problem.n * problem.dtype.size();
    let bytes = world.saturating_sub(1) * part;
    waves.sent(cutlass::tiles(config, problem), bytes as f64)
}

/// A product whose parts go to the owners of their rows, and from there, where everyone gets the sums, to all, seconds.
pub(super) fn sums(config: &Config, product: &ReducingMatmul, multiprocessors: u32) -> f64 {
    let problem = &product.problem;
    let waves = Waves::new(config, problem, multiprocessors);
    // No tile of a cluster has rows of two shards.
    let tiles_of = |rank: usize| {
        let rows = product.shards[rank].len();
        let shard = GemmProblem {
            m: rows.next_multiple_of(cluster_tile(config)[0] as usize),
            ..*problem
        };
        match rows {
            0 => 0,
            _ => cutlass::tiles(config, &shard),
        }
    };
    let own = tiles_of(product.rank());
    let others: u64 = product.peers().map(tiles_of).sum();
    let rows: usize = product.peers().map(|peer| product.shards[peer].len()).sum();
    // As many of parts as of sums.
    let bytes = (rows * product.row_bytes()) as f64;
    let parts = waves.sent(others, bytes) + KNOWN;
    let summed = match own {
        0 => waves.end(others),
        _ => waves.end(own + others).max(parts),
    };
    match product.c {
        Sums::Everyone(_) => {
            // Own tiles are the last.
            let last = waves.last(own + others).min(own) as f64 / own.max(1) as f64;
            (summed + last * bytes / LINK_RATE).max(parts + bytes / LINK_RATE) + KNOWN
        }
        _ => summed,
    }
}
