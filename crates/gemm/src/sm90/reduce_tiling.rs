//! The choice of a tile where other ranks need the results: the links work during the GEMM, and after it.
//!
//! The constants were fitted to two H200s and hold on four.

use super::config::{CONFIGS, LINK_RATE, UNCLUSTERED, square_swizzle};
use crate::Tiling;
use crate::cutlass::{self, Config};
use crate::matmul_reduce::ReduceOutput;
use crate::{GemmProblem, MatmulReduce};

/// Latency from the last store to the consumer seeing it: one flag and one link crossing, in seconds.
const KNOWN: f64 = 5e-6;
/// What an SM reads and writes during a reduction, bytes/s.
const REDUCE_RATE: f64 = 40e9;
/// What own tiles lose in each wave that also computes the partials for which they wait, seconds.
const STALL: f64 = 3e-6;

/// The tiles of a configuration, a wave at a time.
struct Waves {
    wave: f64,
    slots: u64,
}

impl Waves {
    fn new(config: &Config, problem: &GemmProblem, sms: u32) -> Self {
        let (multiply, store) = cutlass::tile_seconds(config, problem);
        Self {
            wave: multiply + store,
            slots: cutlass::slots(config, sms),
        }
    }

    fn count(&self, tiles: u64) -> f64 {
        tiles.div_ceil(self.slots) as f64
    }

    /// When so many tiles end.
    fn end(&self, tiles: u64) -> f64 {
        self.count(tiles) * self.wave
    }

    /// Of so many tiles those of the last wave.
    fn last(&self, tiles: u64) -> u64 {
        tiles
            .checked_sub(1)
            .map_or(0, |before| before % self.slots + 1)
    }

    /// When the output of so many tiles has crossed a link, which takes `seconds` in all, if `together` tiles
    /// share a flag: either the last of them after the GEMM, or all after the first.
    fn sent(&self, (tiles, together): (u64, u64), seconds: f64) -> f64 {
        let last = self.last(tiles).max(together.min(tiles));
        let after = self.end(tiles) + last as f64 / tiles.max(1) as f64 * seconds;
        after.max(self.end(together.min(tiles)) + seconds)
    }
}

/// The tile, and its order, for a GEMM between `world` ranks whose partials go to all of them.
pub(super) fn to_all(problem: &GemmProblem, world: usize, sms: u32) -> Tiling {
    let partial = (problem.m * problem.n) as f64 * problem.out.size() as f64;
    let config = fastest(|config| {
        let waves = Waves::new(config, problem, sms);
        let tiles = cutlass::tiles(config, problem);
        let link = world.saturating_sub(1) as f64 * partial / rate(config, true);
        // Blocks reduce what they have multiplied.
        let blocks = tiles.clamp(1, waves.slots) as f64;
        let reducing = (world + 1) as f64 * partial / (blocks * REDUCE_RATE);
        waves.sent((tiles, 1), link) + reducing
    });
    Tiling {
        config,
        swizzle: square_swizzle(&CONFIGS[config], sms),
    }
}

/// The tile for a GEMM whose partials go to the owners of their rows, and the results from there, where
/// everyone gets them, to all: an index into [`CONFIGS`].
pub(super) fn to_owners(gemm: &MatmulReduce, sms: u32) -> usize {
    fastest(|config| reduction_seconds(config, gemm, sms))
}

fn fastest(seconds: impl Fn(&Config) -> f64) -> usize {
    let seconds = |&index: &usize| seconds(&CONFIGS[index]);
    let order = |a: &usize, b: &usize| seconds(a).total_cmp(&seconds(b));
    UNCLUSTERED
        .into_iter()
        .min_by(order)
        .unwrap_or(UNCLUSTERED[0])
}

/// What a link gives during a tile, bytes/s: narrow ones read more of L2. Where links bound results that
/// only owners get, 8192×8192×2048 over two ranks takes 255 µs with the widest tile and 283 and 381 with the
/// others, and where everyone gets them, 444, 466 and 527.
fn rate(config: &Config, everyone: bool) -> f64 {
    let kept = match config.tile[1] {
        ..128 => 0.8,
        128 if !everyone => 0.95,
        _ => 1.0,
    };
    kept * LINK_RATE
}

