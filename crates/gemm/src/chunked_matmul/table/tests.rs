//! The tile schedule over the tiles and the waits, against their definitions.

use super::*;
use crate::GemmProblem;
use crate::chunked_matmul::{ChunkedOperands, Launch};
use std::collections::HashSet;
use warpweave_symm_mem::{DType, DevicePtr};

const CONFIG: Config = Config {
    name: "test",
    tile: [16, 32, 8],
    cluster: [2, 1],
    cooperative: true,
    stream_k: false,
};

/// Shards of `m` rows in `chunks`, rank r's own first, then those of r − 1, r − 2, …
fn gemm(m: usize, n: usize, (rank, world): (usize, usize), chunks: usize) -> ChunkedMatmul {
    let part = |total: usize, i: usize, of: usize| {
        let start = |i: usize| i * (total / of) + i.min(total % of);
        start(i)..start(i + 1)
    };
    let mut arrivals = Vec::new();
    for step in 1..world {
        let from = (rank + world - step) % world;
        let shard = part(m, from, world);
        for chunk in 0..chunks {
            let rows = part(shard.len(), chunk, chunks);
            let rows = shard.start + rows.start..shard.start + rows.end;
            if !rows.is_empty() {
                arrivals.push(Arrival { rows, from });
            }
        }
    }
    ChunkedMatmul {
        problem: GemmProblem::new(m, n, 8, DType::Bf16),
        own: part(m, rank, world),
        arrivals,
        rank,
        world,
        ready: 0,
    }
}

/// The tiles (row, column) of clusters in the order in which the device goes them, by its own arithmetic.
fn schedule(table: &Table) -> Vec<(usize, usize)> {
    let units = table.groups.last().map_or(0, |group| group.end_unit);
    let mut group = 0;
    (0..units)
        .map(|unit| {
            while unit >= table.groups[group].end_unit {
                group += 1;
            }
            let SwizzleGroup {
                first_unit,
                first_row,
                rows,
                ..
            } = table.groups[group];
            let at = unit - first_unit;
            ((first_row + at % rows) as usize, (at / rows) as usize)
        })
        .collect()
}

fn every_case(check: impl Fn(&ChunkedMatmul, &Table)) {
    for world in 1..=5 {
        for rank in 0..world {
            for m in [1, 15, 32, 33, 64 * world, 97, 512, 1000] {
                for chunks in [1, 2, 3, 8] {
                    let gemm = gemm(m, 70, (rank, world), chunks);
                    gemm.validate().unwrap();
                    check(&gemm, &Table::new(&gemm, &CONFIG).unwrap());
                }
            }
        }
    }
}

#[test]
fn every_tile_is_visited_once() {
    every_case(|gemm, table| {
        let visited = schedule(table);
        let rows = gemm.problem.m.div_ceil(32);
        assert_eq!(visited.len(), rows * 3);
        let all: HashSet<_> = (0..rows)
            .flat_map(|r| (0..3).map(move |c| (r, c)))
            .collect();
        assert_eq!(visited.into_iter().collect::<HashSet<_>>(), all);
    });
}

#[test]
fn tiles_are_visited_in_the_order_in_which_their_rows_are_complete() {
    every_case(|gemm, table| {
        let arrivals_needed = schedule(table)
            .into_iter()
            .map(|(row, _)| arrivals_needed(&gemm.arrivals, row * 32..row * 32 + 32));
        assert!(arrivals_needed.is_sorted());
    });
}

