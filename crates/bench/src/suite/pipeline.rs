//! `pipeline-32k`: all-gather + matmul at a size at which pipelines hide all of the transfer.

use warpweave_overlap::Operation;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Beside, Figure, Sizes, Suite, on_host, pipelines};
use crate::limit::tflops;
use crate::shape::Shape;

pub(super) const SUITE: Suite = Suite {
    name: "pipeline-32k",
    reproduces: "all-gather + matmul by pipelines at M=32768 N=8192 K=16384 bf16; nvFuser's p2p pipeline, 8×H100",
    operations: &[Operation::AllGatherMatmul],
    entries: pipelines,
    problems: |kind, _| match kind {
        BackendKind::Host => on_host(),
        BackendKind::Cuda => vec![LARGE],
    },
    figures,
};

const LARGE: Sizes = (Shape::new(32768, 8192, 16384), DType::Bf16);

/// Published as TFLOP/s per GPU. All three overlap, NCCL's too, so that none is the baseline's.
fn figures() -> Vec<Figure> {
    let Shape { m, n, k } = LARGE.0;
    // A rate is to a time what a time is to a rate.
    let ms = |rate| tflops((m, n, k), rate);
    let three = [
        ("ring by p2p, 678 TFLOP/s", ms(678.0), Beside::Nothing),
        (
            "Transformer Engine, 660 TFLOP/s",
            ms(660.0),
            Beside::Nothing,
        ),
        (
            "pipeline over NCCL, 560 TFLOP/s",
            ms(560.0),
            Beside::Nothing,
        ),
    ];
    Figure::all(LARGE, "8×H100, nvFuser", three).into()
}
