//! Measures the figures of a machine, as [`simulate`](warpweave_overlap::simulate()) takes them.
//!
//! Links, streams and signals are measured by plans of their own, in interleaved rounds of the one clock;
//! GEMMs by the suite `gemm` and collectives by the suite `collectives`, with their verification. A figure
//! that the ranks cannot measure stays that of the machine `h200x4`, and a comment above it says so.

use std::collections::BTreeMap;

use serde_json::Value;
use warpweave_comm::collective::{Costs, Operation};
use warpweave_overlap::Machine;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::{Plan, Problem};
use warpweave_report::{Bytes, Metric, Operands, Shape};
use warpweave_symm_mem::{BackendKind, DType};

use crate::candidate::Candidate;
use crate::clock::Clock;
use crate::collectives::{self, NcclBackend};
use crate::error::{BenchError, Result, if_available};
use crate::plans::PlanCandidate;
use crate::probes::{Probe, REPEATS, plan};
use crate::progress::Progress;
use crate::session::Session;
use crate::suite::{self, Settings};
use crate::timing::{Effort, Timing};

/// The machine whose figures stand for what was not measured.
pub const DEFAULT: &str = "h200x4";

/// How much is measured: everything is small on the host, whose figures are for tests.
struct Sizes {
    /// A copy for which only its start-up counts, and one for which that does not.
    copies: [usize; 2],
    scalar: Shape,
    gemms: Vec<(Shape, DType)>,
    collectives: Vec<Bytes>,
    iterations: Option<u32>,
}

impl Sizes {
    fn of(kind: BackendKind) -> Self {
        let square = |side| Shape::new(side, side, side);
        match kind {
            BackendKind::Host => Self {
                copies: [4 << 10, 1 << 20],
                scalar: square(64),
                gemms: [DType::Bf16, DType::F16, DType::F32]
                    .map(|d| (square(96), d))
                    .into(),
                collectives: [4 << 10, 64 << 10].map(Bytes).into(),
                iterations: Some(2),
            },
            BackendKind::Cuda => Self {
                copies: [4 << 10, 256 << 20],
                scalar: Shape::new(4096, 3584, 4096),
                gemms: vec![
                    (Shape::new(4096, 1792, 4096), DType::Bf16),
                    (Shape::new(4096, 3584, 8192), DType::Bf16),
                    (square(8192), DType::Bf16),
                    (square(4096), DType::F16),
                    (square(2048), DType::F32),
                ],
                collectives: collectives::sizes(kind),
                iterations: None,
            },
        }
    }
}

/// Measures this job's machine. Collective; every rank gets the same: the machine in TOML, and the times of
/// collectives.
pub fn run<B: NcclBackend>(session: &Session<B>) -> Result<(String, Costs)> {
    let progress = Progress::new(session.rank());
    let mut found = Found::new(session)?;
    progress.at(0, 3, "streams and links");
    found.streams_and_links()?;
    progress.at(1, 3, "GEMMs");
    found.gemms()?;
    progress.at(2, 3, "collectives");
    let costs = match session.world() {
        1 => Costs::default(),
        _ => found.collectives()?,
    };
    found.machine.validate()?;
    let remarks = remarks(&Machine::named(DEFAULT)?, &found.machine, session.world());
    Ok((found.machine.to_toml(&remarks), costs))
}

