//! Which chunks rows are best pulled in, by a model of the launch on an H100 or H200: the persistent schedule
//! of tiles, each of which multiplies the slices of its chunk as they come.
//!
//! Its figures are fitted to 260 of 1,800 times on two H200s: twelve shapes in bf16 and e4m3, tiles of 128
//! and 256 columns, chunks of 256 rows to the whole shard, slices of 512 bytes to 4 KiB. What it chooses is
//! at most 4 % and in the mean 1 % slower than the fastest that was measured there, and on four H200s at most
//! 3 % (`docs/fused-kernel.md`).

use super::{AllGatherMatmul, PIECE_BYTES};
use crate::{GemmProblem, sm90};

/// Clusters of two SMs.
const CLUSTERS: usize = 66;

/// Most chunks of a shard that are worth it.
const MOST: usize = 8;

/// Fewest bytes of a row in a piece, unless the row has less.
const LEAST_BYTES: usize = 512;

/// Fewest pieces of a slice, of all peers, for tiles of 128 and 256 columns: two or three for each block,
/// which counts once for each slice. Of small tiles twice as many wait for it.
const LEAST_PIECES: [usize; 2] = [450, 320];

/// A schedule loses this part of its time for each halving of its chunks below a wave of tiles: less of B is
/// read from the cache.
const LESS_THAN_A_WAVE: f64 = 0.02;

/// From the start of a launch to its first tile, and to the first row that comes, µs.
const BEGIN: f64 = 1.5;
const FIRST_ROW: f64 = 10.7;

/// What links give to all blocks that pull, bytes/µs.
const PULLED: f64 = 347e3;

/// From the end of a slice until a tile may have it, and what a tile's wait for it costs, µs.
const SEEN: f64 = 1.4;
const WAIT: f64 = 0.43;

/// A step of K in tiles of 128 and 256 columns, and the end of a tile, µs.
const STEP: [f64; 2] = [0.389, 0.697];
const STORE: f64 = 1.9;

/// Half a tile of 256 columns takes this part of a whole one.
const HALF: f64 = 0.7;

/// The width of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// 128 columns.
    Narrow,
    /// 256 columns.
    Wide,
}

impl Width {
    fn columns(self) -> usize {
        match self {
            Width::Narrow => 128,
            Width::Wide => 256,
        }
    }
}

/// What a launch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// Nothing: the rows of others come while a rank multiplies its own.
    Nothing,
    /// The GEMM: links are idle for about half of it, or longer.
    Gemm,
    /// Both, by turns: pulling takes about as long as multiplying.
    Both,
}

fn bound(problem: &GemmProblem, world: usize) -> Bound {
    let peers = world.saturating_sub(1);
    let row = problem.lda.saturating_mul(problem.dtype.size());
    let rows = problem.m.div_ceil(world.max(1)).saturating_mul(peers);
    let pulling = sm90::pulling(problem, row.saturating_mul(rows));
    match pulling {
        _ if pulling * (world as f64) < 0.8 => Bound::Nothing,
        ..0.5 => Bound::Gemm,
        _ => Bound::Both,
    }
}

/// Whether a GEMM has more elements than the model goes through, tile by tile: 32768 x 32768.
fn is_huge(problem: &GemmProblem) -> bool {
    problem.m.saturating_mul(problem.n) > 1 << 30
}

/// Chunks of a shard of about m / `world` rows.
pub(super) fn best(problem: &GemmProblem, world: usize) -> usize {
    if world < 2 {
        return 1;
    }
    match bound(problem, world) {
        Bound::Nothing => return 1,
        Bound::Gemm => return MOST,
        Bound::Both if is_huge(problem) => return MOST,
        Bound::Both => {}
    }
    let shard = problem.m.div_ceil(world);
    let columns = problem.n.div_ceil(Width::Wide.columns()).max(1);
    let wave = 2 * CLUSTERS / columns * AllGatherMatmul::TILE_ROWS / (world - 1);
    let wave = wave.clamp(1, shard.max(1)) as f64;
    let time = |chunks: usize| {
        let rows = AllGatherMatmul::chunk_rows(shard, chunks);
        let halvings = (wave / rows as f64).log2().max(0.0);
        let [narrow, wide] =
            [Width::Narrow, Width::Wide].map(|of| micros(problem, world, of, rows));
        narrow.min(wide) * (1.0 + LESS_THAN_A_WAVE * halvings)
    };
    let all = (1..=MOST).map(|chunks| (chunks, time(chunks)));
    all.min_by(|(_, a), (_, b)| a.total_cmp(b))
        .map_or(1, |(chunks, _)| chunks)
}

