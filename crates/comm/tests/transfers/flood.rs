//! Every rank with every other, both directions of a pair at once, gets and puts, several in flight on
//! several lanes.

use fastrand::Rng;
use warpweave_comm::p2p::{MemoryRange, TransferBackend, TransferMethod};
use warpweave_symm_mem::{Memory, SymmetricBuffer};

use super::{Rank, content, delay};

/// Transfers in flight of each kind, on each lane, with each peer.
const IN_FLIGHT: usize = 4;

/// `rounds` rounds on all lanes of the endpoint, each lane on its own stream. The sender of a transfer names
/// it by `round`, the peer, the lane and the number in flight.
pub fn exact<B: TransferBackend>(
    rank: &Rank<B>,
    method: TransferMethod,
    rounds: usize,
    size: usize,
) {
    let lanes = rank.p2p.options().lanes;
    let (me, world) = (rank.rank(), rank.world());
    let name = |round: usize, from: usize, to: usize, lane: usize, k: usize| {
        content(
            from,
            (((round * world + to) * lanes) + lane) * IN_FLIGHT + k,
            size,
        )
    };
    // [lane][peer][k]: outgoing ranges that peers read or this rank puts from; incoming ones.
    let place = |lane: usize, peer: usize, k: usize| ((lane * world + peer) * IN_FLIGHT + k) * size;
    let whole = lanes * world * IN_FLIGHT * size;
    let buffer = |name| SymmetricBuffer::new(&rank.backend, &rank.exchange, name, whole).unwrap();
    let (exposed, target) = (buffer("exposed"), buffer("target"));
    let pulled = rank.memory(whole);
    let inputs = rank.memory(rounds * whole);
    let (got, put) = (rank.memory(rounds * whole), rank.memory(rounds * whole));

    let mut all = vec![0; rounds * whole];
    for round in 0..rounds {
        for (lane, peer, k) in places(lanes, world) {
            let at = round * whole + place(lane, peer, k);
            all[at..at + size].copy_from_slice(&name(round, me, peer, lane, k));
        }
    }
    rank.write(inputs.address(), &all);
    let streams: Vec<_> = (0..lanes)
        .map(|_| rank.backend.stream(Default::default()).unwrap())
        .collect();
    rank.barrier();

    let mut random = Rng::with_seed(me as u64 + 17);
    let each = world * IN_FLIGHT * size;
    for round in 0..rounds {
        for (lane, stream) in streams.iter().enumerate() {
            let from = inputs.address().add(round * whole + lane * each);
            rank.copy(stream, exposed.local().add(lane * each), from, each);
            rank.backend.delay(stream, delay(&mut random, 200)).unwrap();
            let mut tokens = Vec::new();
            let range = |buffer: &SymmetricBuffer<B>, holder, peer, k| {
                MemoryRange::of(buffer, holder, place(lane, peer, k), size).unwrap()
            };
            let channel = |peer| rank.p2p.channel(peer, lane, method).unwrap();
            let each_k = || (0..world).flat_map(|peer| (0..IN_FLIGHT).map(move |k| (peer, k)));
            for (peer, k) in each_k() {
                // SAFETY: the buffers live until the ranks' barrier after all work; all tokens are waited for
                // before the ranges are used again.
                tokens.push(unsafe {
                    channel(peer)
                        .expose(stream, range(&exposed, me, peer, k))
                        .unwrap()
                });
                // SAFETY: as above.
                tokens.push(unsafe {
                    channel(peer)
                        .accept(stream, range(&target, me, peer, k))
                        .unwrap()
                });
            }
            for (peer, k) in each_k() {
                let theirs = MemoryRange::of(&exposed, peer, place(lane, me, k), size).unwrap();
                let mine = rank.mine(&pulled, place(lane, peer, k), size);
                // SAFETY: as above.
                tokens.push(unsafe { channel(peer).get(stream, theirs, mine).unwrap() });
                let theirs = MemoryRange::of(&target, peer, place(lane, me, k), size).unwrap();
                let source = range(&exposed, me, peer, k);
                // SAFETY: as above.
                tokens.push(unsafe { channel(peer).put(stream, source, theirs).unwrap() });
            }
            // In another order.
            while !tokens.is_empty() {
                let next = random.usize(..tokens.len());
                tokens.swap_remove(next).wait(stream).unwrap();
            }
            let at = round * whole + lane * each;
            rank.copy(
                stream,
                got.address().add(at),
                pulled.address().add(lane * each),
                each,
            );
            rank.copy(
                stream,
                put.address().add(at),
                target.local().add(lane * each),
                each,
            );
        }
    }
    for stream in &streams {
        rank.backend.synchronize(stream).unwrap();
    }
    rank.finish();
    for (what, log) in [("got", &got), ("put", &put)] {
        let log = rank.read(log.address(), rounds * whole);
        for round in 0..rounds {
            for (lane, peer, k) in places(lanes, world) {
                let at = round * whole + place(lane, peer, k);
                assert!(
                    log[at..at + size] == name(round, peer, me, lane, k),
                    "{what} by {method}: rank {me} of {world} from {peer}, round {round}, lane {lane}, \
                     number {k}"
                );
            }
        }
    }
    rank.barrier();
}

fn places(lanes: usize, world: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..lanes).flat_map(move |lane| {
        (0..world).flat_map(move |peer| (0..IN_FLIGHT).map(move |k| (lane, peer, k)))
    })
}
