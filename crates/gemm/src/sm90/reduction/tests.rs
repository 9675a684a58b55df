//! The walk of the blocks, and the words that their stores announce, by the arithmetic of `reduction.cuh`.

use super::*;
use crate::reduction::tests::product;

/// A tile of a cluster, by its rows and columns of clusters in the shard of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Unit {
    owner: usize,
    group: usize,
    row: usize,
    column: usize,
    /// Units of the group.
    of: usize,
}

fn walk(order: &Order) -> Vec<Unit> {
    let (mut band, mut first) = (0, 0);
    (0..order.units)
        .map(|unit| {
            while unit >= order.bands[band].end {
                first = order.bands[band].end;
                band += 1;
            }
            let band = order.bands[band];
            let at = unit - first;
            Unit {
                owner: band.owner as usize,
                group: (band.first / order.band) as usize,
                row: (band.first + at % band.rows) as usize,
                column: (at / band.rows) as usize,
                of: (band.rows * order.columns) as usize,
            }
        })
        .collect()
}

fn every_case(check: impl Fn(&[ReducingMatmul], &Config)) {
    for world in [1, 2, 3, 4, 8] {
        for m in [1, 130, 256 * world, 1000, 2049] {
            for group_rows in [256, 512] {
                for config in SHAPES {
                    let job: Vec<_> = (0..world)
                        .map(|rank| product(m, (rank, world), group_rows))
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
        let order = Order::new(product, config).unwrap();
        let walked = walk(&order);
        let mut wanted = Vec::new();
        for (owner, shard) in product.shards.iter().enumerate() {
            for row in 0..shard.len().div_ceil(height) {
                let group = row * height / product.group_rows;
                let columns = 0..product.problem.n.div_ceil(width);
                wanted.extend(columns.map(|column| (owner, group, row, column)));
            }
        }
        let mut got: Vec<_> = walked
            .iter()
            .map(|u| (u.owner, u.group, u.row, u.column))
            .collect();
        got.sort_unstable();
        assert_eq!(got, wanted);
        for unit in &walked {
            let same = |u: &&Unit| (u.owner, u.group) == (unit.owner, unit.group);
            assert_eq!(walked.iter().filter(same).count(), unit.of);
        }
        assert_eq!(order.words().count(), 4 * order.bands.len());
    });
}

/// The words of a rank, by group and source, and its tickets, by owner and group.
struct Rank {
    ready: Vec<Vec<u32>>,
    over: Vec<Vec<u32>>,
    tickets: Vec<Vec<usize>>,
    /// By owner and group: how often this rank's part has been stored, and read by the owner.
    stored: Vec<Vec<u32>>,
    read: Vec<Vec<usize>>,
    /// The next unit of each block, of this call.
    next: Vec<usize>,
    call: u32,
}

fn reached(seen: u32, wanted: u32) -> bool {
    seen.wrapping_sub(wanted) as i32 >= 0
}

/// Calls back to back, ranks and blocks that step in any order, epochs that go round: every block ends, no part is read
/// before it is whole, none is overwritten before it is read, and each word has one epoch a call.
#[test]
fn whatever_the_order_of_steps_parts_are_read_whole_and_once() {
    let mut random = 11u64;
    let mut draw = move |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    const CALLS: u32 = 4;
    for (world, m, blocks) in [
        (2, 2049, 3),
        (3, 1000, 2),
        (4, 4 * 512, 5),
        (4, 130, 1),
        (8, 2100, 7),
    ] {
        for everyone in [false, true] {
            let job: Vec<_> = (0..world)
                .map(|rank| product(m, (rank, world), 256))
                .collect();
            let walks: Vec<_> = job
                .iter()
                .map(|rank| walk(&Order::new(rank, &SHAPES[2]).unwrap()))
                .collect();
            let groups = m.div_ceil(world).div_ceil(256);
            let start = u32::MAX - 1;
            let of_groups = || vec![vec![0; groups]; world];
            let mut ranks: Vec<Rank> = (0..world)
                .map(|_| Rank {
                    ready: vec![vec![start; world]; groups],
                    over: vec![vec![start; world]; groups],
                    tickets: of_groups(),
                    stored: vec![vec![0; groups]; world],
                    read: of_groups(),
                    next: (0..blocks).collect(),
                    call: 1,
                })
                .collect();
            let mut idle = 0;
            while ranks.iter().any(|rank| rank.call <= CALLS) {
                idle += 1;
                assert!(
                    idle < 200_000,
                    "stuck: {world} ranks, {m} rows, everyone: {everyone}"
                );
                let (me, block) = (draw(world), draw(blocks));
                if ranks[me].call > CALLS {
                    continue;
                }
                let (call, epoch) = (ranks[me].call, start.wrapping_add(ranks[me].call));
                let Some(&unit) = walks[me].get(ranks[me].next[block]) else {
                    let end = ranks[me].next.iter().all(|&next| next >= walks[me].len());
                    let here = walks[me].iter().all(|unit| {
                        let seen = ranks[me].over[unit.group][unit.owner];
                        !everyone || unit.owner == me || reached(seen, epoch)
                    });
                    if end && here {
                        ranks[me].next = (0..blocks).collect();
                        ranks[me].call += 1;
                        idle = 0;
                    }
                    continue;
                };
                let Unit {
                    owner, group, of, ..
                } = unit;
                let peers = (0..world).filter(|&peer| peer != me);
                if owner == me {
                    if !peers
                        .clone()
                        .all(|peer| reached(ranks[me].ready[group][peer], epoch))
                    {
                        continue;
                    }
                    for peer in peers.clone() {
                        assert_eq!(ranks[peer].stored[me][group], of as u32 * call, "not whole");
                        ranks[peer].read[me][group] += 1;
                    }
                } else {
                    let seen = ranks[me].over[group][owner];
                    if !everyone && !reached(seen, epoch.wrapping_sub(1)) {
                        continue;
                    }
                    let read = of * (call as usize - 1);
                    assert_eq!(ranks[me].read[owner][group], read, "overwritten unread");
                    ranks[me].stored[owner][group] += 1;
                }
                idle = 0;
                ranks[me].next[block] += blocks;
                ranks[me].tickets[owner][group] += 1;
                if ranks[me].tickets[owner][group] == of {
                    ranks[me].tickets[owner][group] = 0;
                    if owner == me {
                        peers.for_each(|peer| ranks[peer].over[group][me] = epoch);
                    } else {
                        ranks[owner].ready[group][me] = epoch;
                    }
                }
            }
        }
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
