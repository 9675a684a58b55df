//! What is wrong with one plan by itself is refused when it is built, and reported when it is checked.

use crate::fixtures::{MAIN, Pair};
use warpweave_overlap::check::{Fault, FaultKind};
use warpweave_overlap::kernels::{KernelShape, ThreadloadGather};
use warpweave_overlap::plan::{
    Activation, Batch, BufferId, Collective, Effect, EventId, MulticastRegion, Op, OpKind,
    Placement, Plan, PlanBuilder, Problem, Provider, Region, Role, Scales, Scaling, SlotId,
    StreamId, Transport,
};
use warpweave_overlap::{PlanError, Violation, algorithms, check};
use warpweave_symm_mem::{DType, Priority};

/// Builds the plan of rank 0 with one fault: the builder refuses it, and so does *check* when the fault comes
/// from elsewhere.
fn expect(kind: FaultKind, build: impl Fn(&mut Pair)) {
    let mut pair = Pair::new(0);
    build(&mut pair);
    let sound = |rank| {
        let mut pair = Pair::new(rank);
        pair.builder.slot("slot");
        pair.builder.event();
        pair.builder.finish().unwrap()
    };
    let refused = pair.builder.clone().finish();
    assert!(
        matches!(&refused, Err(PlanError::Malformed { rank: 0, .. })),
        "{kind:?}: {refused:?}"
    );
    // The same operations in a plan that did not come from the builder.
    let mut plans = vec![sound(0), sound(1)];
    plans[0] = forged(&pair.builder);
    let report = check(&plans, 3);
    let faults: Vec<FaultKind> = report
        .violations
        .iter()
        .filter_map(|v| match v {
            Violation::Fault(Fault { kind, rank: 0, .. }) => Some(*kind),
            _ => None,
        })
        .collect();
    assert!(faults.contains(&kind), "{kind:?}: {report}");
    assert_eq!(report.steps, 0, "nothing is unrolled");
}

/// The plan that the builder would refuse.
fn forged(builder: &PlanBuilder) -> Plan {
    builder.draft().clone()
}

#[test]
fn things_that_do_not_exist() {
    let kind = FaultKind::NoSuchThing;
    expect(kind, |p| {
        let (src, dst) = (p.at(0, BufferId(9)), p.at(0, p.output));
        p.builder.copy(MAIN, src, dst);
    });
    expect(kind, |p| {
        let (src, dst) = (p.at(2, p.mailbox), p.at(0, p.output));
        p.builder.copy(MAIN, src, dst);
    });
    expect(kind, |p| {
        p.builder.signal(MAIN, SlotId(0), [1]);
    });
    expect(kind, |p| {
        let slot = p.builder.slot("slot");
        p.builder.wait(MAIN, slot, [2]);
    });
    expect(kind, |p| {
        p.builder.record(MAIN, EventId(0));
    });
    expect(kind, |p| {
        p.builder.wait_event(MAIN, EventId(3));
    });
    expect(kind, |p| {
        let slot = p.builder.slot("slot");
        p.builder.signal(StreamId(1), slot, [1]);
    });
    expect(kind, |p| {
        let shape = KernelShape {
            m: 1,
            n: 0,
            k: 4,
            dtype: DType::F32,
        };
        let kernel = ThreadloadGather {
            shape,
            a: BufferId(7),
            staging: p.mailbox,
            ready: SlotId(0),
            done: SlotId(0),
        };
        p.builder.slot("slot");
        p.builder.push(
            MAIN,
            OpKind::Kernel {
                kernel: kernel.into(),
                lanes: vec![],
            },
        );
    });
    expect(kind, |p| {
        p.builder
            .buffer("in", Placement::Local, Role::Staging, DType::F32, (1, 1));
    });
}

#[test]
fn boxes_outside_of_their_buffers() {
    for (rows, cols) in [(0..2, 0..4), (0..1, 0..5), (1..2, 0..4)] {
        expect(FaultKind::OutOfBounds, |p| {
            let src = p.builder.own(p.input, rows.clone(), cols.clone());
            let dst = p.builder.own(p.output, rows.clone(), cols.clone());
            p.builder.copy(MAIN, src, dst);
        });
    }
    #[expect(clippy::reversed_empty_ranges, reason = "it is the fault")]
    let reversed = 1..0;
    expect(FaultKind::OutOfBounds, |p| {
        let src = p.builder.own(p.input, reversed.clone(), 0..4);
        let dst = p.at(0, p.output);
        p.builder.copy(MAIN, src, dst);
    });
}

