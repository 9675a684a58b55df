//! The twin of `group.cuh`: where the ranks of a collective meet.
//!
//! The protocol is generic over the memory, so that the code that runs is the code that loom explores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warpweave_symm_mem::host;
use warpweave_symm_mem::pad::FLAG_STRIDE;
use warpweave_symm_mem::pad::flag::{self, Flag};
use warpweave_symm_mem::sync::Instant;

use crate::collective::launch::{Group, MAX_BLOCKS};

/// A rank of a group, and what becomes of its waits.
pub(super) trait Member {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// How long a wait may take.
    fn timeout(&self) -> Duration;

    /// True once a wait of this rank has failed, on whichever pad: it publishes nothing any more.
    fn is_stopped(&self) -> bool;

    /// True once this rank or a peer has given up on this pad: what was read from peers before may not be valid.
    fn is_noticed(&self) -> bool;

    /// Makes a wait fail: stops this rank, gives notice to all, and leaves behind that `peer` did not bring `wanted` in
    /// `slot`, unless another fault is there.
    fn record(&self, slot: usize, peer: usize, wanted: u32, seen: u32, waited: Duration);

    /// True if this launch can begin. Otherwise the peers are given notice, and it sends, copies and publishes nothing.
    fn is_sound(&self, slot: usize) -> bool {
        let sound = !self.is_stopped() && !self.is_noticed();
        if !sound {
            let next = (self.rank() + 1) % self.world();
            self.record(slot, next, 0, 0, Duration::ZERO);
        }
        sound
    }

    /// The other ranks, from the next one on.
    fn peers(&self) -> impl Iterator<Item = usize> {
        let (rank, world) = (self.rank(), self.world());
        (1..world).map(move |step| (rank + step) % world)
    }
}

/// The flags by which ranks meet.
pub(super) trait Barrier: Member {
    /// A flag.
    type Flag: Flag;

    /// The flag that `source` writes on `owner` in `slot`.
    fn flag(&self, owner: usize, slot: usize, source: usize) -> &Self::Flag;
}

/// The two meetings of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Enter = 0,
    Leave = 1,
}

impl Phase {
    /// The slot in which the blocks of this number meet.
    pub(super) const fn slot(self, block: usize) -> usize {
        self as usize * MAX_BLOCKS + block
    }
}

/// This rank's only block meets that of each peer: what the peers did before is visible afterwards. False if one did not come
/// in time, or if this rank or a peer has given up.
pub(super) fn barrier(group: &impl Barrier, phase: Phase, epoch: u32) -> bool {
    let rank = group.rank();
    if !group.is_sound(phase.slot(0)) {
        return false;
    }
    for peer in group.peers() {
        group.flag(peer, phase.slot(0), rank).publish(epoch);
    }
    let mut arrived = true;
    for peer in group.peers() {
        let start = Instant::now();
        let flag = group.flag(rank, phase.slot(0), peer);
        let (noticed, stopped) = (|| group.is_noticed(), || group.is_stopped());
        let waited = flag::wait(flag, epoch, group.timeout(), noticed, stopped);
        if let Err(seen) = waited {
            group.record(phase.slot(0), peer, epoch, seen, start.elapsed());
            arrived = false;
        }
    }
    // A flag that is left alone for 2³¹ launches would look as if it were ahead: those of the blocks that there are not take
    // their turns, one a launch.
    let absent = MAX_BLOCKS - 1;
    let turn = 1 + epoch as usize % absent;
    for peer in group.peers() {
        group.flag(peer, phase.slot(turn), rank).publish(epoch);
    }
    arrived
}

/// A group in the memory of the host backend.
pub(super) struct HostGroup(Group);

impl HostGroup {
    /// # Safety
    /// While the value is used, the group is that of live collectives of the host backend, and no other thread of this rank
    /// runs a launch that meets.
    pub(super) unsafe fn new(group: &Group) -> Self {
        Self(*group)
    }

    fn epochs(&self) -> impl Iterator<Item = &AtomicU32> {
        let first = self.0.epochs.as_host::<u32>();
        // SAFETY: there are as many counters, aligned, which are accessed by atomics only while launches run.
        (0..MAX_BLOCKS).map(move |block| unsafe { AtomicU32::from_ptr(first.add(block)) })
    }

    /// The epoch of this launch.
    pub(super) fn epoch(&self) -> u32 {
        let first = self.epochs().next();
        first
            .map_or(0, |epoch| epoch.load(Ordering::Relaxed))
            .wrapping_add(1)
    }

    /// Makes the next launch's epoch one higher, for the blocks of a larger grid as well.
    pub(super) fn advance(&self, epoch: u32) {
        for counter in self.epochs() {
            counter.store(epoch, Ordering::Relaxed);
        }
    }
}

impl Member for HostGroup {
    fn rank(&self) -> usize {
        self.0.pad.rank as usize
    }

    fn world(&self) -> usize {
        self.0.pad.world as usize
    }

    fn timeout(&self) -> Duration {
        Duration::from_nanos(self.0.pad.timeout_ns)
    }

    fn is_stopped(&self) -> bool {
        // SAFETY: the pad lives, as `new` was promised.
        unsafe { host::is_stopped(&self.0.pad) }
    }

    fn is_noticed(&self) -> bool {
        // SAFETY: as above.
        unsafe { host::is_noticed(&self.0.pad) }
    }

    fn record(&self, slot: usize, peer: usize, wanted: u32, seen: u32, waited: Duration) {
        // SAFETY: as above.
        unsafe { host::record_fault(&self.0.pad, slot, peer, wanted, seen, waited) }
    }
}

impl Barrier for HostGroup {
    type Flag = AtomicU32;

    fn flag(&self, owner: usize, slot: usize, source: usize) -> &AtomicU32 {
        let index = slot * self.world() + source;
        let flag = self.0.flags.0[owner].add(index * FLAG_STRIDE);
        // SAFETY: every rank's pad has flags for all slots and sources, accessed by atomics only; the pad lives, as `new`
        // was promised.
        unsafe { AtomicU32::from_ptr(flag.as_host()) }
    }
}
