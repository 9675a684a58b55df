//! Plans of a part of an operation, to be timed alone: its GEMM, its all-gather, and where the time of
//! `threadloadGatherThenCutlass` goes.
//!
//! The parts of the breakdown need not add up to the whole. Each is measured with the ranks aligned, and its
//! time includes the clock's own cost, which the empty call shows. In the whole the GEMM begins on each rank
//! as soon as that rank's gather ends.

use warpweave_gemm::Layout;
use warpweave_overlap::kernels::{KernelShape, ThreadloadGather};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{
    Batch, Collective, OpKind, Placement, Plan, PlanBuilder, Problem, Provider, Region, Role,
    Scales, Scaling, StreamId, Transport,
};
use warpweave_overlap::{Operation, PlanError};
use warpweave_report::{Breakdown, Metric, Row, Times};

use crate::candidate::Entrant;
use crate::inputs::{Matrices, part};
use crate::plans::Implementation;

/// Local buffers of `operands`, each as a whole.
pub(crate) fn local(
    plan: &mut PlanBuilder,
    operands: &[Operand],
    problem: &Problem,
) -> Vec<Region> {
    let whole = |operand: &Operand| {
        let (role, shape) = (operand.role(), operand.stored());
        let dtype = operand.matrix.dtype(problem);
        let id = plan.buffer(operand.buffer, Placement::Local, role, dtype, shape);
        plan.whole(id)
    };
    operands.iter().map(whole).collect()
}

/// The operands of `operation` that hold these matrices.
fn some(
    operation: Operation,
    matrices: &'static [Matrix],
) -> impl Fn(usize, usize, &Problem) -> Vec<Operand> + Copy {
    move |rank, world, problem| {
        let mut operands = operation.operands((rank, world), problem, None);
        operands.retain(|operand| matrices.contains(&operand.matrix));
        operands
    }
}

/// The GEMM that a rank computes in `operation`, with its operands at hand and the weight stored as there; of
/// all of A and B without an operation.
///
/// Where the operation sums over ranks, it is that of the first ⌈K / world⌉ columns of A. Its result is not
/// verified where it is not C.
pub fn gemm_alone(name: &str, provider: Provider, operation: Option<Operation>) -> Implementation {
    let plan_name = name.to_owned();
    let operands = move |_: usize, world: usize, problem: &Problem| {
        let mut operands = gemm_operands(provider, operation, world, problem);
        let is_part = gemm_of(operation, world, problem).2 < problem.k;
        if is_part || Matrices::of(operation, world, problem).normalized {
            operands.retain(|operand| operand.role() != Role::Output);
        }
        operands
    };
    let plan = move |rank: usize, world: usize, problem: &Problem| {
        problem.validate(rank, world)?;
        let operands = gemm_operands(provider, operation, world, problem);
        let mut plan = PlanBuilder::new(&plan_name, rank, world);
        let regions = local(&mut plan, &operands, problem);
        let region = |matrix| {
            let is_it = |operand: &Operand| operand.matrix == matrix;
            let place = operands.iter().position(is_it)?;
            regions.get(place).cloned()
        };
        if let [a, b, c, ..] = regions.as_slice() {
            let scales = region(Matrix::ScalesA).zip(region(Matrix::ScalesB));
            let gemm = OpKind::Gemm {
                a: a.clone(),
                b: b.clone(),
                c: c.clone(),
                bias: region(Matrix::Bias),
                scales: scales.map(|(a, b)| Scales {
                    scaling: problem.scaling,
                    a,
                    b,
                }),
                activation: problem.activation,
                b_transposed: operands.get(1).is_some_and(|b| b.transposed),
                batch: Batch::ONE,
                provider,
            };
            plan.push(StreamId::MAIN, gemm);
        }
        plan.finish()
    };
    Implementation {
        operation,
        ..Implementation::of_plan(name, operands, plan)
    }
}

/// M, N and K of the GEMM that a rank computes.
pub fn gemm_of(
    operation: Option<Operation>,
    world: usize,
    problem: &Problem,
) -> (usize, usize, usize) {
    match operation {
        Some(operation) => operation.gemm(world, problem),
        None => (problem.m, problem.n, problem.k),
    }
}

