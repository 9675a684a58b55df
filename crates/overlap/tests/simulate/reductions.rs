//! One launch that multiplies, sends and sums costs its product, or its traffic where that takes longer, and little beside.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// µs on four H200s, and the product alone.
fn predicted(name: &str, (m, k, n): (usize, usize, usize)) -> (f64, f64) {
    let machine = Machine::named("h200x4").unwrap();
    let problem = Problem::new(m, n, k, DType::Bf16);
    let plans = algorithms::find(name).unwrap().plans(4, &problem).unwrap();
    let total = simulate(&plans, &machine, 1).unwrap().total();
    (total, machine.product((m, n, k / 4), DType::Bf16).0)
}

const SHAPES: [(usize, usize, usize); 3] =
    [(8192, 8192, 8192), (8192, 32768, 8192), (4096, 14336, 4096)];

#[test]
fn the_links_work_beside_the_tensor_cores() {
    for shape in SHAPES {
        for name in ["fusedReduceScatter", "fusedAllReduce"] {
            let (total, product) = predicted(name, shape);
            println!("{name} {shape:?}: {total} {product}");
        }
    }
    panic!();
}
