//! Calls back to back, of ranks and blocks that step in any order.

use super::*;

const GROUP_ROWS: usize = 256;
const CALLS: u32 = 4;
/// The epoch before the first call: epochs go round.
const START: u32 = u32::MAX - 1;
/// `kPieceBytes`.
const PIECE_BYTES: usize = 4096;

/// What a block pulls of: the partial of `peer` of an own group, or the result of a group of `peer`.
#[derive(Clone, Copy, Debug)]
struct Pull {
    peer: usize,
    group: usize,
    is_result: bool,
    pieces: usize,
}

/// A block of a grid, in a call.
#[derive(Clone, Debug)]
struct Block {
    /// The next of its tiles.
    tile: usize,
    /// The next of what it pulls, and the first of its pieces there.
    pull: usize,
    first: usize,
    /// Whether its puller has taken the ticket of `done`, and all of it that of the grid.
    has_pulled: bool,
    has_ended: bool,
}

#[derive(Debug)]
struct Rank {
    schedule: Vec<ScheduledTile>,
    pulls: Vec<Pull>,
    /// Flags, by group and the rank that signals.
    ready: Vec<Vec<u32>>,
    reduced: Vec<Vec<u32>>,
    done: Vec<u32>,
    /// Blocks whose share of a partial is here, by group and source.
    arrived: Vec<Vec<u32>>,
    /// Tiles that this rank has stored, in all calls, by owner and group; the ticket is what this leaves of a
    /// call.
    stored: Vec<Vec<u32>>,
    /// Pieces of partials and of results that are here, in all calls, by the rank that they come from and
    /// group.
    partials: Vec<Vec<usize>>,
    results: Vec<Vec<usize>>,
    blocks: Vec<Block>,
    call: u32,
}

impl Rank {
    fn new(job: &[MatmulReduce], rank: usize, blocks: usize, everyone: bool) -> Self {
        let (gemm, world) = (&job[rank], job.len());
        let groups = gemm.groups();
        let pieces = |owner: usize, group: usize| {
            let rows = gemm.shards[owner].len();
            let height = rows.saturating_sub(group * GROUP_ROWS).min(GROUP_ROWS);
            (height * gemm.row_bytes()).div_ceil(PIECE_BYTES)
        };
        let mut pulls = Vec::new();
        for group in 0..=groups {
            let before = (1..world).map(|step| (rank + world - step) % world);
            pulls.extend(before.clone().map(|peer| Pull {
                peer,
                group,
                is_result: false,
                pieces: pieces(rank, group),
            }));
            let of_results = before.filter(|_| everyone && group > 0);
            pulls.extend(of_results.map(|peer| Pull {
                peer,
                group: group - 1,
                is_result: true,
                pieces: pieces(peer, group - 1),
            }));
        }
        pulls.retain(|pull| pull.pieces > 0);
        Rank {
            schedule: schedule(gemm, &CONFIGS[config::UNCLUSTERED[1]]).unwrap(),
            pulls,
            ready: vec![vec![START; world]; groups],
            reduced: vec![vec![START; world]; groups],
            done: vec![START; world],
            arrived: vec![vec![0; world]; groups],
            stored: vec![vec![0; groups]; world],
            partials: vec![vec![0; groups]; world],
            results: vec![vec![0; groups]; world],
            blocks: (0..blocks).map(Block::new).collect(),
            call: 1,
        }
    }

    /// Tiles of a group.
    fn of(&self, owner: usize, group: usize) -> u32 {
        let mut tiles = self.schedule.iter();
        let same = |t: &&ScheduledTile| (t.owner as usize, t.group as usize) == (owner, group);
        tiles.find(same).unwrap().of
    }

    fn pieces(&self, peer: usize, group: usize, is_result: bool) -> usize {
        let mut pulls = self.pulls.iter();
        let same = |f: &&Pull| (f.peer, f.group, f.is_result) == (peer, group, is_result);
        pulls.find(same).unwrap().pieces
    }

    fn epoch(&self) -> u32 {
        START.wrapping_add(self.call)
    }

    fn has(&self, flag: u32) -> bool {
        flag.wrapping_sub(self.epoch()) as i32 >= 0
    }
}

impl Block {
    fn new(index: usize) -> Self {
        Block {
            tile: index,
            pull: 0,
            first: index,
            has_pulled: false,
            has_ended: false,
        }
    }
}

