//! What pushing in chunks is predicted to cost where GEMMs are long enough to hide the gather: no less than
//! the whole GEMM, and no more than the waves of its chunks.

use crate::machines::unthrottled;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// M, N, K at which GEMMs are long enough to hide the gather.
const SHAPES: [(usize, usize, usize); 3] = [
    (16384, 6656, 16384),
    (16384, 3584, 8192),
    (32768, 8192, 16384),
];

fn time(machine: &Machine, name: &str, (m, n, k): (usize, usize, usize)) -> f64 {
    let problem = Problem::new(m, n, k, DType::Bf16);
    let plans = algorithms::find(name).unwrap().plans(4, &problem).unwrap();
    simulate(&plans, machine, 1).unwrap().total()
}

#[test]
fn the_gemms_of_chunks_fill_each_others_last_waves_and_the_gather_is_hidden() {
    let machine = unthrottled();
    for (m, n, k) in SHAPES {
        let gemm = |rows: usize| machine.gemm_time((rows, n, k), DType::Bf16).0;
        for chunks in [1, 2, 4] {
            let gemms = gemm(m / 4) + (3 * chunks) as f64 * gemm(m / 4 / chunks);
            let whole = gemm(m);
            let name = format!("pushChunks:chunks={chunks}");
            let total = time(&machine, &name, (m, n, k));
            println!("{name} {m}x{n}x{k}: {total:.1} µs, its GEMMs {gemms:.1}");
            // Pushes take power from GEMMs: at most what fills the links both ways does.
            let slowest = gemms / machine.gemm.during_transfers;
            assert!(
                (0.97 * whole..1.02 * slowest + 50.0).contains(&total),
                "{total}"
            );
        }
    }
}
