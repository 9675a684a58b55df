//! All-reduces that are followed by a residual addition and RMSNorm: what *show* prints of them, and what
//! *check* refuses.

use crate::fixtures::{MAIN, has_race, holds};
use crate::interpreter::replay;
use warpweave_overlap::check::{Fault, FaultKind};
use warpweave_overlap::plan::{
    AddRmsNorm, Collective, Op, OpKind, Placement, Plan, PlanBuilder, Problem, Quantized, Region,
    Role, Transport,
};
use warpweave_overlap::{Report, Violation, algorithms, check, show};
use warpweave_symm_mem::{DType, Priority};

const ROWS: usize = 2;
const COLS: usize = 4;

/// A plan under construction: `partial` gets `x`, and is reduced, added and normalized to `y`.
struct Layer {
    builder: PlanBuilder,
    x: Region,
    partial: Region,
    y: Region,
    norm: AddRmsNorm,
}

impl Layer {
    fn new(rank: usize) -> Self {
        let mut builder = PlanBuilder::new("layer", rank, 2);
        let mut buffer = |name, placement, role, rows| {
            let id = builder.buffer(name, placement, role, DType::F32, (rows, COLS));
            builder.own(id, 0..rows, 0..COLS)
        };
        let local = Placement::Local;
        Layer {
            x: buffer("x", local, Role::Input, ROWS),
            partial: buffer("partial", Placement::Symmetric, Role::Staging, ROWS),
            y: buffer("y", local, Role::Output, ROWS),
            norm: AddRmsNorm {
                residual: buffer("residual", local, Role::Input, ROWS),
                weight: buffer("weight", local, Role::Weight, 1),
                residual_out: buffer("residual_out", local, Role::Output, ROWS),
                epsilon: 1e-5,
                quantized: None,
            },
            builder,
        }
    }

    /// Another output of this rank.
    fn output(&mut self, name: &str) -> Region {
        let (local, role) = (Placement::Local, Role::Output);
        let id = self
            .builder
            .buffer(name, local, role, DType::F32, (ROWS, COLS));
        self.builder.whole(id)
    }

    /// The normalized rows in e4m3 too.
    fn quantize(&mut self) {
        let (local, role) = (Placement::Local, Role::Output);
        let mut output = |name, dtype, cols| {
            let id = self.builder.buffer(name, local, role, dtype, (ROWS, cols));
            self.builder.whole(id)
        };
        self.norm.quantized = Some(Quantized {
            values: output("values", DType::E4m3, COLS),
            scales: output("scales", DType::F32, 1),
        });
    }

    fn multiply(&mut self) {
        let (src, dst) = (self.x.clone(), self.partial.clone());
        self.builder.copy(MAIN, src, dst);
    }

    fn reduce(&mut self) {
        let (operands, norm) = ((self.partial.clone(), self.y.clone()), self.norm.clone());
        let transport = Transport::SymmetricMemory;
        self.builder
            .all_reduce_add_rms_norm(MAIN, operands, norm, transport);
    }

    fn copy(&mut self, src: &Region, dst: &Region) {
        self.builder.copy(MAIN, src.clone(), dst.clone());
    }
}

/// The plans of two ranks, sound by themselves.
fn plans(build: impl Fn(&mut Layer, usize)) -> Vec<Plan> {
    let plan = |rank| {
        let mut layer = Layer::new(rank);
        build(&mut layer, rank);
        layer.builder.finish().expect("a sound plan")
    };
    (0..2).map(plan).collect()
}

fn report(build: impl Fn(&mut Layer)) -> Report {
    check(&plans(|layer, _| build(layer)), 3)
}

fn sound(layer: &mut Layer) {
    layer.multiply();
    layer.reduce();
}