/// When the whole reduction is done, seconds.
fn reduction_seconds(config: &Config, gemm: &MatmulReduce, sms: u32) -> f64 {
    let problem = &gemm.problem;
    let waves = Waves::new(config, problem, sms);
    let [height, width, _] = config.tile.map(|side| side as usize);
    // No tile has rows of two shards.
    let tiles = |rows: usize| (rows.div_ceil(height) * problem.n.div_ceil(width)) as u64;
    let peers = || gemm.peers().map(|peer| gemm.shards[peer].len());
    let own = tiles(gemm.shards[gemm.rank].len());
    let others: u64 = peers().map(tiles).sum();
    let round: u64 = peers().map(|rows| tiles(rows.min(gemm.group_rows))).sum();
    let group = tiles(gemm.group_rows.min(gemm.most_rows()));
    let everyone = gemm.c == ReduceOutput::Everyone;
    // As much for partials as for results.
    let link = (peers().sum::<usize>() * gemm.row_bytes()) as f64 / rate(config, everyone);
    let computed = waves.end(own + others);
    if others == 0 {
        return computed;
    }
    let partials = waves.sent((others, group), link) + KNOWN;

    match everyone {
        true => {
            // Where the tiles of a round of groups are less than a wave, they share one with the own tiles
            // that follow.
            let missing = (0.9 - round as f64 / waves.slots as f64).max(0.0);
            let stalls = waves.count(own + others) * missing * STALL;
            let reduced = computed.max(partials) + stalls;
            // Own tiles are the last.
            let last = waves.last(own + others).max(group).min(own);
            let after = reduced + last as f64 / own.max(1) as f64 * link;
            after.max(partials + link + stalls)
        }
        false => computed.max(partials),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scaling;
    use crate::matmul_reduce::tests::{gemm, of};
    use warpweave_symm_mem::DType;

    /// Columns of the tile for K / world.
    fn width(everyone: bool, world: usize, [m, n, k]: [usize; 3], group_rows: usize) -> u32 {
        let mut gemm = of(everyone, gemm(m, (0, world), group_rows));
        gemm.problem = GemmProblem::new(m, n, k, DType::Bf16);
        CONFIGS[to_owners(&gemm, 132)].tile[1]
    }

    /// The fastest of all, or within 4 % of it.
    #[test]
    fn partials_for_everyone_are_as_measured() {
        let width = |[m, n, k]: [usize; 3]| {
            let problem = GemmProblem::new(m, n, k, DType::Bf16);
            CONFIGS[to_all(&problem, 2, 132).config].tile[1]
        };
        assert_eq!(width([64, 8192, 4096]), 64);
        assert_eq!(width([256, 1024, 512]), 64);
        assert_eq!(width([1024, 1024, 512]), 64);
        assert_eq!(width([1024, 4096, 2048]), 128);
        assert_eq!(width([512, 4096, 2048]), 64);
        assert_eq!(width([2048, 4096, 2048]), 128);
        assert_eq!(width([1024, 8192, 4096]), 128);
        assert_eq!(width([8192, 8192, 16384]), 256);
    }

    #[test]
    fn results_of_owners_are_as_measured() {
        let width = |shape, rows| width(false, 2, shape, rows);
        assert_eq!(width([1024, 4096, 2048], 512), 128);
        assert_eq!(width([2048, 4096, 2048], 512), 128);
        assert_eq!(width([1024, 8192, 4096], 512), 256);
        assert_eq!(width([4096, 4096, 3584], 512), 256);
        assert_eq!(width([8192, 8192, 1024], 256), 256);
        assert_eq!(width([8192, 8192, 2048], 512), 256);
    }

    #[test]
    fn results_of_everyone_are_as_measured() {
        let on_two = |shape, rows| width(true, 2, shape, rows);
        assert_eq!(on_two([1024, 4096, 2048], 512), 128);
        assert_eq!(on_two([2048, 4096, 2048], 512), 128);
        assert_eq!(on_two([2048, 4096, 2048], 1024), 256);
        assert_eq!(on_two([4096, 4096, 3584], 256), 128);
        assert_eq!(on_two([4096, 4096, 3584], 512), 128);
        assert_eq!(on_two([4096, 4096, 3584], 1024), 256);
        assert_eq!(on_two([8192, 8192, 1024], 256), 128);
        assert_eq!(on_two([8192, 8192, 1024], 512), 256);
        assert_eq!(on_two([8192, 8192, 2048], 256), 128);
        assert_eq!(on_two([8192, 8192, 2048], 512), 256);
        // A shard is less than a group.
        assert_eq!(width(true, 4, [512, 8192, 4096], 512), 128);
        let on_four = |shape| width(true, 4, shape, 256);
        assert_eq!(on_four([4096, 4096, 3584]), 128);
        assert_eq!(on_four([8192, 8192, 2048]), 128);
        assert_eq!(on_four([8192, 8192, 8192]), 256);
    }

    /// As in 16 bits: that sums of e4m3 are added costs the widest tile no more than others.
    #[test]
    fn results_of_owners_in_e4m3_take_the_widest_tile() {
        let width = |k| {
            let mut gemm = gemm(8192, (0, 4), 512);
            gemm.problem = GemmProblem::e4m3(8192, 8192, k, Scaling::Row, DType::Bf16);
            CONFIGS[to_owners(&gemm, 132)].tile[1]
        };
        assert_eq!(width(2048), 256);
        assert_eq!(width(8192), 256);
    }
}
