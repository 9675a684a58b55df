//! A transfer posted on one stream and waited for on another.

use fastrand::Rng;
use warpweave_comm::p2p::{MemoryRange, TransferBackend, TransferMethod};
use warpweave_symm_mem::{Memory, SymmetricBuffer};

use super::{Rank, content, delay};

const CALLS: usize = 30;
const BYTES: usize = 300;

/// Two ranks: each gets from the other on one stream and keeps what it got on another.
pub fn exact<B: TransferBackend>(rank: &Rank<B>, method: TransferMethod) {
    let (me, peer) = (rank.rank(), 1 - rank.rank());
    let (backend, posts) = (&rank.backend, &rank.stream);
    let keeps = backend.stream(Default::default()).unwrap();
    let kept = backend.event().unwrap();
    let parts = SymmetricBuffer::new(backend, &rank.exchange, "parts", BYTES).unwrap();
    let (pulled, inputs, log) = (
        rank.memory(BYTES),
        rank.memory(CALLS * BYTES),
        rank.memory(CALLS * BYTES),
    );
    let all: Vec<u8> = (0..CALLS)
        .flat_map(|call| content(me, call, BYTES))
        .collect();
    rank.write(inputs.address(), &all);
    rank.barrier();
    let channel = rank.p2p.channel(peer, 0, method).unwrap();
    let whole = |of| MemoryRange::of(&parts, of, 0, BYTES).unwrap();
    let mut random = Rng::with_seed(me as u64 + 5);
    for call in 0..CALLS {
        let input = inputs.address().add(call * BYTES);
        rank.copy(posts, parts.local(), input, BYTES);
        backend.delay(posts, delay(&mut random, 500)).unwrap();
        // SAFETY: the ranges live, and events and tokens order their uses.
        let (exposed, got) = unsafe {
            let exposed = channel.expose(posts, whole(me)).unwrap();
            let mine = rank.mine(&pulled, 0, BYTES);
            (exposed, channel.get(posts, whole(peer), mine).unwrap())
        };
        got.wait(&keeps).unwrap();
        let entry = log.address().add(call * BYTES);
        rank.copy(&keeps, entry, pulled.address(), BYTES);
        backend.record(&kept, &keeps).unwrap();
        backend.wait_event(posts, &kept).unwrap();
        exposed.wait(posts).unwrap();
    }
    backend.synchronize(&keeps).unwrap();
    rank.finish();
    let log = rank.read(log.address(), CALLS * BYTES);
    for call in 0..CALLS {
        assert!(
            log[call * BYTES..][..BYTES] == content(peer, call, BYTES),
            "{method}: rank {me}, call {call}"
        );
    }
    rank.barrier();
}
