//! Signals from and to host kernels: the twin of `signal.cuh`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::backend::DevicePtr;
use crate::pad::word::Word;
use crate::pad::{PadView, word};
use crate::sync::Instant;

/// The atomic at `base + bytes`.
///
/// # Safety
/// The address holds an aligned u32 that lives for `'a` and is accessed by atomics only.
unsafe fn atomic<'a>(base: DevicePtr, bytes: usize) -> &'a AtomicU32 {
    // SAFETY: the caller's obligation.
    unsafe { AtomicU32::from_ptr(base.add(bytes).as_host()) }
}

/// The word that `source` writes in `slot` of `owner`'s pad.
///
/// # Safety
/// As for [`send_signal`].
unsafe fn word_at<'a>(pad: &PadView, owner: usize, slot: usize, source: usize) -> &'a AtomicU32 {
    let (world, slots) = (pad.world as usize, pad.slots as usize);
    debug_assert!(owner < world && source < world && slot < slots);
    // SAFETY: the table has `world` addresses, each of a pad of `slots * world` words.
    unsafe {
        let words = DevicePtr(*pad.peers.as_host::<u64>().add(owner));
        atomic(words, PadView::word_offset(world, slot, source))
    }
}

/// Adds one to the sent epoch of (`slot`, `peer`) and publishes it in the peer's pad.
///
/// # Safety
/// - `pad` is a view of a live pad of the host backend; `slot` and `peer` are in its range.
/// - No other thread sends on (`slot`, `peer`) of this rank at the same time.
pub unsafe fn send_signal(pad: &PadView, slot: usize, peer: usize) {
    let pair = 4 * (slot * pad.world as usize + peer);
    // SAFETY: the counters have `slots * world` entries; see above for the word.
    unsafe {
        let epoch = atomic(pad.sent, pair)
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        word_at(pad, peer, slot, pad.rank as usize).publish(epoch);
    }
}

/// Adds one to the expected epoch of (`slot`, `peer`) and waits until the peer has signalled it, less `lag`. False
/// if it did not in time: the pad's fault record then tells who waited for whom. Returns at once if the record is
/// filled already.
///
/// # Safety
/// As for [`send_signal`], for waits on (`slot`, `peer`).
pub unsafe fn expect_signal(pad: &PadView, slot: usize, peer: usize, lag: u32) -> bool {
    let pair = 4 * (slot * pad.world as usize + peer);
    let timeout = Duration::from_nanos(pad.timeout_ns);
    let start = Instant::now();
    // SAFETY: as in `send_signal`; the fault record lies at `pad.fault`.
    unsafe {
        let wanted = atomic(pad.expected, pair)
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
            .wrapping_sub(lag);
        let state = atomic(pad.fault, 0);
        let word = word_at(pad, pad.rank as usize, slot, peer);
        match word::wait(word, wanted, timeout, || state.load(Ordering::Acquire) != 0) {
            Ok(()) => true,
            Err(seen) => {
                record_fault(pad, slot, peer, wanted, seen, start.elapsed());
                false
            }
        }
    }
}

/// The epoch that the next wait on (`slot`, `peer`) is for.
///
/// # Safety
/// As for [`expect_signal`].
pub unsafe fn next_epoch(pad: &PadView, slot: usize, peer: usize) -> u32 {
    let pair = 4 * (slot * pad.world as usize + peer);
    // SAFETY: as in `send_signal`.
    unsafe { atomic(pad.expected, pair) }
        .load(Ordering::Relaxed)
        .wrapping_add(1)
}

/// True if a wait of this pad has missed its deadline: waiting on is pointless then.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn is_faulted(pad: &PadView) -> bool {
    // SAFETY: the record begins with its state.
    unsafe { atomic(pad.fault, 0) }.load(Ordering::Acquire) != 0
}

/// Leaves behind that `peer` did not bring the epoch `wanted` in `slot`, unless another wait has left its own.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn record_fault(
    pad: &PadView,
    slot: usize,
    peer: usize,
    wanted: u32,
    seen: u32,
    waited: Duration,
) {
    // SAFETY: the record has eight u32, and only whoever moves its state from 0 writes the rest.
    unsafe {
        let state = atomic(pad.fault, 0);
        if state
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let micros = waited.as_micros() as u64;
        // The order of `FaultRecord`, behind its state.
        let fields = [
            pad.rank,
            peer as u32,
            slot as u32,
            wanted,
            seen,
            micros as u32,
            (micros >> 32) as u32,
        ];
        for (i, field) in fields.into_iter().enumerate() {
            atomic(pad.fault, 4 * (i + 1)).store(field, Ordering::Relaxed);
        }
        state.store(2, Ordering::Release);
    }
}
