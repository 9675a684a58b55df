//! The suite `layers`: the linear layers of two Llama models at every batch size, by the interface that an
//! engine calls.

use warpweave_overlap::Operation;
use warpweave_report::Shape;
use warpweave_symm_mem::{BackendKind, DType};

use super::{Sizes, Suite};
use crate::plans::Implementation;

pub(super) const LAYERS: Suite = Suite {
    name: "layers",
    reproduces: "linear layers of Llama 8B and 70B at every batch size: \
                 NAME with operands in symmetric memory, NAME/local as an engine has them, \
                 NAME/local/invariant; NAME/bound owns its operands",
    operations: &[
        Operation::ColumnParallelLinear,
        Operation::RowParallelLinear,
    ],
    entries: || [&COLUMN, &ROW].into_iter().flat_map(entries).collect(),
    problems,
    figures: Vec::new,
};

/// The rows of an operation.
struct Rows {
    /// The baseline: NCCL and cuBLASLt.
    baseline: &'static str,
    /// A kernel with an operand in symmetric memory. It and the baseline are bound, too.
    fused: &'static str,
    /// Others, with local operands only.
    others: [&'static str; 4],
}

const COLUMN: Rows = Rows {
    baseline: "columnParallelLinear:chunks=1:streams=1",
    fused: "fusedColumnParallelLinear",
    others: [
        "columnParallelLinear:chunks=1:streams=1:gather=symmetric",
        "fusedColumnParallelLinear:protocol=eager",
        "columnParallelLinear",
        "columnParallelLinear:gather=push",
    ],
};

const ROW: Rows = Rows {
    baseline: "rowParallelLinear:chunks=1:streams=1",
    fused: "fusedRowParallelLinear",
    others: [
        "rowParallelLinear:chunks=1:streams=1:reduce=symmetric",
        "fusedRowParallelLinear:shots=1",
        "rowParallelLinear",
        "rowParallelLinearPipeline",
    ],
};

/// None where the registry lacks an algorithm.
fn entries(rows: &Rows) -> Vec<Implementation> {
    let in_two_ways = [rows.baseline, rows.fused];
    let all = [&in_two_ways[..], &rows.others].concat();
    let names = [
        (&in_two_ways[..], ""),
        (&in_two_ways, "/bound"),
        (&all, "/local"),
        (&all, "/local/invariant"),
    ];
    let named = |(names, suffix): (&[&str], &str)| {
        let entry = |name: &&str| Implementation::named(&format!("{name}{suffix}")).ok();
        names.iter().filter_map(entry).collect::<Vec<_>>()
    };
    names.into_iter().flat_map(named).collect()
}

/// The sizes of a model: hidden, of the queries, keys and values together, and intermediate.
const MODELS: [(usize, usize, usize); 2] = [(4096, 6144, 14336), (8192, 10240, 28672)];

/// Batch sizes.
const ROWS: [usize; 5] = [1, 8, 64, 512, 4096];

/// What other sizes than M are divided by on the host, which also leaves out the larger M and the larger
/// model.
const HOST: usize = 64;

/// N and K of the layers of a model: column-parallel with N of a rank, then row-parallel.
fn layers((hidden, qkv, intermediate): (usize, usize, usize), world: usize) -> [(usize, usize); 4] {
    let share = |n: usize| n.div_ceil(world.max(1)).next_multiple_of(8);
    [
        (share(qkv), hidden),
        (share(2 * intermediate), hidden),
        (hidden, hidden),
        (hidden, intermediate),
    ]
}

/// All M of a layer after each other, so that they share schedules.
fn problems(kind: BackendKind, world: usize) -> Vec<Sizes> {
    let (models, less, most) = match kind {
        BackendKind::Cuda => (2, 1, usize::MAX),
        BackendKind::Host => (1, HOST, 64),
    };
    let models = MODELS.into_iter().take(models);
    let layers = models.flat_map(|(hidden, qkv, intermediate)| {
        layers((hidden / less, qkv / less, intermediate / less), world)
    });
    let of_layer = |(n, k)| {
        let rows = ROWS.into_iter().filter(move |&m| m <= most);
        rows.map(move |m| (Shape::new(m, n, k), DType::Bf16))
    };
    layers.flat_map(of_layer).collect()
}

/// Whether a problem of the suite's own is of this operation: a row-parallel layer has all of the hidden
/// size as N, and a column-parallel one as K.
pub(super) fn has(operation: Operation, shape: Shape) -> bool {
    let hidden = |size: usize| {
        let of_model =
            |&(hidden, ..): &(usize, usize, usize)| size == hidden || size == hidden / HOST;
        MODELS.iter().any(of_model)
    };
    let is_row_parallel = hidden(shape.n) && shape.k >= shape.n;
    (operation == Operation::RowParallelLinear) == is_row_parallel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_of_one_operation_and_all_m_of_a_layer_follow_each_other() {
        for (kind, models, ms) in [(BackendKind::Cuda, 2, 5), (BackendKind::Host, 1, 3)] {
            for world in [2, 4, 8] {
                let problems = problems(kind, world);
                assert_eq!(problems.len(), models * 4 * ms);
                let is_row = |&(shape, _): &Sizes| has(Operation::RowParallelLinear, shape);
                let rows: Vec<_> = problems
                    .chunks(2 * ms)
                    .map(|some| some.iter().all(is_row))
                    .collect();
                assert_eq!(rows, [false, true].repeat(models), "{kind:?} {world}");
                for layer in problems.chunks(ms) {
                    let (first, _) = layer[0];
                    assert!(layer.iter().all(|(s, _)| (s.n, s.k) == (first.n, first.k)));
                    assert!(layer.is_sorted_by_key(|(shape, _)| shape.m));
                }
            }
        }
        let at_two = problems(BackendKind::Cuda, 2);
        let sizes = |place: usize| at_two[place].0.to_string();
        assert_eq!(sizes(0), "1x3072x4096");
        assert_eq!(sizes(9), "4096x14336x4096");
        assert_eq!(sizes(39), "4096x8192x28672");
    }

    #[test]
    fn the_baseline_is_bound_too_and_every_algorithm_has_local_operands_with_both_kinds_of_gemms() {
        let entries = (LAYERS.entries)();
        let names: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
        for rows in [&COLUMN, &ROW] {
            let in_two_ways = [rows.baseline, rows.fused];
            let local = ["/local", "/local/invariant"];
            let two = in_two_ways.map(|name| (name, ["", "/bound"]));
            let all = in_two_ways
                .into_iter()
                .chain(rows.others)
                .map(|name| (name, local));
            for (name, ends) in all.chain(two) {
                for end in ends {
                    let name = format!("{name}{end}");
                    assert!(names.contains(&&*name), "{name}");
                }
            }
        }
        assert_eq!(names.len(), 2 * 16);
    }
}
