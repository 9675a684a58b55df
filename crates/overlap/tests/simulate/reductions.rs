//! One launch that multiplies, pulls and reduces costs its GEMM, or its traffic where that takes longer, and
//! little else.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::{Problem, Scaling};
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// µs on four H200s, and the GEMM alone.
fn predicted(name: &str, shape: (usize, usize, usize)) -> (f64, f64) {
    predicted_of(name, shape, (DType::Bf16, Scaling::None))
}

/// The same of other operands.
fn predicted_of(
    name: &str,
    (m, k, n): (usize, usize, usize),
    (dtype, scaling): (DType, Scaling),
) -> (f64, f64) {
    let machine = Machine::named("h200x4").unwrap();
    let problem = Problem::new(m, n, k, dtype).with_scaling(scaling);
    let plans = algorithms::find(name).unwrap().plans(4, &problem).unwrap();
    let total = simulate(&plans, &machine, 1).unwrap().total();
    (total, machine.gemm_time((m, n, k / 4), dtype).0)
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

/// A shallow GEMM takes as long as memory needs to store C, which is bf16 for e4m3 too.
#[test]
fn e4m3_gains_nothing_where_c_is_most_of_the_bytes() {
    let machine = Machine::named("h200x4").unwrap();
    let time = |dtype| machine.gemm_time((8192, 8192, 16), dtype).0;
    let gain = time(DType::Bf16) / time(DType::E4m3);
    assert!((1.0..1.1).contains(&gain), "{gain}");
}

/// Of e4m3 the GEMM takes the less time by its rate, and partials are as large as those of bf16: deep GEMMs
/// gain, and those that the links bound do not.
#[test]
fn e4m3_makes_the_gemm_faster_and_not_the_traffic() {
    let e4m3 = (DType::E4m3, Scaling::Row);
    let rate = Machine::named("h200x4").unwrap().gemm.e4m3;
    for (name, shape, least, most) in [
        (
            "fusedReduceScatter",
            (8192, 65536, 8192),
            0.85 * rate,
            1.03 * rate,
        ),
        (
            "fusedAllReduce",
            (8192, 65536, 8192),
            0.85 * rate,
            1.03 * rate,
        ),
        ("fusedReduceScatter", (8192, 2048, 8192), 0.98, 1.2),
        ("fusedAllReduce", (8192, 2048, 8192), 0.98, 1.2),
    ] {
        let (wide, narrow) = (predicted(name, shape).0, predicted_of(name, shape, e4m3).0);
        let gain = wide / narrow;
        assert!((least..most).contains(&gain), "{name} {shape:?}: {gain}");
    }
}

/// Results go to peers by kernels, one per chunk and peer, each of which takes a while to start.
#[test]
fn results_that_sms_send_in_many_chunks_take_longer() {
    let shape = (8192, 8192, 8192);
    let of = |chunks: usize| predicted(&format!("allReducePipeline:chunks={chunks}"), shape).0;
    let (two, eight) = (of(2), of(8));
    // 821 and 1305 µs on four H200s, where copy engines took 812 and 1181.
    assert!((1.3..1.7).contains(&(eight / two)), "{two} {eight}");
}
