//! One word of a signal pad on the host: the same protocol that `signal.cuh` runs on a GPU.
//!
//! The word may be shared between processes, so a waiter sleeps on a futex that is not private to the process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;

/// True once the epoch `seen` has reached `wanted`, compared cyclically.
pub const fn reached(seen: u32, wanted: u32) -> bool {
    (seen.wrapping_sub(wanted) as i32) >= 0
}

/// The later of two epochs, compared cyclically.
pub const fn later(a: u32, b: u32) -> u32 {
    if reached(a, b) { a } else { b }
}

/// Publishes `epoch`: what this thread did before is visible to who sees it.
pub fn store(word: &AtomicU32, epoch: u32) {
    word.store(epoch, Ordering::Release);
    // A failed wake can only delay the waiter to its next look.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX);
}

/// Waits until `word` has reached `wanted`; at the deadline returns the epoch seen as the error. `give_up` is asked
/// now and then whether waiting has become pointless.
pub fn wait(
    word: &AtomicU32,
    wanted: u32,
    timeout: Duration,
    give_up: impl Fn() -> bool,
) -> Result<(), u32> {
    let start = Instant::now();
    let mut looks = 0u32;
    loop {
        let seen = word.load(Ordering::Acquire);
        if reached(seen, wanted) {
            return Ok(());
        }
        looks += 1;
        if looks < 64 {
            std::hint::spin_loop();
            continue;
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() || give_up() {
            return Err(seen);
        }
        // Bounded naps: a waker that dies between its store and its wake must not cost the deadline.
        let nap = left.min(Duration::from_millis(20));
        let nap = futex::Timespec {
            tv_sec: nap.as_secs() as i64,
            tv_nsec: nap.subsec_nanos().into(),
        };
        let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&nap));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_compare_cyclically() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(2, u32::MAX - 3) && !reached(u32::MAX - 3, 2));
        assert_eq!(later(u32::MAX, 1), 1);
    }

    #[test]
    fn a_wait_ends_by_the_store_or_by_the_deadline() {
        let word = AtomicU32::new(u32::MAX);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                store(&word, 1);
            });
            wait(&word, 1, Duration::from_secs(20), || false).unwrap();
        });
        assert_eq!(wait(&word, 2, Duration::from_millis(30), || false), Err(1));
        assert_eq!(wait(&word, 2, Duration::from_secs(1000), || true), Err(1));
    }
}
