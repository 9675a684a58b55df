//! Signals from and to host kernels: the twin of `signal.cuh`.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use super::record;
use crate::backend::DevicePtr;
use crate::pad::word::Word;
use crate::pad::{Notice, PadView, StopFlags, word};
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

/// The fault record of `owner`'s pad.
///
/// # Safety
/// As for [`send_signal`].
unsafe fn fault_of(pad: &PadView, owner: usize) -> DevicePtr {
    let (world, slots) = (pad.world as usize, pad.slots as usize);
    debug_assert!(owner < world);
    // SAFETY: the table has `world` addresses.
    let words = DevicePtr(unsafe { *pad.peers.as_host::<u64>().add(owner) });
    words.add(PadView::fault_offset(world, slots))
}

/// Adds one to the sent epoch of (`slot`, `peer`) and publishes it in the peer's pad. Does nothing if this device was
/// stopped by a wait that failed: what is to be published may not be there.
///
/// # Safety
/// - `pad` is a view of a live pad of the host backend; `slot` and `peer` are in its range.
/// - No other thread sends on (`slot`, `peer`) of this rank at the same time.
pub unsafe fn send_signal(pad: &PadView, slot: usize, peer: usize) {
    let pair = 4 * (slot * pad.world as usize + peer);
    // SAFETY: the counters have `slots * world` entries; see above for the word and below for the flag.
    unsafe {
        if is_stopped(pad) {
            return;
        }
        record::note(record::Access::Signal { slot, peer });
        let epoch = atomic(pad.sent, pair)
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        word_at(pad, peer, slot, pad.rank as usize).publish(epoch);
    }
}

/// Adds one to the expected epoch of (`slot`, `peer`) and waits until the peer has signalled it, less `lag`. False
/// if it did not in time, or if this rank or a peer has given up before: the pad's fault record then tells who waited
/// for whom.
///
/// # Safety
/// As for [`send_signal`], for waits on (`slot`, `peer`).
pub unsafe fn expect_signal(pad: &PadView, slot: usize, peer: usize, lag: u32) -> bool {
    let pair = 4 * (slot * pad.world as usize + peer);
    let timeout = Duration::from_nanos(pad.timeout_ns);
    let start = Instant::now();
    // SAFETY: as in `send_signal`.
    unsafe {
        let wanted = atomic(pad.expected, pair)
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
            .wrapping_sub(lag);
        let word = word_at(pad, pad.rank as usize, slot, peer);
        let (noticed, stopped) = (|| is_noticed(pad), || is_stopped(pad));
        let waited = word::wait(word, wanted, timeout, noticed, stopped);
        record::note(record::Access::Wait { slot, peer, lag });
        match waited {
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

/// True once a wait of this device has failed, or the host has stopped it: whatever it signals may not be so.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn is_stopped(pad: &PadView) -> bool {
    // SAFETY: the flag lives as long as the device.
    unsafe { atomic(pad.stop.device, 0) }.load(Ordering::Acquire) != 0
}

/// True if this rank or a peer has given up on this pad: what was read from peers before may not be valid.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn is_noticed(pad: &PadView) -> bool {
    // What was read before was read before the notice is looked for.
    fence(Ordering::SeqCst);
    // SAFETY: the record begins with its notice.
    unsafe { atomic(pad.fault, 0) }.load(Ordering::Acquire) != 0
}

/// True if waiting is pointless: this rank or a peer has given up.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn is_faulted(pad: &PadView) -> bool {
    // SAFETY: the caller's obligation.
    unsafe { is_stopped(pad) || is_noticed(pad) }
}

/// Makes a wait fail: stops this device, gives notice to all ranks, and leaves behind that `peer` did not bring the epoch
/// `wanted` in `slot`, unless another wait has left its own. The order is that of `pad/fault.rs`.
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
    let timed_out = waited.as_nanos() >= u128::from(pad.timeout_ns);
    // SAFETY: flags and records of live pads, accessed by atomics only; of this rank's record, all but the notice and the
    // missing ranks is written by whoever moves its state from 0.
    unsafe {
        let mine = |field: usize| atomic(pad.fault, 4 * field);
        let notice = mine(0).load(Ordering::Acquire);
        // The host's own stop stands: it is the higher one.
        let stopped = atomic(pad.stop.device, 0).fetch_max(StopFlags::FAILED, Ordering::SeqCst);
        let by_host = stopped == StopFlags::BY_HOST;
        let cause = match (timed_out, notice) {
            (true, _) => 0,
            (false, 0) if by_host => 3,
            (false, 0) => 2,
            (false, _) => 1,
        };
        let notice = match notice {
            0 => Notice {
                reporter: pad.rank as u16,
                culprit: timed_out.then_some(peer as u16),
                is_by_loss: cause == 3,
            }
            .to_bits(),
            theirs => theirs,
        };
        for rank in 0..pad.world as usize {
            atomic(fault_of(pad, rank), 0).store(notice, Ordering::SeqCst);
        }
        // Those that are waited for one after the other: only the first runs out its deadline.
        let same_wait = || {
            mine(1).load(Ordering::Acquire) == 2
                && mine(4).load(Ordering::Relaxed) == slot as u32
                && mine(5).load(Ordering::Relaxed) == wanted
                && mine(7).load(Ordering::Relaxed) == 0
        };
        if !word::reached(seen, wanted) && peer < 64 && (timed_out || same_wait()) {
            mine(10 + peer / 32).fetch_or(1 << (peer % 32), Ordering::Relaxed);
        }
        let state = mine(1);
        if state
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let micros = waited.as_micros() as u64;
        // The order of `FaultRecord`, after its state.
        let fields = [
            pad.rank,
            peer as u32,
            slot as u32,
            wanted,
            seen,
            cause,
            micros as u32,
            (micros >> 32) as u32,
        ];
        for (i, field) in fields.into_iter().enumerate() {
            mine(i + 2).store(field, Ordering::Relaxed);
        }
        state.store(2, Ordering::Release);
    }
}