#[test]
fn memory_that_cannot_be_reached() {
    expect(FaultKind::Unreachable, |p| {
        let (src, dst) = (p.at(1, p.input), p.at(0, p.output));
        p.builder.copy(MAIN, src, dst);
    });
    expect(FaultKind::Unreachable, |p| {
        let src = p.at(0, p.input);
        let dst = MulticastRegion {
            buffer: p.mailbox,
            rows: 0..1,
            cols: 0..4,
        };
        p.builder.multicast_copy(MAIN, src, dst);
    });
    expect(FaultKind::Unreachable, |p| {
        let dst = p.builder.buffer(
            "all",
            Placement::Symmetric,
            Role::Staging,
            DType::F32,
            (2, 4),
        );
        let (src, dst) = (p.at(0, p.input), p.builder.on(1, dst, 0..2, 0..4));
        p.builder
            .collective(MAIN, Collective::AllGather, src, dst, Transport::Nccl);
    });
}

/// A GEMM of 4 × 8 × 130 in e4m3, its scales changed by `change`.
fn scaled(
    scaling: Scaling,
    change: impl Fn(&mut Pair, &mut Option<Scales>) + Copy,
) -> impl Fn(&mut Pair) {
    move |p| {
        let mut buffer = |name, role, dtype, shape| {
            let id = p.builder.buffer(name, Placement::Local, role, dtype, shape);
            p.builder.whole(id)
        };
        let [of_a, of_b] = Scales::shapes(scaling, (4, 8, 130));
        let (a, b) = (
            buffer("a", Role::Input, DType::E4m3, (4, 130)),
            buffer("b", Role::Weight, DType::E4m3, (8, 130)),
        );
        let c = buffer("c", Role::Output, DType::Bf16, (4, 8));
        let mut scales = Some(Scales {
            scaling,
            a: buffer("scales_a", Role::Input, DType::F32, of_a),
            b: buffer("scales_b", Role::Weight, DType::F32, of_b),
        });
        change(p, &mut scales);
        let gemm = OpKind::Gemm {
            a,
            b,
            c,
            bias: None,
            scales,
            activation: Activation::None,
            b_transposed: true,
            batch: Batch::ONE,
            provider: Provider::Sm90,
        };
        p.builder.push(MAIN, gemm);
    }
}

#[test]
fn scales_belong_to_e4m3_and_have_their_shape() {
    for scaling in [Scaling::Tensor, Scaling::Row, Scaling::Block] {
        let mut pair = Pair::new(0);
        scaled(scaling, |_, _| ())(&mut pair);
        let plan = pair.builder.finish().unwrap();
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        expect(
            FaultKind::WrongShape,
            scaled(scaling, |_, scales| *scales = None),
        );
        let none = |_: &mut Pair, scales: &mut Option<Scales>| {
            scales.as_mut().unwrap().scaling = Scaling::None;
        };
        expect(FaultKind::WrongShape, scaled(scaling, none));
        let missing = |_: &mut Pair, scales: &mut Option<Scales>| {
            let scales = scales.as_mut().unwrap();
            scales.b.rows = 0..0;
        };
        expect(FaultKind::WrongShape, scaled(scaling, missing));
        let narrow = |p: &mut Pair, scales: &mut Option<Scales>| {
            let scales = scales.as_mut().unwrap();
            let shape = (scales.a.rows.len(), scales.a.cols.len());
            let (place, role) = (Placement::Local, Role::Input);
            let id = p.builder.buffer("half", place, role, DType::F16, shape);
            scales.a = p.builder.whole(id);
        };
        expect(FaultKind::WrongShape, scaled(scaling, narrow));
    }
    // Scales of f32 operands.
    expect(FaultKind::WrongShape, |p| {
        let one = p
            .builder
            .buffer("one", Placement::Local, Role::Input, DType::F32, (1, 1));
        let one = p.builder.whole(one);
        let gemm = OpKind::Gemm {
            a: one.clone(),
            b: p.at(0, p.input),
            c: p.at(0, p.output),
            bias: None,
            scales: Some(Scales {
                scaling: Scaling::Tensor,
                a: one.clone(),
                b: one,
            }),
            activation: Activation::None,
            b_transposed: false,
            batch: Batch::ONE,
            provider: Provider::Sm90,
        };
        p.builder.push(MAIN, gemm);
    });
    let problem = Problem::new(8, 8, 8, DType::E4m3).with_scaling(Scaling::Row);
    let algorithm = algorithms::find("pushChunksWaitingGemm").unwrap();
    let refused = algorithm.plan(0, 2, &problem).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("`pushChunksWaitingGemm` does not take"),
        "{refused}"
    );
    let blocks = problem.with_scaling(Scaling::Block);
    let refused = algorithms::find("fusedAllGather")
        .unwrap()
        .plan(0, 2, &blocks);
    assert!(
        matches!(refused, Err(PlanError::NarrowOperands { .. })),
        "{refused:?}"
    );
    let name = "columnParallelLinear:gemms=batched";
    let refused = algorithms::find(name).unwrap().plan(0, 2, &problem);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(&format!("`{name}` does not")), "{refused}");
    let unscaled = problem.with_scaling(Scaling::None);
    let refused = algorithms::find("ringPut").unwrap().plan(0, 2, &unscaled);
    assert!(
        matches!(refused, Err(PlanError::NarrowOperands { .. })),
        "{refused:?}"
    );
}

