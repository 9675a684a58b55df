//! Calls back to back, of ranks and blocks that step in any order.

use super::*;

const GROUP_ROWS: usize = 256;
const CALLS: u32 = 4;
/// The epoch before the first call: epochs go round.
const START: u32 = u32::MAX - 1;
/// `kPieceBytes`.
const PIECE_BYTES: usize = 4096;

/// What a block fetches of: the part of `peer` of an own group, or the sums of a group of `peer`.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    peer: usize,
    group: usize,
    is_sum: bool,
    pieces: usize,
}

/// A block of a grid, in a call.
#[derive(Clone, Debug)]
struct Block {
    /// The next of its units.
    unit: usize,
    /// The next of what it fetches, and whose turn it is: `turn_`.
    fetch: usize,
    turn: usize,
    /// Whether its fetcher has drawn from the ticket of `done`, and all of it from that of the grid.
    has_fetched: bool,
    has_ended: bool,
}

#[derive(Debug)]
struct Rank {
    units: Vec<Unit>,
    fetches: Vec<Fetch>,
    /// Words, by group and the rank that signals.
    ready: Vec<Vec<u32>>,
    summed: Vec<Vec<u32>>,
    done: Vec<u32>,
    /// Blocks whose share of a part is here, by group and source.
    arrived: Vec<Vec<u32>>,
    /// Tiles that this rank has stored, in all calls, by owner and group; the ticket is what this leaves of a call.
    stored: Vec<Vec<u32>>,
    /// Pieces of parts and of sums that are here, in all calls, by the rank that they come from and group.
    parts: Vec<Vec<usize>>,
    sums: Vec<Vec<usize>>,
    blocks: Vec<Block>,
    call: u32,
}

impl Rank {
    fn new(job: &[ReducingMatmul], rank: usize, blocks: usize, everyone: bool) -> Self {
        let (product, world) = (&job[rank], job.len());
        let groups = product.groups();
        let pieces = |owner: usize, group: usize| {
            let rows = product.shards[owner].len();
            let height = rows.saturating_sub(group * GROUP_ROWS).min(GROUP_ROWS);
            (height * product.row_bytes()).div_ceil(PIECE_BYTES)
        };
        let mut fetches = Vec::new();
        for group in 0..=groups {
            let before = (1..world).map(|step| (rank + world - step) % world);
            fetches.extend(before.clone().map(|peer| Fetch {
                peer,
                group,
                is_sum: false,
                pieces: pieces(rank, group),
            }));
            let of_sums = before.filter(|_| everyone && group > 0);
            fetches.extend(of_sums.map(|peer| Fetch {
                peer,
                group: group - 1,
                is_sum: true,
                pieces: pieces(peer, group - 1),
            }));
        }
        fetches.retain(|fetch| fetch.pieces > 0);
        Rank {
            units: units(product, &CONFIGS[config::ALONE[1]]).unwrap(),
            fetches,
            ready: vec![vec![START; world]; groups],
            summed: vec![vec![START; world]; groups],
            done: vec![START; world],
            arrived: vec![vec![0; world]; groups],
            stored: vec![vec![0; groups]; world],
            parts: vec![vec![0; groups]; world],
            sums: vec![vec![0; groups]; world],
            blocks: (0..blocks).map(Block::new).collect(),
            call: 1,
        }
    }

    /// Units of a group.
    fn of(&self, owner: usize, group: usize) -> u32 {
        let mut units = self.units.iter();
        let same = |u: &&Unit| (u.owner as usize, u.group as usize) == (owner, group);
        units.find(same).unwrap().of
    }

    fn pieces(&self, peer: usize, group: usize, is_sum: bool) -> usize {
        let mut fetches = self.fetches.iter();
        let same = |f: &&Fetch| (f.peer, f.group, f.is_sum) == (peer, group, is_sum);
        fetches.find(same).unwrap().pieces
    }

    fn epoch(&self) -> u32 {
        START.wrapping_add(self.call)
    }

    fn has(&self, word: u32) -> bool {
        word.wrapping_sub(self.epoch()) as i32 >= 0
    }
}

impl Block {
    fn new(index: usize) -> Self {
        Block {
            unit: index,
            fetch: 0,
            turn: index,
            has_fetched: false,
            has_ended: false,
        }
    }
}

