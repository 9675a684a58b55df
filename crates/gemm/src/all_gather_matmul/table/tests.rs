//! The tile schedule over the tiles against its definition, and the flags of a call under any order of steps.

use std::collections::HashSet;
use std::ops::Range;

use warpweave_symm_mem::{DType, DevicePtr};

use super::*;
use crate::all_gather_matmul::{AllGatherOperands, GatheredScales, Launch};
use crate::{GemmProblem, Peers, Protocol, Scaling};

/// Rows of a cluster's tile, and of the tile of each of its two blocks.
const HEIGHT: usize = 32;
const TILE: usize = 16;

fn gemm(m: usize, (rank, world): (usize, usize), chunk_rows: usize) -> AllGatherMatmul {
    let start = |i: usize| i * (m / world) + i.min(m % world);
    AllGatherMatmul {
        problem: GemmProblem::new(m, 70, 8, DType::Bf16),
        shards: (0..world)
            .map(|rank| start(rank)..start(rank + 1))
            .collect(),
        chunk_rows,
        rank,
        world,
        ready: 1,
        done: 0,
        protocol: Protocol::PULL,
        tiling: None,
        max_blocks: None,
    }
}

fn operands(gemm: &AllGatherMatmul) -> AllGatherOperands {
    let on_all: Peers = std::iter::repeat_n(DevicePtr(16), gemm.world).collect();
    AllGatherOperands {
        a: on_all,
        local_a: DevicePtr::NULL,
        staging: on_all,
        staging_stride: gemm.problem.m * gemm.row_bytes(),
        b: DevicePtr(16),
        c: DevicePtr(16),
        bias: DevicePtr::NULL,
        scales: GatheredScales::default(),
        pad: crate::pad_nowhere((gemm.rank, gemm.world), 2000),
    }
}

fn check(gemm: &AllGatherMatmul, operands: &AllGatherOperands) -> Result<(), Error> {
    Launch { gemm, operands }.check(|_| 16)
}

/// Shard, row and column of the clusters' tiles in the order in which the device goes them, by its own
/// arithmetic.
fn schedule(groups: &[SwizzleGroup], columns: u32) -> Vec<(usize, usize, usize)> {
    let mut next = 0;
    (0..groups.last().map_or(0, |group| group.end))
        .map(|index| {
            while index >= groups[next].end {
                next += 1;
            }
            let group = groups[next];
            let within = index - (group.end - group.rows * columns);
            let (row, column) = (group.row + within % group.rows, within / group.rows);
            (group.shard as usize, row as usize, column as usize)
        })
        .collect()
}

/// The chunks of its shard that a tile needs, by the device's arithmetic.
fn needed(gemm: &AllGatherMatmul, shard: usize, row: usize) -> Range<usize> {
    let rows = gemm.shards[shard].len();
    if shard == gemm.rank || row >= rows {
        return 0..0;
    }
    let end = (row + TILE).min(rows);
    row / gemm.chunk_rows..(end - 1) / gemm.chunk_rows + 1
}

