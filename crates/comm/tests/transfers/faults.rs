//! Refused posts, dropped tokens, and a silent peer.

use std::time::Duration;

use warpweave_comm::CommError;
use warpweave_comm::p2p::{Channel, MemoryRange, TransferBackend, TransferMethod};
use warpweave_symm_mem::{BackendKind, FaultCause, Memory, SymmetricBuffer};

use super::ring::{DIRECTIONS, Ring};
use super::{Rank, content};

const BYTES: usize = 100;

fn buffer<B: TransferBackend>(rank: &Rank<B>) -> SymmetricBuffer<B> {
    SymmetricBuffer::new(&rank.backend, &rank.exchange, "parts", BYTES).unwrap()
}

/// Each rank offers its part, and pulls that of the next.
struct Pull<'a, B: TransferBackend> {
    rank: &'a Rank<B>,
    peer: usize,
    parts: SymmetricBuffer<B>,
    pulled: B::Memory,
    channel: Channel<B>,
}

impl<'a, B: TransferBackend> Pull<'a, B> {
    fn of_next(rank: &'a Rank<B>) -> Self {
        let peer = (rank.rank() + 1) % rank.world();
        Pull {
            rank,
            peer,
            parts: buffer(rank),
            pulled: rank.memory(BYTES),
            channel: rank.p2p.channel(peer, 0, TransferMethod::Sm).unwrap(),
        }
    }

    /// Writes this rank's part.
    fn offer(&self, call: usize) {
        let rank = self.rank;
        rank.write(self.parts.local(), &content(rank.rank(), call, BYTES));
    }

    fn own(&self) -> MemoryRange {
        MemoryRange::of(&self.parts, self.rank.rank(), 0, BYTES).unwrap()
    }

    fn theirs(&self) -> MemoryRange {
        MemoryRange::of(&self.parts, self.peer, 0, BYTES).unwrap()
    }

    fn target(&self) -> MemoryRange {
        self.rank.mine(&self.pulled, 0, BYTES)
    }

    /// What was pulled is the peer's part.
    fn check(&self, call: usize) {
        let read = self.rank.read(self.pulled.address(), BYTES);
        assert_eq!(read, content(self.peer, call, BYTES));
    }
}