#[test]
fn a_norm_after_an_all_reduce_holds_and_is_shown() {
    let plans = plans(|layer, _| sound(layer));
    holds(&check(&plans, 3));
    let line = "%1 = [0] all-reduce partial@1[0..2, 0..4] -> y@1[0..2, 0..4], + residual@1[0..2, 0..4] -> \
                residual_out@1[0..2, 0..4], RMSNorm * weight@1[0..1, 0..4], epsilon 0.00001 by \
                symmetric-memory";
    assert!(show(&plans[1]).contains(line), "{}", show(&plans[1]));
    // In e4m3 too.
    let plans = self::plans(|layer, _| {
        layer.quantize();
        sound(layer);
    });
    holds(&check(&plans, 3));
    let end = "epsilon 0.00001, in e4m3 -> values@1[0..2, 0..4] by row of scales@1[0..2, 0..1] by \
               symmetric-memory";
    assert!(show(&plans[1]).contains(end), "{}", show(&plans[1]));
    // In place: the new residual for the old, the normalized rows for the partials.
    holds(&report(|layer| {
        let out = layer.output("out");
        layer.norm.residual = layer.norm.residual_out.clone();
        let (x, residual) = (layer.x.clone(), layer.norm.residual.clone());
        layer.copy(&x, &residual);
        layer.y = layer.partial.clone();
        sound(layer);
        let y = layer.y.clone();
        layer.copy(&y, &out);
        let unused = layer.builder.draft().buffer_named("y").expect("a buffer");
        let unused = layer.builder.whole(unused);
        layer.copy(&y, &unused);
    }));
}

/// Each of the boxes that the norm reads or writes is ordered with what else touches them.
#[test]
fn what_nothing_orders_with_a_norm_is_a_race() {
    type Pick = fn(&Layer) -> Region;
    let read: [Pick; 2] = [|l| l.norm.residual.clone(), |l| l.partial.clone()];
    let quantized = |l: &Layer| l.norm.quantized.clone().expect("quantized rows");
    let values = |l: &Layer| quantized(l).values;
    let scales = |l: &Layer| quantized(l).scales;
    let written: [&dyn Fn(&Layer) -> Region; 5] = [
        &|l| l.y.clone(),
        &|l| l.norm.residual_out.clone(),
        &|l| l.partial.clone(),
        &values,
        &scales,
    ];
    // A write of what is read before, without a wait for it.
    for pick in read {
        let plans = plans(|layer, _| {
            layer.multiply();
            let stream = layer.builder.fork_with(Priority::Normal);
            let (src, dst) = (layer.x.clone(), pick(layer));
            layer.builder.copy(stream, src, dst);
            layer.reduce();
            layer.builder.join(stream);
        });
        let report = check(&plans, 2);
        assert!(has_race(&report), "{report}");
        replay(&plans, &report);
    }
    // A read of what is written, without a wait for it.
    for pick in written {
        let plans = plans(|layer, _| {
            layer.quantize();
            layer.multiply();
            let src = pick(layer);
            let buffer = &layer.builder.draft().buffers[src.buffer.0];
            let (dtype, shape) = (buffer.dtype, (src.rows.len(), src.cols.len()));
            let (local, role) = (Placement::Local, Role::Output);
            let out = layer.builder.buffer("out", local, role, dtype, shape);
            let out = layer.builder.whole(out);
            let stream = layer.builder.fork_with(Priority::Normal);
            layer.builder.copy(stream, src, out);
            layer.reduce();
            layer.builder.join(stream);
        });
        let report = check(&plans, 2);
        assert!(has_race(&report), "{report}");
        replay(&plans, &report);
    }
}

#[test]
fn what_the_reduction_leaves_in_its_source_is_nobodys_to_read() {
    let after = |write_again: bool| {
        report(move |layer| {
            let out = layer.output("out");
            sound(layer);
            if write_again {
                layer.multiply();
            }
            let partial = layer.partial.clone();
            layer.copy(&partial, &out);
        })
    };
    let left = after(false);
    let [
        Violation::Unwritten { read, missing },
        Violation::Unwritten { .. },
    ] = &left.violations[..]
    else {
        panic!("{left}");
    };
    assert!(read.step.text.starts_with("%2 copy"), "{}", read.step.text);
    assert_eq!(missing, &["partial@0[0..2, 0..4]"]);
    holds(&after(true));
    // Half of it is not all of it.
    let half = report(|layer| {
        let out = layer.output("out");
        sound(layer);
        let row = |region: &Region| Region {
            rows: 0..1,
            ..region.clone()
        };
        let (x, partial) = (layer.x.clone(), layer.partial.clone());
        layer.copy(&row(&x), &row(&partial));
        layer.copy(&partial, &out);
    });
    let missing = half.violations.iter().map(|v| match v {
        Violation::Unwritten { missing, .. } => missing.clone(),
        other => panic!("{other}"),
    });
    let wanted = [0, 1].map(|rank| vec![format!("partial@{rank}[1..2, 0..4]")]);
    assert_eq!(missing.collect::<Vec<_>>(), wanted);
}

