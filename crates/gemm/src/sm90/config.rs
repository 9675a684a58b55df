//! What can be chosen: a tile, what a cluster shares, and the order of the tiles.

use std::fmt;
use std::ops::Range;

use warpweave_symm_mem::DType;
use warpweave_symm_mem::cuda::Image;

use super::{Raster, few_rows};
use crate::cutlass::{self, Config, unsupported};
use crate::matmul_reduce::ReduceOutput;
use crate::{
    Activation, AllGatherMatmul, Error, GemmProblem, Layout, MatmulReduce, Protocol, Provider,
    Scaling, Tiling,
};

/// The device code.
pub(super) static PLAIN: Image = warpweave_symm_mem::device_image!("plain", sm_90a);
static ALL_GATHER: Image = warpweave_symm_mem::device_image!("all_gather", sm_90a);
static EAGER: Image = warpweave_symm_mem::device_image!("eager", sm_90a);
static REDUCTION: Image = warpweave_symm_mem::device_image!("reduction", sm_90a);
static MULTIMEM_REDUCTION: Image = warpweave_symm_mem::device_image!("multimem_reduction", sm_90a);
static ONE_SHOT: Image = warpweave_symm_mem::device_image!("one_shot", sm_90a);

/// What the kernel does besides the GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Plain,
    AllGather,
    /// The same by the other protocol.
    Eager,
    /// Reductions by the owners of rows.
    Reduction,
    /// The same by multimem.
    MultimemReduction,
    /// Reductions by every rank for itself.
    OneShot,
}

impl Family {
    pub(super) fn image(self) -> &'static Image {
        match self {
            Family::Plain => &PLAIN,
            Family::AllGather => &ALL_GATHER,
            Family::Eager => &EAGER,
            Family::Reduction => &REDUCTION,
            Family::MultimemReduction => &MULTIMEM_REDUCTION,
            Family::OneShot => &ONE_SHOT,
        }
    }

    /// Dynamic shared memory of a block.
    pub(super) fn shared_bytes(self) -> u32 {
        match self {
            Family::Plain | Family::OneShot | Family::MultimemReduction => SHARED_BYTES,
            // Blocks that pull, and those of the eager kernel, which have the same ring.
            Family::AllGather | Family::Eager | Family::Reduction => PULLING_BYTES,
        }
    }

    /// For errors.
    fn name(self) -> &'static str {
        match self {
            Family::Plain => "GEMM",
            Family::AllGather => "all-gather GEMM",
            Family::Eager => "eager all-gather GEMM",
            Family::Reduction => "GEMM + reduction",
            Family::MultimemReduction => "GEMM + multimem reduction",
            Family::OneShot => "GEMM + one-shot reduction",
        }
    }

    /// That of the kernel of `gemm`.
    pub(super) fn of_all_gather(gemm: &AllGatherMatmul) -> Self {
        match gemm.protocol {
            Protocol::Rendezvous { .. } => Family::AllGather,
            Protocol::Eager => Family::Eager,
        }
    }

    /// That of the kernel of `gemm`.
    pub(super) fn of_reduction(gemm: &MatmulReduce) -> Self {
        match gemm.c {
            ReduceOutput::Owner | ReduceOutput::Everyone => Family::Reduction,
            ReduceOutput::Multimem => Family::MultimemReduction,
            ReduceOutput::Each => Family::OneShot,
        }
    }

    /// Whether its blocks are no clusters.
    fn is_unclustered(self) -> bool {
        matches!(
            self,
            Family::Reduction | Family::MultimemReduction | Family::OneShot
        )
    }
}

/// Threads of a block: `kThreads` in `tile.cuh`.
pub(super) const THREADS: u32 = 384;
/// Dynamic shared memory of a block: `kSharedBytes`.
const SHARED_BYTES: u32 = 231_424;
/// The same of a block that pulls: `kRingSharedBytes` in `recv_ring.cuh`.
const PULLING_BYTES: u32 = 231_680;

/// Bytes of a swizzled row: elements along K of a step, and columns of a box.
pub(super) const SWIZZLED_ROW: usize = 128;