/// Posts that contradict themselves are errors, and enqueue nothing that a peer could see.
pub fn refusals<B: TransferBackend>(rank: &Rank<B>) {
    let (me, peer) = (rank.rank(), (rank.rank() + 1) % rank.world());
    let parts = buffer(rank);
    let whole = |of| MemoryRange::of(&parts, of, 0, BYTES).unwrap();
    let refused = |what: &str, error: CommError| {
        assert!(
            matches!(error, CommError::InvalidArgument { .. }),
            "{what}: {error}"
        );
    };
    assert!(MemoryRange::of(&parts, peer, 1, BYTES).is_err());
    let lanes = rank.p2p.options().lanes;
    for (to, lane) in [(rank.world(), 0), (peer, lanes)] {
        refused(
            "channel",
            rank.p2p.channel(to, lane, TransferMethod::Sm).unwrap_err(),
        );
    }
    let channel = rank.p2p.channel(peer, 0, TransferMethod::Sm).unwrap();
    let short = MemoryRange::of(&parts, peer, 0, BYTES - 1).unwrap();
    // SAFETY: nothing is enqueued.
    unsafe {
        let s = &rank.stream;
        refused("expose", channel.expose(s, whole(peer)).unwrap_err());
        refused("accept", channel.accept(s, whole(peer)).unwrap_err());
        refused("get", channel.get(s, whole(peer), whole(peer)).unwrap_err());
        refused("put", channel.put(s, whole(me), whole(me)).unwrap_err());
        refused("get", channel.get(s, short, whole(me)).unwrap_err());
        let nccl = rank.p2p.channel(peer, 0, TransferMethod::Nccl).unwrap();
        let error = nccl.expose(s, whole(me)).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
    rank.finish();
    rank.barrier();
}

/// A dropped token makes the next post an error until its end was waited for, and loses no epoch.
pub fn dropped_tokens<B: TransferBackend>(rank: &Rank<B>) {
    let pull = Pull::of_next(rank);
    let (peer, channel, stream) = (pull.peer, &pull.channel, &rank.stream);
    for call in 0..4 {
        pull.offer(call);
        // SAFETY: the ranges live and the stream orders their uses.
        unsafe {
            drop(channel.expose(stream, pull.own()).unwrap());
            let error = channel.expose(stream, pull.own()).unwrap_err();
            let index = call as u64 + 1;
            assert!(
                matches!(error, CommError::TokenDropped { what: "expose", peer: p, index: i, .. }
                    if p == peer && i == index),
                "{error}"
            );
            let got = channel.get(stream, pull.theirs(), pull.target()).unwrap();
            got.wait(stream).unwrap();
        }
        rank.p2p.wait_all(stream, peer, 0).unwrap();
        rank.finish();
        pull.check(call);
    }
    rank.barrier();
}

/// Posts of a capture that fails never happen: the next transfer and a wait for all are as if they were not.
pub fn failed_captures<B: TransferBackend>(rank: &Rank<B>) {
    let pull = Pull::of_next(rank);
    let (peer, channel, stream) = (pull.peer, &pull.channel, &rank.stream);
    for call in 0..4 {
        pull.offer(call);
        let mut kept = None;
        let captured = rank.backend.capture(stream, || {
            // SAFETY: nothing of it runs.
            let token = unsafe { channel.expose(stream, pull.own())? };
            match call % 2 {
                0 => drop(token),
                _ => kept = Some(token),
            }
            // SAFETY: as above.
            let dropped = unsafe { channel.accept(stream, pull.own())? };
            drop(dropped);
            Err(CommError::InvalidArgument {
                what: "capture",
                why: "it fails".into(),
            })
        });
        captured.unwrap_err();
        if call > 1 {
            rank.p2p.wait_all(stream, peer, 0).unwrap();
        }
        // SAFETY: the ranges live and the stream orders their uses.
        unsafe {
            let exposed = channel.expose(stream, pull.own()).unwrap();
            let got = channel.get(stream, pull.theirs(), pull.target()).unwrap();
            got.wait(stream).unwrap();
            if let Some(kept) = kept {
                let error = kept.wait(stream).unwrap_err().to_string();
                assert!(error.contains("capture"), "{error}");
            }
            exposed.wait(stream).unwrap();
        }
        rank.finish();
        pull.check(call);
        rank.barrier();
    }
}

/// A wait in a capture for what was posted before it is refused, and the token from before still waits for
/// the peer.
pub fn waits_across_a_capture<B: TransferBackend>(rank: &Rank<B>) {
    let pull = Pull::of_next(rank);
    let (peer, channel, stream) = (pull.peer, &pull.channel, &rank.stream);
    for call in 0..4 {
        pull.offer(call);
        // SAFETY: the range lives, and is written again after the wait for its token.
        let mut exposed = Some(unsafe { channel.expose(stream, pull.own()).unwrap() });
        let captured = rank.backend.capture(stream, || match call % 3 {
            // SAFETY: nothing of it runs.
            0 => unsafe { channel.expose(stream, pull.own())? }.wait(stream),
            1 => rank.p2p.wait_all(stream, peer, 0),
            _ => exposed.take().expect("posted above").wait(stream),
        });
        let error = captured.map(|_| ()).unwrap_err();
        assert!(
            matches!(&error, CommError::InvalidArgument { why, .. } if why.contains("before the capture")),
            "{error}"
        );
        // Rank 0 could write its range before it has been read.
        if rank.rank() == 1 {
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: the ranges live and the stream orders their uses.
        let got = unsafe { channel.get(stream, pull.theirs(), pull.target()).unwrap() };
        got.wait(stream).unwrap();
        match exposed {
            Some(exposed) => exposed.wait(stream).unwrap(),
            None => rank.p2p.wait_all(stream, peer, 0).unwrap(),
        }
        rank.finish();
        rank.write(pull.parts.local(), &[0; BYTES]);
        pull.check(call);
        rank.barrier();
    }
}

/// Rank 0 is silent: the wait of rank 1 for it is an error that names it, nothing is signalled that did not
/// happen, and after recovery all is as it was.
pub fn silent_peer<B: TransferBackend>(rank: &Rank<B>, method: TransferMethod) {
    let (parts, stream) = (buffer(rank), &rank.stream);
    let lane = rank.p2p.options().lanes - 1;
    let whole = |of| MemoryRange::of(&parts, of, 0, BYTES).unwrap();
    rank.write(parts.local(), &content(rank.rank(), 0, BYTES));
    rank.barrier();
    let mut stale = None;
    if rank.rank() == 1 {
        let channel = rank.p2p.channel(0, lane, method).unwrap();
        let source = rank.memory(BYTES);
        // SAFETY: the ranges live; nobody uses rank 0's part meanwhile.
        unsafe {
            let put = channel.put(stream, rank.mine(&source, 0, BYTES), whole(0));
            put.unwrap().wait(stream).unwrap();
            stale = Some(channel.accept(stream, whole(1)).unwrap());
        }
        rank.backend.synchronize(stream).unwrap();
        let error = rank.p2p.check(stream).unwrap_err();
        assert!(
            matches!(&error, CommError::Transfer { lane: l, peer: 0, signal: "free", .. } if *l == lane),
            "{error}"
        );
        assert_eq!(error.culprit(), Some(0));
    }
    rank.barrier();
    if rank.rank() == 0 {
        // The put of rank 1 did not happen, so it does not arrive; and rank 1 gives no credit any more.
        let channel = rank.p2p.channel(1, lane, method).unwrap();
        // SAFETY: the range lives.
        let token = unsafe { channel.accept(stream, whole(0)).unwrap() };
        token.wait(stream).unwrap();
        rank.backend.synchronize(stream).unwrap();
        let error = rank.p2p.check(stream).unwrap_err();
        // It learns that it is the late one.
        let gave_up = FaultCause::PeerGaveUp { reporter: 1 };
        assert!(
            matches!(&error, CommError::Transfer { peer: 1, signal: "arrived", cause, .. }
                if cause.cause == gave_up),
            "{error}"
        );
        if method != TransferMethod::CopyEngine || B::KIND == BackendKind::Host {
            assert_eq!(rank.read(parts.local(), BYTES), content(0, 0, BYTES));
        }
    }
    rank.barrier();
    rank.p2p.recover(stream, rank.exchange.as_ref()).unwrap();
    if let Some(stale) = stale {
        let error = stale.wait(stream).unwrap_err().to_string();
        assert!(error.contains("given up"), "{error}");
    }
    rank.p2p.check(stream).unwrap();
    rank.barrier();
    for direction in DIRECTIONS {
        Ring::new(rank, direction, method, BYTES).exact(10, 100, false);
    }
}

/// Rank 0 exposes and accepts, and its peer comes when it has given up and uses its memory for something
/// else: what the peer got is right or it is told, and what rank 0 has now stays as it is.
pub fn late_peer<B: TransferBackend>(rank: &Rank<B>, method: TransferMethod, deadline: Duration) {
    let (parts, stream) = (buffer(rank), &rank.stream);
    let whole = |of| MemoryRange::of(&parts, of, 0, BYTES).unwrap();
    let source = rank.memory(BYTES);
    for is_get in [true, false] {
        let mine = content(rank.rank(), 1, BYTES);
        rank.write(parts.local(), &mine);
        rank.write(source.address(), &mine);
        rank.barrier();
        // SAFETY: the ranges live; rank 0 changes its own only when its token is through.
        unsafe {
            match rank.rank() {
                0 => {
                    let channel = rank.p2p.channel(1, 0, method).unwrap();
                    let token = match is_get {
                        true => channel.expose(stream, whole(0)).unwrap(),
                        false => channel.accept(stream, whole(0)).unwrap(),
                    };
                    token.wait(stream).unwrap();
                    rank.backend.synchronize(stream).unwrap();
                    assert!(rank.p2p.check(stream).is_err());
                    rank.write(parts.local(), &content(0, 2, BYTES));
                    rank.barrier();
                    rank.barrier();
                    assert_eq!(rank.read(parts.local(), BYTES), content(0, 2, BYTES));
                }
                1 => {
                    rank.barrier();
                    std::thread::sleep(deadline);
                    let channel = rank.p2p.channel(0, 0, method).unwrap();
                    let here = rank.mine(&source, 0, BYTES);
                    let token = match is_get {
                        true => channel.get(stream, whole(0), here).unwrap(),
                        false => channel.put(stream, here, whole(0)).unwrap(),
                    };
                    token.wait(stream).unwrap();
                    rank.backend.synchronize(stream).unwrap();
                    let error = rank.p2p.check(stream).unwrap_err();
                    assert_eq!(error.culprit(), Some(0), "{error}");
                    rank.barrier();
                }
                _ => {
                    rank.barrier();
                    rank.barrier();
                }
            }
        }
        rank.p2p.recover(stream, rank.exchange.as_ref()).unwrap();
        rank.p2p.check(stream).unwrap();
        rank.barrier();
    }
}
