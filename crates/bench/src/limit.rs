//! What no implementation can beat: the GEMM alone, and the fewest bytes into a rank alone, both measured in
//! the same run.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{
    Batch, OpKind, Placement, Plan, PlanBuilder, Problem, Provider, Role, StreamId, Transport,
    shard,
};
use warpweave_overlap::{Operation, PlanError};
use warpweave_symm_mem::{BackendKind, DType};

use crate::candidate::Candidate;
use crate::clock::Clock;
use crate::error::{BenchError, Result};
use crate::inputs::part;
use crate::plans::{Implementation, PlanCandidate, of_ranks};
use crate::report::Limit;
use crate::session::{ExecuteBackend, Session};
use crate::statistics::{Spread, slowest};
use crate::transport;

/// The GEMM that a rank computes in `operation`, with its operands at hand and the weight stored as there; of
/// all of A and B without an operation.
///
/// Where the operation sums over ranks, it is that of the first ⌈K / world⌉ columns of A, and its result,
/// which is no part of C, is not verified.
pub fn gemm_alone(name: &str, provider: Provider, operation: Option<Operation>) -> Implementation {
    let plan_name = name.to_owned();
    Implementation {
        name: name.to_owned(),
        scheduled: None,
        operands: Rc::new(move |_, world, problem| {
            let mut operands = gemm_operands(operation, world, problem);
            if gemm_of(operation, world, problem).2 < problem.k {
                operands.retain(|operand| operand.role() != Role::Output);
            }
            operands
        }),
        plan: Rc::new(move |rank, world, problem| {
            problem.validate(rank, world)?;
            let operands = gemm_operands(operation, world, problem);
            prepare_gemm(
                (&plan_name, provider),
                (rank, world),
                &operands,
                problem.dtype,
            )
        }),
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

fn gemm_operands(operation: Option<Operation>, world: usize, problem: &Problem) -> Vec<Operand> {
    let (m, n, k) = gemm_of(operation, world, problem);
    let theirs = operation.map_or(Vec::new(), |o| o.operands((0, world), problem, None));
    let of = |matrix| theirs.iter().find(move |operand| operand.matrix == matrix);
    let operand = |buffer, matrix, rows, cols| Operand {
        transposed: of(matrix).is_some_and(|operand| operand.transposed),
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
    operands
}

fn prepare_gemm(
    (name, provider): (&str, Provider),
    (rank, world): (usize, usize),
    operands: &[Operand],
    dtype: DType,
) -> Result<Plan, PlanError> {
    let mut plan = PlanBuilder::new(name, rank, world);
    let mut regions = operands.iter().map(|operand| {
        let (role, shape) = (operand.role(), operand.stored());
        let id = plan.buffer(operand.buffer, Placement::Local, role, dtype, shape);
        plan.whole(id)
    });
    if let (Some(a), Some(b), Some(c)) = (regions.next(), regions.next(), regions.next()) {
        let bias = regions.next();
        let gemm = OpKind::Gemm {
            a,
            b,
            c,
            bias,
            b_transposed: operands.iter().any(|operand| operand.transposed),
            batch: Batch::ONE,
            provider,
        };
        plan.push(StreamId::MAIN, gemm);
    }
    plan.finish()
}

/// Every rank pushes its part to all others by copy engine on one stream, and waits for theirs. Nobody reads
/// what arrives, so calls need no credits.
fn push_plan(rank: usize, world: usize, rows: usize, cols: usize) -> Result<Plan, PlanError> {
    let mut plan = PlanBuilder::new("copyEngineAllGather", rank, world);
    let own = shard(rows, rank, world);
    let most = rows.div_ceil(world);
    let part = plan.buffer(
        "part",
        Placement::Local,
        Role::Input,
        DType::F32,
        (most, cols),
    );
    let all = plan.buffer(
        "all",
        Placement::Symmetric,
        Role::Staging,
        DType::F32,
        (rows, cols),
    );
    let ready = plan.slot("ready");
    let (main, peers) = (StreamId::MAIN, plan.peers());
    let src = plan.own(part, 0..own.len(), 0..cols);
    for &to in &peers {
        let dst = plan.on(to, all, own.clone(), 0..cols);
        plan.copy(main, src.clone(), dst);
    }
    plan.signal(main, ready, peers.clone())
        .wait(main, ready, peers);
    plan.finish()
}

/// Bytes that a rank pushes to each peer to measure the links: large enough for the latency not to count.
fn piece(kind: BackendKind) -> usize {
    match kind {
        BackendKind::Cuda => 256 << 20,
        BackendKind::Host => 4 << 20,
    }
}

/// The bandwidth of the links between the ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Links {
    /// All-gather traffic into each rank in GB/s.
    pub bandwidth_gb_s: f64,
    /// What it was measured with.
    pub transport: String,
}

/// The speed of all-gather traffic by copy-engine pushes; `None` for a rank alone. Collective.
///
/// # Errors
/// What binding and running report.
pub fn push_bandwidth<B: ExecuteBackend>(
    session: &Session<B>,
    clock: &Clock<B>,
) -> Result<Option<Links>> {
    let world = session.world();
    if world == 1 {
        return Ok(None);
    }
    let (cols, piece) = (1024, piece(B::KIND));
    let rows = world * piece / (cols * size_of::<f32>());
    let plans = of_ranks(world, |rank| push_plan(rank, world, rows, cols))?;
    let pushes = PlanCandidate::of_plans(session, plans)?;
    let calls = clock.capacity().min(5);
    let mine = || {
        pushes.run()?;
        for i in 0..calls {
            let lead = std::time::Duration::from_millis(1);
            clock.time(session, i, lead, || pushes.run())?;
        }
        pushes.synchronize()?;
        clock.read(session, calls)
    };
    let ranks = session.agree_numbers("copy-engine all-gather", mine())?;
    let ms = Spread::of(&slowest(&ranks)).map_or(f64::NAN, |spread| spread.median);
    Ok(Some(Links {
        bandwidth_gb_s: (world - 1) as f64 * piece as f64 / ms / 1e6,
        transport: transport::name(B::KIND, Transport::CopyEngine),
    }))
}

/// The limit of a problem, from the GEMM's time and the links' bandwidth.
///
/// # Errors
/// [`BenchError::Usage`] if the GEMM was not timed.
pub fn limit(
    (operation, problem): (Operation, &Problem),
    world: usize,
    (gemm, algorithms): (Option<Spread>, Vec<String>),
    links: Option<&Links>,
) -> Result<Limit> {
    let gemm = gemm.ok_or_else(|| BenchError::Usage("the GEMM alone was not timed".into()))?;
    let bytes = operation.bytes_in(world, problem).round();
    let bandwidth_gb_s = links.map(|links| links.bandwidth_gb_s);
    let transfer_ms = bandwidth_gb_s.map_or(0.0, |rate| bytes / rate / 1e6);
    Ok(Limit {
        ms: gemm.median.max(transfer_ms),
        gemm_tflops: Some(tflops(
            gemm_of(Some(operation), world, problem),
            gemm.median,
        )),
        gemm_ms: Some(gemm),
        gemm_algorithms: algorithms,
        bytes: bytes as usize,
        transport: links.map(|links| links.transport.clone()),
        bandwidth_gb_s,
        transfer_ms: Some(transfer_ms),
    })
}

/// Two operations for multiply-add of a GEMM of this size, over a time.
pub fn tflops((m, n, k): (usize, usize, usize), ms: f64) -> f64 {
    2.0 * m as f64 * n as f64 * k as f64 / ms / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::hold;

    #[test]
    fn the_plans_of_the_limit_hold_back_to_back() {
        for world in [1, 2, 3, 4] {
            let problem = Problem::new(10, 6, 8, DType::F16);
            hold(world, |rank| push_plan(rank, world, 10, 4));
            for operation in Operation::ALL.map(Some).into_iter().chain([None]) {
                let alone = gemm_alone("GEMM", Provider::CublasLt, operation);
                hold(world, |rank| (alone.plan)(rank, world, &problem));
            }
        }
    }

    #[test]
    fn the_gemm_alone_is_as_large_as_a_ranks_part_and_stored_alike() {
        let problem = Problem::new(10, 6, 9, DType::F16);
        let part = |operation| {
            let alone = gemm_alone("GEMM", Provider::CublasLt, Some(operation));
            let stored: Vec<_> = (alone.operands)(0, 4, &problem)
                .iter()
                .map(|operand| (operand.buffer, operand.stored()))
                .collect();
            stored
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
    fn the_limit_is_the_larger_part() {
        let problem = Problem::new(1000, 1000, 1000, DType::F16);
        let gemm = || (Spread::of(&[2.0]), vec![]);
        let slow = Links {
            bandwidth_gb_s: 0.5,
            transport: "host push".into(),
        };
        let of = |operation, world, links| limit((operation, &problem), world, gemm(), links);
        let gather = of(Operation::AllGatherMatmul, 4, Some(&slow)).unwrap();
        assert_eq!(
            (gather.bytes, gather.transfer_ms, gather.ms),
            (1_500_000, Some(3.0), 3.0)
        );
        let reduce = of(Operation::MatmulAllReduce, 4, Some(&slow)).unwrap();
        assert_eq!((reduce.bytes, reduce.ms), (3_000_000, 6.0));
        // A quarter of the GEMM is each rank's.
        assert_eq!(reduce.gemm_tflops, Some(0.25));
        let alone = of(Operation::AllGatherMatmul, 1, None).unwrap();
        assert_eq!(
            (alone.bytes, alone.ms, alone.gemm_tflops),
            (0, 2.0, Some(1.0))
        );
    }
}
