//! The tiles in the order of the blocks, and the flags that they publish, by the arithmetic of
//! `reduction.cu`.

mod steps;

use proptest::prelude::*;

use super::*;
use crate::matmul_reduce::tests::{gemm, of, operands};
use crate::sm90::config::STEP;
use crate::sm90::resident::assert_told_apart;
use crate::sm90::{CONFIGS, config};
use crate::{GemmProblem, Peers, Scaling};
use warpweave_symm_mem::DType;

/// What is compiled.
const SHAPES: [Config; 3] = [
    CONFIGS[config::UNCLUSTERED[0]],
    CONFIGS[config::UNCLUSTERED[1]],
    CONFIGS[config::UNCLUSTERED[2]],
];

fn every_case(check: impl Fn(&[MatmulReduce], &Config)) {
    for world in [1, 2, 3, 4, 8] {
        for m in [1, 130, 256 * world, 1000, 2049] {
            for group_rows in [128, 384, 512] {
                for (config, everyone) in SHAPES.into_iter().zip([false, true, false]) {
                    let job: Vec<_> = (0..world)
                        .map(|rank| of(everyone, gemm(m, (rank, world), group_rows)))
                        .collect();
                    check(&job, &config);
                }
            }
        }
    }
}

#[test]
fn every_tile_is_visited_once_in_the_group_of_its_rows() {
    every_case(|job, config| {
        let gemm = job.last().unwrap();
        let [height, width, _] = config.tile.map(|side| side as usize);
        let visited = schedule(gemm, config).unwrap();
        let mut wanted = Vec::new();
        for (owner, shard) in gemm.shards.iter().enumerate() {
            for row in 0..shard.len().div_ceil(height) {
                let group = row * height / gemm.group_rows;
                let columns = 0..gemm.problem.n.div_ceil(width);
                wanted
                    .extend(columns.map(|column| [owner, group, row, column].map(|at| at as u32)));
            }
        }
        let mut got: Vec<_> = visited
            .iter()
            .map(|tile| [tile.owner, tile.group, tile.row, tile.column])
            .collect();
        got.sort_unstable();
        assert_eq!(got, wanted);
        for tile in &visited {
            let same = |t: &&ScheduledTile| (t.owner, t.group) == (tile.owner, tile.group);
            assert_eq!(visited.iter().filter(same).count(), tile.of as usize);
        }
        let words: Vec<u32> = words(&visited).collect();
        assert_eq!(words.len() * 4, visited.len() * 16);
        for (tile, words) in visited.iter().zip(words.chunks(4)) {
            let owner_and_group = tile.owner + (tile.group << 16);
            assert_eq!(words, [owner_and_group, tile.row, tile.column, tile.of]);
        }
    });
}

/// What `PartialStages` says in `cuda/sm90/reduction.cu`.
#[test]
fn the_boxes_of_a_load_of_partials_fit_into_a_stage() {
    for config in SHAPES {
        let [rows, columns, depth] = config.tile;
        let (stage, partial) = ((rows + columns) * depth * 2, PARTIAL_ROWS * BOX_COLUMNS * 2);
        let partials = partials_of_stage(&config);
        assert_eq!((rows, depth), (PARTIAL_ROWS, STEP as u32), "{config:?}");
        assert!(partials >= 1 && partials * partial <= stage && (partials + 1) * partial > stage);
    }
}

#[test]
fn every_address_of_a_launch_tells_its_parameter_from_others() {
    let mut gemm = of(true, gemm(64, (1, 2), 128));
    gemm.problem = GemmProblem {
        bias: true,
        ..GemmProblem::e4m3(64, 520, 64, Scaling::Row, DType::Bf16)
    };
    let other = DevicePtr(32);
    let others = Peers::from(vec![DevicePtr(16), other]);
    let change: [&dyn Fn(&mut ReduceOperands); 9] = [
        &|o| o.a = other,
        &|o| o.b = other,
        &|o| o.bias = other,
        &|o| o.scales[0] = other,
        &|o| o.scales[1] = other,
        &|o| o.c = others,
        &|o| o.local_c = other,
        &|o| o.staging = others,
        &|o| o.pulled = other,
    ];
    let first = operands(&gemm);
    let all_but = |change: &dyn Fn(&mut ReduceOperands)| {
        let mut operands = first;
        change(&mut operands);
        operands
    };
    let told_apart = |gemm: &MatmulReduce, others: &[ReduceOperands]| {
        let key = |operands: &ReduceOperands| addresses(&Launch { gemm, operands });
        assert_told_apart(key, &first, others);
    };
    told_apart(&gemm, &change.map(all_but));
    gemm.c = ReduceOutput::Multimem;
    told_apart(
        &gemm,
        &[0, 1].map(|which| all_but(&|o| o.multicast[which] = other)),
    );
}

#[test]
fn tiles_that_are_too_many_to_count_are_refused_before_they_are_made() {
    let mut wide = gemm(1 << 24, (0, 2), 1 << 23);
    wide.problem = GemmProblem::new(1 << 24, 1 << 24, 64, DType::F16);
    wide.validate().unwrap();
    let error = schedule(&wide, &SHAPES[0]).unwrap_err().to_string();
    assert!(error.contains("4194304 in 65535 at most"), "{error}");
}

proptest! {
    #[test]
    fn no_value_of_any_parameter_panics(
        [m, n, k] in prop::array::uniform3(size()),
        (rank, world) in (0usize..8, 1usize..9),
        group_rows in prop_oneof![0usize..700, Just(128), any::<usize>()],
        to in 0..3,
        blocks in 0u32..200,
    ) {
        let mut gemm = of(to == 1, gemm(m, (rank % world, world), group_rows));
        gemm.problem = GemmProblem::new(m, n, k, DType::F16);
        if to == 2 {
            gemm.c = ReduceOutput::Each;
        }
        if gemm.validate().is_ok() {
            let _ = check_reduction(&gemm);
            let _ = reduce_tiling::to_all(&gemm.problem, world, blocks);
            if to != 2 {
                let _ = reduce_tiling::to_owners(&gemm, blocks);
                for config in SHAPES {
                    let _ = schedule(&gemm, &config);
                }
            }
        }
    }
}

/// Sizes of small and of absurd GEMMs.
fn size() -> impl Strategy<Value = usize> {
    let most = i32::MAX as usize;
    prop_oneof![2 => 1usize..3000, 1 => most - 8..most + 1]
}

#[test]
fn refusals_name_the_requirement() {
    let refused = |gemm: &MatmulReduce, needle: &str| {
        let error = check_reduction(gemm).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    refused(&gemm(64, (0, 9), 128), "8 ranks at most, not 9");
    refused(&gemm(64, (0, 2), 100), "groups of 100 rows");
    let mut none = gemm(64, (0, 2), 128);
    (none.problem.k, none.problem.lda) = (0, 0);
    refused(&none, "a part of K");
    none.problem = GemmProblem::new(64, 12, 64, DType::F16);
    refused(&none, "n = 12");
    check_reduction(&gemm(1, (0, 8), 128)).unwrap();
}