/// One step of a block's product: `load_parts`, `consume` and `store_parts` of a tile. False where it would wait.
fn store(ranks: &mut [Rank], me: usize, block: usize, everyone: bool) -> bool {
    let (world, mine) = (ranks.len(), &ranks[me]);
    let (blocks, call) = (mine.blocks.len(), mine.call);
    let Some(&unit) = mine.units.get(mine.blocks[block].unit) else {
        return false;
    };
    let (owner, group) = (unit.owner as usize, unit.group as usize);
    let peers = (0..world).filter(|&peer| peer != me);
    let before = call as usize - 1;
    if owner == me {
        for peer in peers.clone() {
            let pieces = mine.pieces(peer, group, false);
            if mine.arrived[group][peer] < call * pieces.min(blocks) as u32 {
                return false;
            }
            assert_eq!(mine.parts[peer][group], pieces * call as usize, "not whole");
        }
    }
    // Who fetches it has done so with that of the call before.
    for peer in peers
        .clone()
        .filter(|&peer| owner == peer || (owner == me && everyone))
    {
        let fetched = if owner == me {
            &ranks[peer].sums
        } else {
            &ranks[peer].parts
        };
        let pieces = ranks[peer].pieces(me, group, owner == me);
        assert_eq!(fetched[me][group], pieces * before, "overwritten unread");
    }
    let mine = &mut ranks[me];
    mine.blocks[block].unit += blocks;
    mine.stored[owner][group] += 1;
    let (is_last, epoch) = (mine.stored[owner][group] == unit.of * call, mine.epoch());
    if is_last && owner != me {
        ranks[owner].ready[group][me] = epoch;
    } else if is_last && everyone {
        peers.for_each(|peer| ranks[peer].summed[group][me] = epoch);
    }
    true
}

/// One step of a block's fetcher: its share of a part or of sums. False where it would wait.
fn fetch(ranks: &mut [Rank], me: usize, block: usize) -> bool {
    let (mine, blocks) = (&ranks[me], ranks[me].blocks.len());
    let (call, epoch) = (mine.call, mine.epoch());
    let Block {
        fetch,
        turn,
        has_fetched,
        ..
    } = mine.blocks[block];
    if let Some(&Fetch {
        peer,
        group,
        is_sum,
        pieces,
    }) = mine.fetches.get(fetch)
    {
        if turn < pieces {
            let words = if is_sum { &mine.summed } else { &mine.ready };
            if !mine.has(words[group][peer]) {
                return false;
            }
            let owner = if is_sum { peer } else { me };
            let all = ranks[peer].of(owner, group) * call;
            assert_eq!(ranks[peer].stored[owner][group], all, "not whole");
            let mine = &mut ranks[me];
            let count = (turn..pieces).step_by(blocks).count();
            if is_sum {
                mine.sums[peer][group] += count;
            } else {
                mine.parts[peer][group] += count;
                mine.arrived[group][peer] += 1;
            }
        }
        let block = &mut ranks[me].blocks[block];
        block.turn = (turn + blocks - pieces % blocks) % blocks;
        block.fetch += 1;
        return true;
    }
    if has_fetched {
        return false;
    }
    ranks[me].blocks[block].has_fetched = true;
    if ranks[me].blocks.iter().all(|block| block.has_fetched) {
        let peers = (0..ranks.len()).filter(|&peer| peer != me);
        peers.for_each(|peer| ranks[peer].done[me] = epoch);
    }
    true
}

/// The end of a block; that of the last one is the end of the call. False where it would wait.
fn end(ranks: &mut [Rank], me: usize, block: usize) -> bool {
    let mine = &mut ranks[me];
    let Block {
        unit,
        has_fetched,
        has_ended,
        ..
    } = mine.blocks[block];
    let at_work = unit < mine.units.len() || !has_fetched;
    let is_last = mine.blocks.iter().filter(|block| !block.has_ended).count() == 1;
    let mut words = mine.done.iter().enumerate();
    let waits = is_last && !words.all(|(peer, &word)| peer == me || mine.has(word));
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
                .map(|rank| of(everyone, product(m, (rank, world), GROUP_ROWS)))
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
                    1 => fetch(&mut ranks, me, block),
                    _ => end(&mut ranks, me, block),
                };
                if moves {
                    idle = 0;
                }
            }
        }
    }
}