/// Elements of 16 bits in a step of K: `kK`.
pub(super) const STEP: usize = SWIZZLED_ROW / 2;

/// Steps of K of a problem.
pub(super) fn steps(problem: &GemmProblem) -> u32 {
    problem.k.div_ceil(SWIZZLED_ROW / problem.dtype.size()) as u32
}

/// The compiled shapes, the favourite of equals first. Adjacent blocks along M share B, along N A.
pub const CONFIGS: [Config; 7] = [
    config("128x256_share_b", 256, [2, 1]),
    config("128x256_share_a", 256, [1, 2]),
    config("128x256_alone", 256, [1, 1]),
    config("128x128_share_b", 128, [2, 1]),
    config("128x128_share_a", 128, [1, 2]),
    config("128x128_alone", 128, [1, 1]),
    config("128x64_alone", 64, [1, 1]),
];

/// The tiling of the kernel of few rows: the configuration after all [`CONFIGS`]; its swizzle says nothing.
pub const FEW_ROWS_TILING: Tiling = Tiling {
    config: CONFIGS.len(),
    swizzle: 1,
};

/// Those of [`CONFIGS`] whose blocks are no clusters, by index.
pub(super) const UNCLUSTERED: [usize; 3] = [2, 5, 6];

/// Rows of every tile.
const TILE_ROWS: usize = 128;

const fn config(name: &'static str, tile_n: u32, cluster: [u32; 2]) -> Config {
    Config {
        name,
        tile: [TILE_ROWS as u32, tile_n, STEP as u32],
        cluster,
        cooperative: true,
        stream_k: false,
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == FEW_ROWS_TILING {
            return f.write_str("few rows");
        }
        write!(f, "{} swizzle {}", name(self.config), self.swizzle)
    }
}

/// The name of a configuration, that of few rows too.
fn name(config: usize) -> &'static str {
    match CONFIGS.get(config) {
        Some(shape) => shape.name,
        None if config == FEW_ROWS_TILING.config => "few rows",
        None => "unknown",
    }
}

/// Whether tiles can be taken in halves of their columns: `kHasHalves` in `tile.cuh`.
pub(super) fn has_halves(shape: &Config) -> bool {
    shape.tile[1] as usize >= 4 * STEP
}

/// Whether so many tiles have a last wave that is taken in halves, by so many clusters or one for each tile:
/// `for_each_index` in `schedule.cuh`.
fn halves_last_wave(shape: &Config, tiles: u64, clusters: u64) -> bool {
    let clusters = clusters.min(tiles).max(1);
    let last = tiles % clusters;
    has_halves(shape) && last > 0 && 2 * last <= clusters
}

/// Of at most so many clusters, those that so many tiles need: as many in the last wave as in the others, if
/// it is not halved. The others would take no less time, and the power of the device.
pub(super) fn launched_clusters(shape: &Config, tiles: u32, most: u32) -> u32 {
    match halves_last_wave(shape, tiles.into(), most.into()) {
        true => most,
        false => tiles.div_ceil(tiles.div_ceil(most)),
    }
}

/// Predicted time of a launch, in seconds.
fn seconds(shape: &Config, problem: &GemmProblem, sms: u32) -> f64 {
    let (multiply, store) = cutlass::tile_seconds(shape, problem);
    let blocks = u64::from(blocks(shape));
    let [tiles, slots] = [cutlass::tiles(shape, problem), cutlass::slots(shape, sms)];
    let saved = match halves_last_wave(shape, tiles / blocks, slots / blocks) {
        // Tiles were compared on GPUs with this. Simulation, which takes 0.7 of the wave, predicts times.
        true => 0.5 * (multiply + store),
        false => 0.0,
    };
    cutlass::seconds(shape, problem, sms) - saved
}

/// Whether the kernels of a shape compute `problem`: with SwiGLU two boxes of accumulators give one of C.
fn computes(shape: &Config, problem: &GemmProblem) -> bool {
    problem.activation == Activation::None || shape.tile[1] as usize >= 2 * STEP
}

