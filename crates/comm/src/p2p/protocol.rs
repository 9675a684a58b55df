//! The protocol of a transfer, generic over flags and memory: loom explores the code that the host backend
//! runs. `cuda/transfer.cuh` is its device twin.
//!
//! ```text
//! owner     expose: ready ──►                                  ──► done: its token completes
//! reader              get: ready ─► read the range ─► done ──┘
//!
//! receiver  accept: free ──►                                   ──► arrived: its token completes
//! writer               put: free ─► write the range ─► arrived ─┘
//! ```
//!
//! Nothing is signalled after a wait that failed: what the signal would say has not happened. That is a fault
//! of the pad, of which all ranks have notice: a peer must not take the next signal for a withheld one.

use super::role::{Role, Signal};

/// One rank's end of a lane to one peer. One thread at a time.
pub(crate) trait Link {
    /// Signals the peer: a release after everything that this thread did.
    fn signal(&self, signal: Signal);

    /// Records that the signal is not sent.
    fn withhold(&self, signal: Signal);

    /// Waits for the peer's next signal of this kind: an acquire. Returns false if it did not arrive in time.
    fn expect(&self, signal: Signal) -> bool;

    /// Whether an earlier wait of this rank has failed.
    fn is_broken(&self) -> bool;
}

/// Signals outside of a copy kernel: the offer of a rank that exposes or accepts, or the end of a copy by
/// other means.
pub(crate) fn signal(link: &impl Link, signal: Signal) {
    match link.is_broken() {
        false => link.signal(signal),
        true => link.withhold(signal),
    }
}

/// The active end, which gets or puts: `copy` runs once the peer has granted it, and the peer is signalled
/// when it has ended. Returns false if it did not run.
pub(crate) fn transfer(link: &impl Link, role: Role, copy: impl FnOnce()) -> bool {
    if !link.expect(role.awaited()) {
        return false;
    }
    if link.is_broken() {
        link.withhold(role.signalled());
        return false;
    }
    copy();
    link.signal(role.signalled());
    true
}

/// The second half of an offer: waits until the peer has ended `due` more transfers.
#[cfg(all(test, loom))]
pub(crate) fn conclude(link: &impl Link, role: Role, due: u64) -> bool {
    (0..due).all(|_| link.expect(role.awaited()))
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A peer that grants the first `granted` waits.
    struct Peer {
        granted: Cell<usize>,
        heard: RefCell<Vec<Signal>>,
        withheld: RefCell<Vec<Signal>>,
    }

    impl Link for Peer {
        fn signal(&self, signal: Signal) {
            self.heard.borrow_mut().push(signal);
        }

        fn withhold(&self, signal: Signal) {
            self.withheld.borrow_mut().push(signal);
        }

        fn expect(&self, _signal: Signal) -> bool {
            let left = self.granted.get();
            self.granted.set(left.saturating_sub(1));
            left > 0
        }

        fn is_broken(&self) -> bool {
            self.granted.get() == 0
        }
    }

    #[test]
    fn after_a_failed_wait_nothing_is_copied_or_signalled() {
        let peer = Peer {
            granted: Cell::new(2),
            heard: RefCell::default(),
            withheld: RefCell::default(),
        };
        let copied = Cell::new(0);
        let get = || transfer(&peer, Role::Get, || copied.set(copied.get() + 1));
        assert_eq!([get(), get(), get()], [true, false, false]);
        signal(&peer, Signal::Free);
        assert_eq!(
            (copied.get(), peer.heard.borrow().as_slice()),
            (1, &[Signal::Done][..])
        );
        assert_eq!(*peer.withheld.borrow(), [Signal::Done, Signal::Free]);
    }
}
