use super::*;
use crate::plan::{AddRmsNorm, Placement, PlanBuilder, Role, StreamId, Transport};
use proptest::prelude::*;
use warpweave_symm_mem::DType;

type Ranges = [Range<usize>; 2];

/// The most rows, and columns.
const MOST: usize = 6;

fn ranges() -> impl Strategy<Value = Ranges> {
    let range = || (0..MOST, 0..MOST).prop_map(|(one, other)| one.min(other)..one.max(other));
    (range(), range()).prop_map(|(rows, cols)| [rows, cols])
}

fn region([rows, cols]: &Ranges) -> Region {
    Region {
        rank: 0,
        buffer: BufferId(0),
        rows: rows.clone(),
        cols: cols.clone(),
    }
}

/// The class of a plan that reads these boxes of one buffer.
fn class(boxes: &[Ranges]) -> Class {
    let mut plan = PlanBuilder::new("boxes", 0, 1);
    let extent = (2 * MOST, 2 * MOST);
    plan.buffer("x", Placement::Local, Role::Staging, DType::F32, extent);
    let srcs = boxes.iter().map(region).collect();
    let dst = region(&[0..0, 0..0]);
    plan.push(StreamId::MAIN, OpKind::Reduce { srcs, dst });
    Class::of(&[plan.draft().clone()], &[Copies::default()])
}

/// All that the proof asks about boxes.
fn relations(boxes: &[Ranges]) -> Vec<bool> {
    let regions: Vec<Region> = boxes.iter().map(region).collect();
    let mut answers = Vec::new();
    for (place, one) in regions.iter().enumerate() {
        answers.push(one.is_empty());
        answers.extend(regions.iter().map(|other| one.overlaps(other)));
        // Whether some others hold all of it.
        answers.push(one.minus_all(&regions[..place]).is_empty());
        answers.push(one.minus_all(&regions[place + 1..]).is_empty());
    }
    answers
}

proptest! {
    #[test]
    fn one_class_has_one_answer_to_every_question(
        one in prop::collection::vec(ranges(), 3),
        other in prop::collection::vec(ranges(), 3),
    ) {
        if class(&one) == class(&other) {
            prop_assert_eq!(relations(&one), relations(&other));
        }
    }

    #[test]
    fn sizes_alone_do_not_change_the_class(
        boxes in prop::collection::vec(ranges(), 4),
        gaps in prop::collection::vec(1usize..4, MOST),
    ) {
        // Every endpoint moves, none meets another or the buffer's end.
        let moved = |endpoint: usize| match endpoint {
            0 => 0,
            _ => gaps[..endpoint].iter().sum::<usize>() * 2 / 3 + endpoint,
        };
        let stretched: Vec<Ranges> = boxes
            .iter()
            .map(|ranges| ranges.clone().map(|r| moved(r.start).min(11)..moved(r.end).min(11)))
            .collect();
        let kept = stretched.iter().flatten().all(|r| r.end < 11);
        if kept {
            prop_assert_eq!(class(&boxes), class(&stretched));
        }
    }
}

/// The class of two ranks whose all-reduces are followed by norms with these epsilons.
fn class_of_norms(epsilons: [f32; 2]) -> Class {
    let plan = |rank: usize| {
        let mut plan = PlanBuilder::new("norms", rank, 2);
        let whole = |rows| Region {
            rank,
            ..region(&[0..rows, 0..1])
        };
        plan.buffer("x", Placement::Local, Role::Staging, DType::F32, (4, 1));
        let norm = AddRmsNorm {
            residual: whole(2),
            weight: whole(1),
            residual_out: whole(2),
            epsilon: epsilons[rank],
            quantized: None,
        };
        let operands = (whole(2), whole(2));
        plan.all_reduce_add_rms_norm(StreamId::MAIN, operands, norm, Transport::Nccl);
        plan.draft().clone()
    };
    Class::of(&[plan(0), plan(1)], &[Copies::default(); 2])
}

#[test]
fn whether_ranks_agree_tells_classes_apart_and_not_on_what() {
    let agreed = class_of_norms([1e-5, 1e-5]);
    assert_eq!(agreed, class_of_norms([1e-6, 1e-6]));
    assert_ne!(agreed, class_of_norms([1e-5, 1e-6]));
}

#[test]
fn boxes_that_touch_are_not_boxes_that_overlap() {
    let apart = class(&[[0..2, 0..4], [2..4, 0..4]]);
    assert_eq!(apart, class(&[[0..1, 0..3], [1..5, 0..3]]));
    assert_ne!(apart, class(&[[0..3, 0..4], [2..4, 0..4]]));
    assert_ne!(apart, class(&[[0..2, 0..4], [3..4, 0..4]]));
}