fn gemm_operands(
    provider: Provider,
    operation: Option<Operation>,
    world: usize,
    problem: &Problem,
) -> Vec<Operand> {
    let (m, n, k) = gemm_of(operation, world, problem);
    let theirs = operation.map_or(Vec::new(), |o| o.operands((0, world), problem, None));
    let of = |matrix| theirs.iter().find(move |operand| operand.matrix == matrix);
    // Tensor cores take e4m3 along K alone.
    let is_narrow = |matrix| matrix == Matrix::B && problem.scaling != Scaling::None;
    let operand = |buffer, matrix, rows, cols| Operand {
        transposed: is_narrow(matrix) || of(matrix).is_some_and(|operand| operand.transposed),
        ..part(buffer, matrix, 0..rows, 0..cols)
    };
    let mut operands = vec![
        operand("a", Matrix::A, m, k),
        operand("b", Matrix::B, k, n),
        operand("c", Matrix::C, m, n),
    ];
    if of(Matrix::Bias).is_some() {
        operands.push(operand("bias", Matrix::Bias, 1, n));
    }
    let [of_a, of_b] = Scales::shapes(problem.scaling, (m, n, k));
    if problem.scaling != Scaling::None {
        operands.push(Operand {
            transposed: Scales::layout_for(problem.scaling, provider) == Layout::Transposed,
            ..operand("scales_a", Matrix::ScalesA, of_a.0, of_a.1)
        });
        operands.push(operand("scales_b", Matrix::ScalesB, of_b.0, of_b.1));
    }
    operands
}

/// The all-gather of `overlap-allgather`.
pub fn gather_alone() -> Implementation {
    let name = "allGatherAlone";
    let operation = Operation::MatmulOverlappingAllGather;
    let operands = some(operation, &[Matrix::X, Matrix::Y]);
    let plan = move |rank: usize, world: usize, problem: &Problem| {
        problem.validate(rank, world)?;
        let mut plan = PlanBuilder::new(name, rank, world);
        let regions = local(&mut plan, &operands(rank, world, problem), problem);
        if let [x, y] = regions.as_slice() {
            let (gather, by) = (Collective::AllGather, Transport::Nccl);
            plan.collective(StreamId::MAIN, gather, x.clone(), y.clone(), by);
        }
        plan.finish()
    };
    Implementation {
        in_catalogue: (name, "only the all-gather, by NCCL".into()),
        operation: Some(operation),
        ..Implementation::of_plan(name, operands, plan)
    }
}

/// The implementation whose time is broken down.
pub const WHOLE: &str = "threadloadGatherThenCutlass";

/// Bytes of a row so short that a gather's time is its signals and waits: one load of a thread.
const LEAST_ROW: usize = 16;

