//! Where the rows of the outputs come from, by following copies, collectives and GEMMs through the plans of
//! all ranks.
//!
//! *check* proves that what is read has been written; this says that it is the right thing.

use std::collections::HashMap;
use warpweave_overlap::algorithms::Configuration;
use warpweave_overlap::operation::Matrix;
use warpweave_overlap::plan::{BufferId, Collective, OpKind, Plan, Problem, Region, shard};

/// For each row of a rank's buffer, the row of A or X that it holds or is the GEMM of.
type Rows = HashMap<(usize, BufferId, usize), (Matrix, usize)>;

/// Every row of C comes from its row of A, and of Y from its row of X, on every rank.
pub fn outputs_come_from_their_inputs(
    algorithm: &Configuration,
    plans: &[Plan],
    problem: &Problem,
) {
    let operands = |plan: &Plan| algorithm.operands(plan.rank, plan.world, problem);
    let mut rows = Rows::new();
    for plan in plans {
        for operand in operands(plan) {
            let buffer = plan.buffer_named(operand.buffer).expect("an operand");
            let inputs = [Matrix::A, Matrix::X].contains(&operand.matrix);
            let all = operand.rows.iter().cloned().flatten().enumerate();
            for (row, of) in all.filter(|_| inputs) {
                rows.insert((plan.rank, buffer, row), (operand.matrix, of));
            }
        }
    }
    // Each round takes every row at least one operation further.
    while round(plans, &mut rows) {}
    for plan in plans {
        for operand in operands(plan) {
            let input = match operand.matrix {
                Matrix::C => Matrix::A,
                Matrix::Y => Matrix::X,
                _ => continue,
            };
            let buffer = plan.buffer_named(operand.buffer).expect("an operand");
            for (row, of) in operand.rows.iter().cloned().flatten().enumerate() {
                let found = rows.get(&(plan.rank, buffer, row));
                let (name, rank) = (&plan.name, plan.rank);
                assert_eq!(found, Some(&(input, of)), "{name} rank {rank} row {of}");
            }
        }
    }
}

fn round(plans: &[Plan], rows: &mut Rows) -> bool {
    let before = rows.len();
    for plan in plans {
        let mut collectives = HashMap::new();
        for op in &plan.ops {
            match &op.kind {
                OpKind::Copy { src, dst, .. } => follow(rows, src, dst),
                OpKind::Gemm { a, c, batch, .. } => {
                    for (a, c) in batch.of_a(a).iter().zip(batch.of_c(c)) {
                        follow(rows, a, &c);
                    }
                }
                OpKind::Collective {
                    collective: Collective::AllGather,
                    dst,
                    ranks,
                    ..
                } => {
                    let index = collectives.entry(ranks).or_insert(0);
                    for (place, &rank) in ranks.iter().enumerate() {
                        let src = given(&plans[rank], ranks, *index);
                        let part = shard(dst.rows.len(), place, ranks.len());
                        let mut dst = dst.clone();
                        dst.rows = dst.rows.start + part.start..dst.rows.start + part.end;
                        follow(rows, src, &dst);
                    }
                    *index += 1;
                }
                _ => {}
            }
        }
    }
    rows.len() > before
}

/// What a plan gives to its `index`-th collective of these ranks.
fn given<'a>(plan: &'a Plan, among: &[usize], index: usize) -> &'a Region {
    let mut entered = plan.ops.iter().filter_map(|op| match &op.kind {
        OpKind::Collective { src, ranks, .. } if ranks == among => Some(src),
        _ => None,
    });
    entered.nth(index).expect("all of them enter it")
}

fn follow(rows: &mut Rows, src: &Region, dst: &Region) {
    assert_eq!(src.rows.len(), dst.rows.len());
    for (from, to) in src.rows.clone().zip(dst.rows.clone()) {
        if let Some(&row) = rows.get(&(src.rank, src.buffer, from)) {
            let old = rows.insert((dst.rank, dst.buffer, to), row);
            assert!(old.is_none_or(|old| old == row), "row {to} is two things");
        }
    }
}
