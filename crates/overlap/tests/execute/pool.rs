//! Streams that plans share.

use warpweave_overlap::plan::{Placement, Plan, PlanBuilder, Role, StreamId};
use warpweave_symm_mem::{DType, Priority};

use crate::fixtures::{matrix, on_ranks};
use crate::host;

/// Copies `a` to `c` by rows, each on a stream of its own.
fn rows(urgent: usize, patient: usize) -> Plan {
    let mut plan = PlanBuilder::new("rows", 0, 1);
    let shape = (urgent + patient, 2);
    let a = plan.buffer("a", Placement::Local, Role::Input, DType::F32, shape);
    let c = plan.buffer("c", Placement::Local, Role::Output, DType::F32, shape);
    let streams: Vec<StreamId> = (0..shape.0)
        .map(|row| match row < urgent {
            true => plan.fork(),
            false => plan.fork_with(Priority::Normal),
        })
        .collect();
    for (row, &stream) in streams.iter().enumerate() {
        let [src, dst] = [a, c].map(|buffer| plan.own(buffer, row..row + 1, 0..2));
        plan.copy(stream, src, dst);
    }
    for stream in streams {
        plan.join(stream);
    }
    plan.finish().unwrap()
}

#[test]
fn many_plans_have_no_more_streams_than_the_one_with_the_most() {
    on_ranks(1, host, |rank| {
        let shapes = [(1, 0), (2, 1), (0, 3), (1, 1)];
        let mut bound: Vec<_> = shapes
            .iter()
            .cycle()
            .take(40)
            .map(|&(urgent, patient)| (rank.bind(rows(urgent, patient)).unwrap(), urgent + patient))
            .collect();
        assert_eq!(rank.executor.pool().size(), 2 + 3);
        for call in 0..4 {
            // All of them one after another, before any is waited for.
            for (i, (bound, rows)) in bound.iter_mut().enumerate() {
                if call == 1 {
                    bound.capture().unwrap();
                }
                bound
                    .write("a", &matrix(DType::F32, (i, call), 0..*rows, 2))
                    .unwrap();
                match call % 2 {
                    0 => bound.run().unwrap(),
                    _ => bound.replay().unwrap(),
                }
            }
            for (i, (bound, rows)) in bound.iter().enumerate() {
                let mut c = vec![0; rows * 8];
                bound.read("c", &mut c).unwrap();
                assert_eq!(
                    c,
                    matrix(DType::F32, (i, call), 0..*rows, 2),
                    "plan {i}, call {call}"
                );
            }
        }
    });
}