#[test]
fn shapes_that_do_not_fit() {
    expect(FaultKind::WrongShape, |p| {
        let (src, dst) = (p.at(0, p.input), p.builder.own(p.output, 0..1, 0..3));
        p.builder.copy(MAIN, src, dst);
    });
    expect(FaultKind::WrongShape, |p| {
        let half = p
            .builder
            .buffer("half", Placement::Local, Role::Output, DType::F16, (1, 4));
        let (src, dst) = (p.at(0, p.input), p.at(0, half));
        p.builder.copy(MAIN, src, dst);
    });
    // 1x4 * 3x4 is no GEMM.
    expect(FaultKind::WrongShape, |p| {
        let b = p
            .builder
            .buffer("b", Placement::Local, Role::Weight, DType::F32, (3, 4));
        let [a, b, c] = [p.input, b, p.output].map(|id| p.builder.whole(id));
        p.builder.gemm(MAIN, Provider::CublasLt, a, b, c);
    });
    // Three rows over two ranks: rank 0 has two of them.
    expect(FaultKind::WrongShape, |p| {
        let all = p
            .builder
            .buffer("all", Placement::Local, Role::Staging, DType::F32, (3, 4));
        let (src, dst) = (p.at(0, p.input), p.builder.whole(all));
        p.builder
            .collective(MAIN, Collective::AllGather, src, dst, Transport::Nccl);
    });
    expect(FaultKind::WrongShape, |p| {
        let huge = (usize::MAX, 2);
        p.builder
            .buffer("huge", Placement::Local, Role::Staging, DType::F32, huge);
    });
}

/// SwiGLU stores eight columns of each sixteen.
#[test]
fn gates_without_their_up() {
    let gated = |columns: usize, region: std::ops::Range<usize>| {
        move |p: &mut Pair| {
            let mut whole = |name, role, shape| {
                let local = Placement::Local;
                let id = p.builder.buffer(name, local, role, DType::F16, shape);
                p.builder.whole(id)
            };
            let a = whole("a", Role::Input, (4, 3));
            let b = whole("b", Role::Weight, (3, 2 * columns));
            let c = whole("c", Role::Output, (4, columns));
            let gemm = OpKind::Gemm {
                a,
                b,
                c: Region {
                    cols: region.clone(),
                    ..c
                },
                bias: None,
                scales: None,
                activation: Activation::SwiGlu,
                b_transposed: false,
                batch: Batch::ONE,
                provider: Provider::Sm90,
            };
            p.builder.push(MAIN, gemm);
        }
    };
    expect(FaultKind::WrongShape, gated(12, 0..12));
    expect(FaultKind::OutOfBounds, gated(8, 0..usize::MAX));
    let mut pair = Pair::new(0);
    gated(8, 0..8)(&mut pair);
    pair.builder.finish().unwrap();
}

