//! The mutex and condition variable of the store's client: parking_lot's, or loom's in the models.

#[cfg(all(loom, test))]
pub(super) use explored::{Condvar, Mutex};
#[cfg(not(all(loom, test)))]
pub(super) use parking_lot::{Condvar, Mutex};

#[cfg(all(loom, test))]
mod explored {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    use loom::sync::atomic::{AtomicBool, Ordering};

    pub(in crate::store) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(in crate::store) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(in crate::store) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(in crate::store) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("loom ends at the first panic")))
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

    /// Deadlines pass when the model says so: loom knows no time.
    pub(in crate::store) struct Condvar {
        inner: loom::sync::Condvar,
        expired: AtomicBool,
    }

    pub(in crate::store) struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        pub(in crate::store) fn timed_out(&self) -> bool {
            self.0
        }
    }

    impl Condvar {
        pub(in crate::store) fn new() -> Self {
            Self {
                inner: loom::sync::Condvar::new(),
                expired: AtomicBool::new(false),
            }
        }

        pub(in crate::store) fn notify_all(&self) {
            self.inner.notify_all();
        }

        pub(in crate::store) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("empty only inside a wait");
            guard.0 = Some(self.inner.wait(held).expect("loom ends at the first panic"));
        }

        pub(in crate::store) fn wait_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _deadline: Instant,
        ) -> WaitTimeoutResult {
            if !self.expired.load(Ordering::Relaxed) {
                self.wait(guard);
            }
            WaitTimeoutResult(self.expired.load(Ordering::Relaxed))
        }

        /// Lets the deadlines of all waits pass. The caller holds the lock, as a thread does between its
        /// check and its wait.
        pub(in crate::store) fn expire_waits<T>(&self, _held: &MutexGuard<'_, T>) {
            self.expired.store(true, Ordering::Relaxed);
            self.inner.notify_all();
        }
    }
}
