//! The tiles in the order of the blocks, and the words that they announce, by the arithmetic of `reduction.cuh`.

mod steps;

use super::*;
use crate::reduction::tests::{of, product};

fn every_case(check: impl Fn(&[ReducingMatmul], &Config)) {
    for world in [1, 2, 3, 4, 8] {
        for m in [1, 130, 256 * world, 1000, 2049] {
            for group_rows in [256, 512] {
                for (config, everyone) in SHAPES.into_iter().zip([false, true, false, true]) {
                    let job: Vec<_> = (0..world)
                        .map(|rank| of(everyone, product(m, (rank, world), group_rows)))
                        .collect();
                    check(&job, &config);
                }
            }
        }
    }
}

#[test]
fn every_tile_is_walked_once_in_the_group_of_its_rows() {
    every_case(|job, config| {
        let product = job.last().unwrap();
        let [height, width] = config::cluster_tile(config).map(|side| side as usize);
        let walked = units(product, config).unwrap();
        let mut wanted = Vec::new();
        for (owner, shard) in product.shards.iter().enumerate() {
            for row in 0..shard.len().div_ceil(height) {
                let group = row * height / product.group_rows;
                let columns = 0..product.problem.n.div_ceil(width);
                wanted
                    .extend(columns.map(|column| [owner, group, row, column].map(|at| at as u32)));
            }
        }
        let mut got: Vec<_> = walked
            .iter()
            .map(|u| [u.owner, u.group, u.row, u.column])
            .collect();
        got.sort_unstable();
        assert_eq!(got, wanted);
        for unit in &walked {
            let same = |u: &&Unit| (u.owner, u.group) == (unit.owner, unit.group);
            assert_eq!(walked.iter().filter(same).count(), unit.of as usize);
        }
        let words: Vec<u32> = words(&walked).collect();
        assert_eq!(words.len() * 4, walked.len() * 16);
        for (unit, words) in walked.iter().zip(words.chunks(4)) {
            let owner_and_group = unit.owner + (unit.group << 16);
            assert_eq!(words, [owner_and_group, unit.row, unit.column, unit.of]);
        }
    });
}

/// What `Parts` says in device code.
#[test]
fn the_boxes_of_a_load_of_parts_fit_into_a_stage() {
    for config in SHAPES {
        let [rows, columns, depth] = config.tile;
        let (stage, part) = ((rows + columns) * depth * 2, PART_ROWS * BOX_COLUMNS * 2);
        let parts = parts_of_stage(&config);
        assert_eq!((rows, depth), (PART_ROWS, STEP as u32), "{config:?}");
        assert!(parts >= 1 && parts * part <= stage && (parts + 1) * part > stage);
    }
}

#[test]
fn every_shape_has_its_kernels() {
    for layout in [Layout::RowMajor, Layout::Transposed] {
        for dtype in [DType::F16, DType::Bf16] {
            let problem = GemmProblem::new(8, 8, 8, dtype).with_layouts(Layout::RowMajor, layout);
            for config in SHAPES {
                let name = kernel(&problem, config.name).unwrap();
                assert!(name.ends_with(config.name), "{name}");
                #[cfg(feature = "nvcc")]
                assert!(
                    REDUCTION
                        .sm_90a
                        .windows(name.len())
                        .any(|part| part == name.as_bytes()),
                    "{name} is not in the device code"
                );
            }
        }
    }
    assert_eq!(
        kernel(&GemmProblem::new(8, 8, 8, DType::F32), SHAPES[0].name),
        None
    );
}

#[test]
fn groups_of_odd_numbers_of_tiles_are_taken_by_blocks_alone() {
    let chosen = |group_rows, blocks| {
        let mut product = product(8192, (0, 4), group_rows);
        product.problem = GemmProblem::new(8192, 8192, 2048, DType::Bf16);
        choose(&product, blocks).unwrap().0.cluster
    };
    assert_eq!(chosen(512, 132), [2, 1]);
    assert_eq!(chosen(384, 132), [1, 1]);
    // A single block is no cluster.
    assert_eq!(chosen(512, 1), [1, 1]);
}

#[test]
fn tiles_are_small_where_sums_for_everyone_come_late() {
    let chosen = |everyone, k| {
        let mut product = of(everyone, product(8192, (0, 4), 512));
        product.problem = GemmProblem::new(8192, 8192, k, DType::Bf16);
        choose(&product, 132).unwrap().0.name
    };
    assert_eq!(chosen(true, 2048), "128x128_share_b");
    assert_eq!(chosen(true, 8192), "128x256_share_b");
    assert_eq!(chosen(false, 2048), "128x256_share_b");
}

#[test]
fn shards_of_few_rows_are_taken_by_blocks_alone() {
    let chosen = |m| {
        let mut product = of(true, product(m, (0, 2), 512));
        product.problem = GemmProblem::new(m, 8192, 4096, DType::Bf16);
        choose(&product, 132).unwrap().0.name
    };
    assert_eq!(chosen(256), "128x128_alone");
    assert_eq!(chosen(512), "128x256_share_b");
}

#[test]
fn refusals_name_the_requirement() {
    let refused = |product: &ReducingMatmul, needle: &str| {
        let error = check_reduction(product).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    refused(&product(64, (0, 9), 128), "8 ranks at most, not 9");
    refused(&product(64, (0, 2), 100), "groups of 100 rows");
    let mut none = product(64, (0, 2), 128);
    (none.problem.k, none.problem.lda) = (0, 0);
    refused(&none, "a part of K");
    none.problem = GemmProblem::new(64, 12, 64, DType::F16);
    refused(&none, "n = 12");
    check_reduction(&product(1, (0, 8), 128)).unwrap();
}
