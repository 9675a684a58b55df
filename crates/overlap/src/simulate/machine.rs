//! A machine as figures.

use super::collectives::Collectives;
use super::cost::{LastWave, micros};
use super::error::SimulateError;
use crate::plan::output_of;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use warpweave_comm::measured::{Figures, Measured};
use warpweave_symm_mem::DType;

/// The machines that come with the crate, by name.
const KNOWN: [(&str, &str); 5] = [
    ("h200x4", include_str!("../../machines/h200x4.toml")),
    ("h200x8", include_str!("../../machines/h200x8.toml")),
    ("h100x8", include_str!("../../machines/h100x8.toml")),
    (
        "h200x4-2nodes",
        include_str!("../../machines/h200x4-2nodes.toml"),
    ),
    ("nvl72", include_str!("../../machines/nvl72.toml")),
];

/// How sharply the bound by memory takes over from that by tensor cores; fitted to GEMMs of few rows.
const ROOFLINE: f64 = 3.0;

/// Depth of a GEMM up to which two waves of the smallest tiles are faster than one of larger ones.
const SHALLOW: usize = 2048;

/// Rows, or columns, of which all tiles are whole numbers.
const HALF_TILE: usize = 64;

/// How many times as long a tile takes that TMA fills up with zeros: 1028×1160×1032 takes 12.4 µs where the
/// library takes 8.9, 2.9 of each to launch (`docs/fused-kernel.md`).
const ZEROS: f64 = (12.4 - 2.9) / (8.9 - 2.9);

/// What a last wave in halves of tiles takes of the time of a whole one. Its multiplications take half, but
/// twice as many SMs share power, and each half loads as much of A: 0.5 to 0.8 by turns with the build before
/// (`docs/results/README.md`, all-gather + matmul on four GPUs).
const HALVES: f64 = 0.7;

/// Figures of a machine; rank r is GPU r mod [`gpus_per_node`](Machine::gpus_per_node) of its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name in reports.
    pub name: String,
    /// Nodes.
    pub nodes: usize,
    /// GPUs of a node, all connected by a switch.
    pub gpus_per_node: usize,
    /// Each GPU.
    pub gpu: Gpu,
    /// GEMMs.
    #[serde(alias = "product")]
    pub gemm: Gemm,
    /// Links within a node.
    pub link: Link,
    /// Collectives of libraries.
    pub collectives: Collectives,
    /// What things cost before they move a byte.
    pub latency: Latency,
    /// Links between nodes.
    pub network: Network,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// SMs.
    #[serde(alias = "multiprocessors")]
    pub sms: usize,
    /// Bandwidth of its memory, GB/s.
    pub memory_gbs: f64,
    /// Of operands and result of a GEMM so many bytes stay in its L2 from one call to the next, MB.
    #[serde(default)]
    pub l2_mb: f64,
    /// Bandwidth of these, GB/s.
    #[serde(default = "unlimited")]
    pub l2_gbs: f64,
    /// Copies that can be under way at once.
    pub copy_engines: usize,
}

/// GEMMs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gemm {
    /// TFLOP/s of a GEMM whose tiles fill all SMs, by element type.
    pub sustained_tflops: Rates,
    /// The rate of e4m3, whose sums are added in f32, over that of bf16.
    #[serde(default = "twice")]
    pub e4m3: f64,
    /// From launch to the first tile, µs.
    pub launch_us: f64,
    /// What one of the library takes longer that memory keeps busy for half of its time or more, µs: the
    /// latency of its first loads and last stores. Of one that memory keeps busy for less time, a part of it.
    #[serde(default)]
    pub memory_us: f64,
    /// How long it takes until GEMMs whose tiles fill all SMs have lost 63 % of what power throttles, µs.
    pub boost_us: f64,
    /// The part of the rate that power sustains. GEMMs whose waves leave more SMs idle are not throttled.
    pub throttled: f64,
    /// The part of the rate that is left while transfers fill the GPU's links both ways, for they take memory
    /// and power.
    #[serde(alias = "beside_transfers")]
    pub during_transfers: f64,
    /// The part of the rate that is left while the blocks of the GEMM push rows to peers.
    #[serde(default = "whole")]
    pub during_pushes: f64,
    /// The rate of a CUTLASS GEMM as a part of the library's.
    pub cutlass: f64,
    /// Tiles that the library chooses from.
    pub tiles: Vec<Tile>,
    /// TFLOP/s of one thread an element with operands from afar.
    pub naive_tflops: f64,
    /// TFLOP/s of a scalar kernel with operands in staging.
    pub scalar_tflops: f64,
    /// Columns of C that a block of such a kernel computes at a time.
    pub scalar_columns: usize,
    /// The part of such a block's time that its loads take, however few rows or columns it has.
    #[serde(default)]
    pub scalar_loads: f64,
}

