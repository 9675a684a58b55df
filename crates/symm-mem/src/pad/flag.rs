//! One flag of a signal pad on the host: the protocol that `signal.cuh` runs on a GPU.
//!
//! The protocol is generic over the flag, so loom explores the code that runs (`RUSTFLAGS="--cfg loom" cargo
//! test --lib loom_`).

#[cfg(not(shuttle))]
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[cfg(not(shuttle))]
use rustix::thread::futex;

use crate::sync::Instant;

/// Polls before the waiter sleeps. In a model, polls are expensive and more of them show nothing new.
const SPINS: u32 = if cfg!(loom) { 1 } else { 64 };

/// Longest sleep between two polls. A peer that dies between its store and its wake must not cost the whole
/// deadline.
const NAP: Duration = Duration::from_millis(20);

/// A u32 that one thread publishes epochs to and another waits on.
pub trait Flag {
    /// The current epoch, with acquire: everything before its publication is visible.
    fn load(&self) -> u32;

    /// Publishes `epoch` with release and wakes the waiter.
    fn publish(&self, epoch: u32);

    /// Called between two polls.
    fn relax(&self);

    /// Sleeps for at most `nap`, or until the flag is no longer `seen`.
    fn sleep(&self, seen: u32, nap: Duration);
}

/// A flag in memory that processes may share, so its futex is not private.
#[cfg(not(shuttle))]
impl Flag for AtomicU32 {
    fn load(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn publish(&self, epoch: u32) {
        self.store(epoch, Ordering::Release);
        // If the wake fails, the waiter sees the store at its next poll.
        let _ = futex::wake(self, futex::Flags::empty(), u32::MAX);
    }

    fn relax(&self) {
        std::hint::spin_loop();
    }

    fn sleep(&self, seen: u32, nap: Duration) {
        let nap = futex::Timespec {
            tv_sec: nap.as_secs() as i64,
            tv_nsec: nap.subsec_nanos().into(),
        };
        // The next poll decides, however this ends.
        let _ = futex::wait(self, futex::Flags::empty(), seen, Some(&nap));
    }
}

/// True once the epoch `seen` has reached `wanted`, compared cyclically.
pub const fn reached(seen: u32, wanted: u32) -> bool {
    (seen.wrapping_sub(wanted) as i32) >= 0
}

/// The same of a flag that carries the number of a call, in which no peer is more than one ahead: one that
/// seems to be was last written 2³¹ calls ago.
pub const fn reached_call(seen: u32, wanted: u32) -> bool {
    seen.wrapping_sub(wanted) <= 1
}

/// The later of two epochs, compared cyclically.
pub const fn later(a: u32, b: u32) -> u32 {
    if reached(a, b) { a } else { b }
}

/// Waits until `is_enough` accepts the epoch in `flag`. Returns that epoch as an error at the deadline, once
/// `stopped`, or if `noticed`: a rank gave notice that its own wait failed. A notice counts even if the flag
/// has arrived, because the signalled data may no longer be valid. It is checked before the flag is read.
pub fn wait(
    flag: &impl Flag,
    is_enough: impl Fn(u32) -> bool,
    timeout: Duration,
    noticed: impl Fn() -> bool,
    stopped: impl Fn() -> bool,
) -> Result<(), u32> {
    let start = Instant::now();
    let mut looks = 0u32;
    loop {
        let noticed = noticed();
        let seen = flag.load();
        if noticed {
            return Err(seen);
        }
        if is_enough(seen) {
            return Ok(());
        }
        looks += 1;
        if looks < SPINS {
            flag.relax();
            continue;
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() || stopped() {
            return Err(seen);
        }
        flag.sleep(seen, left.min(NAP));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn epochs_compare_cyclically() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(2, u32::MAX - 3) && !reached(u32::MAX - 3, 2));
        assert_eq!(later(u32::MAX, 1), 1);
        assert!(reached_call(5, 5) && reached_call(0, u32::MAX) && !reached_call(4, 5));
        assert!(reached(5, 6 + (1 << 31)) && !reached_call(5, 6 + (1 << 31)));
    }

    #[test]
    fn a_wait_ends_by_the_store_or_by_the_deadline() {
        let flag = AtomicU32::new(u32::MAX);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                flag.publish(1);
            });
            let long = Duration::from_secs(20);
            wait(&flag, |seen| seen == 1, long, || false, || false).unwrap();
        });
        let ends = |wanted, millis, noticed, stopped| {
            let timeout = Duration::from_millis(millis);
            let is_enough = |seen| reached(seen, wanted);
            wait(&flag, is_enough, timeout, || noticed, || stopped)
        };
        assert_eq!(ends(2, 30, false, false), Err(1));
        assert_eq!(ends(2, 1_000_000, false, true), Err(1));
        assert_eq!(ends(1, 1_000_000, false, true), Ok(()));
        assert_eq!(ends(1, 1_000_000, true, false), Err(1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::time::Duration;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::thread;

    use super::{Flag, reached, wait};

    impl Flag for AtomicU32 {
        fn load(&self) -> u32 {
            self.load(Ordering::Acquire)
        }

        fn publish(&self, epoch: u32) {
            self.store(epoch, Ordering::Release);
        }

        fn relax(&self) {
            thread::yield_now();
        }

        fn sleep(&self, _seen: u32, _nap: Duration) {
            thread::yield_now();
        }
    }

    fn until(flag: &AtomicU32, wanted: u32) {
        let is_enough = |seen| reached(seen, wanted);
        wait(
            flag,
            is_enough,
            Duration::from_secs(3600),
            || false,
            || false,
        )
        .expect("the peer signals");
    }

    struct Link {
        ready: AtomicU32,
        free: AtomicU32,
        data: UnsafeCell<u32>,
    }

    // SAFETY: loom reports the race if the flags do not separate the threads.
    unsafe impl Sync for Link {}
    // SAFETY: as above.
    unsafe impl Send for Link {}

    /// Calls back to back: the writer takes a credit of the previous call, the reader releases it. `first` is
    /// the epoch before the first call, so that the flags wrap around in some runs.
    fn calls_back_to_back(first: u32) {
        loom::model(move || {
            let link = Arc::new(Link {
                ready: AtomicU32::new(first),
                free: AtomicU32::new(first),
                data: UnsafeCell::new(0),
            });
            let peer = link.clone();
            let writer = thread::spawn(move || {
                for call in 1..=2 {
                    let epoch = first.wrapping_add(call);
                    until(&peer.free, epoch.wrapping_sub(1));
                    // SAFETY: loom checks it.
                    peer.data.with_mut(|data| unsafe { *data = call });
                    peer.ready.publish(epoch);
                }
            });
            for call in 1..=2 {
                let epoch = first.wrapping_add(call);
                until(&link.ready, epoch);
                // SAFETY: loom checks it.
                link.data.with(|data| assert_eq!(unsafe { *data }, call));
                link.free.publish(epoch);
            }
            writer.join().expect("the writer ends");
        });
    }

    #[test]
    fn loom_signals_and_credits_keep_calls_apart() {
        calls_back_to_back(0);
    }

    #[test]
    fn loom_epochs_wrap_around() {
        calls_back_to_back(u32::MAX - 1);
    }

    /// The model finds what the credit prevents.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_without_the_credit_there_is_a_race() {
        loom::model(|| {
            let link = Arc::new(Link {
                ready: AtomicU32::new(0),
                free: AtomicU32::new(0),
                data: UnsafeCell::new(0),
            });
            let peer = link.clone();
            let writer = thread::spawn(move || {
                for call in 1..=2 {
                    // SAFETY: it is not, and loom reports that.
                    peer.data.with_mut(|data| unsafe { *data = call });
                    peer.ready.publish(call);
                }
            });
            until(&link.ready, 1);
            // SAFETY: as above.
            link.data.with(|data| unsafe { *data });
            writer.join().expect("the writer ends");
        });
    }

    /// Two: with three spinning ranks the interleavings are too many.
    const RANKS: usize = 2;

    /// A rank's state for a barrier: a flag that each peer signals, a credit flag for each peer, and a cell
    /// that all peers read.
    struct Seat {
        arrived: [AtomicU32; RANKS],
        credit: [AtomicU32; RANKS],
        data: UnsafeCell<u32>,
    }

    // SAFETY: loom reports the race if the flags do not separate the threads.
    unsafe impl Sync for Seat {}
    // SAFETY: as above.
    unsafe impl Send for Seat {}

    /// One rank's part of a call: take the peers' credits of the previous call, write, signal all, wait for
    /// all, read all, release the credits.
    fn barrier(seats: &[Seat; RANKS], me: usize, epoch: u32, call: u32) {
        let peers = || (0..RANKS).filter(move |&peer| peer != me);
        for peer in peers() {
            until(&seats[me].credit[peer], epoch.wrapping_sub(1));
        }
        // SAFETY: loom checks it.
        seats[me].data.with_mut(|data| unsafe { *data = call });
        for peer in peers() {
            seats[peer].arrived[me].publish(epoch);
        }
        for peer in peers() {
            until(&seats[me].arrived[peer], epoch);
            // SAFETY: loom checks it.
            seats[peer]
                .data
                .with(|data| assert_eq!(unsafe { *data }, call));
            seats[peer].credit[me].publish(epoch);
        }
    }

    fn barriers(calls: u32, first: u32, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        // Those that spin alternate.
        builder.max_branches = 100_000;
        builder.check(move || {
            let flags = || std::array::from_fn(|_| AtomicU32::new(first));
            let seats: Arc<[Seat; RANKS]> = Arc::new(std::array::from_fn(|_| Seat {
                arrived: flags(),
                credit: flags(),
                data: UnsafeCell::new(0),
            }));
            let run = move |seats: &[Seat; RANKS], me: usize| {
                for call in 1..=calls {
                    barrier(seats, me, first.wrapping_add(call), call);
                }
            };
            let peers: Vec<_> = (1..RANKS)
                .map(|me| {
                    let seats = seats.clone();
                    thread::spawn(move || run(&seats, me))
                })
                .collect();
            run(&seats, 0);
            for peer in peers {
                peer.join().expect("every rank ends");
            }
        });
    }

    #[test]
    fn loom_a_barrier_synchronizes_ranks() {
        barriers(1, 0, 3);
    }

    #[test]
    fn loom_barriers_with_credits_follow_each_other_and_wrap_around() {
        barriers(2, u32::MAX - 1, 2);
    }
}
