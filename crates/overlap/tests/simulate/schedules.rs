//! What was measured and is no algorithm of the crate: GEMMs alone, and GEMMs before collectives of NCCL.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::{
    Collective, Placement, Plan, PlanBuilder, Problem, Provider, Region, Role, StreamId, Transport,
    chunks, shard,
};
use warpweave_symm_mem::Priority;

const MAIN: StreamId = StreamId::MAIN;

/// The plans of all ranks of a schedule that is named in a file of measurements.
pub fn plans(name: &str, world: usize, problem: &Problem) -> Vec<Plan> {
    let build: Box<dyn Fn(usize) -> Plan> = match name {
        "gemm" => Box::new(|rank| row_parallel((rank, 1), problem, Provider::CublasLt, |_, _| ())),
        "gemm:cutlass" => {
            Box::new(|rank| row_parallel((rank, 1), problem, Provider::Cutlass, |_, _| ()))
        }
        "rowParallelGemm" => {
            Box::new(|rank| row_parallel((rank, world), problem, Provider::CublasLt, |_, _| ()))
        }
        "gemmThenNcclReduceScatter" => Box::new(|rank| {
            row_parallel((rank, world), problem, Provider::CublasLt, |plan, c| {
                let rows = shard(problem.m, rank, world);
                let shape = (rows.len(), problem.n);
                let out = Role::Output;
                let dst = plan.buffer("shard", Placement::Local, out, problem.dtype, shape);
                let dst = plan.whole(dst);
                plan.collective(MAIN, Collective::ReduceScatter, c, dst, Transport::Nccl);
            })
        }),
        "gemmThenNcclAllReduce" => Box::new(|rank| {
            row_parallel((rank, world), problem, Provider::CublasLt, |plan, c| {
                plan.collective(MAIN, Collective::AllReduce, c.clone(), c, Transport::Nccl);
            })
        }),
        "gemmAndNcclAllReduceInChunks" => Box::new(|rank| in_chunks((rank, world), problem)),
        name => {
            return algorithms::find(name)
                .unwrap()
                .plans(world, problem)
                .unwrap();
        }
    };
    (0..world).map(build).collect()
}

/// x and the weight of this rank's part of K, and C.
fn operands(plan: &mut PlanBuilder, world: usize, problem: &Problem) -> [Region; 3] {
    let Problem { m, n, k, dtype, .. } = *problem;
    let mut buffer = |name, role, shape| plan.buffer(name, Placement::Local, role, dtype, shape);
    let x = buffer("x", Role::Input, (m, k / world));
    let w = buffer("w", Role::Weight, (k / world, n));
    let c = buffer("c", Role::Output, (m, n));
    [x, w, c].map(|id| plan.whole(id))
}

/// The GEMM of this rank's part of K, and what follows it.
fn row_parallel(
    (rank, world): (usize, usize),
    problem: &Problem,
    provider: Provider,
    then: impl Fn(&mut PlanBuilder, Region),
) -> Plan {
    let mut plan = PlanBuilder::new("row-parallel GEMM", rank, world);
    let [x, w, c] = operands(&mut plan, world, problem);
    plan.gemm(MAIN, provider, x, w, c.clone());
    then(&mut plan, c);
    plan.finish().unwrap()
}

/// Four chunks on two streams, each its GEMM and its all-reduce.
fn in_chunks((rank, world): (usize, usize), problem: &Problem) -> Plan {
    let mut plan = PlanBuilder::new("row-parallel GEMM in chunks", rank, world);
    let [x, w, c] = operands(&mut plan, world, problem);
    let pool = [(); 2].map(|()| plan.fork_with(Priority::Normal));
    for (i, rows) in chunks(0..problem.m, 4).enumerate() {
        let stream = pool[i % pool.len()];
        let [x, c] = [&x, &c].map(|whole| Region {
            rows: rows.clone(),
            ..whole.clone()
        });
        plan.gemm(stream, Provider::CublasLt, x, w.clone(), c.clone());
        if i > 0 {
            // NCCL takes the collectives of one communicator one after the other.
            plan.order(pool[(i + 1) % pool.len()], stream);
        }
        plan.collective(stream, Collective::AllReduce, c.clone(), c, Transport::Nccl);
    }
    for stream in pool {
        plan.join(stream);
    }
    plan.finish().unwrap()
}