/// What nothing slows down.
pub(super) fn whole() -> f64 {
    1.0
}

/// As tensor cores take elements of half the size.
fn twice() -> f64 {
    2.0
}

fn unlimited() -> f64 {
    f64::MAX
}

fn yes() -> bool {
    true
}

/// TFLOP/s by element type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// bf16.
    pub bf16: f64,
    /// f16.
    pub f16: f64,
    /// f32.
    pub f32: f64,
}

/// A tile of C that one SM computes at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tile {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Its rate as a part of the sustained one.
    pub efficiency: f64,
}

/// Links of a GPU within its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Raw bandwidth each way, GB/s, which all transfers share.
    pub gbs: f64,
    /// What one copy by copy engine reaches while no other uses its links, GB/s.
    pub copy_engine_gbs: f64,
    /// What stores of the SMs reach, GB/s.
    pub sm_push_gbs: f64,
    /// What loads of the SMs reach, GB/s.
    pub sm_pull_gbs: f64,
    /// What loads and stores of the SMs between more than two ranks take more than at these rates, at most,
    /// µs.
    #[serde(default)]
    pub sm_start_us: f64,
    /// How fast that grows with the first bytes of a launch, GB/s.
    #[serde(default = "unlimited")]
    pub sm_start_gbs: f64,
    /// What copy engines pull into each of more than two GPUs while all pull, on one stream each, back to
    /// back, GB/s. Two that pull from each other alone reach `copy_engine_gbs`, and so do pulls with a GEMM
    /// between them.
    pub pulls_gbs: f64,
    /// The same of pulls that begin at the same moment on several streams; what comes from one peer is there
    /// before what comes from the next.
    pub pulls_streams_gbs: f64,
    /// The part of one copy's rate that copies of one GPU to different peers reach together.
    pub concurrent_copies: f64,
    /// The part of the raw bandwidth that is left while copy engines and SMs use a link together.
    pub mixed: f64,
}

/// What things cost before they move a byte, µs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// A kernel, or a signal that is an operation of a stream.
    pub launch_us: f64,
    /// A copy by copy engine.
    pub copy_us: f64,
    /// What one that reads from a peer takes more: what it asks for crosses the link twice.
    #[serde(default)]
    pub pull_us: f64,
    /// One between GPUs that follows another on its stream: it starts up while the other moves bytes.
    #[serde(default)]
    pub next_copy_us: f64,
    /// From a signal to the peer that could see it.
    pub signal_us: f64,
    /// A wait whose signal is there.
    pub wait_us: f64,
    /// An event between two streams.
    pub event_us: f64,
    /// Whether signals and waits that are operations of a stream are kernels, which need a place on an SM,
    /// and not memory operations of the stream.
    #[serde(default = "yes")]
    pub by_kernel: bool,
    /// What a signal or a wait that is an operation of a stream costs more while GEMMs hold all SMs of its
    /// GPU; a part of it while they hold a part.
    #[serde(alias = "beside_products_us")]
    pub during_gemm_us: f64,
    /// Within so many µs of the launch of a GEMM that fills the GPU, such a kernel and it overtake each
    /// other.
    #[serde(default)]
    pub overtaken_us: f64,
    /// In files of the release before. It is not used any more.
    #[serde(default, skip_serializing)]
    pub during_gemm_waves: IgnoredAny,
}

/// Links of a GPU to other nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Bandwidth each way, GB/s.
    pub gbs: f64,
    /// What a transfer or a signal costs more if it leaves the node, µs, and a collective for each doubling
    /// of its nodes.
    pub latency_us: f64,
}

