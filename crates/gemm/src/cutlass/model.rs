//! The choice between configurations where nothing was measured: a model of tiles and waves.
//!
//! A persistent kernel runs ceil(tiles / slots) tiles on its busiest SM, one after another; stream-K spreads
//! the last wave over all. The constants were fitted to an H200 at 1024³ f16, where one wave of 128×128
//! ping-pong tiles takes 11.3 µs and one of 128×256 cooperative tiles 16.3 µs, and to about 800 TFLOP/s on
//! large bf16 GEMMs. Tuning on the device replaces the model.

use super::tiling::{Config, Raster, Tiling};
use crate::GemmProblem;
use warpweave_symm_mem::DType;

/// f16 and bf16 rate of one SM under sustained load, FLOP/s.
const SM_RATE: f64 = 800e12 / 132.0;
/// Launch, first loads and tensor-map pulls, seconds.
const LAUNCH: f64 = 4e-6;
/// L2 write bandwidth of one SM, bytes/s.
const STORE_RATE: f64 = 40e9;
/// What stream-K adds: clearing its locks, storing and reducing partial tiles, seconds.
const STREAM_K: f64 = 10e-6;
/// Persistent goes longer than this many waves profit from groups that keep panels of A and B in the L2
/// cache.
const SWIZZLE_WAVES: u64 = 2;

/// The configuration that the model expects to be fastest on a device of `sms` SMs, of those that the problem
/// admits, or `None` if there are none.
pub fn select(configs: &[Config], problem: &GemmProblem, sms: u32) -> Option<Tiling> {
    let (config, chosen) = configs
        .iter()
        .enumerate()
        .filter(|(_, config)| config.serves(problem))
        .min_by(|(_, a), (_, b)| seconds(a, problem, sms).total_cmp(&seconds(b, problem, sms)))?;
    let waves = tiles(chosen, problem).div_ceil(slots(chosen, sms));
    let swizzle = if waves > SWIZZLE_WAVES { 8 } else { 1 };
    Some(Tiling {
        config,
        raster: Raster::Heuristic,
        swizzle,
    })
}

/// Everything that is worth timing: each configuration that the problem admits, each order and each group
/// width.
pub fn tilings(configs: &[Config], problem: &GemmProblem) -> Vec<Tiling> {
    let mut all = Vec::new();
    let serving = |&config: &usize| configs[config].serves(problem);
    for config in (0..configs.len()).filter(serving) {
        for raster in [Raster::AlongM, Raster::AlongN] {
            for swizzle in [1, 2, 4, 8] {
                all.push(Tiling {
                    config,
                    raster,
                    swizzle,
                });
            }
        }
    }
    all
}

/// Predicted time of one launch, in seconds.
pub(crate) fn seconds(config: &Config, problem: &GemmProblem, sms: u32) -> f64 {
    let (multiply, store) = tile_seconds(config, problem);
    let tiles = tiles(config, problem);
    let slots = slots(config, sms);
    let waves = tiles.div_ceil(slots) as f64;
    if config.stream_k {
        let spread = tiles as f64 / slots as f64;
        return LAUNCH + STREAM_K + spread * multiply + waves * store;
    }
    // Ping-pong hides every store but the last after the other warp group's multiplications.
    let stores = if config.cooperative { waves } else { 1.0 };
    LAUNCH + waves * multiply + stores * store
}

/// What a tile takes to be multiplied, and to be stored.
pub(crate) fn tile_seconds(config: &Config, problem: &GemmProblem) -> (f64, f64) {
    let [tile_m, tile_n, _] = config.tile;
    let area = f64::from(tile_m) * f64::from(tile_n);
    let rate = SM_RATE * speed(problem.dtype) * efficiency(config);
    let multiply = 2.0 * area * problem.k as f64 / rate;
    (multiply, area * problem.out.size() as f64 / STORE_RATE)
}

/// How many times the rate of f16 and bf16 tensor cores have for elements of this type.
pub(crate) fn speed(dtype: DType) -> f64 {
    match dtype {
        DType::E4m3 => 2.0,
        _ => 1.0,
    }
}

/// The fraction of the tensor cores' rate that shared memory lets a tile reach.
fn efficiency(config: &Config) -> f64 {
    match config.tile[0] * config.tile[1] {
        0..=8192 => 0.75,
        8193..=16384 => 0.95,
        // Two 64-row operands against one wide B are read less often than two narrow ones.
        _ if config.tile[1] >= config.tile[0] => 1.0,
        _ => 0.98,
    }
}

