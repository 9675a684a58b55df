//! Every interleaving of two ranks; a thread stands for each rank's stream.

use std::cell::Cell;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use warpweave_symm_mem::pad::flag::{self, Flag};

use super::{Link, conclude, signal, transfer};
use crate::p2p::counts::PostCounts;
use crate::p2p::role::{Role, Signal};

struct Watched(AtomicU32);

impl Flag for Watched {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn publish(&self, epoch: u32) {
        self.0.store(epoch, Ordering::Release);
    }

    fn relax(&self) {
        thread::yield_now();
    }

    fn sleep(&self, _seen: u32, _nap: Duration) {
        thread::yield_now();
    }
}

/// The flags in the pads of two ranks, and two ranges of memory.
struct Pair {
    flags: [[Watched; Signal::SLOTS]; 2],
    ranges: [UnsafeCell<u32>; 2],
}

// SAFETY: loom reports a race if the flags do not keep the threads apart.
unsafe impl Sync for Pair {}
// SAFETY: as above.
unsafe impl Send for Pair {}

impl Pair {
    fn write(&self, range: usize, value: u32) {
        // SAFETY: loom checks it.
        self.ranges[range].with_mut(|at| unsafe { *at = value });
    }

    fn read(&self, range: usize) -> u32 {
        // SAFETY: loom checks it.
        self.ranges[range].with(|at| unsafe { *at })
    }
}

/// A rank's end, with its counters.
struct End {
    pair: Arc<Pair>,
    rank: usize,
    sent: Cell<[u32; Signal::SLOTS]>,
    expected: Cell<[u32; Signal::SLOTS]>,
    /// Takes every credit for granted.
    careless: bool,
}

fn advance(counters: &Cell<[u32; Signal::SLOTS]>, signal: Signal) -> u32 {
    let mut all = counters.get();
    all[signal as usize] = all[signal as usize].wrapping_add(1);
    counters.set(all);
    all[signal as usize]
}

impl Link for End {
    fn signal(&self, signal: Signal) {
        let epoch = advance(&self.sent, signal);
        self.pair.flags[1 - self.rank][signal as usize].publish(epoch);
    }

    fn withhold(&self, _signal: Signal) {
        unreachable!("no wait fails");
    }

    fn expect(&self, signal: Signal) -> bool {
        let epoch = advance(&self.expected, signal);
        let flag = &self.pair.flags[self.rank][signal as usize];
        let long = Duration::from_secs(3600);
        (self.careless && signal == Signal::Free)
            || flag::wait(
                flag,
                |seen| flag::reached(seen, epoch),
                long,
                || false,
                || false,
            )
            .is_ok()
    }

    fn is_broken(&self) -> bool {
        false
    }
}

/// The offers of a rank, with the counts of its tokens.
struct Offers<'a> {
    end: &'a End,
    role: Role,
    counts: PostCounts,
}

impl<'a> Offers<'a> {
    fn new(end: &'a End, role: Role) -> Self {
        Offers {
            end,
            role,
            counts: PostCounts::default(),
        }
    }

    fn post(&mut self) -> u64 {
        signal(self.end, self.role.signalled());
        self.counts.post(false)
    }

    fn wait(&mut self, token: u64) {
        let due = self.counts.due(token);
        assert!(conclude(self.end, self.role, due));
        (0..due).for_each(|_| self.counts.wait());
    }
}

/// Runs `first` as rank 0 and `second` as rank 1, in every order; `epoch` is the one before the first signal.
fn ranks(epoch: u32, careless: bool, first: fn(&End), second: fn(&End)) {
    let mut model = loom::model::Builder::new();
    // Bounds how often a runnable thread is preempted.
    model.preemption_bound = Some(3);
    model.check(move || {
        let flag = || Watched(AtomicU32::new(epoch));
        let flags = || [flag(), flag(), flag(), flag()];
        let pair = Arc::new(Pair {
            flags: [flags(), flags()],
            ranges: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let counters = [epoch; Signal::SLOTS];
        let end = |rank| End {
            pair: pair.clone(),
            rank,
            sent: Cell::new(counters),
            expected: Cell::new(counters),
            careless,
        };
        let (one, other) = (end(0), end(1));
        let peer = thread::spawn(move || second(&other));
        first(&one);
        peer.join().expect("the peer ends");
    });
}

/// Two ranges in flight, the first used again as soon as it has been read.
fn owner(end: &End) {
    let mut offers = Offers::new(end, Role::Expose);
    end.pair.write(0, 1);
    let first = offers.post();
    end.pair.write(1, 2);
    let second = offers.post();
    offers.wait(first);
    end.pair.write(0, 3);
    let third = offers.post();
    offers.wait(third);
    // Completed, since a later one has.
    offers.wait(second);
    end.pair.write(0, 4);
    end.pair.write(1, 5);
}

fn reader(end: &End) {
    for (range, value) in [(0, 1), (1, 2), (0, 3)] {
        let read = || assert_eq!(end.pair.read(range), value);
        assert!(transfer(end, Role::Get, read));
    }
}

/// Two ranges in flight, the first accepted into again as soon as it has been looked at.
fn receiver(end: &End) {
    let mut offers = Offers::new(end, Role::Accept);
    let first = offers.post();
    let second = offers.post();
    offers.wait(first);
    assert_eq!(end.pair.read(0), 1);
    let third = offers.post();
    offers.wait(second);
    assert_eq!(end.pair.read(1), 2);
    offers.wait(third);
    assert_eq!(end.pair.read(0), 3);
}

fn writer(end: &End) {
    for (range, value) in [(0, 1), (1, 2), (0, 3)] {
        assert!(transfer(end, Role::Put, || end.pair.write(range, value)));
    }
}

/// Gets from the peer and lets the peer get, twice, with nothing in between.
fn both_ways(end: &End) {
    let (mine, theirs) = (end.rank, 1 - end.rank);
    let mut offers = Offers::new(end, Role::Expose);
    for call in 1..=2 {
        end.pair.write(mine, call);
        let token = offers.post();
        let read = || assert_eq!(end.pair.read(theirs), call);
        assert!(transfer(end, Role::Get, read));
        offers.wait(token);
    }
}

#[test]
fn loom_get_with_two_in_flight() {
    ranks(0, false, owner, reader);
}

#[test]
fn loom_put_with_credits_and_two_in_flight() {
    ranks(0, false, receiver, writer);
}

#[test]
fn loom_transfers_as_epochs_wrap_around() {
    ranks(u32::MAX - 1, false, owner, reader);
    ranks(u32::MAX - 1, false, receiver, writer);
}

#[test]
fn loom_both_directions_at_once() {
    ranks(0, false, both_ways, both_ways);
}

/// The model finds the race that the credit prevents.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_put_without_its_credit_is_a_race() {
    ranks(0, true, receiver, writer);
}