impl Machine {
    /// The names of the machines that come with the crate.
    pub fn names() -> Vec<&'static str> {
        KNOWN.iter().map(|(name, _)| *name).collect()
    }

    /// The machine of this name; `NAME:nodes=N` is N nodes of it.
    ///
    /// # Errors
    /// There is none; the error lists the names there are.
    pub fn named(name: &str) -> Result<Machine, SimulateError> {
        if let Some((of, nodes)) = name.split_once(":nodes=")
            && let Ok(nodes) = nodes.parse()
        {
            let machine = Machine {
                name: name.to_owned(),
                ..Machine::named(of)?.with_nodes(nodes)
            };
            machine.validate()?;
            return Ok(machine);
        }
        match KNOWN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Machine::from_toml(text),
            None => Err(SimulateError::UnknownMachine {
                name: name.to_owned(),
                known: Machine::names().into_iter().map(str::to_owned).collect(),
            }),
        }
    }

    /// What was measured of the machine whose files these are, if anything was.
    pub fn measured(kept: &Measured) -> Option<Machine> {
        kept.read(Figures::Machine, Machine::from_toml)
    }

    /// Reads a description in TOML.
    ///
    /// # Errors
    /// The text is no TOML, a key is missing or unknown, or a figure is not one of a machine.
    pub fn from_toml(text: &str) -> Result<Machine, SimulateError> {
        let machine: Machine = toml::from_str(text).map_err(|e| SimulateError::Malformed {
            what: e.to_string(),
        })?;
        machine.validate()?;
        Ok(machine)
    }

    /// GPUs of all nodes.
    pub fn gpus(&self) -> usize {
        self.nodes.saturating_mul(self.gpus_per_node)
    }

    /// Whether two ranks stand in one node.
    pub fn same_node(&self, a: usize, b: usize) -> bool {
        a / self.gpus_per_node == b / self.gpus_per_node
    }

    /// The nodes that so many ranks fill, at least in part.
    pub fn nodes_of(&self, world: usize) -> usize {
        world.div_ceil(self.gpus_per_node)
    }

    /// So many of these nodes.
    #[must_use]
    pub fn with_nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// Checks that the nodes of a plan of `world` ranks are within those of the machine.
    ///
    /// # Errors
    /// [`SimulateError::SpansNodes`].
    pub(crate) fn holds_nodes_of(&self, size: usize, world: usize) -> Result<(), SimulateError> {
        let gpus_per_node = self.gpus_per_node;
        match world <= gpus_per_node || gpus_per_node.is_multiple_of(size) {
            true => Ok(()),
            false => Err(SimulateError::SpansNodes {
                size: size.min(world),
                gpus_per_node,
            }),
        }
    }

    /// Checks that plans of `world` ranks can be simulated on it.
    pub(crate) fn admits(&self, world: usize) -> Result<(), SimulateError> {
        self.validate()?;
        let gpus = self.gpus();
        if world > gpus {
            return Err(SimulateError::TooFewGpus {
                machine: self.name.clone(),
                gpus,
                world,
            });
        }
        Ok(())
    }

    /// Checks that every figure is valid: counts and rates above 0, latencies not below.
    ///
    /// # Errors
    /// Names the first figure that is not.
    pub fn validate(&self) -> Result<(), SimulateError> {
        let refuse = |what: String| Err(SimulateError::Malformed { what });
        let (p, l, t) = (&self.gemm, &self.link, &self.latency);
        let counts = [
            ("nodes", self.nodes),
            ("gpus_per_node", self.gpus_per_node),
            ("gpu.sms", self.gpu.sms),
            ("gpu.copy_engines", self.gpu.copy_engines),
            ("the number of gemm.tiles", p.tiles.len()),
            ("gemm.scalar_columns", p.scalar_columns),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, n)| *n == 0) {
            return refuse(format!("{name} is 0"));
        }
        let rates = [
            ("gpu.memory_gbs", self.gpu.memory_gbs),
            ("gpu.l2_gbs", self.gpu.l2_gbs),
            ("gemm.sustained_tflops.bf16", p.sustained_tflops.bf16),
            ("gemm.sustained_tflops.f16", p.sustained_tflops.f16),
            ("gemm.sustained_tflops.f32", p.sustained_tflops.f32),
            ("gemm.e4m3", p.e4m3),
            ("gemm.cutlass", p.cutlass),
            ("gemm.naive_tflops", p.naive_tflops),
            ("gemm.scalar_tflops", p.scalar_tflops),
            ("link.gbs", l.gbs),
            ("link.copy_engine_gbs", l.copy_engine_gbs),
            ("link.sm_push_gbs", l.sm_push_gbs),
            ("link.sm_pull_gbs", l.sm_pull_gbs),
            ("link.sm_start_gbs", l.sm_start_gbs),
            ("link.pulls_gbs", l.pulls_gbs),
            ("link.pulls_streams_gbs", l.pulls_streams_gbs),
            ("network.gbs", self.network.gbs),
        ];
        if let Some((name, rate)) = rates.iter().find(|(_, r)| !(r.is_finite() && *r > 0.0)) {
            return refuse(format!("{name} is {rate}, a rate is above 0"));
        }
        let parts = [
            ("link.concurrent_copies", l.concurrent_copies),
            ("link.mixed", l.mixed),
            ("gemm.throttled", p.throttled),
            ("gemm.during_transfers", p.during_transfers),
            ("gemm.during_pushes", p.during_pushes),
        ];
        if let Some((name, part)) = parts.iter().find(|(_, p)| !(*p > 0.0 && *p <= 1.0)) {
            return refuse(format!("{name} is {part}, not a part of 1"));
        }
        self.collectives.validate()?;
        let whole =
            |t: &Tile| t.rows > 0 && t.cols > 0 && t.efficiency > 0.0 && t.efficiency.is_finite();
        if !p.tiles.iter().all(whole) {
            return refuse("a tile has rows, columns and an efficiency above 0".into());
        }
        let latencies = [
            ("gpu.l2_mb", self.gpu.l2_mb),
            ("gemm.launch_us", p.launch_us),
            ("gemm.memory_us", p.memory_us),
            ("gemm.boost_us", p.boost_us),
            ("link.sm_start_us", l.sm_start_us),
            ("latency.launch_us", t.launch_us),
            ("latency.copy_us", t.copy_us),
            ("latency.pull_us", t.pull_us),
            ("latency.next_copy_us", t.next_copy_us),
            ("latency.signal_us", t.signal_us),
            ("latency.wait_us", t.wait_us),
            ("latency.event_us", t.event_us),
            ("latency.during_gemm_us", t.during_gemm_us),
            ("latency.overtaken_us", t.overtaken_us),
            ("gemm.scalar_loads", p.scalar_loads),
            ("network.latency_us", self.network.latency_us),
        ];
        match latencies
            .iter()
            .find(|(_, t)| !(t.is_finite() && *t >= 0.0))
        {
            Some((name, t)) => refuse(format!("{name} is {t}, a latency is not below 0")),
            None => Ok(()),
        }
    }

    /// How long a GEMM of m × k by k × n takes alone and unthrottled, µs without its launch, and the part of
    /// the SMs that it holds until its end, for the tile that is fastest.
    ///
    /// A GEMM takes whole waves of tiles, one on each SM. Its blocks are persistent: one that finds no tile
    /// in the last wave is of no use to other kernels before the GEMM is about to end.
    pub fn gemm_time(&self, shape: (usize, usize, usize), dtype: DType) -> (f64, f64) {
        let waves = self.library_waves(shape, dtype);
        (waves.time(), waves.tiles.min(1.0))
    }

    /// The waves of tiles of such a GEMM of the library. Where tiles do not fill the SMs, it cuts K into up
    /// to four parts, which are written in f32, read and added. One that memory keeps busy for half of its
    /// time or more is longer by the latency of memory.
    pub(crate) fn library_waves(&self, shape: (usize, usize, usize), dtype: DType) -> Waves {
        let (m, n, k) = shape;
        let cut = |parts: usize| {
            let waves = self.waves((m, n.saturating_mul(parts), k.div_ceil(parts)), dtype);
            let partials = 2.0 * 4.0 * m as f64 * n as f64 * parts as f64;
            let adding = micros(partials, self.gpu.memory_gbs);
            waves.slower(1.0 + adding / waves.time().max(f64::MIN_POSITIVE))
        };
        let whole = self.waves(shape, dtype);
        let fastest = match whole.count() > 1.0 {
            true => whole,
            false => [2, 4].map(cut).into_iter().fold(whole, Waves::faster),
        };
        let us = fastest.time().max(f64::MIN_POSITIVE);
        let moved = moved_by(shape, dtype);
        let late = match self.in_l2(moved) {
            true => 0.0,
            false => {
                self.gemm.memory_us * f64::min(2.0 * micros(moved, self.gpu.memory_gbs) / us, 1.0)
            }
        };
        fastest.slower(1.0 + late / us)
    }

    /// The waves of tiles of such a GEMM, none cut along K.
    pub(crate) fn waves(&self, shape: (usize, usize, usize), dtype: DType) -> Waves {
        self.waves_of(|_| true, shape, dtype).unwrap_or_default()
    }

    /// The same in tiles of as many rows, or of as many columns, turned.
    pub(crate) fn waves_in(
        &self,
        shape: (usize, usize, usize),
        dtype: DType,
        rows: usize,
    ) -> Waves {
        let (m, n, k) = shape;
        let fastest = |most: usize| {
            let fits = |t: &Tile| t.rows * t.cols <= most;
            let upright = self.waves_of(|t| t.rows == rows && fits(t), shape, dtype);
            let turned = self.waves_of(|t| t.cols == rows && fits(t), (n, m, k), dtype);
            upright.into_iter().chain(turned).reduce(Waves::faster)
        };
        // In one wave all tiles end at once, and the links would have nothing to do before.
        let several = fastest(usize::MAX).filter(|waves| waves.count() > 1.0);
        let smaller = || fastest(rows * rows);
        several
            .or_else(smaller)
            .unwrap_or_else(|| self.waves(shape, dtype))
    }

    /// The same in the largest tiles, but where they would be one wave. Those of a last wave that leaves half
    /// of the SMs or more without one are taken in halves: `for_each_index` in `sm90/schedule.cuh`. In e4m3
    /// that saves next to nothing (`docs/fused-kernel.md`).
    pub(crate) fn large_waves(&self, shape: (usize, usize, usize), dtype: DType) -> Waves {
        let area = |t: &Tile| t.rows * t.cols;
        let largest = self.gemm.tiles.iter().map(area).max();
        let waves = self.waves_of(|t| Some(area(t)) == largest, shape, dtype);
        match waves {
            Some(waves) if waves.count() > 1.0 => Waves {
                halves: dtype != DType::E4m3 && waves.last().sms <= 0.5,
                ..waves
            },
            _ => self.late_waves(shape, dtype),
        }
    }

    /// The same where some rows come late: in tiles smaller than the largest, so that something is left to do
    /// while they come. The smallest are for GEMMs of which others would leave half of the SMs idle, or be
    /// one wave of shallow tiles: as in the kernel's choice (`sm90/config.rs`).
    pub(crate) fn late_waves(&self, shape: (usize, usize, usize), dtype: DType) -> Waves {
        let (m, n, k) = shape;
        let area = |t: &Tile| t.rows * t.cols;
        let mut areas: Vec<usize> = self.gemm.tiles.iter().map(area).collect();
        areas.sort_unstable();
        areas.dedup();
        areas.pop();
        let (smallest, small) = (areas.first().copied(), areas.last().copied());
        let tiles = small.map_or(0, |small| m.saturating_mul(n).div_ceil(small));
        let most = if k <= SHALLOW {
            self.gpu.sms
        } else {
            self.gpu.sms / 2
        };
        let taken = if tiles <= most { smallest } else { small };
        self.waves_of(|t| Some(area(t)) == taken, shape, dtype)
            .unwrap_or_else(|| self.waves(shape, dtype))
    }

    /// Whether so many bytes stay in L2 from one call to the next.
    fn in_l2(&self, bytes: f64) -> bool {
        bytes <= self.gpu.l2_mb * 1e6
    }

    /// How many times as long a GEMM takes as its multiplications, since it also reads and writes so many
    /// bytes. Both overlap, but the first loads and the last stores with nothing, which shows where both
    /// take about as long.
    fn roofline(&self, multiplying_us: f64, bytes: f64) -> f64 {
        if multiplying_us <= 0.0 {
            return 1.0;
        }
        let gbs = match self.in_l2(bytes) {
            true => self.gpu.l2_gbs,
            false => self.gpu.memory_gbs,
        };
        let moving = micros(bytes, gbs) / multiplying_us;
        (1.0 + moving.powf(ROOFLINE)).powf(1.0 / ROOFLINE)
    }

    fn waves_of(
        &self,
        takes: impl Fn(&Tile) -> bool,
        shape: (usize, usize, usize),
        dtype: DType,
    ) -> Option<Waves> {
        let tiles = self.gemm.tiles.iter().zip(self.tilings(shape, dtype));
        let taken = tiles.filter(|(tile, _)| takes(tile));
        taken.map(|(_, waves)| waves).reduce(Waves::faster)
    }

    /// The waves of such a GEMM in each of the tiles.
    fn tilings(
        &self,
        (m, n, k): (usize, usize, usize),
        dtype: DType,
    ) -> impl Iterator<Item = Waves> {
        let rates = &self.gemm.sustained_tflops;
        let tflops = match dtype {
            DType::Bf16 => rates.bf16,
            DType::F16 => rates.f16,
            DType::F32 => rates.f32,
            DType::E4m3 => self.gemm.e4m3 * rates.bf16,
        };
        let sms = self.gpu.sms as f64;
        let bytes = moved_by((m, n, k), dtype);
        let of = move |t: &Tile| {
            let tiles = m.div_ceil(t.rows).saturating_mul(n.div_ceil(t.cols)) as f64 / sms;
            // A small tile loads more for each multiplication. Where fewer SMs multiply, each gets more of
            // what L2 gives all.
            let efficiency = (t.efficiency / tiles.min(1.0)).min(t.efficiency.max(1.0));
            let flops = 2.0 * t.rows as f64 * t.cols as f64 * k as f64;
            let wave_us = flops * sms / (tflops * efficiency * 1e6);
            let waves = Waves {
                tiles,
                wave_us,
                halves: false,
            };
            waves.slower(self.roofline(waves.time(), bytes))
        };
        self.gemm.tiles.iter().map(of)
    }
}