/// One step of a block's GEMM: the load warp, the consumers and the store warps of a tile. False where
/// it would wait.
fn store(ranks: &mut [Rank], me: usize, block: usize, everyone: bool) -> bool {
    let (world, mine) = (ranks.len(), &ranks[me]);
    let (blocks, call) = (mine.blocks.len(), mine.call);
    let Some(&tile) = mine.schedule.get(mine.blocks[block].tile) else {
        return false;
    };
    let (owner, group) = (tile.owner as usize, tile.group as usize);
    let peers = (0..world).filter(|&peer| peer != me);
    let before = call as usize - 1;
    if owner == me {
        for peer in peers.clone() {
            let pieces = mine.pieces(peer, group, false);
            if mine.arrived[group][peer] < call * pieces.min(blocks) as u32 {
                return false;
            }
            assert_eq!(
                mine.partials[peer][group],
                pieces * call as usize,
                "not whole"
            );
        }
    }
    // Who pulls it has done so with that of the call before.
    for peer in peers
        .clone()
        .filter(|&peer| owner == peer || (owner == me && everyone))
    {
        let pulled = if owner == me {
            &ranks[peer].results
        } else {
            &ranks[peer].partials
        };
        let pieces = ranks[peer].pieces(me, group, owner == me);
        assert_eq!(pulled[me][group], pieces * before, "overwritten unread");
    }
    let mine = &mut ranks[me];
    mine.blocks[block].tile += blocks;
    mine.stored[owner][group] += 1;
    let (is_last, epoch) = (mine.stored[owner][group] == tile.of * call, mine.epoch());
    if is_last && owner != me {
        ranks[owner].ready[group][me] = epoch;
    } else if is_last && everyone {
        peers.for_each(|peer| ranks[peer].reduced[group][me] = epoch);
    }
    true
}

/// One step of a block's puller: its share of a partial or of a result. False where it would wait.
fn pull(ranks: &mut [Rank], me: usize, block: usize) -> bool {
    let (mine, blocks) = (&ranks[me], ranks[me].blocks.len());
    let (call, epoch) = (mine.call, mine.epoch());
    let Block {
        pull,
        first,
        has_pulled,
        ..
    } = mine.blocks[block];
    if let Some(&Pull {
        peer,
        group,
        is_result,
        pieces,
    }) = mine.pulls.get(pull)
    {
        if first < pieces {
            let flags = if is_result {
                &mine.reduced
            } else {
                &mine.ready
            };
            if !mine.has(flags[group][peer]) {
                return false;
            }
            let owner = if is_result { peer } else { me };
            let all = ranks[peer].of(owner, group) * call;
            assert_eq!(ranks[peer].stored[owner][group], all, "not whole");
            let mine = &mut ranks[me];
            let count = (first..pieces).step_by(blocks).count();
            if is_result {
                mine.results[peer][group] += count;
            } else {
                mine.partials[peer][group] += count;
                mine.arrived[group][peer] += 1;
            }
        }
        let block = &mut ranks[me].blocks[block];
        block.first = (first + blocks - pieces % blocks) % blocks;
        block.pull += 1;
        return true;
    }
    if has_pulled {
        return false;
    }
    ranks[me].blocks[block].has_pulled = true;
    if ranks[me].blocks.iter().all(|block| block.has_pulled) {
        let peers = (0..ranks.len()).filter(|&peer| peer != me);
        peers.for_each(|peer| ranks[peer].done[me] = epoch);
    }
    true
}

/// The end of a block; that of the last one is the end of the call. False where it would wait.
fn end(ranks: &mut [Rank], me: usize, block: usize) -> bool {
    let mine = &mut ranks[me];
    let Block {
        tile,
        has_pulled,
        has_ended,
        ..
    } = mine.blocks[block];
    let at_work = tile < mine.schedule.len() || !has_pulled;
    let is_last = mine.blocks.iter().filter(|block| !block.has_ended).count() == 1;
    let mut flags = mine.done.iter().enumerate();
    let waits = is_last && !flags.all(|(peer, &flag)| peer == me || mine.has(flag));
    if at_work || has_ended || waits {
        return false;
    }
    mine.blocks[block].has_ended = true;
    if is_last {
        mine.blocks = (0..mine.blocks.len()).map(Block::new).collect();
        mine.call += 1;
    }
    true
}

/// Every block ends, nothing is read before it is whole, and nothing is overwritten before it is read.
#[test]
fn whatever_the_order_of_steps_all_is_read_whole_and_once() {
    let mut random = 11u64;
    let mut draw = move |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for (world, m, blocks) in [
        (1, 300, 2),
        (2, 2049, 3),
        (3, 1000, 2),
        (4, 4 * 512, 5),
        (4, 3, 2),
        (4, 130, 1),
        (8, 2100, 7),
    ] {
        for everyone in [false, true] {
            let job: Vec<_> = (0..world)
                .map(|rank| of(everyone, gemm(m, (rank, world), GROUP_ROWS)))
                .collect();
            let mut ranks: Vec<Rank> = (0..world)
                .map(|rank| Rank::new(&job, rank, blocks, everyone))
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
                let moves = match draw(3) {
                    0 => store(&mut ranks, me, block, everyone),
                    1 => pull(&mut ranks, me, block),
                    _ => end(&mut ranks, me, block),
                };
                if moves {
                    idle = 0;
                }
            }
        }
    }
}