fn every_case(check: impl Fn(&AllGatherMatmul, &[SwizzleGroup])) {
    for world in 1..=5 {
        for rank in 0..world {
            for m in [1, 15, 32, 33, 64 * world, 97, 512, 1000] {
                for chunk_rows in [1, 7, 32, 100, 1000] {
                    let mut gemm = gemm(m, (rank, world), chunk_rows);
                    let protocols = [0, 1, 3].map(|pushed| Protocol::Rendezvous { pushed });
                    for protocol in protocols.into_iter().chain([Protocol::Eager]) {
                        gemm.protocol = protocol;
                        gemm.validate().unwrap();
                        for most in [1, 2, 5] {
                            check(&gemm, &groups(&gemm, (HEIGHT, 3), most).unwrap());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_tile_of_every_shard_is_visited_once() {
    every_case(|gemm, groups| {
        let visited = schedule(groups, 3);
        let mut all = HashSet::new();
        for (shard, rows) in gemm.shards.iter().enumerate() {
            for row in 0..rows.len().div_ceil(HEIGHT) {
                all.extend((0..3).map(|column| (shard, row, column)));
            }
        }
        assert_eq!(visited.len(), all.len());
        assert_eq!(visited.into_iter().collect::<HashSet<_>>(), all);
    });
}

#[test]
fn own_rows_come_first_and_then_chunks_as_they_arrive() {
    every_case(|gemm, groups| {
        let (rank, world) = (gemm.rank, gemm.world);
        let arrivals_needed = schedule(groups, 3).into_iter().map(|(shard, row, _)| {
            let last = ((row + 1) * HEIGHT).min(gemm.shards[shard].len()) - 1;
            // The ranks before this one, nearest first, of each what is pushed or eager, then a chunk.
            let chunk = last / gemm.chunk_rows;
            let round = match chunk < gemm.pushed_chunks() || gemm.protocol == Protocol::Eager {
                true => 1,
                false => 2 + chunk,
            };
            match shard == rank {
                true => (0, 0),
                false => (round, (rank + world - shard) % world),
            }
        });
        assert!(arrivals_needed.is_sorted(), "{gemm:?}");
    });
}

#[test]
fn a_tile_needs_the_chunks_of_its_rows() {
    every_case(|gemm, groups| {
        for (shard, row, _) in schedule(groups, 3) {
            for row in [row * HEIGHT, row * HEIGHT + TILE] {
                let first = gemm.shards[shard].start + row;
                let rows = first..(first + TILE).min(gemm.shards[shard].end);
                let chunks = needed(gemm, shard, row);
                let touched = (0..gemm.chunks()).filter(|&chunk| {
                    let chunk = gemm.chunk(shard, chunk);
                    shard != gemm.rank && chunk.start < rows.end && rows.start < chunk.end
                });
                assert!(touched.eq(chunks), "row {row} of {shard} in {gemm:?}");
            }
        }
    });
}

#[test]
fn chunks_cover_each_shard_once() {
    every_case(|gemm, _| {
        for (rank, shard) in gemm.shards.iter().enumerate() {
            let rows = (0..gemm.chunks() + 1).flat_map(|chunk| gemm.chunk(rank, chunk));
            assert!(rows.eq(shard.clone()), "{gemm:?}");
        }
    });
}

#[test]
fn a_chunk_is_whole_tiles_unless_the_shard_is_small() {
    assert_eq!(AllGatherMatmul::chunk_rows(4096, 4), 1024);
    assert_eq!(AllGatherMatmul::chunk_rows(4000, 4), 1024);
    assert_eq!(AllGatherMatmul::chunk_rows(300, 1), 512);
    assert_eq!(AllGatherMatmul::chunk_rows(300, 4), 256);
    assert_eq!(AllGatherMatmul::chunk_rows(1024, 8), 256);
    assert_eq!(AllGatherMatmul::chunk_rows(128, 4), 128);
    assert_eq!(AllGatherMatmul::chunk_rows(100, 4), 25);
    assert_eq!(AllGatherMatmul::chunk_rows(0, 4), 1);
}

#[test]
fn every_sm_has_a_chunk_that_goes_eagerly() {
    assert_eq!(AllGatherMatmul::eager_chunk_rows(0), 1);
    assert_eq!(AllGatherMatmul::eager_chunk_rows(100), 1);
    assert_eq!(AllGatherMatmul::eager_chunk_rows(128), 1);
    assert_eq!(AllGatherMatmul::eager_chunk_rows(129), 2);
    assert_eq!(AllGatherMatmul::eager_chunk_rows(1024), 8);
}

#[test]
fn descriptors_that_contradict_themselves_are_refused() {
    let good = gemm(64, (0, 2), 8);
    let refused = |change: &dyn Fn(&mut AllGatherMatmul), needle: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let valid = bad.validate().and_then(|()| check(&bad, &operands(&bad)));
        let text = valid.unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    };
    let misplaced = |change: &dyn Fn(&mut AllGatherOperands), needle: &str| {
        let mut bad = operands(&good);
        change(&mut bad);
        let text = check(&good, &bad).unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    };
    check(&good, &operands(&good)).unwrap();
    refused(&|p| p.done = 2000, "2000 of a pad with 2000 slots");
    refused(&|p| p.done = 1, "one slot, 1,");
    refused(&|p| p.chunk_rows = 0, "chunk_rows = 0");
    let one = Peers::from(DevicePtr(16));
    misplaced(
        &|o| o.a = one,
        "1 addresses with 2 stagings in a world of 2",
    );
    misplaced(&|o| o.staging = one, "2 addresses with 1 stagings");
    misplaced(&|o| o.b = DevicePtr(8), "operand B of 64x70x8");
    let at = [DevicePtr(16), DevicePtr(8)];
    let of_peer = |o: &mut AllGatherOperands| o.a = at.into_iter().collect();
    misplaced(&of_peer, "operand A of 64x70x8");
    misplaced(&of_peer, "address 0x8 of rank 1 must be");
    let staged = |o: &mut AllGatherOperands| o.staging = at.into_iter().rev().collect();
    misplaced(&staged, "operand staging of 64x70x8");
    misplaced(&staged, "address 0x8 of rank 0 must be");
    refused(&|p| p.shards.truncate(1), "1 shards in a world of 2");
    refused(&|p| p.rank = 2, "2 shards in a world of 2");
    let eager = |p: &mut AllGatherMatmul| (p.ready, p.protocol) = (1997, Protocol::Eager);
    refused(&eager, "4 slots from 1997 on of a pad with 2000 slots");
    refused(
        &|p| p.shards[0] = 0..31,
        "rank 1 has rows 32..64, not those from 31",
    );
    refused(&|p| p.shards[1].end = 63, "the shards have 63 rows, 64");
}

/// With the rendezvous protocol nobody writes to the stagings of others, and with the eager one nobody reads
/// their shards.
#[test]
fn addresses_that_a_protocol_ignores_may_be_missing() {
    let mut gemm = gemm(64, (0, 2), 8);
    gemm.problem = GemmProblem::e4m3(64, 70, 16, Scaling::Row, DType::Bf16);
    let there = Peers::from(vec![DevicePtr(16); 2]);
    let own = Peers::from(vec![DevicePtr(16), DevicePtr::NULL]);
    let mut checked = |protocol, [a, staging]: [Peers; 2], of_scales: [Peers; 2]| {
        gemm.protocol = protocol;
        let scales = GatheredScales {
            a: of_scales[0],
            staging: of_scales[1],
            staging_stride: 256,
            b: DevicePtr(16),
        };
        let operands = operands(&gemm);
        let operands = AllGatherOperands {
            a,
            staging,
            scales,
            ..operands
        };
        check(&gemm, &operands).map_err(|error| error.to_string())
    };
    for (protocol, fits, others, read) in [
        (Protocol::PULL, [there, own], [own, there], "A"),
        (Protocol::Eager, [own, there], [there, own], "staging"),
    ] {
        checked(protocol, fits, fits).unwrap();
        let text = checked(protocol, others, fits).unwrap_err();
        assert!(text.contains(&format!("operand {read} of")), "{text}");
        assert!(text.contains("address 0x0 of rank 1"), "{text}");
        let text = checked(protocol, fits, others).unwrap_err();
        let scales = [
            "operand scales of A of",
            "operand staging of scales of A of",
        ];
        assert!(text.contains(scales[usize::from(read != "A")]), "{text}");
    }
}

/// What a rank has done of a call, in the steps of `all_gather.cu` that its peers can tell apart.
#[derive(Default)]
struct Rank {
    call: u32,
    /// Whether it has said that its shard may be read.
    open: bool,
    /// Chunks pulled, in the order of pulling.
    pulled: usize,
    /// Tiles of the tile schedule that have been read.
    read: usize,
    /// Whether it has said that it has read the shards of the others.
    done: bool,
}

/// Ranks that call again and again, each taking steps when chance wants it. No row is read before it is
/// there, or overwritten before it is read, and every rank gets on. Epochs go round.
#[test]
fn whatever_the_order_of_steps_rows_are_read_between_the_flags() {
    let mut random = 11u64;
    let mut draw = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    const CALLS: u32 = 5;
    for (world, m, chunk_rows) in [(2, 97, 20), (3, 250, 33), (4, 129, 100), (4, 3, 8)] {
        let gemms: Vec<_> = (0..world)
            .map(|rank| gemm(m, (rank, world), chunk_rows))
            .collect();
        let schedules: Vec<Vec<_>> = gemms
            .iter()
            .map(|gemm| schedule(&groups(gemm, (HEIGHT, 1), 2).unwrap(), 1))
            .collect();
        // What a rank pulls in a call: chunk and peer.
        let pulls: Vec<Vec<_>> = (0..world)
            .map(|rank| {
                let gemm = &gemms[rank];
                let chunks = (0..gemm.chunks())
                    .flat_map(|chunk| (1..world).map(move |step| (chunk, (rank + step) % world)));
                chunks
                    .filter(|&(chunk, peer)| !gemm.chunk(peer, chunk).is_empty())
                    .collect()
            })
            .collect();
        let start = u32::MAX - 2;
        let chunks = gemms[0].chunks();
        // Flags by source and destination; the call whose rows lie in each shard, and in each chunk of
        // staging.
        let mut ready = vec![start; world * world];
        let mut done = vec![start; world * world];
        let mut shards = vec![0u32; world];
        let mut staged = vec![0u32; chunks * world * world];
        let at = |chunk: usize, from: usize, to: usize| (chunk * world + from) * world + to;
        let mut ranks: Vec<Rank> = (0..world).map(|_| Rank::default()).collect();
        let reached = |seen: u32, wanted: u32| seen.wrapping_sub(wanted) as i32 >= 0;
        let mut idle = 0;
        while ranks.iter().any(|rank| rank.call < CALLS) {
            idle += 1;
            assert!(idle < 100_000, "nobody gets on");
            let me = draw(world);
            let call = ranks[me].call;
            if call == CALLS {
                continue;
            }
            let wanted = start.wrapping_add(call + 1);
            let peers = (0..world).filter(|&peer| peer != me);
            if !ranks[me].open {
                // What comes before the call writes the shard.
                shards[me] = call + 1;
                for peer in peers {
                    ready[me * world + peer] = wanted;
                }
                ranks[me].open = true;
                idle = 0;
            } else if let Some(&(chunk, from)) = pulls[me].get(ranks[me].pulled)
                && draw(2) == 0
            {
                if reached(ready[from * world + me], wanted) {
                    assert_eq!(shards[from], call + 1, "not the call's rows");
                    staged[at(chunk, from, me)] = call + 1;
                    ranks[me].pulled += 1;
                    idle = 0;
                }
            } else if let Some(&(shard, row, _)) = schedules[me].get(ranks[me].read) {
                let tiles = [row * HEIGHT, row * HEIGHT + TILE];
                let mut flags = tiles.iter().flat_map(|&row| needed(&gemms[me], shard, row));
                if flags.all(|chunk| staged[at(chunk, shard, me)] == call + 1) {
                    ranks[me].read += 1;
                    idle = 0;
                }
            } else if ranks[me].pulled == pulls[me].len() && !ranks[me].done {
                for peer in peers {
                    done[me * world + peer] = wanted;
                }
                ranks[me].done = true;
                idle = 0;
            } else if ranks[me].done {
                let mut peers = peers;
                if peers.all(|peer| reached(done[peer * world + me], wanted)) {
                    ranks[me] = Rank {
                        call: call + 1,
                        ..Rank::default()
                    };
                    idle = 0;
                }
            }
        }
    }
}
