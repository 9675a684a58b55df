//! A residual and RMSNorm after an all-reduce cost their own passes over memory, and a launch where they have
//! one of their own.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

#[test]
fn a_norm_costs_what_it_moves_more_than_the_all_reduce() {
    let machine = Machine::named("h200x4").unwrap();
    for (world, m) in [(4, 64), (4, 2048), (2, 8), (1, 64)] {
        let problem = Problem::new(m, 8192, 28672, DType::Bf16);
        let total = |name: &str| {
            let plans = algorithms::find(name).unwrap();
            let plans = plans.plans(world, &problem).unwrap();
            simulate(&plans, &machine, 1).unwrap().total()
        };
        let plain = "rowParallelLinear:chunks=1:streams=1";
        let passes = |count: f64| count * (m * 8192 * 2) as f64 / (machine.gpu.memory_gbs * 1e3);
        let (symmetric, nccl) = match world {
            1 => (passes(2.0), passes(2.0)),
            _ => (passes(3.0), passes(4.0) + machine.latency.launch_us),
        };
        for (reduce, more) in [("symmetric", symmetric), ("nccl", nccl)] {
            let alone = total(&format!("{plain}:reduce={reduce}"));
            let with_norm = total(&format!("rowParallelLinearNorm:reduce={reduce}"));
            let found = with_norm - alone;
            assert!(
                (found - more).abs() < 1e-6 * with_norm,
                "{reduce}, {world} ranks, {m} rows: {found} µs and not {more}"
            );
        }
    }
}