/// The configuration that the model of tiles and waves expects to be fastest on a device of `sms` SMs, of
/// those that these have room for. Few rows have their own.
pub fn select(problem: &GemmProblem, sms: u32) -> Option<Tiling> {
    if few_rows::is_favoured(problem, sms) {
        return Some(FEW_ROWS_TILING);
    }
    select_tile(problem, sms)
}

/// The same of [`CONFIGS`]. One row of tiles has no clusters: those that share A took up to 1.09 times as
/// long at twelve shapes of 64 and 128 rows in e4m3 by block, one H200, and nowhere less.
pub(super) fn select_tile(problem: &GemmProblem, sms: u32) -> Option<Tiling> {
    let seconds = |shape: &Config| seconds(shape, problem, sms);
    let most_blocks = if problem.m <= TILE_ROWS { 1 } else { sms };
    let (config, shape) = CONFIGS
        .iter()
        .enumerate()
        .filter(|(_, shape)| blocks(shape) <= most_blocks.min(sms) && computes(shape, problem))
        .min_by(|(_, a), (_, b)| seconds(a).total_cmp(&seconds(b)))?;
    Some(Tiling {
        config,
        swizzle: square_swizzle(shape, sms),
    })
}

/// What a link gives whoever pulls through it, bytes/s, and what tensor cores multiply of f16 and bf16,
/// FLOP/s: 4×H200.
pub(super) const LINK_RATE: f64 = 325e9;
const GEMM_RATE: f64 = 700e12;

/// How long pulling so many bytes during `problem` takes, as a part of the time of multiplying.
pub(crate) fn pulling(problem: &GemmProblem, bytes: usize) -> f64 {
    let multiplying = problem.flops() / (GEMM_RATE * cutlass::speed(problem.dtype));
    bytes as f64 / LINK_RATE / multiplying
}

/// Whether a GEMM has no more tiles of the largest kind than there are SMs: then nothing is left to do while
/// rows of others come, and what waits for them is better in smaller tiles.
pub(super) fn is_one_wave(problem: &GemmProblem, sms: u32) -> bool {
    problem.m.div_ceil(TILE_ROWS) * problem.n.div_ceil(256) <= sms as usize
}

/// Depth up to which a cluster takes longer to begin than it saves, and two waves of the smallest tiles are
/// faster than one of larger ones.
const SHALLOW: usize = 2048;

/// A small tile of the fastest cluster that the SMs have room for and that chunks of `rows` rows are whole
/// of; if there is none, of the fastest. No tile has rows of two of the `shards`, and no cluster has a tile
/// beyond the longest. The smallest tile is for GEMMs of which others would leave half of the SMs idle, or be
/// one wave of shallow tiles.
pub(super) fn small(
    problem: &GemmProblem,
    shards: &[Range<usize>],
    sms: u32,
    rows: usize,
) -> Option<Tiling> {
    let small = TILE_ROWS * 128;
    let is_shallow = problem.k <= SHALLOW;
    let padded = shards
        .iter()
        .map(|shard| shard.len().next_multiple_of(TILE_ROWS));
    let longest = padded.clone().max().unwrap_or(0).max(TILE_ROWS);
    let busy = (padded.sum::<usize>() * problem.n).div_ceil(small);
    let least = match busy * if is_shallow { 1 } else { 2 } <= sms as usize {
        true => 0,
        false => small,
    };
    let is_slow = |shape: &Config| is_shallow && blocks(shape) > 1;
    let area = |shape: &Config| (shape.tile[0] * shape.tile[1]) as usize;
    let is_high = |shape: &Config| cluster_tile(shape)[0] as usize > longest;
    let fits = |shape: &Config| blocks(shape) <= sms && area(shape) >= least && !is_high(shape);
    let splits = |shape: &Config| !rows.is_multiple_of(cluster_tile(shape)[0] as usize);
    let (config, shape) = CONFIGS
        .iter()
        .enumerate()
        .filter(|(_, shape)| fits(shape) && computes(shape, problem))
        .min_by_key(|(_, shape)| (area(shape), is_slow(shape), splits(shape)))?;
    Some(Tiling {
        config,
        swizzle: square_swizzle(shape, sms),
    })
}

