//! Launches that wait for peers on the device, on two streams of a rank.

use crate::fixtures::{MAIN, holds};
use warpweave_overlap::kernels::{KernelShape, NaiveRemoteRead};
use warpweave_overlap::plan::{
    Collective, Placement, Plan, PlanBuilder, Role, StreamId, Transport,
};
use warpweave_overlap::{Violation, check};
use warpweave_symm_mem::DType;

/// What a rank launches on a stream.
#[derive(Clone, Copy)]
enum Launch {
    Kernel(usize),
    Collective,
}

/// Plans of two ranks, each with a stream forked and joined. `launches` are on the stream given, and on the
/// other one comes what follows; `ordered` puts an event between.
fn plans(launches: [Launch; 2], ordered: bool) -> Vec<Plan> {
    let shape = KernelShape {
        m: 4,
        n: 3,
        k: 5,
        dtype: DType::F32,
    };
    let of_rank = |rank: usize| {
        let mut plan = PlanBuilder::new("two", rank, 2);
        let mut buffer = |name: String, placement, role, size| {
            plan.buffer(name, placement, role, shape.dtype, size)
        };
        let operands = [0, 1].map(|i| {
            [
                buffer(format!("a{i}"), Placement::Symmetric, Role::Input, (2, 5)),
                buffer(format!("b{i}"), Placement::Local, Role::Weight, (5, 3)),
                buffer(format!("c{i}"), Placement::Local, Role::Output, (4, 3)),
            ]
        });
        let x = buffer("x".into(), Placement::Local, Role::Input, (2, 5));
        let y = buffer("y".into(), Placement::Local, Role::Staging, (4, 5));
        let slots = [0, 1].map(|i| {
            [
                plan.slot(format!("ready {i}")),
                plan.slot(format!("done {i}")),
            ]
        });
        let launch = |plan: &mut PlanBuilder, stream: StreamId, launch| match launch {
            Launch::Kernel(i) => {
                let ([a, b, c], [ready, done]) = (operands[i], slots[i]);
                let kernel = NaiveRemoteRead {
                    shape,
                    a,
                    b,
                    c,
                    ready,
                    done,
                };
                plan.kernel(stream, kernel);
            }
            Launch::Collective => {
                let [x, y] = [x, y].map(|id| plan.whole(id));
                plan.collective(stream, Collective::AllGather, x, y, Transport::Nccl);
            }
        };
        let aside = plan.fork();
        launch(&mut plan, MAIN, launches[0]);
        if ordered {
            plan.order(MAIN, aside);
        }
        launch(&mut plan, aside, launches[1]);
        plan.join(aside);
        // Outputs of a kernel that is not launched.
        for [_, _, c] in operands.into_iter().skip(1) {
            if !matches!(launches[1], Launch::Kernel(_)) {
                let [src, dst] = [operands[0][2], c].map(|id| plan.whole(id));
                plan.copy(MAIN, src, dst);
            }
        }
        plan.finish().expect("a sound plan")
    };
    [0, 1].map(of_rank).into()
}

fn starves(violation: &Violation) -> bool {
    matches!(violation, Violation::Starvation { first, second }
        if first.rank == second.rank && first.call == 1 && second.call == 1)
}

#[test]
fn two_kernels_that_wait_need_an_order() {
    let two = [Launch::Kernel(0), Launch::Kernel(1)];
    holds(&check(&plans(two, true), 3));
    let report = check(&plans(two, false), 3);
    assert_eq!(report.violations.len(), 2, "one of each rank: {report}");
    assert!(report.violations.iter().all(starves), "{report}");
    let text = report.to_string();
    assert!(text.contains("wait for peers in no fixed order"), "{text}");
    assert_eq!(
        text.matches("kernel naive_remote_read").count(),
        4,
        "{text}"
    );
}

#[test]
fn a_collective_during_a_kernel_that_waits_needs_an_order() {
    let two = [Launch::Kernel(0), Launch::Collective];
    holds(&check(&plans(two, true), 3));
    let report = check(&plans(two, false), 3);
    assert!(
        !report.holds() && report.violations.iter().all(starves),
        "{report}"
    );
}

/// The other rank's signal can order them too: the second is not begun before the first is over.
#[test]
fn kernels_of_one_stream_are_in_order() {
    let mut plans = plans([Launch::Kernel(0), Launch::Kernel(1)], false);
    for plan in &mut plans {
        for op in &mut plan.ops {
            op.stream = MAIN;
        }
    }
    holds(&check(&plans, 3));
}
