//! Plans that several tests use, and ways to look at reports.

use warpweave_overlap::algorithms::Configuration;
use warpweave_overlap::plan::{
    BufferId, OpKind, Placement, Plan, PlanBuilder, Problem, Provider, Region, Role, Scaling,
    StreamId, shard,
};
use warpweave_overlap::{Report, Violation};
use warpweave_symm_mem::DType;

pub const MAIN: StreamId = StreamId::MAIN;

pub fn problem(m: usize) -> Problem {
    Problem::new(m, 3, 5, DType::F32)
}

/// The same of e4m3 that `algorithm` takes. Rows have up to two scales by block.
pub fn narrow(algorithm: &Configuration, m: usize) -> Vec<Problem> {
    let of = |(k, scaling)| Problem::new(m, 3, k, DType::E4m3).with_scaling(scaling);
    let all = [
        (5, Scaling::Row),
        (5, Scaling::Tensor),
        (150, Scaling::Block),
    ]
    .map(of);
    all.into_iter().filter(|p| algorithm.takes(p)).collect()
}

pub fn plans(algorithm: &Configuration, world: usize, problem: &Problem) -> Vec<Plan> {
    algorithm.plans(world, problem).expect("a sound problem")
}

pub fn holds(report: &Report) {
    assert!(report.holds(), "{report}");
}

pub fn has_race(report: &Report) -> bool {
    let race = |v: &Violation| matches!(v, Violation::Race { .. });
    report.violations.iter().any(race)
}

pub fn has_deadlock(report: &Report) -> bool {
    let deadlock = |v: &Violation| matches!(v, Violation::Deadlock { .. });
    report.violations.iter().any(deadlock)
}

/// The one violation of a report that has one.
pub fn only(report: &Report) -> &Violation {
    assert_eq!(report.violations.len(), 1, "{report}");
    &report.violations[0]
}

/// A pair of ranks with an input `in`, a symmetric staging `box` and an output `out`, each of one row.
pub struct Pair {
    pub builder: PlanBuilder,
    pub input: BufferId,
    pub mailbox: BufferId,
    pub output: BufferId,
    pub rank: usize,
    pub peer: usize,
}

impl Pair {
    pub fn new(rank: usize) -> Self {
        let mut builder = PlanBuilder::new("pair", rank, 2);
        let mut buffer =
            |name, placement, role| builder.buffer(name, placement, role, DType::F32, (1, 4));
        Pair {
            input: buffer("in", Placement::Local, Role::Input),
            mailbox: buffer("box", Placement::Symmetric, Role::Staging),
            output: buffer("out", Placement::Local, Role::Output),
            builder,
            rank,
            peer: 1 - rank,
        }
    }

    pub fn at(&self, rank: usize, buffer: BufferId) -> Region {
        self.builder.on(rank, buffer, 0..1, 0..4)
    }

    pub fn fill_output(&mut self, stream: StreamId) {
        let [src, dst] = [self.input, self.output].map(|b| self.builder.whole(b));
        self.builder.copy(stream, src, dst);
    }
}

/// Both plans of a pair.
pub fn pair(build: impl Fn(&mut Pair)) -> Vec<Plan> {
    (0..2)
        .map(|rank| {
            let mut pair = Pair::new(rank);
            build(&mut pair);
            pair.builder.finish().expect("a sound plan")
        })
        .collect()
}

/// All-gather and GEMM as a pipeline: a second stream pushes the shard in two chunks while the first
/// multiplies what has arrived. It has every kind of synchronisation that a plan can have outside of a
/// kernel.
pub fn pipeline(rank: usize, world: usize) -> Plan {
    let (m, n, k, chunks) = (4 * world, 3, 5, 2);
    let mut plan = PlanBuilder::new("pipeline", rank, world);
    let dtype = DType::F32;
    let own = shard(m, rank, world);
    let a = plan.buffer("a", Placement::Local, Role::Input, dtype, (own.len(), k));
    let b = plan.buffer("b", Placement::Local, Role::Weight, dtype, (k, n));
    let c = plan.buffer("c", Placement::Local, Role::Output, dtype, (m, n));
    let staging = plan.buffer(
        "staging",
        Placement::Symmetric,
        Role::Staging,
        dtype,
        (m, k),
    );
    let ready: Vec<_> = (0..chunks)
        .map(|i| plan.slot(format!("ready {i}")))
        .collect();
    let free = plan.slot("free");
    let peers = plan.peers();

    let push = plan.fork();
    plan.wait_credit(push, free, peers.clone());
    for (chunk, &ready) in ready.iter().enumerate() {
        let part = shard(own.len(), chunk, chunks);
        let rows = own.start + part.start..own.start + part.end;
        for &to in &peers {
            let (src, dst) = (
                plan.own(a, part.clone(), 0..k),
                plan.on(to, staging, rows.clone(), 0..k),
            );
            plan.copy(push, src, dst);
        }
        plan.signal(push, ready, peers.clone());
    }
    let (src, dst) = (plan.whole(a), plan.own(c, own.clone(), 0..n));
    let weight = plan.whole(b);
    plan.gemm(MAIN, Provider::CublasLt, src, weight.clone(), dst);
    for (chunk, &ready) in ready.iter().enumerate() {
        plan.wait(MAIN, ready, peers.clone());
        for &from in &peers {
            let theirs = shard(m, from, world);
            let part = shard(theirs.len(), chunk, chunks);
            let rows = theirs.start + part.start..theirs.start + part.end;
            let (src, dst) = (
                plan.own(staging, rows.clone(), 0..k),
                plan.own(c, rows, 0..n),
            );
            plan.gemm(MAIN, Provider::CublasLt, src, weight.clone(), dst);
        }
    }
    plan.signal(MAIN, free, peers);
    plan.join(push);
    plan.finish().expect("a sound plan")
}

pub fn pipelines(world: usize) -> Vec<Plan> {
    (0..world).map(|rank| pipeline(rank, world)).collect()
}

/// What these do with their operands is theirs.
pub fn has_kernels(plan: &Plan) -> bool {
    let kernel = |kind: &OpKind| matches!(kind, OpKind::Kernel { .. });
    plan.ops.iter().any(|op| kernel(&op.kind))
}