/// What the file says of figures that are not measured: those that are still `default`'s.
fn remarks(default: &Machine, found: &Machine, world: usize) -> BTreeMap<String, String> {
    fn add(name: &str, [default, found]: [&Value; 2], same: &mut Vec<String>) {
        let tables = [default, found].map(Value::as_object);
        if let [Some(default), Some(found)] = tables {
            for (key, found) in found {
                let full = [name, key].join(if name.is_empty() { "" } else { "." });
                if let Some(default) = default.get(key) {
                    add(&full, [default, found], same);
                }
            }
        } else if default == found {
            same.push(name.to_owned());
        }
    }
    // What is known without measuring.
    let is_known =
        |key: &str| ["nodes", "gpus_per_node", "gpu.sms"].contains(&key) || key.ends_with(".ranks");
    let values = [default, found].map(|machine| serde_json::to_value(machine).unwrap_or_default());
    let mut same = Vec::new();
    add("", values.each_ref(), &mut same);
    let why = match world {
        1 => "one rank alone, or it needs runs of its own",
        2 => "fewer than three ranks, or it needs runs of its own",
        _ => "it needs runs of its own, or something that is not here",
    };
    let remark = |why: &str| format!("not measured: {why}; the figure of {DEFAULT}");
    let mut remarks: BTreeMap<_, _> = same
        .into_iter()
        .filter(|key| !is_known(key))
        .map(|key| (key, remark(why)))
        .collect();
    let ratio = "the ratio to link.copy_engine_gbs is that of another machine";
    remarks.insert("link.gbs".into(), remark(ratio));
    remarks
}

/// The machine as far as it is known.
struct Found<'a, B: NcclBackend> {
    session: &'a Session<B>,
    sizes: Sizes,
    machine: Machine,
    /// What the empty call takes, µs.
    clock: f64,
}

impl<'a, B: NcclBackend> Found<'a, B> {
    fn new(session: &'a Session<B>) -> Result<Self> {
        let device = session.backend.device();
        let mut machine = Machine::named(DEFAULT)?;
        machine.name = format!("{} × {}", session.world(), session.device_name());
        (machine.nodes, machine.gpus_per_node) = (1, session.world());
        machine.gpu.sms = (device.sms as usize).max(1);
        Ok(Self {
            session,
            sizes: Sizes::of(B::KIND),
            machine,
            clock: 0.0,
        })
    }

    fn streams_and_links(&mut self) -> Result<()> {
        let (rank, world) = (self.session.rank(), self.session.world());
        let [small, large] = self.sizes.copies;
        let mut probes = vec![
            (Probe::Empty, small),
            (Probe::Events, small),
            (Probe::Local, large),
        ];
        if world > 1 {
            let crossings = [Probe::SignalsThenWaits, Probe::Crossings, Probe::Signals];
            probes.extend(crossings.map(|probe| (probe, small)));
            probes.push((Probe::Push { streams: false }, small));
            for streams in [false, true] {
                let moves = [Probe::Push { streams }, Probe::Pull { streams }];
                probes.extend(moves.map(|probe| (probe, large)));
            }
        }
        let built = probes.iter().map(|&(p, bytes)| plan(p, bytes, rank, world));
        let mut built = built.collect::<Result<Vec<_>, _>>()?;
        let Shape { m, n, k } = self.sizes.scalar;
        let problem = Problem::new(m, n, k, DType::Bf16);
        for name in ["naiveRemoteRead", "threadloadGatherScalarCompute"] {
            built.push(algorithms::find(name)?.plan(rank, world, &problem)?);
        }
        let times = times(self.session, built, self.sizes.iterations)?;
        let (of_probes, of_kernels) = times.split_at(probes.len());
        // What the clock costs is in each of them.
        self.clock = of_probes[0].unwrap_or(0.0);
        let clock = self.clock;
        let net = |us: f64| (us - clock).max(LEAST);
        let time = |probe: Probe, bytes: usize| {
            let at = probes.iter().position(|&known| known == (probe, bytes));
            Some(net(of_probes[at?]?))
        };
        if let Some(us) = time(Probe::Local, large) {
            self.machine.gpu.memory_gbs = rate(2 * large, us);
        }
        self.latencies(|probe| time(probe, small), world);
        self.links(|probe| time(probe, large), large, world);
        let flops = 2.0 * (m * n * k) as f64;
        let gemm = &mut self.machine.gemm;
        let scalar = [&mut gemm.naive_tflops, &mut gemm.scalar_tflops];
        for (rate, us) in scalar.into_iter().zip(of_kernels) {
            if let Some(us) = us {
                *rate = flops / net(*us) / 1e6;
            }
        }
        Ok(())
    }