/// Everything that is worth timing: each configuration, with groups that make a wave square, wide or high.
/// The first is that of [`select`].
pub fn tilings(problem: &GemmProblem, sms: u32) -> Vec<Tiling> {
    let favourites = [select(problem, sms), select_tile(problem, sms)];
    let mut all: Vec<Tiling> = favourites.into_iter().flatten().collect();
    all.dedup();
    let computing = CONFIGS.iter().enumerate();
    for (config, shape) in computing.filter(|(_, shape)| computes(shape, problem)) {
        let square = square_swizzle(shape, sms);
        let rows = raster(shape, problem, 1).rows;
        // A group higher than C is one as high as C.
        for swizzle in [square, (square / 2).max(1), square * 2].map(|swizzle| swizzle.min(rows)) {
            let tiling = Tiling { config, swizzle };
            if !all.contains(&tiling) {
                all.push(tiling);
            }
        }
    }
    all
}

impl AllGatherMatmul {
    /// The tilings that are worth timing on a GPU of `sms` SMs: those of [`tilings`] that its kernel has.
    pub fn tilings(&self, sms: u32) -> Vec<Tiling> {
        tilings_of(Family::of_all_gather(self), &self.problem, sms)
    }
}

impl MatmulReduce {
    /// The tilings that are worth timing on a GPU of `sms` SMs: those of [`tilings`] that its kernel has, one
    /// for each tile where the swizzle is not used.
    pub fn tilings(&self, sms: u32) -> Vec<Tiling> {
        let mut all = tilings_of(Family::of_reduction(self), &self.problem, sms);
        if self.c != ReduceOutput::Each {
            all.sort_by_key(|tiling| tiling.config);
            all.dedup_by_key(|tiling| tiling.config);
        }
        all
    }
}

/// Those of [`tilings`] that a family has.
fn tilings_of(family: Family, problem: &GemmProblem, sms: u32) -> Vec<Tiling> {
    let mut all = tilings(problem, sms);
    all.retain(|tiling| kernel(family, problem, tiling.config).is_some());
    all
}

/// The rows of tiles for which one wave of clusters covers as many rows as columns of C.
pub(super) fn square_swizzle(config: &Config, sms: u32) -> u32 {
    let [height, width] = cluster_tile(config).map(f64::from);
    let clusters = f64::from(sms / blocks(config));
    ((clusters * height * width).sqrt() / height)
        .round()
        .max(1.0) as u32
}

/// Blocks of a cluster.
pub(super) fn blocks(config: &Config) -> u32 {
    config.cluster[0] * config.cluster[1]
}

/// Rows and columns of C that a cluster computes at a time.
pub(super) fn cluster_tile(config: &Config) -> [u32; 2] {
    [0, 1].map(|side| config.tile[side] * config.cluster[side])
}

/// The order of the clusters' tiles over C.
pub(super) fn raster(config: &Config, problem: &GemmProblem, swizzle: u32) -> Raster {
    let [height, width] = cluster_tile(config);
    Raster {
        rows: (problem.m as u32).div_ceil(height),
        columns: (problem.n as u32).div_ceil(width),
        swizzle,
    }
}

/// The same for a launch, with the number of tiles. A group higher than C is one as high as C.
///
/// # Errors
/// [`Error::Unsupported`] for a group of no rows, or more tiles than are counted.
pub(super) fn launched_raster(
    config: &Config,
    problem: &GemmProblem,
    swizzle: u32,
) -> Result<(Raster, u32), Error> {
    check_swizzle(problem, swizzle)?;
    let mut raster = raster(config, problem, swizzle);
    raster.swizzle = swizzle.min(raster.rows);
    match raster.count() {
        Some(tiles) => Ok((raster, tiles)),
        None => {
            let why = "C must have fewer than 2³² tiles".into();
            unsupported(problem, Provider::Sm90, why)
        }
    }
}

/// Whether a group has any rows.
pub(super) fn check_swizzle(problem: &GemmProblem, swizzle: u32) -> Result<(), Error> {
    match swizzle {
        0 => {
            let why = "swizzle = 0: a swizzle group has at least one row of tiles".into();
            unsupported(problem, Provider::Sm90, why)
        }
        _ => Ok(()),
    }
}

