//! Predicted against measured: the table of docs/results/fused-matmul-4xh200.md.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, simulate};
use warpweave_symm_mem::DType;

/// What the clock of the measurements costs, the empty call, µs.
const CLOCK: f64 = 3.1;

const NAMES: [&str; 5] = [
    "baselineNcclAllgatherMatmul",
    "baselineCudaAllgatherMatmul",
    "naiveRemoteRead",
    "threadloadGatherScalarCompute",
    "threadloadGatherThenCutlass",
];

#[test]
fn the_seven_on_four_h200s() {
    let machine = Machine::named("h200x4").unwrap();
    let cases = [
        (
            (1024, 1024, 1024),
            DType::F16,
            [29.2, 47.4, 418.3, 104.1, 25.2],
        ),
        (
            (8192, 3584, 8192),
            DType::Bf16,
            [973.3, 942.1, 93410.0, 14070.0, 983.4],
        ),
        (
            (1028, 1160, 1032),
            DType::F16,
            [33.8, 49.7, 524.5, 163.5, 31.3],
        ),
    ];
    for ((m, n, k), dtype, measured) in cases {
        let predicted = NAMES.map(|name| {
            let algorithm = algorithms::find(name).unwrap();
            let plans = algorithm.plans(4, &Problem::new(m, n, k, dtype)).unwrap();
            simulate(&plans, &machine, 1).unwrap().total() + CLOCK
        });
        for ((name, p), m) in NAMES.iter().zip(predicted).zip(measured) {
            println!(
                "{name:32} predicted {p:9.1} measured {m:9.1} µs, ratio {:.2}",
                p / m
            );
        }
        println!();
        // What was measured more than a tenth apart is predicted in its order; the model does not see finer than that.
        for (i, j) in (0..5).flat_map(|i| (0..5).map(move |j| (i, j))) {
            if measured[j] > 1.1 * measured[i] {
                let (first, second) = (NAMES[i], NAMES[j]);
                assert!(predicted[i] < predicted[j], "{first} before {second}");
            }
        }
        // The figures of the machine are of the same runs, so this says that the model can hold them, not that it foresees
        // others. Small scalar kernels are its worst: it knows nothing of how their grids fill a GPU.
        for ((name, p), measured) in NAMES.iter().zip(predicted).zip(measured) {
            let least = if name.contains("Scalar") { 0.45 } else { 0.7 };
            let ratio = p / measured;
            assert!(
                (least..1.1).contains(&ratio),
                "{name} {m}x{n}x{k}: {ratio:.2}"
            );
        }
    }
}