/// Bytes of the operands and of the result of a GEMM.
fn moved_by((m, n, k): (usize, usize, usize), dtype: DType) -> f64 {
    let (rows, cols, depth) = (m as f64, n as f64, k as f64);
    let [operand, result] = [dtype, output_of(dtype)].map(|dtype| dtype.size() as f64);
    (rows + cols) * depth * operand + rows * cols * result
}

/// A GEMM as waves of tiles.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waves {
    /// Its tiles, in waves; the last one may be partly filled.
    pub(crate) tiles: f64,
    /// How long one takes, µs.
    pub(crate) wave_us: f64,
    /// Whether the tiles of the last one are taken in halves.
    pub(crate) halves: bool,
}

impl Waves {
    /// How many there are.
    pub(crate) fn count(self) -> f64 {
        self.tiles.ceil()
    }

    /// How long all of them take, µs.
    pub(crate) fn time(self) -> f64 {
        let saved = if self.halves { 1.0 - HALVES } else { 0.0 };
        (self.count() - saved) * self.wave_us
    }

    /// How many times as long they take in CUTLASS, which fills rows and columns of tiles beyond the matrix
    /// with zeros: the wave that has such tiles takes longer.
    pub(crate) fn ragged(self, (m, n, _): (usize, usize, usize)) -> f64 {
        match m.is_multiple_of(HALF_TILE) && n.is_multiple_of(HALF_TILE) {
            true => 1.0,
            false => 1.0 + (ZEROS - 1.0) / self.count().max(1.0),
        }
    }

    /// The last of them.
    pub(crate) fn last(self) -> LastWave {
        LastWave {
            us: self.wave_us,
            sms: self.tiles - (self.count() - 1.0).max(0.0),
        }
    }

    /// The same, taking so many times as long.
    pub(crate) fn slower(self, times: f64) -> Waves {
        Waves {
            wave_us: self.wave_us * times,
            ..self
        }
    }

    /// The first of equals.
    fn faster(a: Waves, b: Waves) -> Waves {
        match b.time() < a.time() {
            true => b,
            false => a,
        }
    }
}
