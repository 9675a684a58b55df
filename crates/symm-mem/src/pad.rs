//! Signal pads: flags by which ranks signal that data is ready or no longer needed.
//!
//! # The memory model
//!
//! - A flag is identified by (destination rank, slot, source rank). Only the source writes it and only the
//!   destination waits on it. Its value, an *epoch*, only grows (modulo 2³², compared cyclically). It lives
//!   as long as the pad, so neither the next call nor a graph replay resets it.
//! - For each of its flags, the source keeps a *sent* counter and the destination an *expected* counter, in
//!   their own device memory. A signal increments *sent* and stores it. A wait increments *expected* and
//!   waits for that value minus a lag: lag 0 means "this call", lag 1 is a credit, "the previous call".
//! - A signal is a release at system scope after the data; a wait is an acquire at system scope before it.
//!   Data that a peer wrote and that TMA (the async proxy) reads next also needs a proxy fence after the wait
//!   (`cuda/include/warpweave/signal.cuh`).
//! - A wait has a deadline. A wait that misses it *stops* this rank's device and leaves a notice in every
//!   rank's pad before its kernel ends ([`Notice`]). From then on this rank signals on no pad, copies
//!   nothing into memory that peers use between calls ([`Backend::copy_unless_stopped`]), and its later
//!   waits end at once. Copy engines cannot be stopped from the device, so what they push goes to staging
//!   memory, whose owner reads it within calls only ([`Backend::push_by_engine`]). A peer's wait that finds
//!   the notice fails even if its epoch has arrived. So a late rank fails instead of
//!   reading overwritten data, and a broken job drains within one deadline. [`SignalPad::recover`] restarts
//!   the device, once all its streams have run empty, and one pad: every pad that was in use has to recover.
//! - After the last read of a peer's memory, or of memory that peers write, wait once more or call
//!   [`SignalPad::check`], which looks for notices too.

mod fault;
pub mod flag;
pub(crate) mod view;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::agreement::agree;
use crate::backend::{Backend, DevicePtr, Memory};
use crate::error::{Error, FaultCause, Result, SignalFault};
use crate::exchange::{Exchange, LossWatcher};
use crate::symmetric::SymmetricBuffer;
use crate::sync::{Instant, Mutex, thread};

pub use fault::{FaultRecord, Notice};
pub use view::{FLAG_STRIDE, PadView, StopFlags};

/// The first rank that the exchange lost, and why. Losing a rank stops the device.
#[derive(Debug)]
struct Loss<B> {
    backend: B,
    first: OnceLock<(Option<usize>, String)>,
}

/// How much later than a peer this rank's exchange may learn of a lost rank.
const NEWS: Duration = Duration::from_millis(500);

impl<B: Backend> Loss<B> {
    fn of(&self, rank: Option<usize>, cause: &str) {
        let _ = self.first.set((rank, cause.into()));
        self.backend.stop_waits();
    }

    /// The lost rank, once this rank knows it.
    fn news(&self) -> Option<&(Option<usize>, String)> {
        let start = Instant::now();
        while self.first.get().is_none() && start.elapsed() < NEWS {
            thread::sleep(Duration::from_millis(1));
        }
        self.first.get()
    }
}

/// A pad on every rank of a group: `slots` rows of flags, with one flag for each rank.
#[derive(Debug)]
pub struct SignalPad<B: Backend> {
    name: String,
    backend: B,
    stop: StopFlags,
    loss: Arc<Loss<B>>,
    flags: SymmetricBuffer<B>,
    counters: B::Memory,
    slots: usize,
    timeout: Duration,
    signals: LastUse<B>,
    waits: LastUse<B>,
}

/// The stream that last used each slot. One thread at a time reads and writes a counter, so uses are ordered.
#[derive(Debug)]
struct LastUse<B: Backend>(Mutex<Vec<Option<B::Stream>>>);

impl<B: Backend> LastUse<B> {
    fn new(slots: usize) -> Self {
        LastUse(Mutex::new((0..slots).map(|_| None).collect()))
    }

    /// Enqueues a use of `slot` on `stream`, after the previous use.
    fn follow(
        &self,
        backend: &B,
        slot: usize,
        stream: &B::Stream,
        enqueue: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held until the use is enqueued, so that another thread's next use follows it.
        let mut last = self.0.lock();
        let before = &mut last[slot];
        if let Some(before) = before
            .as_ref()
            .filter(|s| !backend.is_same_stream(s, stream))
        {
            let event = backend.event()?;
            backend.record(&event, before)?;
            backend.wait_event(stream, &event)?;
        }
        *before = Some(stream.clone());
        enqueue()
    }
}