/// The kernel of a configuration, with its shape.
///
/// # Errors
/// [`Error::Unsupported`] if there is none, with the configurations that have one.
pub(super) fn require_kernel(
    family: Family,
    problem: &GemmProblem,
    config: usize,
) -> Result<(&'static Config, &'static Image, &'static str), Error> {
    if let (Some(shape), Some((image, name))) =
        (CONFIGS.get(config), kernel(family, problem, config))
    {
        return Ok((shape, image, name));
    }
    let there = (0..CONFIGS.len()).filter(|&config| kernel(family, problem, config).is_some());
    let why = format!(
        "the {} kernel has no tile `{}` ({config}); it has {}",
        family.name(),
        name(config),
        there.map(name).collect::<Vec<_>>().join(", ")
    );
    unsupported(problem, Provider::Sm90, why)
}

/// The kernel of a configuration, or `None` for a type, index, cluster or activation that there is no kernel
/// for.
pub(super) fn kernel(
    family: Family,
    problem: &GemmProblem,
    config: usize,
) -> Option<(&'static Image, &'static str)> {
    macro_rules! names {
        ($($part:literal),+) => {
            [
                concat!($($part),+, "_128x256_share_b"),
                concat!($($part),+, "_128x256_share_a"),
                concat!($($part),+, "_128x256_alone"),
                concat!($($part),+, "_128x128_share_b"),
                concat!($($part),+, "_128x128_share_a"),
                concat!($($part),+, "_128x128_alone"),
                concat!($($part),+, "_128x64_alone"),
            ]
        };
    }
    macro_rules! kernels {
        ($family:literal) => {
            match (problem.dtype, problem.b_layout) {
                (DType::F16, Layout::RowMajor) => names!($family, "_f16_nn"),
                (DType::F16, Layout::Transposed) => names!($family, "_f16_nt"),
                (DType::Bf16, Layout::RowMajor) => names!($family, "_bf16_nn"),
                (DType::Bf16, Layout::Transposed) => names!($family, "_bf16_nt"),
                (DType::F32 | DType::E4m3, _) => return None,
            }
        };
        ($family:literal, $scales:literal) => {
            match problem.out {
                DType::F16 => names!($family, "_e4m3_f16", $scales),
                DType::Bf16 => names!($family, "_e4m3_bf16", $scales),
                DType::F32 | DType::E4m3 => return None,
            }
        };
    }
    let names: [&'static str; CONFIGS.len()] = match (family, problem.scaling) {
        (Family::Plain, Scaling::None) => kernels!("gemm"),
        (Family::Plain, Scaling::Tensor | Scaling::Row) => kernels!("gemm", "_outer_nt"),
        (Family::Plain, Scaling::Block) => kernels!("gemm", "_block_nt"),
        (Family::AllGather, Scaling::None) => kernels!("all_gather"),
        (Family::AllGather, Scaling::Tensor | Scaling::Row) => kernels!("all_gather", "_outer_nt"),
        (Family::Eager, Scaling::None) => kernels!("eager"),
        (Family::Eager, Scaling::Tensor | Scaling::Row) => kernels!("eager", "_outer_nt"),
        (Family::Reduction, Scaling::None) => kernels!("reduce"),
        (Family::Reduction, Scaling::Tensor | Scaling::Row) => kernels!("reduce", "_outer_nt"),
        (Family::MultimemReduction, Scaling::None) => kernels!("multimem_reduce"),
        (Family::MultimemReduction, Scaling::Tensor | Scaling::Row) => {
            kernels!("multimem_reduce", "_outer_nt")
        }
        (Family::OneShot, Scaling::None) => kernels!("one_shot"),
        (Family::OneShot, Scaling::Tensor | Scaling::Row) => kernels!("one_shot", "_outer_nt"),
        (_, Scaling::Block) => return None,
    };
    let shape = CONFIGS.get(config)?;
    let is = (blocks(shape) == 1 || !family.is_unclustered()) && computes(shape, problem);
    is.then_some((family.image(), names[config]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(m: usize, n: usize, k: usize) -> &'static str {
        CONFIGS[select_tile(&GemmProblem::new(m, n, k, DType::Bf16), 132)
            .unwrap()
            .config]
            .name
    }

    #[test]
    fn a_group_has_rows_and_is_no_higher_than_c() {
        let problem = GemmProblem::new(1000, 1000, 64, DType::Bf16);
        for config in CONFIGS {
            let error = launched_raster(&config, &problem, 0).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }));
            assert!(error.to_string().contains("swizzle = 0"), "{error}");
            let (raster, tiles) = launched_raster(&config, &problem, u32::MAX).unwrap();
            assert_eq!(raster.swizzle, raster.rows);
            assert_eq!(raster.at(tiles - 1), (raster.rows - 1, raster.columns - 1));
        }
    }

    #[test]
    fn the_shape_decides() {
        assert_eq!(chosen(16384, 6656, 16384), "128x256_share_b");
        assert_eq!(chosen(1024, 1024, 1024), "128x64_alone");
        assert_eq!(chosen(2048, 1024, 1024), "128x128_share_b");
        let crowded = GemmProblem::new(1024, 512, 64, DType::Bf16);
        let alone = select(&crowded, 1).unwrap().config;
        assert_eq!(CONFIGS[alone].cluster, [1, 1], "a block is no cluster");
        assert_eq!(select(&crowded, 0), None);
        assert_eq!(chosen(64, 132 * 256, 4096), "128x256_alone");
    }

    #[test]
    fn swiglu_has_tiles_of_two_boxes() {
        let problem = GemmProblem::new(1024, 1024, 1024, DType::Bf16);
        let gated = problem.with_activation(Activation::SwiGlu);
        let narrow = CONFIGS.iter().position(|shape| shape.tile[1] == 64);
        assert!(
            tilings(&gated, 132)
                .iter()
                .all(|tiling| Some(tiling.config) != narrow)
        );
        assert!(kernel(Family::AllGather, &gated, narrow.unwrap()).is_none());
        let shards = [0..512, 512..1024];
        let of = |problem| small(problem, &shards, 132, 256).unwrap().config;
        assert_eq!(
            (Some(of(&problem)), CONFIGS[of(&gated)].tile[1]),
            (narrow, 128)
        );
    }

    #[test]
    fn the_last_wave_is_halved_if_halves_are_one() {
        let of = |name, tiles| {
            let shape = CONFIGS.iter().find(|config| config.name == name).unwrap();
            halves_last_wave(shape, tiles, 66)
        };
        let wide = [66, 67, 99, 100, 131, 132, 30].map(|tiles| of("128x256_share_b", tiles));
        assert_eq!(wide, [false, true, true, false, false, false, false]);
        assert!(!of("128x128_alone", 67));
    }

    #[test]
    fn waves_are_even_unless_the_last_is_halved() {
        let of = |name, tiles| {
            let shape = CONFIGS.iter().find(|config| config.name == name).unwrap();
            launched_clusters(shape, tiles, 66)
        };
        // 8192³; one wave; two, the last of which is halved; seven.
        let wide = [1024, 64, 66, 67, 448].map(|tiles| of("128x256_share_b", tiles));
        assert_eq!(wide, [64, 64, 66, 66, 64]);
        assert_eq!(of("128x128_share_b", 67), 34);
        for tiles in 1..1000 {
            let clusters = of("128x128_share_b", tiles);
            assert_eq!(tiles.div_ceil(clusters), tiles.div_ceil(66), "{tiles}");
        }
    }

    #[test]
    fn blocks_alone_are_no_clusters() {
        let alone = (0..CONFIGS.len()).filter(|&config| blocks(&CONFIGS[config]) == 1);
        assert!(alone.eq(UNCLUSTERED));
    }

    #[test]
    fn a_wave_is_nearly_square() {
        let groups = CONFIGS.map(|config| square_swizzle(&config, 132));
        assert_eq!(groups, [8, 16, 16, 6, 11, 11, 8]);
        assert_eq!(square_swizzle(&CONFIGS[0], 1), 1);
    }

    #[test]
    fn the_small_tile_shares_what_chunks_are_whole_of() {
        let named = |side, sms, rows| {
            let problem = GemmProblem::new(side, side, 4096, DType::Bf16);
            let shards = [0..side / 2, side / 2..side];
            small(&problem, &shards, sms, rows).map(|tiling| CONFIGS[tiling.config].name)
        };
        assert_eq!(named(2048, 132, 512), Some("128x128_share_b"));
        assert_eq!(named(2048, 132, 384), Some("128x128_share_a"));
        assert_eq!(named(2048, 132, 100), Some("128x128_share_b"));
        assert_eq!(named(2048, 1, 384), Some("128x128_alone"));
        assert_eq!(named(2048, 0, 384), None);
        // 64 tiles of 128×128 for 132 SMs, and 128.
        assert_eq!(named(1024, 132, 256), Some("128x64_alone"));
        assert_eq!(named(1024, 127, 256), Some("128x128_share_b"));
        let shallow = GemmProblem::new(2048, 1024, SHALLOW, DType::Bf16);
        let config = small(&shallow, &[0..1024, 1024..2048], 132, 256)
            .unwrap()
            .config;
        assert_eq!(CONFIGS[config].name, "128x64_alone");
    }

    #[test]
    fn shards_of_half_a_tile_take_tiles_of_their_own() {
        let named = |world: usize| {
            let problem = GemmProblem::new(64 * world, 4096, 4096, DType::Bf16);
            let shards: Vec<_> = (0..world).map(|rank| 64 * rank..64 * (rank + 1)).collect();
            CONFIGS[small(&problem, &shards, 132, 64).unwrap().config].name
        };
        // One wave of 128 tiles, of the smaller kind among two and of the larger among four, where the
        // smaller would be two waves.
        assert_eq!(named(2), "128x64_alone");
        assert_eq!(named(4), "128x128_share_a");
    }

    #[test]
    fn candidates_are_distinct_and_begin_with_the_favourite() {
        let problem = GemmProblem::new(1024, 1024, 1024, DType::F16);
        let all = tilings(&problem, 132);
        assert_eq!(all.first().copied(), select(&problem, 132));
        assert!(
            all.iter()
                .enumerate()
                .all(|(i, one)| one.swizzle > 0 && !all[..i].contains(one))
        );
        for config in 0..CONFIGS.len() {
            assert!(all.iter().any(|tiling| tiling.config == config));
        }
    }

    /// Few rows, and SwiGLU, have tiles that not every kernel has.
    #[test]
    fn tilings_of_fused_gemms_have_kernels() {
        let few = GemmProblem::new(8, 4096, 4096, DType::Bf16)
            .with_layouts(Layout::RowMajor, Layout::Transposed);
        let many = GemmProblem::new(4096, 4096, 4096, DType::F16);
        let e4m3 = GemmProblem::e4m3(8, 4096, 4096, Scaling::Row, DType::Bf16);
        for problem in [few, many, e4m3, many.with_activation(Activation::SwiGlu)] {
            for protocol in [Protocol::PULL, Protocol::Eager] {
                let gemm = AllGatherMatmul {
                    problem,
                    shards: vec![0..4, 4..problem.m],
                    chunk_rows: 128,
                    rank: 0,
                    world: 2,
                    ready: 1,
                    done: 0,
                    protocol,
                    tiling: None,
                    max_blocks: None,
                };
                gemm.validate().unwrap();
                let has = |of: &Tiling| kernel(Family::of_all_gather(&gemm), &problem, of.config);
                let all = gemm.tilings(132);
                assert!(all.iter().all(|of| has(of).is_some()), "{all:?}");
                let wide = problem.activation == Activation::SwiGlu;
                for config in 0..CONFIGS.len() - usize::from(wide) {
                    assert!(all.iter().any(|of| of.config == config), "{all:?}");
                }
            }
        }
        for problem in [few, many, e4m3] {
            use ReduceOutput::{Each, Everyone, Multimem, Owner};
            for c in [Owner, Everyone, Multimem, Each] {
                let gemm = MatmulReduce {
                    problem,
                    c,
                    ready: 100,
                    ..crate::matmul_reduce::tests::gemm(problem.m, (0, 2), 128)
                };
                gemm.validate().unwrap();
                let has = |of: &Tiling| kernel(Family::of_reduction(&gemm), &problem, of.config);
                let all = gemm.tilings(132);
                assert!(all.iter().all(|of| has(of).is_some()), "{all:?}");
                let mut configs: Vec<_> = all.iter().map(|of| of.config).collect();
                if c == Each {
                    configs.sort_unstable();
                    configs.dedup();
                }
                assert_eq!(configs, UNCLUSTERED, "{all:?}");
            }
        }
    }

    /// Of half the bytes of A, which e4m3 has, pulling hides as well as of all.
    #[test]
    fn rows_of_e4m3_take_as_much_of_a_gemm_as_those_of_bf16() {
        let half = GemmProblem::new(8192, 3584, 8192, DType::Bf16);
        let narrow = GemmProblem::e4m3(8192, 3584, 8192, Scaling::Row, DType::Bf16);
        for (bytes, part) in [(160_000_000, 0.716), (180_000_000, 0.806)] {
            assert!((pulling(&half, bytes) - part).abs() < 0.001, "{bytes}");
            assert!(
                (pulling(&narrow, bytes / 2) - part).abs() < 0.001,
                "{bytes}"
            );
        }
    }

    /// All problems that there are kernels for, by type and layout.
    fn problems() -> Vec<GemmProblem> {
        let mut all = Vec::new();
        for out in [DType::F16, DType::Bf16] {
            for layout in [Layout::RowMajor, Layout::Transposed] {
                let problem = GemmProblem::new(16, 16, 16, out);
                all.push(problem.with_layouts(Layout::RowMajor, layout));
            }
            for scaling in [Scaling::Tensor, Scaling::Row, Scaling::Block] {
                all.push(GemmProblem::e4m3(16, 16, 16, scaling, out));
            }
        }
        all
    }

    #[test]
    fn a_tile_without_a_kernel_is_named_with_those_that_have_one() {
        let few = GemmProblem::new(8, 4096, 4096, DType::Bf16);
        let gated = few.with_activation(Activation::SwiGlu);
        for (family, problem, config, refused, there) in [
            (
                Family::AllGather,
                few,
                FEW_ROWS_TILING.config,
                "the all-gather GEMM kernel has no tile `few rows` (7)",
                "it has 128x256_share_b, ",
            ),
            (
                Family::Reduction,
                few,
                0,
                "the GEMM + reduction kernel has no tile `128x256_share_b` (0)",
                "it has 128x256_alone, 128x128_alone, 128x64_alone",
            ),
            (
                Family::Eager,
                gated,
                6,
                "the eager all-gather GEMM kernel has no tile `128x64_alone` (6)",
                ", 128x128_alone",
            ),
            (
                Family::Plain,
                few,
                99,
                "no tile `unknown` (99)",
                "128x64_alone",
            ),
        ] {
            let error = require_kernel(family, &problem, config).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(refused) && text.contains(there), "{text}");
            assert!(text.ends_with("_alone"), "{text}");
        }
    }

    #[test]
    fn every_configuration_has_its_kernel() {
        for problem in problems() {
            for family in [
                Family::Plain,
                Family::AllGather,
                Family::Eager,
                Family::Reduction,
                Family::MultimemReduction,
                Family::OneShot,
            ] {
                for (index, config) in CONFIGS.iter().enumerate() {
                    let found = kernel(family, &problem, index);
                    let scales = family == Family::Plain || problem.scaling != Scaling::Block;
                    if blocks(config) > 1 && family.is_unclustered() || !scales {
                        assert_eq!(found.map(|(_, name)| name), None);
                        continue;
                    }
                    let (image, name) = found.unwrap();
                    assert!(name.ends_with(config.name), "{name}");
                    let mut code = image.sm_90a().windows(name.len());
                    assert!(
                        image.sm_90a().is_empty() || code.any(|part| part == name.as_bytes()),
                        "{name} is not in the device code"
                    );
                }
            }
        }
        let wide = GemmProblem::new(8, 8, 8, DType::F32);
        assert!(kernel(Family::Plain, &wide, 0).is_none());
        let half = GemmProblem::new(8, 8, 8, DType::F16);
        assert!(kernel(Family::AllGather, &half, CONFIGS.len()).is_none());
    }
}