/// What is to be measured besides `rows` if that of [`WHOLE`] is among them and can run, in the order of the
/// fields of [`Breakdown`].
pub fn breakdown_parts(rows: &[Entrant<'_>]) -> Vec<Implementation> {
    let runs = |row: &Entrant<'_>| row.name == WHOLE && row.candidate.is_ok();
    match rows.iter().any(runs) {
        true => all_parts().into(),
        false => Vec::new(),
    }
}

fn all_parts() -> [Implementation; 4] {
    let operation = Operation::AllGatherMatmul;
    let nothing = |_: usize, _: usize, _: &Problem| Vec::new();
    let empty = |rank, world, _: &Problem| PlanBuilder::new("emptyCall", rank, world).finish();
    [
        Implementation::of_plan("empty call", nothing, empty),
        // The rows of its matrix are shorter than those of A, and what they hold does not matter.
        Implementation::of_plan("handshake alone", nothing, handshake_plan),
        Implementation::of_plan("gather alone", some(operation, &[Matrix::A]), gather_plan),
        gemm_alone("CUTLASS GEMM alone", Provider::Cutlass, Some(operation)),
    ]
}

fn handshake_plan(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let k = LEAST_ROW / problem.dtype.size();
    gather("handshakeAlone", rank, world, &Problem { k, ..*problem })
}

fn gather_plan(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    gather("threadloadGatherAlone", rank, world, problem)
}

/// The same kernel with the same buffers and slots as in the whole.
fn gather(name: &str, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let Problem { m, k, dtype, .. } = *problem;
    let mut plan = PlanBuilder::new(name, rank, world);
    let own = (problem.max_shard(world), k);
    let (ready, done) = (plan.slot("ready"), plan.slot("done"));
    let kernel = ThreadloadGather {
        shape: KernelShape { m, n: 0, k, dtype },
        a: plan.buffer("a", Placement::Symmetric, Role::Input, dtype, own),
        staging: plan.buffer("staging", Placement::Local, Role::Staging, dtype, (m, k)),
        ready,
        done,
    };
    plan.kernel(StreamId::MAIN, kernel);
    plan.finish()
}

/// The breakdown of the row of [`WHOLE`], from the times of the parts that ran. `None` without that row or
/// without parts.
pub fn breakdown(rows: &[Row], times: &[Option<Times>]) -> Option<Breakdown> {
    let single = |times: &Option<Times>| times.as_ref()?.spread(Metric::Single);
    let [empty, handshake, gather, gemm] = times else {
        return None;
    };
    let whole = rows.iter().find(|row| row.implementation == WHOLE)?;
    Some(Breakdown {
        implementation: whole.implementation.clone(),
        empty_ms: single(empty),
        handshake_ms: single(handshake),
        gather_ms: single(gather),
        gemm_ms: single(gemm),
        together_ms: whole.single_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::hold;
    use crate::suite::WITH_GATHER;
    use warpweave_overlap::algorithms;
    use warpweave_report::Shape;
    use warpweave_symm_mem::DType;

    #[test]
    fn the_plans_of_all_parts_hold_back_to_back() {
        let holds = |part: &Implementation, world, problem: Problem| {
            hold(world, |rank| (part.plan)(rank, world, &problem));
        };
        for world in [1, 2, 3, 4] {
            let problem = Problem::new(10, 6, 8, DType::F16);
            for operation in Operation::ALL.map(Some).into_iter().chain([None]) {
                let alone = gemm_alone("GEMM", Provider::CublasLt, operation);
                holds(&alone, world, problem);
            }
            holds(&gather_alone(), world, problem);
            for dtype in [DType::F16, DType::F32].into_iter().filter(|_| world > 1) {
                for part in all_parts() {
                    holds(&part, world, Problem::new(10, 6, 24, dtype));
                }
            }
        }
    }

    #[test]
    fn the_gemm_alone_is_as_large_as_a_ranks_part_and_stored_alike() {
        let problem = Problem::new(10, 6, 9, DType::F16);
        let part = |operation| {
            let alone = gemm_alone("GEMM", Provider::CublasLt, Some(operation));
            let operands = (alone.operands)(0, 4, &problem).into_iter();
            operands
                .map(|operand| (operand.buffer, operand.stored()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            part(Operation::RowParallelLinear),
            [("a", (10, 3)), ("b", (6, 3))]
        );
        assert_eq!(
            part(Operation::ColumnParallelLinear),
            [
                ("a", (10, 9)),
                ("b", (6, 9)),
                ("c", (10, 6)),
                ("bias", (1, 6))
            ]
        );
    }

    #[test]
    fn the_gather_is_that_of_the_whole() {
        let problem = Problem::new(10, 6, 24, DType::F16);
        let whole = algorithms::find(WHOLE).unwrap();
        let whole = whole.plan(1, 4, &problem).unwrap();
        let alone = gather_plan(1, 4, &problem).unwrap();
        let kernel_of = |plan: &Plan| {
            let named = plan.ops.iter().find_map(|op| match &op.kind {
                OpKind::Kernel { kernel, .. } => Some((kernel.name(), kernel.shape())),
                _ => None,
            });
            named.unwrap()
        };
        assert_eq!(kernel_of(&whole), kernel_of(&alone));
        let handshake = handshake_plan(1, 4, &problem).unwrap();
        assert_eq!(kernel_of(&handshake).1.k * problem.dtype.size(), LEAST_ROW);
    }

    #[test]
    fn the_gather_alone_is_64_mib_a_rank() {
        let (Shape { m, n, k }, dtype) = WITH_GATHER;
        let operands = (gather_alone().operands)(1, 4, &Problem::new(m, n, k, dtype));
        let (rows, cols) = operands[0].stored();
        assert_eq!(rows * cols * dtype.size(), 64 << 20);
    }
}
