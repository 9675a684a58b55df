//! Signals from and to host kernels: the host twin of `signal.cuh`.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use super::record;
use crate::backend::DevicePtr;
use crate::pad::flag::Flag;
use crate::pad::{Notice, PadView, StopFlags, flag};
use crate::sync::Instant;

/// The atomic at `base + bytes`.
///
/// # Safety
/// The address holds an aligned u32 that lives for `'a` and is accessed by atomics only.
unsafe fn atomic<'a>(base: DevicePtr, bytes: usize) -> &'a AtomicU32 {
    // SAFETY: the caller's obligation.
    unsafe { AtomicU32::from_ptr(base.add(bytes).as_host()) }
}

/// The flag that `source` writes in `slot` of `owner`'s pad.
///
/// # Safety
/// As for [`send_signal`].
unsafe fn flag_at<'a>(pad: &PadView, owner: usize, slot: usize, source: usize) -> &'a AtomicU32 {
    let (world, slots) = (pad.world as usize, pad.slots as usize);
    debug_assert!(owner < world && source < world && slot < slots);
    // SAFETY: the table has `world` addresses, each of a pad of `slots * world` flags.
    unsafe {
        let flags = DevicePtr(*pad.peers.as_host::<u64>().add(owner));
        atomic(flags, PadView::flag_offset(world, slot, source))
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
    let flags = DevicePtr(unsafe { *pad.peers.as_host::<u64>().add(owner) });
    flags.add(PadView::fault_offset(world, slots))
}

/// Increments the sent epoch of (`slot`, `peer`) and publishes it in the peer's pad. If a failed wait stopped
/// this device, the data to be signalled may not be there: then it [withholds](withhold_signal) the signal.
///
/// # Safety
/// - `pad` is a view of a live pad of the host backend; `slot` and `peer` are in range.
/// - No other thread signals on (`slot`, `peer`) of this rank at the same time.
pub unsafe fn send_signal(pad: &PadView, slot: usize, peer: usize) {
    let pair = 4 * (slot * pad.world as usize + peer);
    // SAFETY: the counters have `slots * world` entries; the rest has the caller's obligations.
    unsafe {
        if is_stopped(pad) {
            return withhold_signal(pad, slot, peer);
        }
        record::note(record::Access::Signal { slot, peer });
        let epoch = atomic(pad.sent, pair)
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        flag_at(pad, peer, slot, pad.rank as usize).publish(epoch);
    }
}

/// Makes a signal that is not sent, since a wait of this device has failed, a fault of `pad`, unless it has
/// one: a rank that waits for the signal must not take the next one for it.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn withhold_signal(pad: &PadView, slot: usize, peer: usize) {
    // SAFETY: the caller's obligation.
    unsafe {
        if !is_noticed(pad) {
            record_fault(pad, slot, peer, 0, 0, Duration::ZERO);
        }
    }
}

/// Increments the expected epoch of (`slot`, `peer`) and waits until the peer has signalled it, less `lag`.
/// Returns false if the wait timed out, or if this rank or a peer gave up before. The pad's fault record then
/// names who waited for whom.
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
        let flag = flag_at(pad, pad.rank as usize, slot, peer);
        let (noticed, stopped) = (|| is_noticed(pad), || is_stopped(pad));
        let is_enough = |seen| flag::reached(seen, wanted);
        let waited = flag::wait(flag, is_enough, timeout, noticed, stopped);
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

/// The epoch of the next wait on (`slot`, `peer`).
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

/// True once a wait of this device has failed or the host has stopped it: nothing may be signalled any more.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn is_stopped(pad: &PadView) -> bool {
    // SAFETY: the flag lives as long as the device.
    unsafe { atomic(pad.stop.device, 0) }.load(Ordering::Acquire) != 0
}

/// True if this rank or a peer has given up on this pad: what was read from peers so far may be invalid.
///
/// # Safety
/// `pad` is a view of a live pad of the host backend.
pub unsafe fn is_noticed(pad: &PadView) -> bool {
    // Earlier reads of peer memory come before the check for a notice.
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

/// Fails a wait: stops this device, notifies all ranks, and records that `peer` did not signal the epoch
/// `wanted` in `slot`, unless another wait recorded its fault first. `pad/fault.rs` explains the order.
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
    // SAFETY: flags and records of live pads are accessed by atomics only. Of this rank's record, only the
    // wait that moves its state from 0 writes anything but the notice and the missing ranks.
    unsafe {
        let mine = |field: usize| atomic(pad.fault, 4 * field);
        let notice = mine(0).load(Ordering::Acquire);
        // Taken before the others are stopped: their waits end then, and would record that alone.
        let state = mine(1);
        let taken = state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        // A stop by the host has the higher value, so it stays.
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
        // For peers of one wait that are waited for in sequence, only the first reaches its deadline.
        let same_wait = || {
            mine(1).load(Ordering::Acquire) == 2
                && mine(4).load(Ordering::Relaxed) == slot as u32
                && mine(5).load(Ordering::Relaxed) == wanted
                && mine(7).load(Ordering::Relaxed) == 0
        };
        if !flag::reached(seen, wanted) && peer < 64 && (timed_out || same_wait()) {
            mine(10 + peer / 32).fetch_or(1 << (peer % 32), Ordering::Relaxed);
        }
        if taken.is_err() {
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
