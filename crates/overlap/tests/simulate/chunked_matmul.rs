//! One launch that waits for its rows costs one GEMM, however its rows are cut.

use crate::machines::unthrottled;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::simulate;
use warpweave_symm_mem::DType;

#[test]
fn the_lanes_of_a_waiting_gemm_cost_the_gemm_together() {
    let machine = unthrottled();
    for (m, n, k) in [
        (16384, 6656, 16384),
        (16384, 3584, 8192),
        (32768, 8192, 16384),
    ] {
        let (whole, _) = machine.gemm_time((m, n, k), DType::Bf16);
        let whole = whole / machine.gemm.cutlass;
        for chunks in [1, 2, 4, 8] {
            let name = format!("pushChunksWaitingGemm:chunks={chunks}");
            let plans = algorithms::find(&name).unwrap();
            let plans = plans.plans(4, &Problem::new(m, n, k, DType::Bf16)).unwrap();
            let total = simulate(&plans, &machine, 1).unwrap().total();
            // At these shapes all rows arrive before the rank is done with its own: what is left is launches
            // and waits.
            assert!(
                (whole..1.02 * whole + 50.0).contains(&total),
                "{name} {m}x{n}x{k}: {total} µs, the GEMM {whole}"
            );
        }
    }
}

/// The rows that arrive last still take a wave.
#[test]
fn the_last_chunk_takes_a_wave_however_few_its_rows() {
    let machine = unthrottled();
    // Two waves of which the peer's rows are one: they arrive when the own ones are multiplied, or later.
    let (m, n, k) = (4096, 1792, 4096);
    let wave = machine.gemm_time((m / 2, n, k), DType::Bf16).0 / machine.gemm.cutlass;
    let sent = (m / 2 * k * 2) as f64 / (machine.link.copy_engine_gbs * 1e3);
    for chunks in [1, 2, 4] {
        let plans = algorithms::find(&format!("pushChunksWaitingGemm:chunks={chunks}")).unwrap();
        let plans = plans.plans(2, &Problem::new(m, n, k, DType::Bf16)).unwrap();
        let total = simulate(&plans, &machine, 1).unwrap().total();
        assert!(total >= sent + wave, "{chunks} chunks: {total} µs");
    }
}