#[test]
fn a_tile_waits_for_the_words_of_all_its_rows_and_for_no_other() {
    every_case(|gemm, table| {
        // The place of each arrival among those of its source.
        let mut counts = vec![0; gemm.world];
        let mut of_row = vec![None; gemm.problem.m];
        for arrival in &gemm.arrivals {
            counts[arrival.from] += 1;
            let wait = Wait {
                source: arrival.from as u32,
                nth: counts[arrival.from],
            };
            of_row[arrival.rows.clone()].fill(Some(wait));
        }
        assert_eq!(table.signals, counts);
        assert_eq!(table.tiles.len() % 2, 0);
        for (tile, waits) in table.tiles.iter().enumerate() {
            let waits = &table.waits[waits.start as usize..waits.end as usize];
            let rows = (tile * 16).min(of_row.len())..(tile * 16 + 16).min(of_row.len());
            let wanted: Vec<Wait> = of_row[rows].iter().flatten().copied().collect();
            let met = |want: &Wait| {
                waits
                    .iter()
                    .any(|w| w.source == want.source && w.nth >= want.nth)
            };
            assert!(wanted.iter().all(met), "tile {tile} of {gemm:?}");
            assert!(
                waits.iter().all(|wait| wanted.contains(wait)),
                "tile {tile} of {gemm:?}"
            );
        }
    });
}

#[test]
fn own_rows_next_to_others_are_read_from_staging() {
    every_case(|gemm, table| {
        let shared: HashSet<usize> = table.shared(&gemm.own).into_iter().flatten().collect();
        for row in gemm.own.clone() {
            let tile = row / 16 * 16..(row / 16 * 16 + 16).min(gemm.problem.m);
            let alone = tile.start >= gemm.own.start && tile.end <= gemm.own.end;
            assert_eq!(shared.contains(&row), !alone, "row {row} of {gemm:?}");
        }
    });
}

#[test]
fn aligned_shards_share_no_tile_and_their_chunks_are_groups() {
    let gemm = gemm(1024, 64, (1, 4), 1);
    let table = Table::new(&gemm, &CONFIG).unwrap();
    assert!(table.shared(&gemm.own).is_empty());
    let rows: Vec<_> = table
        .groups
        .iter()
        .map(|group| (group.first_row, group.rows))
        .collect();
    assert_eq!(rows, [(8, 8), (0, 8), (24, 8), (16, 8)]);
    assert_eq!(table.groups[3].end_unit, 32 * 2);
}

#[test]
fn the_image_has_its_parts_where_it_says() {
    let gemm = gemm(97, 70, (1, 3), 2);
    let table = Table::new(&gemm, &CONFIG).unwrap();
    let (bytes, at) = table.image();
    let word = |byte: usize| u32::from_ne_bytes(bytes[byte..byte + 4].try_into().unwrap());
    assert_eq!(word(at.groups + 4), table.groups[0].end_unit);
    assert_eq!(word(at.tiles + 4), table.tiles[0].end);
    assert_eq!(word(at.waits + 4), table.waits[0].nth);
    assert_eq!([0, 4, 8].map(|i| word(at.signals + i)), [2, 0, 2]);
    assert_eq!(bytes.len(), at.signals + 12);
    assert!(at.tiles % 16 == 0 && at.waits % 8 == 0);
}

#[test]
fn descriptors_that_contradict_themselves_are_refused() {
    let good = gemm(64, 8, (0, 2), 2);
    let refused = |change: &dyn Fn(&mut ChunkedMatmul), needle: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let text = bad.validate().unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    };
    let misplaced = |change: &dyn Fn(&mut ChunkedOperands), needle: &str| {
        let at = DevicePtr(16);
        let mut operands = ChunkedOperands {
            a: at,
            staging: at,
            b: at,
            c: at,
            pad: crate::pad_nowhere((good.rank, good.world), 1),
        };
        change(&mut operands);
        let launch = Launch {
            gemm: &good,
            operands: &operands,
        };
        let text = launch.check(|_| 16).unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    };
    misplaced(&|o| o.pad.slots = 0, "slot 0 of a pad with 0");
    misplaced(&|o| o.pad.rank = 9, "the pad is of rank 9");
    misplaced(&|o| o.staging = DevicePtr(8), "operand staging of");
    misplaced(&|o| o.a = DevicePtr::NULL, "operand A of");
    misplaced(&|o| o.b = DevicePtr(8), "operand B of");
    refused(&|p| p.arrivals[0].from = 2, "rank 2 in a world of 2");
    refused(
        &|p| p.arrivals[0].rows = 33..48,
        "row 32 does not come exactly once",
    );
    refused(
        &|p| p.arrivals[1].rows = 40..64,
        "row 48 does not come exactly once",
    );
    refused(&|p| p.own = 0..31, "row 31 does not");
    refused(&|p| p.problem.m = 65, "64 rows come, 65");
    refused(&|p| p.arrivals[0].rows = 7..7, "no rows");
}

