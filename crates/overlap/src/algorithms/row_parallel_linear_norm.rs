//! `rowParallelLinearNorm`: the row-parallel linear layer with the residual and RMSNorm that follow it.
//!
//! The plan has the buffers `a` (x), `b` (this rank's columns of the weight, which is stored N × K),
//! `residual`, `norm_weight`, `c` (the normalized rows) and `residual_out` (the sum that was normalized), of
//! which all ranks have all rows.

use super::reduction::{PartialGemm, Stored, transport};
use super::{Algorithm, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{AddRmsNorm, Placement, Plan, Problem, Role, StreamId};

pub(super) const ALGORITHMS: &[Algorithm] = &[ALGORITHM];

/// By NCCL the norm is a launch of its own.
const REDUCE: Parameter = Parameter {
    key: "reduce",
    summary: "what the all-reduce is: over symmetric memory it adds and normalizes too",
    values: Values::Choices(&["symmetric", "nccl"]),
};

/// One GEMM, then one collective, which reduces its result, adds it to the residual and normalizes it. The
/// partials have memory of their own, so that `c` need not be symmetric.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "rowParallelLinearNorm",
    Operation::RowParallelLinearNorm,
    "one GEMM, then an all-reduce with the residual and RMSNorm in the same launch",
    build,
)
.parameters(&[REDUCE])
.takes_e4m3();

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let transport = transport(options, REDUCE.key);
    let (main, local) = (StreamId::MAIN, Placement::Local);
    let Problem { m, n, .. } = *problem;
    let (place, all) = ((rank, world), (local, 0..m));
    let mut plan = PartialGemm::new(ALGORITHM.name, place, problem, Stored::Transposed, all);
    let mut operand = |name, role, rows| {
        let (dtype, shape) = (problem.output(), (rows, n));
        let buffer = plan.builder.buffer(name, local, role, dtype, shape);
        plan.builder.whole(buffer)
    };
    let norm = AddRmsNorm {
        residual: operand("residual", Role::Input, m),
        weight: operand("norm_weight", Role::Weight, 1),
        residual_out: operand("residual_out", Role::Output, m),
        epsilon: Operation::EPSILON,
        quantized: None,
    };
    let partial = plan.buffer("partial", transport.placement(), m);
    let [partial, c] = [partial, plan.c].map(|buffer| plan.builder.whole(buffer));

    plan.gemm(main, 0..m, partial.clone());
    plan.builder
        .all_reduce_add_rms_norm(main, (partial, c), norm, transport);
    plan.builder.finish()
}
