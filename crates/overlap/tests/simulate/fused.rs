//! The all-gather GEMM costs the longer of its pulls and its GEMM.

use crate::machines::unthrottled;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

fn total(machine: &Machine, chunks: usize, problem: &Problem) -> f64 {
    let name = format!("fusedAllGather:chunks={chunks}");
    let plans = algorithms::find(&name).unwrap().plans(4, problem).unwrap();
    simulate(&plans, machine, 1).unwrap().total()
}

#[test]
fn rows_that_come_in_time_cost_next_to_nothing() {
    let machine = unthrottled();
    for (m, n, k) in [
        (16384, 6656, 16384),
        (16384, 3584, 8192),
        (32768, 8192, 16384),
    ] {
        let (alone, _) = machine.gemm_time((m, n, k), DType::Bf16);
        // A last wave that is not full takes as long as another, or, in halves, less: of 26 or more waves.
        for chunks in [4, 8] {
            let total = total(&machine, chunks, &Problem::new(m, n, k, DType::Bf16));
            assert!(
                (0.98 * alone..1.09 * alone + 50.0).contains(&total),
                "{chunks} chunks, {m}x{n}x{k}: {total} µs, the GEMM {alone}"
            );
        }
    }
}

/// Three peers' rows come at the rate of one link, not at three times that.
#[test]
fn rows_that_come_late_cost_what_it_takes_to_pull_them() {
    let machine = unthrottled();
    let (m, n, k) = (16384, 8, 16384);
    let pulled = (3 * m / 4 * k * 2) as f64 / (machine.link.sm_pull_gbs * 1e3);
    for chunks in [1, 4] {
        let total = total(&machine, chunks, &Problem::new(m, n, k, DType::Bf16));
        assert!(
            (pulled..1.15 * pulled + 50.0).contains(&total),
            "{chunks} chunks: {total} µs, the rows {pulled}"
        );
    }
}