/// The tiles of a problem, in whole clusters.
pub(crate) fn tiles(config: &Config, problem: &GemmProblem) -> u64 {
    let along = |extent: usize, tile: u32, cluster: u32| {
        (extent as u64)
            .div_ceil(u64::from(tile))
            .next_multiple_of(u64::from(cluster))
    };
    along(problem.m, config.tile[0], config.cluster[0])
        * along(problem.n, config.tile[1], config.cluster[1])
}

/// Thread blocks that run at once, in whole clusters.
pub(crate) fn slots(config: &Config, sms: u32) -> u64 {
    let size = (config.cluster[0] * config.cluster[1]).max(1);
    u64::from((sms / size * size).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scaling;

    /// A tile of e4m3 is multiplied in half the time, and stored in as much.
    #[test]
    fn tiles_of_e4m3_are_multiplied_in_half_the_time() {
        let wide = config("wide", [128, 256, 64], [1, 1], true, false);
        let of = |problem| tile_seconds(&wide, &problem);
        let half = of(GemmProblem::new(1024, 1024, 1024, DType::Bf16));
        let narrow = of(GemmProblem::e4m3(
            1024,
            1024,
            1024,
            Scaling::Row,
            DType::Bf16,
        ));
        assert_eq!(narrow, (half.0 / 2.0, half.1));
    }

    const fn config(
        name: &'static str,
        tile: [u32; 3],
        cluster: [u32; 2],
        cooperative: bool,
        stream_k: bool,
    ) -> Config {
        Config {
            name,
            tile,
            cluster,
            cooperative,
            stream_k,
        }
    }

    const CONFIGS: [Config; 4] = [
        config("cooperative", [128, 256, 64], [2, 1], true, false),
        config("pingpong", [128, 128, 64], [2, 1], false, false),
        config("small", [64, 128, 128], [1, 1], false, false),
        config("stream_k", [128, 256, 64], [2, 1], true, true),
    ];

    fn chosen(m: usize, n: usize, k: usize) -> &'static str {
        let problem = GemmProblem::new(m, n, k, DType::Bf16);
        CONFIGS[select(&CONFIGS, &problem, 132).unwrap().config].name
    }

    #[test]
    fn small_gemms_get_small_tiles() {
        assert_eq!(chosen(1024, 1024, 1024), "small");
        assert_eq!(chosen(256, 256, 512), "small");
    }

    #[test]
    fn large_gemms_get_large_tiles() {
        assert_eq!(chosen(16384, 6656, 16384), "stream_k");
        // 132 · 2 tiles fill two waves exactly, so that splitting gains nothing.
        assert_eq!(chosen(128 * 132, 512, 4096), "cooperative");
    }

    #[test]
    fn an_empty_last_wave_is_split() {
        // 33 · 4 + 2 tiles: the second wave would hold two.
        assert_eq!(chosen(128 * 134, 256, 16384), "stream_k");
    }

    #[test]
    fn predictions_are_near_the_measured_ones() {
        let problem = GemmProblem::new(1024, 1024, 1024, DType::F16);
        let wide = seconds(&CONFIGS[0], &problem, 132) * 1e6;
        let square = seconds(&CONFIGS[1], &problem, 132) * 1e6;
        assert!((14.0..19.0).contains(&wide), "{wide}");
        assert!((9.5..13.0).contains(&square), "{square}");
    }

    #[test]
    fn batch_invariant_gemms_are_not_split() {
        for (m, n, k) in [(16384, 6656, 16384), (128 * 134, 256, 16384), (1, 8, 8)] {
            let problem = GemmProblem::new(m, n, k, DType::Bf16).with_batch_invariance();
            let chosen = select(&CONFIGS, &problem, 132).unwrap().config;
            assert!(!CONFIGS[chosen].stream_k, "{problem}");
            let all = tilings(&CONFIGS, &problem);
            assert_eq!(all.len(), (CONFIGS.len() - 1) * 8);
            assert!(all.iter().all(|tiling| !CONFIGS[tiling.config].stream_k));
        }
        let only = &CONFIGS[3..];
        let problem = GemmProblem::new(8, 8, 8, DType::Bf16).with_batch_invariance();
        assert_eq!(select(only, &problem, 132), None);
    }

    #[test]
    fn candidates_cover_every_configuration() {
        let problem = GemmProblem::new(8, 8, 8, DType::F16);
        let all = tilings(&CONFIGS, &problem);
        assert_eq!(all.len(), CONFIGS.len() * 8);
        assert_eq!(
            select(&[], &GemmProblem::new(8, 8, 8, DType::F16), 132),
            None
        );
    }
}
