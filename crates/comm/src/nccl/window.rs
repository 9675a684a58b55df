//! Windows and registered buffers: memory that NCCL knows in advance, so that it needs no staging copies.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use warpweave_symm_mem::Exchange;

use super::agreement::{agree_on_call, same};
use super::api::SUCCESS;
use super::comm::NcclComm;
use super::config::Launch;
use super::memory::NcclMemory;
use super::registration::RegistrationGuard;
use super::state::Kind;
use super::teardown::Handle;
use crate::error::{CommError, Result, agree, as_comm_error};

/// The kinds of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowKind {
    /// Buffers may lie at different offsets on each rank.
    Default,
    /// In every collective the buffers lie at the same offset of the window on all ranks:
    /// `NCCL_WIN_COLL_SYMMETRIC`, which symmetric kernels and the zero-CTA policy need.
    #[default]
    Symmetric,
}

/// How long NCCL may take to write the handle after it reported success.
const WRITTEN: Duration = Duration::from_secs(2);

/// Alignment of a window's address.
const ALIGNMENT: u64 = 4096;

/// Memory that all ranks registered together with `ncclCommWindowRegister`. From 2.27.
///
/// It shares ownership of the communicator and of its memory: NCCL deregisters the window before the memory
/// is freed, whichever is dropped first. Dropping it deregisters it on this rank alone, which takes at most
/// ten seconds; while NCCL is busy or a group is open, it is deferred to the next registration or the
/// communicator's end. [`NcclWindow::close`] closes it cleanly. Do neither while a stream uses the window or
/// is being captured.
pub struct NcclWindow {
    hold: RegistrationGuard,
    range: Range<u64>,
    kind: WindowKind,
}

/// Memory that this rank has registered with `ncclCommRegister`. From 2.19. Dropped as an [`NcclWindow`] is.
pub struct NcclRegistration {
    _hold: RegistrationGuard,
    range: Range<u64>,
}

impl fmt::Debug for NcclWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclWindow({:#x?}, {:?})", self.range, self.kind)
    }
}

impl fmt::Debug for NcclRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclRegistration({:#x?})", self.range)
    }
}

impl NcclWindow {
    /// The device address of its beginning.
    pub fn address(&self) -> u64 {
        self.range.start
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Its kind.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Deregisters it on all ranks, once no rank's stream uses it any more. Collective.
    ///
    /// # Errors
    /// [`CommError::Nccl`], [`CommError::PeerFailed`] where that is a peer's, and those of the exchange.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        const TAG: &str = "warpweave.nccl.window-close";
        exchange
            .barrier(TAG)
            .map_err(|e| as_comm_error(e, exchange.rank()))?;
        let closed = self.hold.deregister("ncclCommWindowDeregister");
        agree(exchange, TAG, closed)
    }
}

