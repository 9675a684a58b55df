//! Predicted against measured: all figures in the files of `measured/`, to which runs are added as lines.

use crate::schedules;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// What the clock of the measurements costs, the empty call, µs.
const CLOCK: f64 = 3.0;

/// Runs of our own on two and four GPUs, and of GEMMs alone.
const MEASURED: [&str; 9] = [
    include_str!("measured/frameworks-4xh200.tsv"),
    include_str!("measured/fused-matmul-2xh200.tsv"),
    include_str!("measured/fused-matmul-4xh200.tsv"),
    include_str!("measured/gemm-1xh200.tsv"),
    include_str!("measured/pipelines-2xh200.tsv"),
    include_str!("measured/fused-2xh200.tsv"),
    include_str!("measured/pipelines-4xh200.tsv"),
    include_str!("measured/small-2xh200.tsv"),
    include_str!("measured/small-sums-2xh200.tsv"),
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
    fn of(line: &str) -> Case {
        let flags: Vec<&str> = line.split('\t').collect();
        let [machine, plan, world, shape, dtype, us] = flags[..] else {
            panic!("{line}")
        };
        let sizes: Vec<usize> = shape.split('x').map(|size| size.parse().unwrap()).collect();
        let dtype: DType = dtype.parse().unwrap();
        let world = world.parse().unwrap();
        let problem = Problem::new(sizes[0], sizes[1], sizes[2], dtype);
        let plans = schedules::plans(plan, world, &problem);
        let machine = Machine::named(machine).unwrap();
        Case {
            plan: plan.into(),
            world,
            shape: shape.into(),
            measured: us.parse().unwrap(),
            predicted: simulate(&plans, &machine, 1).unwrap().total() + CLOCK,
        }
    }

    fn all(text: &str) -> Vec<Case> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(Case::of).collect()
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

#[test]
fn the_median_error_is_within_a_tenth() {
    let files = MEASURED.map(Case::all);
    // PyTorch's own fused operators are no plans of ours and stand in no file; collectives alone are the
    // machine's tables themselves and would only flatter the median. What overlaps has much less: 0.023 and
    // 0.030 on two GPUs, and 0.038 on four.
    let most = [0.10, 0.10, 0.10, 0.10, 0.05, 0.05, 0.05, 0.10, 0.10];
    for (cases, most) in files.iter().zip(most) {
        assert!(median_error(cases) <= most);
    }
    // As the README has them: what overlaps, and what is small.
    let [median, p95, worst] = errors(files[4..7].iter().flatten());
    assert!(median < 0.035 && p95 < 0.155 && worst < 0.285);
    let [median, p95, worst] = errors(files[7..].iter().flatten());
    assert!(median < 0.075 && p95 < 0.185 && worst < 0.275);
    let all: Vec<Case> = files.into_iter().flatten().collect();
    assert!(median_error(&all) <= 0.05);
    // GEMMs alone are half of the figures: what communicates must not hide after them.
    let (_, others): (Vec<Case>, Vec<Case>) = all.into_iter().partition(|case| is_gemm(&case.plan));
    assert!(median_error(&others) <= 0.05);
    // No figure may be far off. Small scalar kernels are the model's worst: few blocks do not fill a GPU,
    // which it ignores. Single calls of the direct exchange on two GPUs took one of two times, 0.38 or 0.51
    // ms; the model has the first. On four GPUs the all-gather over symmetric memory goes by copy engine and
    // leaves the SMs to the concurrent GEMM.
    for case in &others {
        let most = match case.plan.as_str() {
            plan if plan.contains("Scalar") => 0.45,
            "directExchangePipeline" if case.world == 2 => 0.30,
            "overlappedAllGather:transport=symmetric" if case.world == 4 => 0.28,
            _ => 0.25,
        };
        assert!(case.error() <= most, "{}: {:.2}", case.plan, case.ratio());
    }
}

fn is_gemm(plan: &str) -> bool {
    ["gemm", "gemm:cutlass", "rowParallelGemm"].contains(&plan)
}

#[test]
fn the_published_figures_of_eight_gpus_are_near_too() {
    assert!(median_error(&Case::all(PUBLISHED)) <= 0.10);
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
/// The first is `directExchangePipeline`; how many streams its pool had is not published, so the best pool
/// stands for it. For the second stand the rings, whichever is better, since Transformer Engine's userbuffers
/// go round a ring. For the third stands the NCCL baseline: the crate has no pipeline over NCCL, and what
/// nvFuser's overlapped its figure does not say.
#[test]
fn eight_gpus_rank_as_nvfuser_measured_them() {
    let machine = Machine::named("h100x8").unwrap();
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
