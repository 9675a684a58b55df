//! Signal pads: the words by which ranks tell each other that data is ready or no longer needed.
//!
//! # The memory model, written down once
//!
//! - A word lives at (destination rank, slot, source rank). Only the source writes it, only the destination waits on
//!   it, and its value, an *epoch*, only ever grows (modulo 2³², compared cyclically). It lives with the pad, so calls
//!   that follow each other and graph replays need no reset.
//! - The source keeps a *sent* counter and the destination an *expected* counter for each of its words, in its own
//!   device memory. A signal adds one to *sent* and stores it; a wait adds one to *expected* and waits for it, less a
//!   lag: lag 0 is "this call", lag 1 is a credit, "the previous call".
//! - A signal is a release at system scope after the data, a wait is an acquire at system scope before it. Data that
//!   a peer wrote and TMA (the async proxy) reads next also needs a proxy fence behind the wait
//!   (`cuda/include/warpweave/signal.cuh`).
//! - A wait has a deadline. The first that misses it fills the pad's [fault record](SignalPad::check); later waits on
//!   that pad then end at once, so that a broken job drains in bounded time.

mod fault;
pub mod word;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, DevicePtr, Memory};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::symmetric::SymmetricBuffer;

pub use fault::FaultRecord;

/// Distance between two words in bytes: one sector of the GPU's caches, so that words do not share one.
pub const WORD_STRIDE: usize = 32;

/// What kernels get to see of a pad, by value. The same layout in Rust and in `signal.cuh`; on the host backend the
/// addresses are plain ones and the words are atomics.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PadView {
    /// Address of a table of `world` addresses (u64): the words of every rank's pad, as mapped here.
    pub peers: DevicePtr,
    /// `[slots][world]` u32: the epoch last sent to each peer.
    pub sent: DevicePtr,
    /// `[slots][world]` u32: the epoch last waited for from each peer.
    pub expected: DevicePtr,
    /// `[slots][world]` u32: counters for the blocks of a grid, zero between kernels.
    pub tickets: DevicePtr,
    /// One [`FaultRecord`].
    pub fault: DevicePtr,
    /// Nanoseconds after which a wait gives up.
    pub timeout_ns: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Number of slots.
    pub slots: u32,
    /// Zero.
    pub reserved: u32,
}

impl PadView {
    /// Byte offset of the word that `source` writes in `slot`.
    pub const fn word_offset(world: usize, slot: usize, source: usize) -> usize {
        (slot * world + source) * WORD_STRIDE
    }
}

/// A pad of `slots` rows of words, one word for each rank, on every rank of a group.
#[derive(Debug)]
pub struct SignalPad<B: Backend> {
    name: String,
    backend: B,
    words: SymmetricBuffer<B>,
    counters: B::Memory,
    slots: usize,
    timeout: Duration,
}

