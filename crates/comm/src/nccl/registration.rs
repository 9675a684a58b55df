//! Registered memory of a communicator, from registration to deregistration.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::api::SUCCESS;
use super::memory::NcclMemory;
use super::state::{Kind, Registration, Shared, State};
use super::teardown::{Handle, TEARDOWN, bounded};
use crate::error::Result;

/// Owns an entry of the list, and deregisters it on drop at the latest.
pub(super) struct RegistrationGuard {
    shared: Arc<Shared>,
    id: u64,
}

impl RegistrationGuard {
    pub fn new(
        shared: &Arc<Shared>,
        call: &'static str,
        (range, kind): (Range<u64>, Kind),
        handle: Handle<c_void>,
        memory: Option<Arc<NcclMemory>>,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut state = shared.enter(call)?;
        state.registrations.push(Registration {
            id,
            range,
            kind,
            handle: handle.get(),
            retired: false,
            _memory: memory.map(|memory| memory as Arc<dyn Send + Sync>),
        });
        shared.leave(state);
        Ok(Self {
            shared: shared.clone(),
            id,
        })
    }

    pub fn deregister(self, call: &'static str) -> Result<()> {
        let mut state = self.shared.enter(call)?;
        let at = state.registrations.iter().position(|r| r.id == self.id);
        let ended = at.map(|at| self.shared.end_registration(&mut state, at));
        self.shared.leave(state);
        ended.transpose().map(drop)
    }
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        let Some(mut state) = self.shared.idle() else {
            self.shared.retire(self.id);
            return;
        };
        let Some(at) = state.registrations.iter().position(|r| r.id == self.id) else {
            return;
        };
        let ended = self.shared.end_registration(&mut state, at);
        self.shared.leave(state);
        if let Err(error) = ended {
            tracing::warn!(%error, "a registration stays until its communicator ends");
        }
    }
}

impl Shared {
    /// Deregisters the `at`-th. The caller drops the result once the lock is free, since that may free its
    /// memory.
    fn end_registration(&self, state: &mut State, at: usize) -> Result<Registration> {
        let Registration { kind, handle, .. } = state.registrations[at];
        let function = match kind {
            Kind::Buffer => &self.library.api.deregister,
            Kind::Window { .. } => &self.library.api.window_deregister,
        };
        let (call, deregister) = (function.name, function.get()?);
        let (raw, handle) = (Handle(state.raw), Handle(handle));
        let code = bounded(call, TEARDOWN, move || {
            // SAFETY: the communicator is alive and the handle one of its own: the caller holds the lock.
            unsafe { deregister(raw.get(), handle.get()) }
        });
        match code {
            Some(SUCCESS) => Ok(state.registrations.swap_remove(at)),
            Some(code) => Err(self.error(call, code)),
            None => {
                state.abandon();
                Err(self.left_behind(call, TEARDOWN))
            }
        }
    }

    fn end_where(&self, call: &'static str, which: impl Fn(&Registration) -> bool) -> Result<()> {
        let mut state = self.enter(call)?;
        let mut ended = Vec::new();
        let mut outcome = Ok(());
        while let Some(at) = state.registrations.iter().position(&which) {
            match self.end_registration(&mut state, at) {
                Ok(registration) => ended.push(registration),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.leave(state);
        outcome
    }

    pub fn deregister_all(&self) -> Result<()> {
        self.end_where("ncclCommDeregister", |_| true)
    }

    /// Deregisters what was dropped while NCCL was busy.
    pub fn deregister_retired(&self, call: &'static str) -> Result<()> {
        self.end_where(call, |registration| registration.retired)
    }

    fn retire(&self, id: u64) {
        let Some(mut state) = self.lock_for_teardown() else {
            return;
        };
        if let Some(registration) = state.registrations.iter_mut().find(|r| r.id == id) {
            registration.retired = true;
        }
    }

    /// Whether a registration of a kind that `which` accepts contains the address.
    pub fn registered(&self, address: u64, which: impl Fn(Kind) -> bool) -> bool {
        self.lock_for_teardown().is_some_and(|state| {
            state
                .registrations
                .iter()
                .any(|r| which(r.kind) && r.range.contains(&address))
        })
    }
}
