//! `recipes`: the nine shapes of the fused all-gather + matmul of symm-mem-recipes.

use warpweave_overlap::Operation;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Beside, Figure, Suite, on_host, pipelines};
use crate::shape::Shape;

pub(super) const SUITE: Suite = Suite {
    name: "recipes",
    reproduces: "all-gather + matmul by pipelines at nine shapes; symm-mem-recipes' fused Triton kernel, 8×H100, bf16",
    operations: &[Operation::AllGatherMatmul],
    entries: pipelines,
    problems: |kind, _| match kind {
        BackendKind::Host => on_host(),
        BackendKind::Cuda => PUBLISHED.map(|(shape, ..)| (shape, DType::Bf16)).into(),
    },
    figures,
};

/// Shapes with the µs of cuBLAS alone, of NCCL and cuBLAS, and of the fused kernel.
const PUBLISHED: [(Shape, f64, f64, f64); 9] = [
    (Shape::new(4096, 1792, 4096), 100.0, 223.0, 211.0),
    (Shape::new(8192, 1792, 4096), 186.0, 393.0, 293.0),
    (Shape::new(16384, 1792, 4096), 363.0, 748.0, 485.0),
    (Shape::new(4096, 3584, 8192), 376.0, 587.0, 453.0),
    (Shape::new(8192, 3584, 8192), 746.0, 1168.0, 821.0),
    (Shape::new(16384, 3584, 8192), 1502.0, 2306.0, 1566.0),
    (Shape::new(4096, 6656, 16384), 1358.0, 1858.0, 1615.0),
    (Shape::new(8192, 6656, 16384), 2567.0, 3533.0, 2907.0),
    (Shape::new(16384, 6656, 16384), 5249.0, 6982.0, 5814.0),
];

fn figures() -> Vec<Figure> {
    let of_shape = |&(shape, alone, separate, fused): &(Shape, f64, f64, f64)| {
        let baseline = Beside::Row("baselineNcclAllgatherMatmul");
        let three = [
            ("cuBLAS alone", alone / 1e3, Beside::Product),
            ("NCCL, then cuBLAS", separate / 1e3, baseline),
            ("fused Triton", fused / 1e3, Beside::Nothing),
        ];
        Figure::all(
            (shape, DType::Bf16),
            "8×H100 HBM2e, symm-mem-recipes",
            three,
        )
    };
    PUBLISHED.iter().flat_map(of_shape).collect()
}