    /// From the times of probes that move little.
    fn latencies(&mut self, time: impl Fn(Probe) -> Option<f64>, world: usize) {
        let latency = &mut self.machine.latency;
        if let Some(us) = time(Probe::Events) {
            latency.event_us = us / REPEATS as f64;
        }
        if let [Some(both), Some(crossings), Some(signals)] =
            [Probe::SignalsThenWaits, Probe::Crossings, Probe::Signals].map(&time)
        {
            let repeats = REPEATS as f64;
            // Signals alone are on the path but for one link crossing and one wait at their end, as launches
            // take no less than waits.
            let (pair, crossing) = (both / repeats, (crossings - both).max(0.0) / repeats);
            latency.signal_us = crossing;
            latency.launch_us = ((signals - crossing - pair) / (repeats - 1.0)).clamp(0.0, pair);
            latency.wait_us = pair - latency.launch_us;
        }
        if let Some(us) = time(Probe::Push { streams: false }) {
            let ending = latency.launch_us + latency.signal_us + latency.wait_us;
            latency.copy_us = ((us - ending) / (world - 1) as f64).max(0.0);
        }
    }

    /// From the times of probes that move so many bytes to or from each peer.
    fn links(&mut self, time: impl Fn(Probe) -> Option<f64>, bytes: usize, world: usize) {
        let (latency, copies) = (&self.machine.latency, world.saturating_sub(1) as f64);
        let ending = latency.launch_us + latency.signal_us + latency.wait_us;
        let start = latency.copy_us;
        let gbs = |probe, starts: f64| {
            let us = time(probe)? - ending - starts * start;
            Some(rate((world - 1) * bytes, us))
        };
        // Two ranks that pull from each other alone do not show what pulls of many cost.
        let many = |gbs: Option<f64>| gbs.filter(|_| world > 2);
        let link = &mut self.machine.link;
        if let Some(push) = gbs(Probe::Push { streams: false }, copies) {
            // No time tells the raw rate apart from what a copy reaches.
            link.gbs *= push / link.copy_engine_gbs;
            link.copy_engine_gbs = push;
            if let Some(together) = many(gbs(Probe::Push { streams: true }, 1.0)) {
                link.concurrent_copies = (together / push).min(1.0);
            }
        }
        if let Some(pull) = many(gbs(Probe::Pull { streams: false }, copies)) {
            link.pulls_gbs = pull;
        }
        if let Some(pull) = many(gbs(Probe::Pull { streams: true }, 1.0)) {
            link.pulls_streams_gbs = pull;
        }
    }

    /// Fits the sustained rate of each element type: the median over its shapes, with the tiles as they are.
    fn gemms(&mut self) -> Result<()> {
        let sizes = &self.sizes;
        let settings = Settings {
            implementations: vec!["cublasLt".into()],
            problems: sizes.gemms.clone(),
            iterations: sizes.iterations,
            ..Settings::of(&suite::GEMM)
        };
        let report = suite::run(self.session, &settings, |_| Ok(()))?;
        let mut factors: BTreeMap<DType, Vec<f64>> = BTreeMap::new();
        for (problem, &(shape, dtype)) in report.results.iter().zip(&sizes.gemms) {
            let time = problem.rows.first().and_then(|row| row.single_ms);
            if let Some(time) = time {
                let launch = self.machine.gemm.launch_us;
                let us = time.median * 1e3 - self.clock;
                let us = match us > 2.0 * launch {
                    true => us - launch,
                    false => us.max(LEAST),
                };
                let (predicted, _) = self.machine.gemm_time((shape.m, shape.n, shape.k), dtype);
                factors.entry(dtype).or_default().push(predicted / us);
            }
        }
        let rates = &mut self.machine.gemm.sustained_tflops;
        let rates = [
            (DType::Bf16, &mut rates.bf16),
            (DType::F16, &mut rates.f16),
            (DType::F32, &mut rates.f32),
        ];
        for (dtype, rate) in rates {
            if let Some(factors) = factors.get_mut(&dtype) {
                factors.sort_by(f64::total_cmp);
                *rate *= factors[factors.len() / 2];
            }
        }
        Ok(())
    }

