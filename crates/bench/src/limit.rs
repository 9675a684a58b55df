//! What no implementation can beat: the product alone, and the bytes of A alone, both measured in the same run.

use warpweave_overlap::PlanError;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::plan::{
    GemmProvider, Placement, Plan, PlanBuilder, Problem, Role, StreamId, Transport, shard,
};
use warpweave_symm_mem::{BackendKind, DType};

use crate::candidate::{Implementation, PartOfA};
use crate::clock::Clock;
use crate::error::{BenchError, Result};
use crate::report::Limit;
use crate::session::Session;
use crate::statistics::{Spread, slowest};
use crate::transport;

/// The product with all of A at hand.
pub fn product_alone(name: &str, provider: GemmProvider) -> Implementation {
    let plan_name = name.to_owned();
    Implementation {
        name: name.to_owned(),
        takes: PartOfA::Whole,
        plan: Box::new(move |rank, world, problem| {
            product_plan(&plan_name, provider, (rank, world), problem)
        }),
    }
}

fn product_plan(
    name: &str,
    provider: GemmProvider,
    (rank, world): (usize, usize),
    problem: &Problem,
) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let Problem { m, n, k, dtype, .. } = *problem;
    let mut plan = PlanBuilder::new(name, rank, world);
    let mut local = |name, role, shape| plan.buffer(name, Placement::Local, role, dtype, shape);
    let operands = [
        local("a", Role::Input, (m, k)),
        local("b", Role::Weight, (k, n)),
        local("c", Role::Output, (m, n)),
    ];
    let [a, b, c] = operands.map(|id| plan.whole(id));
    plan.gemm(StreamId::MAIN, provider, a, b, c);
    plan.finish()
}

/// Every rank pushes its part to all others by copy engine on one stream, and waits for theirs. Nobody reads what arrives,
/// so calls need no credits.
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

/// How fast the links between the ranks were.
#[derive(Clone, Debug)]
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
    let plan = push_plan(session.rank(), world, rows, cols)?;
    let bound = session.executor.bind(plan, &session.stream)?;
    let calls = clock.capacity().min(5);
    let mine = || {
        bound.run()?;
        for i in 0..calls {
            clock.time(session, i, std::time::Duration::from_millis(1), || {
                Ok(bound.run()?)
            })?;
        }
        bound.synchronize()?;
        clock.read(session, calls)
    };
    let ranks = session.settle_numbers("copy-engine all-gather", mine())?;
    let ms = Spread::of(&slowest(&ranks)).map_or(f64::NAN, |spread| spread.median);
    Ok(Some(Links {
        bandwidth_gb_s: (world - 1) as f64 * piece as f64 / ms / 1e6,
        transport: transport::name(B::KIND, Transport::CopyEngine),
    }))
}

/// The limit of a problem, from the product's time and the links' bandwidth.
///
/// # Errors
/// [`BenchError::Usage`] if the product was not timed.
pub fn limit(
    problem: &Problem,
    world: usize,
    gemm: Option<Spread>,
    algorithms: Vec<String>,
    links: Option<&Links>,
) -> Result<Limit> {
    let gemm = gemm.ok_or_else(|| BenchError::Usage("the product alone was not timed".into()))?;
    let bytes = problem.m * problem.k * problem.dtype.size() * (world - 1) / world;
    let bandwidth_gb_s = links.map(|links| links.bandwidth_gb_s);
    let transfer_ms = bandwidth_gb_s.map_or(0.0, |rate| bytes as f64 / rate / 1e6);
    Ok(Limit {
        ms: gemm.median.max(transfer_ms),
        gemm_tflops: tflops(problem, gemm.median),
        gemm_ms: gemm,
        gemm_algorithms: algorithms,
        bytes,
        transport: links.map(|links| links.transport.clone()),
        bandwidth_gb_s,
        transfer_ms,
    })
}

/// 2·M·N·K over a time.
pub fn tflops(problem: &Problem, ms: f64) -> f64 {
    2.0 * problem.m as f64 * problem.n as f64 * problem.k as f64 / ms / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_overlap::check;

    #[test]
    fn the_plans_of_the_limit_hold_back_to_back() {
        for world in [1, 2, 3, 4] {
            let problem = Problem::new(10, 6, 8, DType::F16);
            let ranks = 0..world;
            let push: Vec<_> = ranks
                .clone()
                .map(|rank| push_plan(rank, world, 10, 4).unwrap())
                .collect();
            let product: Vec<_> = ranks
                .map(|rank| {
                    product_plan("product", GemmProvider::CublasLt, (rank, world), &problem)
                        .unwrap()
                })
                .collect();
            for plans in [push, product] {
                let report = check(&plans, 3);
                assert!(report.holds(), "{report}");
            }
        }
    }

    #[test]
    fn the_limit_is_the_larger_part() {
        let problem = Problem::new(1000, 1000, 1000, DType::F16);
        let gemm = Spread::of(&[2.0]);
        let slow = Links {
            bandwidth_gb_s: 0.5,
            transport: "host push".into(),
        };
        let links = limit(&problem, 4, gemm, vec![], Some(&slow)).unwrap();
        assert_eq!(
            (links.bytes, links.transfer_ms, links.ms),
            (1_500_000, 3.0, 3.0)
        );
        let alone = limit(&problem, 1, gemm, vec![], None).unwrap();
        assert_eq!((alone.bytes, alone.ms, alone.gemm_tflops), (0, 2.0, 1.0));
    }
}