/// What blocks of a launch do with the flags of a slot, in the steps of `arrivals.cuh` that others can tell
/// apart.
struct Block {
    unit: usize,
    tile: usize,
    has_ticket: bool,
}

/// Calls that follow each other, with flags that come and blocks that step in any order. Epochs go round.
#[test]
fn whatever_the_order_of_steps_no_tile_is_read_early_and_the_next_call_waits_for_the_next_signals()
{
    let mut random = 7u64;
    let mut draw = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for (world, m, chunks, clusters) in [
        (1, 97, 2, 2),
        (3, 97, 2, 3),
        (4, 1000, 3, 7),
        (2, 33, 1, 65),
    ] {
        let gemm = gemm(m, 70, (1 % world, world), chunks);
        let table = Table::new(&gemm, &CONFIG).unwrap();
        let order = schedule(&table);
        let grid = clusters.min(order.len());
        let start = u32::MAX - 3;
        let (mut flags, mut expected) = (vec![start; world], vec![start; world]);
        let mut ticket = 0;
        for call in 0..6 {
            let before = expected.clone();
            let mut sent = vec![0; world];
            // Two blocks of a cluster, each with tiles of its own.
            let block = |i: usize| Block {
                unit: i / 2,
                tile: i % 2,
                has_ticket: false,
            };
            let mut blocks: Vec<Block> = (0..2 * grid).map(block).collect();
            let mut visited = 0;
            while blocks.iter().any(|block| !block.has_ticket) {
                let source = draw(world);
                if draw(4) == 0 && sent[source] < table.signals[source] {
                    sent[source] += 1;
                    flags[source] = flags[source].wrapping_add(1);
                }
                let block = &mut blocks[draw(2 * grid)];
                if block.has_ticket {
                    continue;
                }
                let Some(&(row, _)) = order.get(block.unit) else {
                    (block.has_ticket, ticket) = (true, ticket + 1);
                    if ticket == 2 * grid {
                        ticket = 0;
                        for (expected, signals) in expected.iter_mut().zip(&table.signals) {
                            *expected = expected.wrapping_add(*signals);
                        }
                    }
                    continue;
                };
                let tile = 2 * row + block.tile;
                let waits = table.tiles[tile].start as usize..table.tiles[tile].end as usize;
                let here = table.waits[waits].iter().all(|wait| {
                    let source = wait.source as usize;
                    let wanted = expected[source].wrapping_add(wait.nth);
                    flags[source].wrapping_sub(wanted) as i32 >= 0
                });
                if !here {
                    continue;
                }
                let mut seen = vec![0; world];
                for Arrival { rows, from } in &gemm.arrivals {
                    seen[*from] += 1;
                    let late = seen[*from] > sent[*from];
                    assert!(
                        !(late && overlap(rows, &(tile * 16..tile * 16 + 16))),
                        "call {call}, tile {tile}"
                    );
                }
                visited += 1;
                block.unit += grid;
            }
            assert_eq!(visited, 2 * order.len());
            for (source, before) in before.iter().enumerate() {
                assert_eq!(expected[source], before.wrapping_add(table.signals[source]));
            }
            // Every signal was waited for, so that none is left for the next call.
            assert_eq!(flags, expected);
        }
    }
}