    fn collectives(&mut self) -> Result<Costs> {
        let collectives = suite::named("collectives").map_err(BenchError::Usage)?;
        // All implementations: what is selected among them goes by what is measured here.
        let settings = Settings {
            sizes: self.sizes.collectives.clone(),
            iterations: self.sizes.iterations,
            ..Settings::of(collectives)
        };
        let report = suite::run(self.session, &settings, |_| Ok(()))?;
        let world = self.session.world();
        let (mut nccl, mut ours) = (BTreeMap::new(), BTreeMap::new());
        for outcome in &report.results {
            let is_of = |name: &&str| outcome.operation.as_deref() == Some(name);
            let operation = MODELLED.map(Operation::name).into_iter().find(is_of);
            let (Operands::Message { input_bytes, .. }, Some(operation)) = (outcome.on, operation)
            else {
                continue;
            };
            let time = |name: &str| {
                let ms = outcome.row(name)?.ms()?;
                Some((ms * 1e3 - self.clock).max(LEAST))
            };
            let bytes = input_bytes as f64;
            let note = |times: &mut BTreeMap<String, Vec<(f64, f64)>>, us: Option<f64>| {
                let times = times.entry(operation.to_owned()).or_default();
                // Sizes that were rounded to the same bytes are one.
                if times.last().is_none_or(|last| last.0 < bytes) {
                    times.extend(us.map(|us| (bytes, us)));
                }
            };
            note(&mut nccl, time("nccl"));
            note(&mut ours, outcome.selected.as_deref().and_then(time));
            if operation == Operation::AllGather.name() {
                let link = &mut self.machine.link;
                for (name, gbs) in [
                    ("push", &mut link.sm_push_gbs),
                    ("pull", &mut link.sm_pull_gbs),
                ] {
                    // The last size is the largest, and counts.
                    if let Some(us) = time(name) {
                        *gbs = rate((world - 1) * input_bytes, us);
                    }
                }
            }
        }
        let libraries = &mut self.machine.collectives;
        for (library, times) in [
            (&mut libraries.nccl, nccl),
            (&mut libraries.symmetric_memory, ours),
        ] {
            if times.values().all(|times| !times.is_empty()) {
                (library.ranks, library.times) = (world, times);
                library.pairs.clear();
            }
        }
        Ok(collectives::costs(&report.results))
    }
}

/// The collectives of which simulations have times.
const MODELLED: [Operation; 3] = [
    Operation::AllGather,
    Operation::ReduceScatter,
    Operation::AllReduce,
];

/// What differences of measured times are at least, µs.
const LEAST: f64 = 1e-3;

/// GB/s of bytes in µs.
fn rate(bytes: usize, us: f64) -> f64 {
    bytes as f64 / us.max(LEAST) / 1e3
}

/// Medians of single calls of plans in µs, in interleaved rounds; `None` for a plan that cannot run here.
fn times<B: NcclBackend>(
    session: &Session<B>,
    plans: Vec<Plan>,
    iterations: Option<u32>,
) -> Result<Vec<Option<f64>>> {
    let effort = Effort::of_collectives(B::KIND, iterations);
    // SAFETY: probes of links have no flags, and race on floats that nobody reads; each wait of the others
    // has its signal.
    let bind = |plan| if_available(unsafe { PlanCandidate::of_unproved(session, plan) });
    let bound: Vec<_> = plans.into_iter().map(bind).collect::<Result<_>>()?;
    let clock = &Clock::new(session, effort.capacity())?;
    let timing = Timing { clock, effort };
    let able = bound.iter().flatten().map(|plan| plan as &dyn Candidate);
    let mut times = timing
        .measure(&able.collect::<Vec<_>>(), |_, _| ())?
        .into_iter();
    let median = |plan: &Result<PlanCandidate<'_, B>, String>| {
        plan.as_ref().ok()?;
        Some(times.next()?.spread(Metric::Single)?.median * 1e3)
    };
    Ok(bound.iter().map(median).collect())
}