#[test]
fn operations_that_overwrite_what_they_read() {
    expect(FaultKind::InPlace, |p| {
        let (src, dst) = (
            p.builder.own(p.output, 0..1, 0..2),
            p.builder.own(p.output, 0..1, 1..3),
        );
        p.builder.copy(MAIN, src, dst);
    });
    expect(FaultKind::InPlace, |p| {
        let all = p
            .builder
            .buffer("all", Placement::Local, Role::Staging, DType::F32, (2, 4));
        let (src, dst) = (p.builder.own(all, 1..2, 0..4), p.builder.whole(all));
        p.builder
            .collective(MAIN, Collective::AllGather, src, dst, Transport::Nccl);
    });
}

#[test]
fn constants_are_not_written() {
    expect(FaultKind::WritesWeight, |p| {
        let b = p
            .builder
            .buffer("b", Placement::Local, Role::Weight, DType::F32, (1, 4));
        let (src, dst) = (p.at(0, p.input), p.at(0, b));
        p.builder.copy(MAIN, src, dst);
    });
}

#[test]
fn events_are_recorded_before_they_are_waited_for() {
    expect(FaultKind::EventNotRecorded, |p| {
        let event = p.builder.event();
        p.builder.wait_event(MAIN, event).record(MAIN, event);
    });
}

#[test]
fn numbers_are_sensible() {
    expect(FaultKind::Excess, |p| {
        let slot = p.builder.slot("slot");
        p.builder.wait_lag(MAIN, slot, [1], u32::MAX);
    });
}

#[test]
fn a_plan_of_nonsense_is_reported_and_does_not_panic() {
    let mut plan = Pair::new(0).builder.finish().unwrap();
    plan.rank = usize::MAX;
    plan.streams = vec![Priority::Normal; (1 << 16) + 1];
    plan.events = usize::MAX;
    for world in [0, 1, usize::MAX] {
        plan.world = world;
        let report = check(&[plan.clone()], 3);
        let excess =
            |v: &&Violation| matches!(v, Violation::Fault(f) if f.kind == FaultKind::Excess);
        assert_eq!(report.violations.iter().filter(excess).count(), 2);
        assert!(!warpweave_overlap::show(&plan).is_empty());
    }
}

#[test]
fn a_copy_to_a_buffer_that_does_not_exist_is_reported_and_shown() {
    let mut plan = Pair::new(0).builder.finish().unwrap();
    let region = |rank| Region {
        rank,
        buffer: BufferId(99),
        rows: 0..1,
        cols: 0..1,
    };
    plan.ops.push(Op {
        stream: MAIN,
        kind: OpKind::Copy {
            src: region(0),
            dst: region(1),
        },
    });
    let shown = warpweave_overlap::show(&plan);
    assert!(
        shown.contains("put ?@0[0..1, 0..1] -> ?@1[0..1, 0..1]"),
        "{shown}"
    );
    let report = check(&[plan], 3);
    let missing =
        |v: &Violation| matches!(v, Violation::Fault(f) if f.kind == FaultKind::NoSuchThing);
    assert!(report.violations.iter().any(missing), "{report}");
}

#[test]
fn effects_of_lanes_are_inspected_too() {
    let shape = KernelShape {
        m: 1,
        n: 0,
        k: 4,
        dtype: DType::F32,
    };
    let lane = |effect: fn(&Pair) -> Effect, kind| {
        expect(kind, |p| {
            let slot = p.builder.slot("slot");
            let (a, staging) = (p.input, p.mailbox);
            let kernel = ThreadloadGather {
                shape,
                a,
                staging,
                ready: slot,
                done: slot,
            };
            let lanes = vec![vec![effect(p)]];
            p.builder.push(
                MAIN,
                OpKind::Kernel {
                    kernel: kernel.into(),
                    lanes,
                },
            );
        });
    };
    lane(|p| Effect::Read(p.at(1, p.input)), FaultKind::Unreachable);
    lane(
        |p| Effect::Write(p.builder.own(p.mailbox, 0..1, 0..5)),
        FaultKind::OutOfBounds,
    );
    lane(
        |p| {
            let (rows, cols) = (0..1, 0..4);
            Effect::WriteMulticast(MulticastRegion {
                buffer: p.mailbox,
                rows,
                cols,
            })
        },
        FaultKind::Unreachable,
    );
    lane(
        |_| Effect::Signal {
            slot: SlotId(1),
            to: vec![1],
        },
        FaultKind::NoSuchThing,
    );
    lane(
        |_| Effect::Wait {
            slot: SlotId(0),
            from: vec![2],
            lag: 0,
        },
        FaultKind::NoSuchThing,
    );
}
