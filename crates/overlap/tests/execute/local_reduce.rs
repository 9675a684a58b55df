//! Local reductions of boxes, of this rank and of its peers, and what the executor refuses.

use warpweave_overlap::execute::ExecuteError;
use warpweave_overlap::plan::{Batch, Placement, Plan, PlanBuilder, Role, StreamId};
use warpweave_symm_mem::DType;

use crate::fixtures::{element, encode, matrix, on_ranks};
use crate::host;

const SHAPE: (usize, usize) = (3, 7);

/// Each rank adds a box of every rank's `a` to its own output, on top of what a bias holds there.
fn plan(rank: usize, world: usize, dtype: DType) -> Plan {
    let mut plan = PlanBuilder::new("reduce", rank, world);
    let a = plan.buffer("a", Placement::Symmetric, Role::Input, dtype, SHAPE);
    let b = plan.buffer("b", Placement::Local, Role::Input, dtype, SHAPE);
    let (ready, done) = (plan.slot("ready"), plan.slot("done"));
    let (main, peers) = (StreamId::MAIN, plan.peers());
    plan.signal(main, ready, peers.clone())
        .wait(main, ready, peers.clone());
    let (rows, cols) = (1..3, 2..6);
    let dst = plan.own(b, rows.clone(), cols.clone());
    let mut srcs = vec![dst.clone()];
    srcs.extend((0..world).map(|r| plan.on(r, a, rows.clone(), cols.clone())));
    plan.reduce(main, srcs, dst);
    plan.signal(main, done, peers.clone())
        .wait(main, done, peers);
    plan.finish().unwrap()
}

#[test]
fn reductions_of_the_boxes_of_all_ranks_leave_the_rest_as_it_is() {
    for world in 1..=4 {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            on_ranks(world, host, |rank| {
                let (me, world) = rank.place();
                let mut bound = rank.bind(plan(me, world, dtype)).unwrap();
                bound.capture().unwrap();
                for call in 0..4 {
                    let of = |which| matrix(dtype, (which, call), 0..SHAPE.0, SHAPE.1);
                    bound.write("a", &of(me)).unwrap();
                    bound.write("b", &of(100)).unwrap();
                    match call % 2 {
                        0 => bound.run().unwrap(),
                        _ => bound.replay().unwrap(),
                    }
                    let mut got = of(100);
                    bound.read("b", &mut got).unwrap();
                    let value = |row, col| {
                        let inside = (1..3).contains(&row) && (2..6).contains(&col);
                        let summands = if inside { world } else { 0 };
                        let sum: f32 = (0..summands).map(|r| element(r, call, row, col)).sum();
                        sum + element(100, call, row, col)
                    };
                    let places =
                        (0..SHAPE.0).flat_map(|row| (0..SHAPE.1).map(move |col| (row, col)));
                    let wanted = encode(dtype, places.map(|(row, col)| value(row, col)));
                    assert_eq!(got, wanted, "{dtype}, rank {me} of {world}, call {call}");
                }
                bound.synchronize().unwrap();
                rank.exchange.barrier("end").unwrap();
            });
        }
    }
}

#[test]
fn a_reduction_of_more_boxes_than_a_kernel_takes_is_refused() {
    on_ranks(1, host, |rank| {
        let mut plan = PlanBuilder::new("many", 0, 1);
        let a = plan.buffer("a", Placement::Local, Role::Input, DType::F32, (9, 1));
        let c = plan.buffer("c", Placement::Local, Role::Output, DType::F32, (1, 1));
        let srcs = (0..9).map(|row| plan.own(a, row..row + 1, 0..1)).collect();
        let dst = plan.whole(c);
        plan.reduce(StreamId::MAIN, srcs, dst);
        let error = rank.bind(plan.finish().unwrap()).unwrap_err();
        assert!(matches!(error, ExecuteError::InvalidPlan { .. }), "{error}");
        assert!(
            error.to_string().contains("a reduction of 9 boxes"),
            "{error}"
        );
    });
}

#[test]
fn a_weight_stored_transposed_is_multiplied() {
    let (m, n, k) = (5, 4, 6);
    on_ranks(1, host, |rank| {
        let mut plan = PlanBuilder::new("linear", 0, 1);
        let a = plan.buffer("a", Placement::Local, Role::Input, DType::F32, (m, k));
        // More columns than the GEMM takes, so that rows lie apart.
        let w = plan.buffer("w", Placement::Local, Role::Weight, DType::F32, (n, k + 3));
        let c = plan.buffer("c", Placement::Local, Role::Output, DType::F32, (m, n));
        let (a, c) = (plan.whole(a), plan.whole(c));
        let w = plan.own(w, 0..n, 1..1 + k);
        plan.linear(StreamId::MAIN, (a, w, None), c, Batch::ONE);
        let bound = rank.bind(plan.finish().unwrap()).unwrap();
        for call in 0..2 {
            let a = matrix(DType::F32, (0, call), 0..m, k);
            bound.write("a", &a).unwrap();
            bound
                .write("w", &matrix(DType::F32, (1, 0), 0..n, k + 3))
                .unwrap();
            bound.run().unwrap();
            let mut got = vec![0; m * n * 4];
            bound.read("c", &mut got).unwrap();
            let value = |row: usize, col: usize| -> f32 {
                (0..k)
                    .map(|i| element(0, call, row, i) * element(1, 0, col, i + 1))
                    .sum()
            };
            let places = (0..m).flat_map(|row| (0..n).map(move |col| (row, col)));
            let wanted: Vec<u8> = places
                .flat_map(|(row, col)| value(row, col).to_ne_bytes())
                .collect();
            assert_eq!(got, wanted, "call {call}");
        }
    });
}
