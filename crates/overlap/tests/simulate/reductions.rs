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
    // PyTorch's fused operator took 534, 1626 and 223 µs on four H200s, a GEMM before NCCL 1000, 2232 and
    // 337, where ours take 436, 1602 and 186, and 688, 1685 and 264 (docs/results).
    for (shape, scatter, all) in [
        ((8192, 8192, 8192), 0.8 * 534.0, 0.7 * 1000.0),
        ((8192, 32768, 8192), 1626.0, 0.8 * 2232.0),
        ((4096, 14336, 4096), 0.9 * 223.0, 0.8 * 337.0),
    ] {
        for (name, most) in [("fusedReduceScatter", scatter), ("fusedAllReduce", all)] {
            let (total, gemm) = predicted(name, shape);
            assert!(
                gemm < total && total < most,
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
