//! Predicted against measured: all figures in the files of `measured/`, to which runs are added as lines.

use crate::schedules;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// What the clock of the measurements costs, the empty call, µs.
const CLOCK: f64 = 3.0;

/// A file of runs of our own.
struct File {
    text: &'static str,
    /// `boost_us` of the run, where that is not what the machine says.
    boost_us: Option<f64>,
}

const fn file(text: &'static str) -> File {
    File {
        text,
        boost_us: None,
    }
}

/// Runs of our own on two and four GPUs, and of GEMMs alone.
const MEASURED: [File; 18] = [
    // Its GEMMs keep 767 to 805 TFLOP/s for 1 to 5 ms, where those of all later runs fall to 675 to 740: as
    // if the GPUs had rested for some milliseconds between calls (docs/results). Fitted to those GEMMs.
    File {
        text: include_str!("measured/frameworks-4xh200.tsv"),
        boost_us: Some(6000.0),
    },
    file(include_str!("measured/fused-matmul-2xh200.tsv")),
    file(include_str!("measured/fused-matmul-4xh200.tsv")),
    file(include_str!("measured/gemm-1xh200.tsv")),
    file(include_str!("measured/pipelines-2xh200.tsv")),
    file(include_str!("measured/fused-2xh200.tsv")),
    file(include_str!("measured/pipelines-4xh200.tsv")),
    file(include_str!("measured/small-2xh200.tsv")),
    file(include_str!("measured/small-sums-2xh200.tsv")),
    file(include_str!("measured/large-4xh200.tsv")),
    file(include_str!("measured/small-4xh200.tsv")),
    file(include_str!("measured/suites-5d1d571.tsv")),
    file(include_str!("measured/reduce-scatters-97c50e7.tsv")),
    file(include_str!("measured/all-reduces-4xh200.tsv")),
    file(include_str!("measured/suites-88d917f.tsv")),
    file(include_str!("measured/gathers-2xh200.tsv")),
    file(include_str!("measured/gathers-4xh200.tsv")),
    file(include_str!("measured/suites-dabef297.tsv")),
];

/// Shapes to which no figure of the machine was fitted: every fourth by size, and the GEMMs alone of those.
const HELD_OUT: [&str; 13] = [
    "64x8192x4096",
    "64x8192x8192",
    "128x4096x7168",
    "128x4096x14336",
    "256x8192x4096",
    "256x8192x8192",
    "512x4096x4096",
    "512x4096x2048",
    "1024x4096x2048",
    "2048x4096x2048",
    "4096x4096x14336",
    "8192x6656x16384",
    "16384x3584x8192",
];

/// Of others, on eight GPUs.
const PUBLISHED: &str = include_str!("measured/published-8xh100.tsv");

struct Case {
    plan: String,
    world: usize,
    shape: String,
    measured: f64,
    predicted: f64,
}

impl Case {
    /// A line of a file: machine, plan, ranks, shape, element type and µs.
    fn of(line: &str, boost_us: Option<f64>) -> Case {
        let flags: Vec<&str> = line.split('\t').collect();
        let [machine, plan, world, shape, dtype, us] = flags[..] else {
            panic!("{line}")
        };
        let sizes: Vec<usize> = shape.split('x').map(|size| size.parse().unwrap()).collect();
        let dtype: DType = dtype.parse().unwrap();
        let world = world.parse().unwrap();
        let problem = Problem::new(sizes[0], sizes[1], sizes[2], dtype);
        let plans = schedules::plans(plan, world, &problem);
        let mut machine = Machine::named(machine).unwrap();
        machine.gemm.boost_us = boost_us.unwrap_or(machine.gemm.boost_us);
        Case {
            plan: plan.into(),
            world,
            shape: shape.into(),
            measured: us.parse().unwrap(),
            predicted: simulate(&plans, &machine, 1).unwrap().total() + CLOCK,
        }
    }

    fn all(file: &File) -> Vec<Case> {
        let lines = file.text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| Case::of(line, file.boost_us)).collect()
    }

    fn ratio(&self) -> f64 {
        self.predicted / self.measured
    }

    fn error(&self) -> f64 {
        (self.ratio() - 1.0).abs()
    }
}

/// The median, the 95th percentile and the largest of the errors, none left out.
fn errors<'a>(cases: impl IntoIterator<Item = &'a Case>) -> [f64; 3] {
    let mut errors: Vec<f64> = cases.into_iter().map(Case::error).collect();
    errors.sort_by(f64::total_cmp);
    let quantile = |q: f64| errors[((errors.len() - 1) as f64 * q).round() as usize];
    let [median, p95, worst] = [0.5, 0.95, 1.0].map(quantile);
    println!(
        "{} figures: median error {median:.3}, p95 {p95:.3}, worst {worst:.3}\n",
        errors.len()
    );
    [median, p95, worst]
}

/// Prints all cases and gives the median of their errors.
fn median_error(cases: &[Case]) -> f64 {
    for case in cases {
        println!(
            "{:32} {} ranks {:16} predicted {:9.1} measured {:9.1} µs, ratio {:.2}",
            case.plan,
            case.world,
            case.shape,
            case.predicted,
            case.measured,
            case.ratio()
        );
    }
    errors(cases)[0]
}