/// The faults of a plan, whether the builder or *check* finds them.
fn faults(change: impl Fn(&mut Layer)) -> Vec<FaultKind> {
    let draft = |rank| {
        let mut layer = Layer::new(rank);
        change(&mut layer);
        sound(&mut layer);
        assert!(layer.builder.clone().finish().is_err());
        layer.builder.draft().clone()
    };
    let report = check(&[draft(0), draft(1)], 2);
    assert_eq!(report.steps, 0, "nothing is unrolled");
    let kind = |violation: &Violation| match violation {
        Violation::Fault(Fault { kind, rank: 0, .. }) => Some(*kind),
        _ => None,
    };
    report.violations.iter().filter_map(kind).collect()
}

#[test]
fn operands_of_a_norm_fit_together() {
    use FaultKind::{InPlace, OutOfBounds, Unreachable, WritesWeight, WrongEpsilon, WrongShape};
    type Change = fn(&mut Layer);
    let cases: [(FaultKind, Change); 13] = [
        (InPlace, |l| l.norm.residual_out = l.y.clone()),
        (InPlace, |l| l.norm.residual_out = l.partial.clone()),
        (InPlace, |l| l.norm.residual = l.partial.clone()),
        (InPlace, |l| l.y = l.norm.residual.clone()),
        (InPlace, |l| {
            l.norm.weight = Region {
                rows: 0..1,
                ..l.y.clone()
            };
        }),
        (WritesWeight, |l| {
            l.norm.residual_out = l.norm.weight.clone()
        }),
        (WrongShape, |l| l.norm.residual.rows = 0..1),
        (WrongShape, |l| l.norm.residual_out.cols = 0..2),
        (WrongShape, |l| l.norm.weight = l.norm.residual.clone()),
        (OutOfBounds, |l| l.norm.weight.rows = 1..2),
        (Unreachable, |l| {
            l.norm.residual.rank = 1 - l.norm.residual.rank
        }),
        (WrongEpsilon, |l| l.norm.epsilon = f32::NAN),
        (WrongEpsilon, |l| l.norm.epsilon = -1e-5),
    ];
    for (place, (kind, change)) in cases.into_iter().enumerate() {
        let found = faults(change);
        assert!(found.contains(&kind), "{place}, {kind:?}: {found:?}");
    }
    type ChangeQuantized = fn(&mut Quantized, &Region);
    let quantized: [(FaultKind, ChangeQuantized); 5] = [
        (WrongShape, |to, _| to.values.rows = 0..1),
        (WrongShape, |to, _| to.scales.rows = 0..1),
        (WrongShape, |to, partial| to.values = partial.clone()),
        (WrongShape, |to, _| to.scales = to.values.clone()),
        (Unreachable, |to, _| to.scales.rank = 1 - to.scales.rank),
    ];
    for (place, (kind, change)) in quantized.into_iter().enumerate() {
        let found = faults(|l| {
            l.quantize();
            let partial = l.partial.clone();
            change(l.norm.quantized.as_mut().expect("quantized rows"), &partial);
        });
        assert!(
            found.contains(&kind),
            "quantized {place}, {kind:?}: {found:?}"
        );
    }
    // A type of its own.
    let found = faults(|l| {
        let (local, role) = (Placement::Local, Role::Weight);
        let id = l.builder.buffer("half", local, role, DType::F16, (1, COLS));
        l.norm.weight = l.builder.whole(id);
    });
    assert_eq!(found, [WrongShape]);
    // Parts that overlap without being the same.
    let found = faults(|l| {
        let (local, role) = (Placement::Local, Role::Output);
        let rows = ROWS + 1;
        let id = l
            .builder
            .buffer("stream", local, role, DType::F32, (rows, COLS));
        l.norm.residual = l.builder.own(id, 0..ROWS, 0..COLS);
        l.norm.residual_out = l.builder.own(id, 1..rows, 0..COLS);
    });
    assert_eq!(found, [InPlace]);
}

