//! parking_lot's interface over shuttle's types, a clock that counts scheduler steps, and signal-pad flags
//! that yield to the scheduler before each operation.
//!
//! One thread runs at a time, so the atomics in shared memory are sequentially consistent here. Shuttle
//! explores interleavings; loom explores weak memory, for the flags only.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shuttle::thread;

use crate::pad::flag::Flag;

/// The duration of one scheduler step. A deadline is a number of steps, and only steps let time pass.
const STEP: Duration = Duration::from_micros(1);

#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

pub struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("empty only inside a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("empty only inside a wait")
    }
}

#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

pub struct WaitTimeoutResult;

impl WaitTimeoutResult {
    pub fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub const fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(held) = guard.0.take() {
            let woken = self.0.wait(held);
            guard.0 = Some(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Has no deadline: if no thread can continue, the scheduler reports it.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }
}

/// A point in time: the number of scheduler steps so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(usize);

impl Instant {
    pub fn now() -> Self {
        Self(shuttle::current::context_switches())
    }

    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        let steps = u32::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(u32::MAX);
        STEP * steps
    }
}

/// Flags only grow, so a choice before an operation covers every choice after it.
impl Flag for AtomicU32 {
    fn load(&self) -> u32 {
        thread::sleep(STEP);
        self.load(Ordering::Acquire)
    }

    fn publish(&self, epoch: u32) {
        thread::sleep(STEP);
        self.store(epoch, Ordering::Release);
    }

    fn relax(&self) {
        thread::yield_now();
    }

    fn sleep(&self, _seen: u32, _nap: Duration) {
        thread::yield_now();
    }
}