impl NcclRegistration {
    /// The device address of its beginning.
    pub fn address(&self) -> u64 {
        self.range.start
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl NcclComm {
    /// Makes a window of all of `memory`, together with the memory of every other rank. Collective:
    /// `exchange` is that of [`NcclComm::init`], or another among the same ranks.
    ///
    /// # Errors
    /// On all ranks when it fails on one. [`CommError::NcclTooOld`], [`CommError::Disagreement`] when sizes
    /// or kinds differ, [`CommError::InvalidArgument`] for memory that lies in a window already,
    /// [`CommError::NcclUnregistered`]: the communicator is as before. [`CommError::Nccl`] and
    /// [`CommError::Timeout`]: it was aborted.
    pub fn window(
        &self,
        exchange: &dyn Exchange,
        memory: &Arc<NcclMemory>,
        kind: WindowKind,
    ) -> Result<NcclWindow> {
        let range = self.range(memory.address(), memory.bytes());
        self.window_over(exchange, range, kind, Some(memory.clone()))
    }

    /// As [`NcclComm::window`], over `bytes` of other memory that NCCL accepts: mapped by CUDA's virtual
    /// memory management, with exportable handles, at a multiple of 4096.
    ///
    /// # Safety
    /// The memory stays mapped until the window is closed, or dropped with no work on it and none of NCCL's
    /// in progress, or the communicator has ended.
    ///
    /// # Errors
    /// As [`NcclComm::window`].
    pub unsafe fn window_at(
        &self,
        exchange: &dyn Exchange,
        address: u64,
        bytes: usize,
        kind: WindowKind,
    ) -> Result<NcclWindow> {
        let range = self.range(address, bytes);
        self.window_over(exchange, range, kind, None)
    }

    fn window_over(
        &self,
        exchange: &dyn Exchange,
        range: Result<Range<u64>>,
        kind: WindowKind,
        memory: Option<Arc<NcclMemory>>,
    ) -> Result<NcclWindow> {
        const PREPARED: &str = "warpweave.nccl.window";
        const REGISTERED: &str = "warpweave.nccl.window-registered";
        const CALL: &str = "ncclCommWindowRegister";
        // Whatever can fail before the call is done first, so that no rank waits in NCCL for one that will
        // not call it.
        let range = range
            .and_then(|range| self.may_register(range))
            .and_then(|range| self.of_these_ranks(exchange, range))
            .and_then(|range| self.shared.deregister_retired(CALL).map(|()| range));
        let range = agree(exchange, PREPARED, range)?;
        let size = range.end - range.start;
        same(exchange, "a window", &format!("{size} bytes, {kind:?}"))?;
        let symmetric = kind == WindowKind::Symmetric;
        let registered = self.register_window(&range, symmetric).and_then(|handle| {
            let entry = (range.clone(), Kind::Window { symmetric });
            RegistrationGuard::new(&self.shared, CALL, entry, handle, memory)
        });
        if let Err(CommError::Nccl { .. } | CommError::Timeout { .. }) = registered {
            // The peers are in the same call: this ends it for them too.
            self.abort();
        }
        let hold = agree_on_call(exchange, REGISTERED, registered)?;
        Ok(NcclWindow { hold, range, kind })
    }

    fn register_window(&self, range: &Range<u64>, symmetric: bool) -> Result<Handle<c_void>> {
        let register = &self.library().api.window_register;
        let (call, register) = (register.name, register.get()?);
        // NCCL writes the handle when all ranks have called, which may be after this call has given up.
        let place = Arc::new(AtomicPtr::new(null_mut()));
        let theirs = Arc::into_raw(place.clone());
        let handle = Handle(theirs.cast_mut());
        let (address, bytes) = (pointer(range.start), (range.end - range.start) as usize);
        let address = Handle(address);
        let make = move |raw| {
            let (place, flags) = (handle.get(), i32::from(symmetric));
            // SAFETY: the communicator is alive while the call runs, and the place lives until NCCL has
            // written it. The registration shares ownership of the memory, or the caller of `window_at` keeps
            // it.
            unsafe { register(raw, address.get(), bytes, (*place).as_ptr(), flags) }
        };
        let code = match self.launch {
            Launch::NonBlocking => self.shared.call(call, make),
            Launch::Blocking => self.shared.call_bounded(call, self.shared.deadline, make),
        };
        // For a non-blocking communicator success means that the call has begun.
        let code = code.and_then(|code| match self.launch {
            Launch::NonBlocking if code == SUCCESS => self.shared.poll(call),
            _ => Ok(code),
        });
        code.and_then(|code| self.shared.await_completion(call, code, &|_| Ok(())))?;
        // A non-blocking communicator may report success a moment before it writes the handle.
        let start = Instant::now();
        let late = match self.launch {
            Launch::NonBlocking => WRITTEN.min(self.shared.deadline),
            Launch::Blocking => Duration::ZERO,
        };
        while place.load(Ordering::Acquire).is_null() && start.elapsed() < late {
            std::thread::sleep(Duration::from_micros(50));
        }
        let written = place.load(Ordering::Acquire);
        if !written.is_null() || self.launch == Launch::Blocking {
            // SAFETY: from `into_raw` above. NCCL is done with it; where it may not be, it is left to it.
            drop(unsafe { Arc::from_raw(theirs) });
        }
        self.had(Handle(written), call)
    }

    /// Registers all of `memory` on this rank. Every rank must do so before the buffers are used in a
    /// collective.
    ///
    /// # Errors
    /// [`CommError::NcclTooOld`], [`CommError::NcclUnregistered`], [`CommError::Nccl`].
    pub fn register(&self, memory: &Arc<NcclMemory>) -> Result<NcclRegistration> {
        let range = self.range(memory.address(), memory.bytes())?;
        self.register_over(range, Some(memory.clone()))
    }

    /// As [`NcclComm::register`], over `bytes` of other memory that NCCL takes.
    ///
    /// # Safety
    /// As [`NcclComm::window_at`].
    ///
    /// # Errors
    /// As [`NcclComm::register`].
    pub unsafe fn register_at(&self, address: u64, bytes: usize) -> Result<NcclRegistration> {
        self.register_over(self.range(address, bytes)?, None)
    }

    fn register_over(
        &self,
        range: Range<u64>,
        memory: Option<Arc<NcclMemory>>,
    ) -> Result<NcclRegistration> {
        let register = &self.library().api.register;
        let (call, register) = (register.name, register.get()?);
        self.shared.deregister_retired(call)?;
        let mut handle = null_mut();
        let (address, bytes) = (pointer(range.start), (range.end - range.start) as usize);
        let code = self.shared.call(call, |raw| {
            // SAFETY: the communicator is alive, and the handle's place is in this frame, where it is written
            // before the return; the memory is vouched for as in `register_window`.
            unsafe { register(raw, address, bytes, &mut handle) }
        })?;
        if code != SUCCESS {
            return Err(self.shared.error(call, code));
        }
        let handle = self.had(Handle(handle), call)?;
        let entry = (range.clone(), Kind::Buffer);
        let _hold = RegistrationGuard::new(&self.shared, call, entry, handle, memory)?;
        Ok(NcclRegistration { _hold, range })
    }

    fn range(&self, address: u64, bytes: usize) -> Result<Range<u64>> {
        let end = address.checked_add(bytes as u64);
        match end.filter(|&end| address > 0 && end > address) {
            Some(end) => Ok(address..end),
            None => Err(invalid(format!("{bytes} bytes at {address:#x}"))),
        }
    }

    /// Checks locally whether `range` may become a window.
    fn may_register(&self, range: Range<u64>) -> Result<Range<u64>> {
        let register = &self.library().api.window_register;
        register.get()?;
        self.library().api.window_deregister.get()?;
        if self.shared.is_grouped(register.name)? {
            return Err(invalid("a group is open".into()));
        }
        if !range.start.is_multiple_of(ALIGNMENT) {
            let why = format!("{:#x} is no multiple of {ALIGNMENT}", range.start);
            return Err(invalid(why));
        }
        let window = |kind| matches!(kind, Kind::Window { .. });
        let state = self.shared.enter(register.name)?;
        let overlaps = state.registrations.iter().any(|known| {
            window(known.kind) && known.range.start < range.end && range.start < known.range.end
        });
        self.shared.leave(state);
        match overlaps {
            true => Err(invalid(format!("{range:#x?} lies in a window already"))),
            false => Ok(range),
        }
    }

    fn of_these_ranks<T>(&self, exchange: &dyn Exchange, checked: T) -> Result<T> {
        let (mine, theirs) = (
            (self.rank(), self.world()),
            (exchange.rank(), exchange.world()),
        );
        if mine == theirs {
            return Ok(checked);
        }
        Err(CommError::InvalidArgument {
            what: "exchange",
            why: format!("(rank, world) is {theirs:?} there and {mine:?} here"),
        })
    }

    /// A null handle means that NCCL did nothing.
    fn had(&self, handle: Handle<c_void>, call: &'static str) -> Result<Handle<c_void>> {
        if handle.get().is_null() {
            let rank = self.rank();
            return Err(CommError::NcclUnregistered { rank, call });
        }
        Ok(handle)
    }
}

fn pointer(address: u64) -> *mut c_void {
    address as usize as *mut c_void
}

fn invalid(why: String) -> CommError {
    CommError::InvalidArgument {
        what: "memory to register",
        why,
    }
}