/// Bytes of a row in a slice of a chunk of so many rows of each peer, for tiles of this width: slices are as
/// fine as have enough pieces. Where links are idle anyway they are as coarse as can be, since a tile waits
/// for each.
fn slice_for(problem: &GemmProblem, world: usize, width: Width, chunk_rows: usize) -> usize {
    let rows = chunk_rows.saturating_mul(world.saturating_sub(1));
    let least = LEAST_PIECES[width as usize] * PIECE_BYTES;
    let mut bytes = PIECE_BYTES;
    if bound(problem, world) == Bound::Gemm {
        return bytes;
    }
    while bytes > LEAST_BYTES && rows.saturating_mul(bytes / 2) >= least {
        bytes /= 2;
    }
    bytes
}

/// As [`slice_for`] the faster tile.
pub(super) fn slice_bytes(problem: &GemmProblem, world: usize, chunk_rows: usize) -> usize {
    let width = width(problem, world, chunk_rows);
    slice_for(problem, world, width, chunk_rows)
}

/// The faster tile for chunks of so many rows.
pub(super) fn width(problem: &GemmProblem, world: usize, chunk_rows: usize) -> Width {
    if world < 2 || bound(problem, world) != Bound::Both || is_huge(problem) {
        return Width::Wide;
    }
    let time = |width| micros(problem, world, width, chunk_rows);
    match time(Width::Narrow) < time(Width::Wide) {
        true => Width::Narrow,
        false => Width::Wide,
    }
}