/// What some figures have, and what the docs say of them: median, 95th percentile and largest error, in per
/// cent.
fn hold<'a>(
    what: &'static str,
    cases: impl IntoIterator<Item = &'a Case>,
    said: [f64; 3],
) -> [(&'static str, [f64; 3]); 2] {
    print!("{what}: ");
    let found = errors(cases).map(|error| (1000.0 * error).round() / 10.0);
    [(what, found), (what, said)]
}

/// PyTorch's own fused operators are no plans of ours and stand in no file. Collectives alone are the
/// machine's tables themselves and would only flatter the errors.
#[test]
fn the_errors_are_as_the_docs_have_them() {
    let files = MEASURED.each_ref().map(Case::all);
    for cases in &files {
        median_error(cases);
    }
    let held_out = |case: &&Case| HELD_OUT.contains(&case.shape.as_str());
    let all = || files.iter().flatten();
    let fitted = all().filter(|case| !held_out(case));
    // GEMMs alone must not hide what communicates.
    let communicates = all().filter(|case| !is_gemm(&case.plan));
    let held = [
        hold("all", all(), [2.4, 8.0, 14.9]),
        hold("fitted", fitted, [2.4, 8.1, 14.9]),
        hold("held out", all().filter(held_out), [2.3, 7.6, 14.7]),
        hold("overlapped", files[4..7].iter().flatten(), [2.2, 7.5, 14.7]),
        hold("small", files[7..9].iter().flatten(), [2.6, 7.7, 11.3]),
        hold("four again", &files[9], [1.7, 6.2, 10.3]),
        hold("small on four", &files[10], [4.1, 11.2, 13.9]),
        hold("again", &files[11], [2.1, 6.5, 14.9]),
        hold("reduce-scatters", &files[12], [2.0, 4.7, 7.0]),
        hold("all-reduces", &files[13], [3.6, 11.8, 13.0]),
        hold("last", &files[14], [2.8, 10.4, 14.9]),
        hold("gathers", &files[15], [2.2, 8.6, 9.9]),
        hold("gathers of four", &files[16], [2.4, 7.9, 9.5]),
        hold("two again", &files[17], [3.9, 8.4, 13.0]),
        hold("without GEMMs", communicates, [2.4, 7.9, 14.9]),
    ];
    let [found, said] = [0, 1].map(|at| held.map(|pair| pair[at]));
    assert_eq!(
        found, said,
        "the README of this crate and docs/results have these"
    );
}

fn is_gemm(plan: &str) -> bool {
    ["gemm", "gemm:cutlass", "rowParallelGemm"].contains(&plan)
}

#[test]
fn the_published_figures_of_eight_gpus_are_near_too() {
    assert!(median_error(&Case::all(&file(PUBLISHED))) <= 0.10);
}

/// What was measured more than a tenth apart is predicted in its order; the model does not see finer than
/// that.
#[test]
fn the_seven_are_ranked_as_measured() {
    for file in &MEASURED[1..3] {
        let cases = Case::all(file);
        for a in cases.iter().filter(|case| !is_gemm(&case.plan)) {
            let same = |b: &&Case| b.shape == a.shape && !is_gemm(&b.plan);
            for b in cases.iter().filter(same) {
                if b.measured > 1.1 * a.measured {
                    assert!(
                        a.predicted < b.predicted,
                        "{} before {} at {}",
                        a.plan,
                        b.plan,
                        a.shape
                    );
                }
            }
        }
    }
}

/// nvFuser's table on eight H100s, M = 32768, N = 8192, K = 16384 in bf16: its pipeline over p2p copies 678
/// TFLOP/s, Transformer Engine 660, its pipeline over NCCL 560.
///
/// nvFuser signals and waits by memory operations of streams, which need no SM.
///
/// The first is `directExchangePipeline`; how many streams its pool had is not published, so the best pool
/// stands for it. For the second stand the rings, whichever is better, since Transformer Engine's userbuffers
/// go round a ring. For the third stands the NCCL baseline: the crate has no pipeline over NCCL, and what
/// nvFuser's overlapped its figure does not say.
#[test]
fn eight_gpus_rank_as_nvfuser_measured_them() {
    let mut machine = Machine::named("h100x8").unwrap();
    machine.latency.by_kernel = false;
    let problem = Problem::new(32768, 8192, 16384, DType::Bf16);
    let best = |names: &[&str]| {
        let rate = |name: &&str| {
            let plans = schedules::plans(name, 8, &problem);
            let us = simulate(&plans, &machine, 1).unwrap().total();
            2.0 * (problem.m * problem.n * problem.k) as f64 / us / 1e6
        };
        let rates: Vec<f64> = names.iter().map(rate).collect();
        println!("{names:?}: {rates:.0?} TFLOP/s");
        rates.into_iter().fold(0.0, f64::max)
    };
    let found = [
        best(
            &[1, 2, 4, 8]
                .map(|n| format!("directExchangePipeline:streams={n}"))
                .each_ref()
                .map(String::as_str),
        ),
        best(&["ringPut", "ringGet"]),
        best(&["baselineNcclAllgatherMatmul"]),
    ];
    assert!(found[0] > found[1] && found[1] > found[2], "{found:?}");
    for (found, measured) in found.iter().zip([678.0, 660.0, 560.0]) {
        let error: f64 = found / measured - 1.0;
        assert!(error.abs() <= 0.05, "{found} for {measured}");
    }
}
