//! `fusedAllGather`: one launch in which every rank fetches the shards of the others and multiplies what it has and what comes.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Kernel, Placement, Plan, Problem, StreamId};
use warpweave_gemm::AllGatherMatmul;

/// One hand-written kernel whose blocks fetch the rows of the others by bulk copies beside their share of the product. The tiles
/// take this rank's rows first, then chunk after chunk of the others in the order of their arrival.
///
/// `ready`: "my A may be read". `done`: "I have read your A"; the call ends only then.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedAllGather",
    operation: Operation::AllGatherMatmul,
    summary: "one SM90 kernel: each block fetches rows of the peers while it multiplies what has arrived",
    needs: Capabilities::SM90,
    parameters: &[Parameter {
        key: "chunks",
        summary: "most chunks of a shard",
        values: Values::Counts(&[8, 1, 2, 4, 16]),
    }],
    build,
    rows: None,
    redundant: None,
};

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let main = StreamId::MAIN;
    if world == 1 {
        plan.gemm_own(main);
        return plan.builder.finish();
    }
    let shard = problem.max_shard(world);
    let chunk_rows = AllGatherMatmul::chunk_rows(shard, options.count("chunks"));
    let staging = plan.staging(Placement::Local);
    let ready = plan.builder.slot("ready");
    let done = plan.builder.slot("done");
    let kernel = Kernel::AllGatherMatmul {
        shape: plan.shape(),
        a: plan.a,
        b: plan.b,
        c: plan.c,
        staging,
        ready,
        done,
        chunk_rows,
    };
    plan.builder.kernel(main, kernel);
    plan.builder.finish()
}