/// The time of a launch in which `world` ranks have equal shards, which come in chunks of so many rows.
fn micros(problem: &GemmProblem, world: usize, width: Width, chunk_rows: usize) -> f64 {
    let peers = world - 1;
    let shard = problem.m.div_ceil(world);
    let chunk_rows = chunk_rows.clamp(1, shard.max(1));
    let bytes = (problem.k * problem.dtype.size()).max(1);
    let slices = bytes.div_ceil(slice_for(problem, world, width, chunk_rows));
    let multiply = STEP[width as usize] * bytes as f64 / 128.0;
    let columns = problem.n.div_ceil(width.columns());
    let tiles = |rows: usize| rows.div_ceil(2 * AllGatherMatmul::TILE_ROWS) * columns;
    let height = |chunk: usize| chunk_rows.min(shard - chunk * chunk_rows);
    let chunks = 0..shard.div_ceil(chunk_rows);
    let of_peers = chunks.clone().map(|chunk| peers * tiles(height(chunk)));
    let all = tiles(shard) + of_peers.sum::<usize>();
    // As `for_each_index` in `cuda/sm90/schedule.cuh`.
    let halved = match width == Width::Wide && 2 * (all % CLUSTERS) <= CLUSTERS {
        true => all - all % CLUSTERS,
        false => all,
    };

    let mut free = [BEGIN; CLUSTERS];
    let mut next = 0;
    // Runs so many tiles, each of which ends at `end(start, part of a tile)`.
    let mut run = |count: usize, end: &dyn Fn(f64, f64) -> f64| {
        for index in next..next + count {
            if index < halved {
                let free = &mut free[index % CLUSTERS];
                *free = end(*free, 1.0);
            } else {
                for cluster in [0, 1].map(|half| 2 * (index - halved) + half) {
                    free[cluster] = end(free[cluster], HALF);
                }
            }
        }
        next += count;
    };
    run(tiles(shard), &|start, part| {
        start + part * (multiply + STORE)
    });
    let (count, mut arrival) = (slices as f64, FIRST_ROW);
    for chunk in chunks {
        let rows = peers * height(chunk);
        let slice = (rows * bytes) as f64 / count / PULLED + AllGatherMatmul::COUNTING_US;
        let (first, last) = (arrival + slice + SEEN, arrival + count * slice + SEEN);
        arrival += count * slice;
        run(peers * tiles(height(chunk)), &|start, part| {
            let each = part * multiply / count;
            let unwaited = start + count * (WAIT + each);
            let from_first = first + count * each + (count - 1.0) * WAIT;
            unwaited.max(from_first).max(last + each) + STORE
        });
    }
    free.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use warpweave_symm_mem::DType;

    use super::*;
    use crate::Scaling;

    /// Medians of single calls on two and four H200s, µs, of which a launch takes 5.5.
    #[test]
    fn times_are_near_those_that_were_measured() {
        let bf16 = |m, n, k| GemmProblem::new(m, n, k, DType::Bf16);
        let e4m3 = |m, n, k| GemmProblem::e4m3(m, n, k, Scaling::Row, DType::Bf16);
        for (world, problem, width, rows, measured) in [
            (2, bf16(4096, 1024, 4096), Width::Narrow, 2048, 75.3),
            (2, bf16(6144, 1280, 4096), Width::Wide, 3072, 107.0),
            (2, bf16(12288, 1280, 4096), Width::Wide, 1536, 201.5),
            (2, bf16(4096, 1792, 4096), Width::Wide, 2048, 100.4),
            (2, bf16(4096, 1792, 4096), Width::Wide, 256, 114.6),
            (2, bf16(8192, 1280, 4096), Width::Wide, 2048, 155.1),
            (2, e4m3(4096, 1024, 4096), Width::Narrow, 2048, 50.7),
            (2, e4m3(12288, 1152, 4096), Width::Narrow, 512, 112.8),
            (4, bf16(4096, 1792, 4096), Width::Wide, 512, 118.6),
            (4, bf16(8192, 1792, 4096), Width::Narrow, 256, 200.8),
            (4, bf16(16384, 1792, 4096), Width::Wide, 768, 374.4),
            (4, bf16(4096, 3584, 8192), Width::Wide, 256, 351.3),
            (4, e4m3(4096, 1792, 4096), Width::Wide, 512, 74.5),
            (4, e4m3(8192, 1792, 4096), Width::Narrow, 256, 119.0),
            (4, e4m3(4096, 3584, 8192), Width::Wide, 256, 193.2),
        ] {
            let ratio = (micros(&problem, world, width, rows) + 5.5) / measured;
            assert!(
                (ratio - 1.0).abs() < 0.14,
                "{problem:?}, {rows} rows: {ratio}"
            );
        }
    }

    #[test]
    fn a_chunk_is_a_wave_of_tiles_or_comes_in_time() {
        let rows = |m: usize, n, k, world| {
            let problem = GemmProblem::new(m, n, k, DType::Bf16);
            let rows = AllGatherMatmul::chunk_rows(m / world, best(&problem, world));
            (rows, width(&problem, world, rows))
        };
        // 120 tiles.
        assert_eq!(rows(6144, 1280, 4096, 2), (3072, Width::Wide));
        // Half of the rows wait for the others.
        assert_eq!(rows(4096, 1024, 4096, 2), (2048, Width::Narrow));
        // All rows of one peer come while the own ones are multiplied, those of three do not.
        assert_eq!(rows(4096, 3584, 8192, 2), (2048, Width::Wide));
        assert_eq!(rows(16384, 6656, 16384, 2), (8192, Width::Wide));
        assert!(rows(16384, 6656, 16384, 4).0 <= 1024);
        // Links are idle for half of it.
        assert_eq!(rows(16384, 3584, 8192, 4), (512, Width::Wide));
        let slices = |n, k| {
            let problem = GemmProblem::new(16384, n, k, DType::Bf16);
            slice_bytes(&problem, 4, 512)
        };
        assert_eq!([slices(3584, 8192), slices(1792, 4096)], [4096, 1024]);
        // Of small tiles more wait for a slice.
        let problem = GemmProblem::new(8192, 1792, 4096, DType::Bf16);
        let slices = [Width::Narrow, Width::Wide].map(|of| slice_for(&problem, 4, of, 256));
        assert_eq!(slices, [4096, 2048]);
    }

    #[test]
    fn nothing_is_too_small_or_too_large() {
        for world in [0, 1, 2, 3, 8] {
            for m in [0, 1, 300, i32::MAX as usize] {
                for n in [1, 1 << 20] {
                    let problem = GemmProblem::new(m, n, 0, DType::F16);
                    assert!((1..=MOST).contains(&best(&problem, world)));
                    width(&problem, world, usize::MAX);
                }
            }
        }
    }
}
