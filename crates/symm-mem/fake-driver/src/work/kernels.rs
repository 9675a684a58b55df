//! The kernels that the driver knows by name: the signals, waits and copies of `warpweave-symm-mem`. Any
//! other kernel is only recorded in the journal.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::journal::Outcome;
use crate::state::lock;
use crate::state::work::{Kernel, Pad, Work};
use crate::work::run;

/// Bytes from one flag of a pad to the next.
const FLAG_STRIDE: u64 = 32;

impl Kernel {
    pub fn run(&self, context: u64) -> Outcome {
        match *self {
            Kernel::Unknown => {}
            Kernel::Delay { time } => std::thread::sleep(time),
            Kernel::Copy {
                stopped,
                to,
                from,
                bytes,
            } => {
                if cell(context, stopped)?.load(Ordering::Acquire) != 0 {
                    return Ok(());
                }
                // SAFETY: a copy takes no host memory and no parameters.
                unsafe { run::run(context, &Work::Copy { to, from, bytes })? };
            }
            Kernel::Signal { pad, slot, peers } => {
                if cell(context, pad.stopped)?.load(Ordering::Acquire) != 0 {
                    return Ok(());
                }
                for peer in ranks(peers) {
                    let sent = pad.counter(context, pad.sent, slot, peer)?;
                    let epoch = sent.load(Ordering::Relaxed).wrapping_add(1);
                    let flag = pad.flag(context, peer, slot, pad.rank)?;
                    flag.store(epoch, Ordering::Release);
                    sent.store(epoch, Ordering::Relaxed);
                }
            }
            Kernel::Wait {
                pad,
                slot,
                peers,
                lag,
            } => {
                for peer in ranks(peers) {
                    pad.wait(context, slot, peer, lag)?;
                }
            }
        }
        Ok(())
    }
}

fn ranks(mask: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |rank| mask & (1 << rank) != 0)
}

impl Pad {
    fn counter(&self, context: u64, of: u64, slot: u32, peer: u32) -> Outcome<&'static AtomicU32> {
        cell(context, of + 4 * u64::from(slot * self.world + peer))
    }

    /// The flag that `source` writes in `slot` of `owner`'s pad.
    fn flag(
        &self,
        context: u64,
        owner: u32,
        slot: u32,
        source: u32,
    ) -> Outcome<&'static AtomicU32> {
        let entry = self.peers + 8 * u64::from(owner);
        let low = cell(context, entry)?.load(Ordering::Relaxed);
        let high = cell(context, entry + 4)?.load(Ordering::Relaxed);
        let base = u64::from(low) | u64::from(high) << 32;
        cell(
            context,
            base + u64::from(slot * self.world + source) * FLAG_STRIDE,
        )
    }

    /// The fault record of `owner`'s pad.
    fn record_of(&self, context: u64, owner: u32) -> Outcome<u64> {
        let entry = self.peers + 8 * u64::from(owner);
        let low = cell(context, entry)?.load(Ordering::Relaxed);
        let high = cell(context, entry + 4)?.load(Ordering::Relaxed);
        let base = u64::from(low) | u64::from(high) << 32;
        Ok(base + u64::from(self.slots * self.world) * FLAG_STRIDE)
    }

    fn wait(&self, context: u64, slot: u32, peer: u32, lag: u32) -> Outcome {
        let expected = self.counter(context, self.expected, slot, peer)?;
        let epoch = expected.load(Ordering::Relaxed).wrapping_add(1);
        let flag = self.flag(context, self.rank, slot, peer)?;
        let notice = cell(context, self.fault)?;
        let stops = [
            cell(context, self.stopped)?,
            cell(context, self.stopped_on_host)?,
        ];
        let wanted = epoch.wrapping_sub(lag);
        let start = Instant::now();
        loop {
            let noticed = notice.load(Ordering::SeqCst) != 0;
            let seen = flag.load(Ordering::Acquire);
            if !noticed && seen.wrapping_sub(wanted) as i32 >= 0 {
                break;
            }
            let waited = start.elapsed();
            let timed_out = waited.as_nanos() > u128::from(self.timeout_ns);
            let [stopped, on_host] = stops.map(|flag| flag.load(Ordering::Acquire));
            let (stopped, by_host) = ((stopped | on_host) != 0, on_host == 2);
            if timed_out || noticed || stopped {
                let cause = match (timed_out, noticed, by_host) {
                    (true, _, _) => 0,
                    (_, true, _) => 1,
                    (_, _, false) => 2,
                    (_, _, true) => 3,
                };
                let what = [self.rank, peer, slot, wanted, seen, cause];
                self.record_fault(context, what, waited)?;
                break;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        expected.store(epoch, Ordering::Relaxed);
        Ok(())
    }

    /// Stops the device, notifies all ranks, and records who waited for whom, unless another wait did so
    /// first.
    fn record_fault(&self, context: u64, what: [u32; 6], waited: Duration) -> Outcome {
        let notice = match cell(context, self.fault)?.load(Ordering::Acquire) {
            0 => {
                let culprit = if what[5] == 0 { what[1] } else { 0xffff };
                1 << 31 | u32::from(what[5] == 3) << 30 | self.rank << 16 | culprit
            }
            theirs => theirs,
        };
        cell(context, self.stopped)?.store(1, Ordering::SeqCst);
        cell(context, self.stopped_on_host)?.fetch_max(1, Ordering::SeqCst);
        for rank in 0..self.world {
            let record = self.record_of(context, rank)?;
            cell(context, record)?.store(notice, Ordering::SeqCst);
        }
        let state = cell(context, self.fault + 4)?;
        if state
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            let us = waited.as_micros() as u64;
            let fields = what.into_iter().chain([us as u32, (us >> 32) as u32]);
            for (i, field) in (2..).zip(fields) {
                cell(context, self.fault + 4 * i)?.store(field, Ordering::Relaxed);
            }
            state.store(2, Ordering::Release);
        }
        Ok(())
    }
}

/// A u32 in device memory, valid while it stays mapped. As on a device, unmapping it under a kernel is the
/// program's fault.
fn cell(context: u64, at: u64) -> Outcome<&'static AtomicU32> {
    lock().to_read(context, at, 4)?;
    // SAFETY: mapped plain memory, which the launcher keeps mapped until the kernel has ended; all access is
    // atomic.
    Ok(unsafe { AtomicU32::from_ptr(at as *mut u32) })
}