#[test]
fn a_norm_follows_an_all_reduce_alone() {
    let plan = |rank| {
        let mut layer = Layer::new(rank);
        sound(&mut layer);
        let mut plan = layer.builder.draft().clone();
        if let OpKind::Collective { collective, .. } = &mut plan.ops[1].kind {
            *collective = Collective::AllGather;
        }
        plan
    };
    let report = check(&[plan(0), plan(1)], 2);
    let told = |v: &Violation| {
        v.to_string()
            .contains("follows an all-reduce, not the all-gather")
    };
    assert!(report.violations.iter().any(told), "{report}");
}

#[test]
fn ranks_agree_on_what_follows_their_all_reduce() {
    type Change = fn(&mut Layer);
    let cases: [Change; 5] = [
        |l| l.norm.epsilon = 1e-6,
        Layer::quantize,
        |l| {
            let (local, role) = (Placement::Local, Role::Weight);
            let id = l
                .builder
                .buffer("other", local, role, DType::F32, (1, COLS));
            l.norm.weight = l.builder.whole(id);
        },
        |l| l.norm.residual = l.x.clone(),
        |_| {},
    ];
    for (case, change) in cases.into_iter().enumerate() {
        let mut plans = plans(|layer, rank| {
            if rank == 1 {
                change(layer);
            }
            sound(layer);
        });
        // The last case: one rank normalizes and the other does not.
        if case == 4 {
            let ops = &mut plans[1].ops;
            let OpKind::Collective { then, .. } = &mut ops[1].kind else {
                panic!("{:?}", ops[1]);
            };
            let norm = then.take().expect("a norm");
            let copy = OpKind::Copy {
                src: norm.residual,
                dst: norm.residual_out,
            };
            ops.push(Op {
                stream: MAIN,
                kind: copy,
            });
        }
        let report = check(&plans, 3);
        let mismatch = |v: &Violation| match v {
            Violation::CollectiveMismatch { ranks, calls, .. } => {
                *ranks == [0, 1] && calls[0] != calls[1]
            }
            _ => false,
        };
        assert!(report.violations.iter().all(mismatch), "{case}: {report}");
        assert_eq!(report.violations.len(), 1, "{case}: {report}");
    }
}

#[test]
fn a_layer_with_its_norm_is_a_gemm_and_a_collective() {
    let problem = Problem::new(8, 4, 6, DType::Bf16);
    for (reduce, transport, launches) in [
        ("symmetric", Transport::SymmetricMemory, 2),
        ("nccl", Transport::Nccl, 3),
    ] {
        let name = format!("rowParallelLinearNorm:reduce={reduce}");
        let layer = algorithms::find(&name).expect("an algorithm");
        for plan in layer.plans(2, &problem).expect("plans") {
            assert_eq!((plan.ops.len(), plan.launches()), (2, launches), "{name}");
            assert_eq!(plan.transports(), [transport], "{name}");
        }
    }
}

#[test]
fn plans_are_stored_with_their_norms_and_read_without() {
    let [plan, _] = &plans(|layer, _| sound(layer))[..] else {
        panic!("two ranks");
    };
    let text = serde_json::to_string(plan).expect("JSON");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("a plan"), *plan);
    // As plans were stored before there were any.
    let mut plain = plan.clone();
    if let OpKind::Collective { then, .. } = &mut plain.ops[1].kind {
        *then = None;
    }
    let former = serde_json::to_string(&plain).expect("JSON");
    let former = former.replace(",\"then\":null", "");
    assert!(!former.contains("then"));
    assert_eq!(
        serde_json::from_str::<Plan>(&former).expect("a plan"),
        plain
    );
}