impl<B: Backend> SignalPad<B> {
    /// Makes the pad. Collective: all ranks give the same `name` and `slots`.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        slots: usize,
    ) -> Result<Self> {
        let world = exchange.world();
        if slots == 0 || slots > 4096 {
            return Err(Error::InvalidArgument {
                what: "slots",
                why: format!("a signal pad has 1 to 4096 slots, not {slots}"),
            });
        }
        let words = SymmetricBuffer::new(
            backend,
            exchange,
            &format!("{name}.words"),
            slots * world * WORD_STRIDE,
        )?;
        let counters = backend.allocate(Self::counter_bytes(slots, world))?;
        Ok(SignalPad {
            name: name.into(),
            backend: backend.clone(),
            words,
            counters,
            slots,
            timeout: backend.timeout(),
        })
    }

    fn counter_bytes(slots: usize, world: usize) -> usize {
        FaultRecord::BYTES + 4 * slots * 3 * world
    }

    /// Sets the time after which a wait on this pad gives up, for views taken from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The view that kernels and [`Backend::signal`] take.
    pub fn view(&self) -> PadView {
        let world = self.words.world();
        let fault = self.counters.address();
        let sent = fault.add(FaultRecord::BYTES);
        let expected = sent.add(4 * self.slots * world);
        PadView {
            peers: self.words.peer_table(),
            sent,
            expected,
            tickets: expected.add(4 * self.slots * world),
            fault,
            timeout_ns: u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX),
            rank: self.words.rank() as u32,
            world: world as u32,
            slots: self.slots as u32,
            reserved: 0,
        }
    }

    /// The word that `source` writes in `slot` of `owner`'s pad, as mapped here: for kernels that are to find it without
    /// a look at the table.
    pub fn word(&self, owner: usize, slot: usize, source: usize) -> Result<DevicePtr> {
        self.bounds(slot, &[source])?;
        let offset = PadView::word_offset(self.words.world(), slot, source);
        self.words.range(owner, offset, size_of::<u32>())
    }

    /// The memory of all ranks' words: that of `source` in `slot` is at [`PadView::word_offset`].
    pub fn words(&self) -> &SymmetricBuffer<B> {
        &self.words
    }

    /// Name of the pad, as in faults.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Signals on `stream`; see [`Backend::signal`].
    pub fn signal(&self, stream: &B::Stream, slot: usize, peers: &[usize]) -> Result<()> {
        self.bounds(slot, peers)?;
        // SAFETY: slot and peers were checked; `self` owns the pad, and dropping device memory waits for enqueued work.
        unsafe { self.backend.signal(stream, &self.view(), slot, peers) }
    }

    /// Waits on `stream`; see [`Backend::wait`].
    pub fn wait(&self, stream: &B::Stream, slot: usize, peers: &[usize], lag: u32) -> Result<()> {
        self.bounds(slot, peers)?;
        // SAFETY: as in `signal`.
        unsafe { self.backend.wait(stream, &self.view(), slot, peers, lag) }
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
        match peers.iter().find(|&&p| p >= self.words.world()) {
            Some(p) => Err(Error::InvalidArgument {
                what: "peer",
                why: format!("rank {p} in a group of {}", self.words.world()),
            }),
            None => Ok(()),
        }
    }

    /// After a synchronisation of `stream`: the fault that a wait recorded, if any, as an error.
    pub fn check(&self, stream: &B::Stream) -> Result<()> {
        let mut bytes = [0; FaultRecord::BYTES];
        // SAFETY: the record is the first part of `counters`.
        unsafe {
            self.backend
                .download(stream, self.counters.address(), &mut bytes)?
        };
        match FaultRecord::from_bytes(&bytes).timeout(&self.name) {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }

    /// Clears the fault and brings all ranks to common epochs. Collective, with no work of any rank under way on the
    /// pad; afterwards the pad works again in the same context.
    pub fn recover(&self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<u32> {
        self.backend.synchronize(stream)?;
        exchange.barrier("pad.recover.quiet")?;
        let world = self.words.world();
        let pairs = self.slots * world;
        let mut counters = vec![0; Self::counter_bytes(self.slots, world)];
        // SAFETY: the range is the whole of `counters`.
        unsafe {
            self.backend
                .download(stream, self.counters.address(), &mut counters)?
        };
        let (epochs, _) = counters[FaultRecord::BYTES..][..8 * pairs].as_chunks();
        let highest = epochs
            .iter()
            .copied()
            .map(u32::from_ne_bytes)
            .reduce(word::later)
            .unwrap_or(0);
        let agreed = exchange
            .all_gather("pad.recover.epoch", &highest.to_ne_bytes())?
            .iter()
            .filter_map(|b| b.as_slice().try_into().ok().map(u32::from_ne_bytes))
            .fold(highest, word::later);
        counters.fill(0);
        for c in counters[FaultRecord::BYTES..][..8 * pairs].chunks_exact_mut(4) {
            c.copy_from_slice(&agreed.to_ne_bytes());
        }
        let mut words = vec![0; pairs * WORD_STRIDE];
        for w in words.chunks_exact_mut(WORD_STRIDE) {
            w[..4].copy_from_slice(&agreed.to_ne_bytes());
        }
        // SAFETY: both ranges are this pad's own, and the barrier on either side keeps the peers' signals away.
        unsafe {
            self.backend
                .upload(stream, self.counters.address(), &counters)?;
            self.backend.upload(stream, self.words.local(), &words)?;
        }
        exchange.barrier("pad.recover.done")?;
        Ok(agreed)
    }

    /// Frees the pad once all ranks have called this.
    pub fn close(self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        self.backend.synchronize(stream)?;
        exchange.barrier("pad.close")?;
        Ok(())
    }
}
