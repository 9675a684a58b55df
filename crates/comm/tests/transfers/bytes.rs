//! Every alignment of both ends and lengths around those of vectors and chunks; bytes next to a range stay
//! untouched.

use warpweave_comm::p2p::{MemoryRange, TransferBackend, TransferMethod};
use warpweave_symm_mem::{Memory, SymmetricBuffer};

use super::{Rank, content};

const LENGTHS: [usize; 12] = [0, 1, 15, 16, 17, 31, 47, 48, 500, 4096, 70_001, 1_100_003];
/// Bytes checked next to a range.
const MARGIN: usize = 64;
const UNTOUCHED: u8 = 0xa5;

/// Two ranks: each gets from the other and puts to it, for offsets of the source and of the target.
pub fn exact<B: TransferBackend>(rank: &Rank<B>, method: TransferMethod, lengths: usize) {
    let (me, peer) = (rank.rank(), (rank.rank() + 1) % rank.world());
    let most = LENGTHS[lengths - 1] + 2 * MARGIN;
    let buffer = |name| SymmetricBuffer::new(&rank.backend, &rank.exchange, name, most).unwrap();
    let (source, target) = (buffer("source"), buffer("target"));
    let pulled = rank.memory(most);
    let channel = rank.p2p.channel(peer, 0, method).unwrap();
    let stream = &rank.stream;
    rank.write(source.local(), &content(me, 3, most));
    rank.barrier();
    for &length in &LENGTHS[..lengths] {
        for from in [0, 1, 2, 4, 7, 8, 11, 15] {
            for to in [0, 1, 3, 4, 8, 12, 15] {
                // SAFETY: both targets are this rank's and no transfer is in flight.
                unsafe {
                    let blank = |at| rank.backend.fill(stream, at, UNTOUCHED, most).unwrap();
                    blank(pulled.address());
                    blank(target.local());
                }
                let range = |buffer: &SymmetricBuffer<B>, holder, at| {
                    MemoryRange::of(buffer, holder, MARGIN + at, length).unwrap()
                };
                // SAFETY: the ranges live, the tokens are waited for before the next round.
                unsafe {
                    let exposed = channel.expose(stream, range(&source, me, from)).unwrap();
                    let accepted = channel.accept(stream, range(&target, me, to)).unwrap();
                    let mine = rank.mine(&pulled, MARGIN + to, length);
                    let got = channel
                        .get(stream, range(&source, peer, from), mine)
                        .unwrap();
                    let put = channel
                        .put(stream, range(&source, me, from), range(&target, peer, to))
                        .unwrap();
                    for token in [put, accepted, got, exposed] {
                        token.wait(stream).unwrap();
                    }
                }
                rank.finish();
                let wanted = &content(peer, 3, most)[MARGIN + from..][..length];
                for (what, at) in [("get", pulled.address()), ("put", target.local())] {
                    let seen = rank.read(at, most);
                    let (before, rest) = seen.split_at(MARGIN + to);
                    let (moved, behind) = rest.split_at(length);
                    let context =
                        || format!("{what} of {length} bytes by {method}, {from} to {to}");
                    assert!(moved == wanted, "{}", context());
                    assert!(
                        before.iter().chain(behind).all(|&byte| byte == UNTOUCHED),
                        "{}: a byte next to the range",
                        context()
                    );
                }
            }
        }
    }
    rank.barrier();
}
