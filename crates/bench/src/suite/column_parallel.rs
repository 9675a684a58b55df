//! `column-parallel`: the linear layer whose input is gathered.

use warpweave_overlap::Operation;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Suite, on_host, variations_of};
use crate::shape::Shape;

pub(super) const SUITE: Suite = Suite {
    name: "column-parallel",
    reproduces: "all-gather, then A · Wᵀ + bias, at two of symm-mem-recipes' shapes",
    operations: &[Operation::ColumnParallelLinear],
    entries: || variations_of(Operation::ColumnParallelLinear),
    problems: |kind, _| match kind {
        BackendKind::Host => on_host(),
        BackendKind::Cuda => vec![
            (Shape::new(8192, 3584, 8192), DType::Bf16),
            (Shape::new(16384, 6656, 16384), DType::Bf16),
        ],
    },
    figures: Vec::new,
};
