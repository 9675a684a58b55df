//! One launch that multiplies, pulls and reduces costs its GEMM, or its traffic where that takes longer, and
//! little else.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// µs on four H200s, and the GEMM alone.
fn predicted(name: &str, (m, k, n): (usize, usize, usize)) -> (f64, f64) {
    let machine = Machine::named("h200x4").unwrap();
    let problem = Problem::new(m, n, k, DType::Bf16);
    let plans = algorithms::find(name).unwrap().plans(4, &problem).unwrap();
    let total = simulate(&plans, &machine, 1).unwrap().total();
    (total, machine.gemm_time((m, n, k / 4), DType::Bf16).0)
}

#[test]
fn the_links_work_next_to_the_tensor_cores() {
    // What ours took on four H200s. PyTorch's fused reduce-scatter took 534, 1626 and 223 µs there, a GEMM
    // before an all-reduce of NCCL 1000, 2232 and 337 (docs/results).
    for (shape, scatter, all) in [
        ((8192, 8192, 8192), 436.0, 688.0),
        ((8192, 32768, 8192), 1602.0, 1685.0),
        ((4096, 14336, 4096), 186.0, 264.0),
    ] {
        for (name, measured) in [("fusedReduceScatter", scatter), ("fusedAllReduce", all)] {
            let (total, gemm) = predicted(name, shape);
            assert!(
                gemm < total && (0.9 * measured..1.05 * measured).contains(&total),
                "{name} {shape:?}: {total} µs, the GEMM {gemm}"
            );
        }
    }
}

/// The fewer rows are published at a time, the sooner the links begin, which shows where they are the slower
/// part.
#[test]
fn groups_let_the_links_begin_early() {
    let of = |rows| {
        predicted(
            &format!("fusedReduceScatter:rows={rows}"),
            (8192, 2048, 8192),
        )
        .0
    };
    assert!(of(256) < of(1024));
}