impl<B: Backend> SignalPad<B> {
    /// Creates the pad. Collective: all ranks pass the same `name` and `slots`. An error on one rank is an
    /// error on all.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        slots: usize,
    ) -> Result<Self> {
        let world = exchange.world();
        let slots = match slots {
            1..=4096 => Ok(slots),
            _ => Err(Error::InvalidArgument {
                what: "slots",
                why: format!("a signal pad has 1 to 4096 slots, not {slots}"),
            }),
        };
        let slots = agree(exchange.as_ref(), "pad.slots", slots)?;
        let flags = SymmetricBuffer::new(
            backend,
            exchange,
            &format!("{name}.flags"),
            PadView::fault_offset(world, slots) + FaultRecord::BYTES,
        )?;
        let own = backend
            .stop_flags()
            .and_then(|stop| Ok((stop, backend.allocate(4 * slots * 3 * world)?)));
        let (stop, counters) = agree(exchange.as_ref(), "pad.counters", own)?;
        let loss = Arc::new(Loss {
            backend: backend.clone(),
            first: OnceLock::new(),
        });
        exchange.watch(LossWatcher::new(&loss, Loss::of));
        Ok(SignalPad {
            name: name.into(),
            backend: backend.clone(),
            stop,
            loss,
            flags,
            counters,
            slots,
            timeout: backend.timeout(),
            signals: LastUse::new(slots),
            waits: LastUse::new(slots),
        })
    }

    /// Sets the timeout of waits on this pad, for views taken from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The view for kernels and for [`Backend::signal`].
    pub fn view(&self) -> PadView {
        let world = self.flags.world();
        let sent = self.counters.address();
        let expected = sent.add(4 * self.slots * world);
        PadView {
            fault: self.fault(),
            stop: self.stop,
            timeout_ns: u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX),
            rank: self.flags.rank() as u32,
            world: world as u32,
            slots: self.slots as u32,
            reserved: 0,
            peers: self.flags.peer_table(),
            sent,
            expected,
            tickets: expected.add(4 * self.slots * world),
        }
    }

    /// The flag that `source` writes in `slot` of `owner`'s pad, as mapped here, for kernels that do not read
    /// the table.
    pub fn flag(&self, owner: usize, slot: usize, source: usize) -> Result<DevicePtr> {
        self.bounds(slot, &[source])?;
        let offset = PadView::flag_offset(self.flags.world(), slot, source);
        self.flags.range(owner, offset, size_of::<u32>())
    }

    /// The memory of all ranks' flags. The flag of `source` in `slot` is at [`PadView::flag_offset`].
    pub fn flags(&self) -> &SymmetricBuffer<B> {
        &self.flags
    }

    /// Name of the pad, shown in faults.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Signals on `stream`; see [`Backend::signal`]. If another stream signalled the slot last, `stream`
    /// first waits for that work. A GPU's capture refuses this unless that work is part of it. A captured
    /// signal counts as one on the stream of its capture: launch the graph there, or order its launches and
    /// other signals of the slot by events.
    pub fn signal(&self, stream: &B::Stream, slot: usize, peers: &[usize]) -> Result<()> {
        self.bounds(slot, peers)?;
        let view = self.view();
        // SAFETY: slot and peers were checked; `self` owns the pad, and dropping device memory waits for
        // enqueued work; uses of the slot are ordered.
        let enqueue = || unsafe { self.backend.signal(stream, &view, slot, peers) };
        self.signals.follow(&self.backend, slot, stream, enqueue)
    }

    /// Waits on `stream`; see [`Backend::wait`]. Streams are ordered as by [`SignalPad::signal`].
    pub fn wait(&self, stream: &B::Stream, slot: usize, peers: &[usize], lag: u32) -> Result<()> {
        self.bounds(slot, peers)?;
        let view = self.view();
        // SAFETY: as in `signal`.
        let enqueue = || unsafe { self.backend.wait(stream, &view, slot, peers, lag) };
        self.waits.follow(&self.backend, slot, stream, enqueue)
    }

    fn bounds(&self, slot: usize, peers: &[usize]) -> Result<()> {
        if slot >= self.slots {
            return Err(Error::InvalidArgument {
                what: "slot",
                why: format!(
                    "pad `{}` has {} slots, {slot} is beyond them",
                    self.name, self.slots
                ),
            });
        }
        match peers.iter().find(|&&p| p >= self.flags.world()) {
            Some(p) => Err(Error::InvalidArgument {
                what: "peer",
                why: format!("rank {p} in a group of {}", self.flags.world()),
            }),
            None => Ok(()),
        }
    }

    fn fault(&self) -> DevicePtr {
        let offset = PadView::fault_offset(self.flags.world(), self.slots);
        self.flags.local().add(offset)
    }

    /// Returns the fault that a wait recorded or a peer notified, as an error. Call it after synchronising
    /// `stream`. Without a fault, everything that this rank computed from signals of this pad so far is
    /// valid.
    pub fn check(&self, stream: &B::Stream) -> Result<()> {
        let record = self.record(stream, self.flags.rank())?;
        let lost = match record.is_by_loss() {
            true => self.loss.news(),
            false => self.loss.first.get(),
        };
        let Some(mut fault) = record.fault(&self.name, self.flags.rank(), lost) else {
            return Ok(());
        };
        if let FaultCause::PeerGaveUp { reporter } = fault.cause
            && fault.peer == reporter
        {
            // Of several waits of the reporter that ended together, one that was only stopped may have given
            // the last notice. The reporter's own record says who missed its deadline.
            let culprit = self.record(stream, reporter)?.missed(reporter);
            fault.peer = culprit.unwrap_or(reporter);
        }
        fault.root = self.root(stream, &fault);
        Err(fault.into())
    }

    /// Follows the chain of waits from the peer of `fault` to a rank that waits for nobody on this pad.
    /// `None` if that is the peer itself, or if the ranks wait for each other.
    fn root(&self, stream: &B::Stream, fault: &SignalFault) -> Option<usize> {
        let mut root = fault.peer;
        for _ in 0..self.flags.world() {
            let record = self.record(stream, root).ok()?;
            match record.waited_for(root) {
                Some(next) => root = next,
                None => return (root != fault.peer).then_some(root),
            }
        }
        None
    }

    /// The fault record of `rank`.
    fn record(&self, stream: &B::Stream, rank: usize) -> Result<FaultRecord> {
        let offset = PadView::fault_offset(self.flags.world(), self.slots);
        let at = self.flags.range(rank, offset, FaultRecord::BYTES)?;
        let mut bytes = [0; FaultRecord::BYTES];
        // SAFETY: the record lies in the mapped pad; a concurrent writer marks it complete by its state.
        unsafe { self.backend.download(stream, at, &mut bytes)? };
        Ok(FaultRecord::from_bytes(&bytes))
    }

    /// Clears the fault and brings all ranks to common epochs, so that the pad works again in the same
    /// context. Collective. First all streams of the device run empty, so that no pad sends a signal that
    /// follows a copy that was skipped. No rank may enqueue work meanwhile that signals or waits.
    ///
    /// # Errors
    /// [`Error::SignalFault`] if a rank is lost; errors of the backend and the exchange. An error on one rank
    /// is an error on all.
    pub fn recover(&self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<u32> {
        let quiet = match self.loss.first.get() {
            Some(_) => self.check(stream),
            None => self.backend.synchronize(stream),
        };
        // Work of other streams may use this pad's epochs.
        let quiet = quiet.and_then(|()| self.backend.synchronize_device());
        agree(exchange, "pad.recover.quiet", quiet)?;
        let latest = agree(exchange, "pad.recover.read", self.latest_epoch(stream))?;
        let agreed = exchange
            .all_gather("pad.recover.epoch", &latest.to_ne_bytes())?
            .iter()
            .filter_map(|b| b.as_slice().try_into().ok().map(u32::from_ne_bytes))
            .fold(latest, flag::later);
        let begun = self
            .begin_at(stream, agreed)
            .and_then(|()| self.backend.resume_waits(stream));
        agree(exchange, "pad.recover.done", begun)?;
        Ok(agreed)
    }

    /// The latest epoch that this rank sent or expected.
    fn latest_epoch(&self, stream: &B::Stream) -> Result<u32> {
        let mut epochs = vec![0; 8 * self.slots * self.flags.world()];
        // SAFETY: `counters` begins with the sent and the expected epochs.
        unsafe {
            self.backend
                .download(stream, self.counters.address(), &mut epochs)?
        };
        let (epochs, _) = epochs.as_chunks();
        let epochs = epochs.iter().copied().map(u32::from_ne_bytes);
        Ok(epochs.reduce(flag::later).unwrap_or(0))
    }

    /// Sets all flags and counters of this rank to `epoch` and clears its fault record. No rank may have work
    /// in flight on the pad; call it between two collective steps.
    #[doc(hidden)]
    pub fn begin_at(&self, stream: &B::Stream, epoch: u32) -> Result<()> {
        let pairs = self.slots * self.flags.world();
        let epoch = epoch.to_ne_bytes();
        let counters = [epoch.repeat(2 * pairs), vec![0; 4 * pairs]].concat();
        let mut flags = vec![0; self.flags.bytes()];
        for w in flags.chunks_exact_mut(FLAG_STRIDE).take(pairs) {
            w[..4].copy_from_slice(&epoch);
        }
        // SAFETY: both ranges belong to this pad, and no signal is in flight.
        unsafe {
            self.backend
                .upload(stream, self.counters.address(), &counters)?;
            self.backend.upload(stream, self.flags.local(), &flags)
        }
    }

    /// Frees the pad once all ranks have called this.
    pub fn close(self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        agree(exchange, "pad.close", self.backend.synchronize(stream))
    }
}
