//! The twin of `group.cuh`: the barrier of a collective's ranks.
//!
//! The device stores a flag with the signature of its call in one access. The host stores the signature and
//! then, with release, the flag. A flag may go on to the next epoch before its reader looks at the signature,
//! but not to the one after, for which its writer has to hear from the reader: so there are two signatures,
//! one for each parity of the epoch.
//!
//! The protocol is generic over the memory: loom explores the code that runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warpweave_symm_mem::host;
use warpweave_symm_mem::pad::FLAG_STRIDE;
use warpweave_symm_mem::pad::flag::{self, Flag};
use warpweave_symm_mem::sync::Instant;

use crate::collective::launch::{Group, MAX_BLOCKS};

/// What a fault record has for the epoch seen, if it was the expected one with another signature: as far
/// ahead as no epoch is. `of_other_call` in `group.cuh` too.
pub(in crate::collective) const fn of_other_call(expected: u32) -> u32 {
    expected ^ 1 << 31
}

/// A u32 that several ranks access.
pub(super) trait Atomic {
    /// The value.
    fn load(&self, order: Ordering) -> u32;
    /// Sets the value.
    fn store(&self, value: u32, order: Ordering);
}

impl Atomic for AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
}

/// A rank of a group, and how its waits fail.
pub(super) trait Member {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world(&self) -> usize;

    /// Deadline of a wait.
    fn timeout(&self) -> Duration;

    /// True once a wait of this rank has failed, on any pad: it publishes nothing any more.
    fn is_stopped(&self) -> bool;

    /// True once this rank or a peer has given up on this pad: what was read from peers before may be
    /// invalid.
    fn is_noticed(&self) -> bool;

    /// That of the call, which all ranks' flags and packets carry.
    fn signature(&self) -> u32;

    /// Fails a wait: stops this rank, notifies all ranks, and records that `peer` did not bring `wanted` in
    /// `slot`, unless another fault is recorded.
    fn record(&self, slot: usize, peer: usize, wanted: u32, seen: u32, waited: Duration);

    /// True if this launch may begin. Otherwise the peers are notified, and it sends, copies and publishes
    /// nothing.
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

/// A member with the flags of the barrier.
pub(super) trait Barrier: Member {
    /// The type of a flag.
    type Flag: Flag;

    /// The type of a signature.
    type Signature: Atomic;

    /// The flag that `source` writes on `owner` in `slot`.
    fn flag(&self, owner: usize, slot: usize, source: usize) -> &Self::Flag;

    /// The signature that `source` writes before that flag, for epochs of this parity.
    fn signature_of(
        &self,
        owner: usize,
        slot: usize,
        source: usize,
        parity: u32,
    ) -> &Self::Signature;
}

/// The two barriers of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Enter = 0,
    Leave = 1,
}

impl Phase {
    /// The slot of the barrier of the blocks of this number.
    pub(super) const fn slot(self, block: usize) -> usize {
        self as usize * MAX_BLOCKS + block
    }
}

/// A barrier of this rank's only block with that of each peer: what the peers did before is visible
/// afterwards. Returns false if one did not arrive in time or makes another call, or if this rank or a peer
/// has given up.
pub(super) fn barrier(group: &impl Barrier, phase: Phase, epoch: u32) -> bool {
    if !group.is_sound(phase.slot(0)) {
        return false;
    }
    arrive(group, phase, epoch);
    wait(group, phase, epoch)
}

/// The half of a barrier that signals the peers.
pub(super) fn arrive(group: &impl Barrier, phase: Phase, epoch: u32) {
    let (rank, slot, parity) = (group.rank(), phase.slot(0), epoch & 1);
    for peer in group.peers() {
        let signature = group.signature_of(peer, slot, rank, parity);
        signature.store(group.signature(), Ordering::Relaxed);
        group.flag(peer, slot, rank).publish(epoch);
    }
}

/// The other half, which waits for them. Launches without barriers leave their flags as they are.
pub(super) fn wait(group: &impl Barrier, phase: Phase, epoch: u32) -> bool {
    let (rank, slot, parity) = (group.rank(), phase.slot(0), epoch & 1);
    let mut arrived = true;
    for peer in group.peers() {
        let start = Instant::now();
        let flag = group.flag(rank, slot, peer);
        let (noticed, stopped) = (|| group.is_noticed(), || group.is_stopped());
        let is_here = |seen| flag::reached_call(seen, epoch);
        let waited = flag::wait(flag, is_here, group.timeout(), noticed, stopped);
        let signature = group.signature_of(rank, slot, peer, parity);
        let (seen, waited) = match waited {
            Err(seen) => (seen, start.elapsed()),
            Ok(()) if signature.load(Ordering::Relaxed) == group.signature() => continue,
            // A wait that ends before its deadline would pass for one that was stopped.
            Ok(()) => (of_other_call(epoch), start.elapsed().max(group.timeout())),
        };
        group.record(slot, peer, epoch, seen, waited);
        arrived = false;
    }
    arrived
}

/// Whether `peer` has come to this barrier in another call.
pub(super) fn is_in_other_call(
    group: &impl Barrier,
    phase: Phase,
    peer: usize,
    epoch: u32,
) -> bool {
    let (rank, slot) = (group.rank(), phase.slot(0));
    let signature = group.signature_of(rank, slot, peer, epoch & 1);
    group.flag(rank, slot, peer).load() == epoch
        && signature.load(Ordering::Relaxed) != group.signature()
}

/// A group in the memory of the host backend.
pub(super) struct HostGroup(Group);

impl HostGroup {
    /// # Safety
    /// While the value is used, the group is that of live collectives of the host backend, and no other
    /// thread of this rank runs a launch with a barrier.
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

    /// Increments the epoch for the next launch, also for the blocks of a larger grid.
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

    fn signature(&self) -> u32 {
        self.0.signature
    }

    fn record(&self, slot: usize, peer: usize, wanted: u32, seen: u32, waited: Duration) {
        // SAFETY: as above.
        unsafe { host::record_fault(&self.0.pad, slot, peer, wanted, seen, waited) }
    }
}

impl HostGroup {
    /// A word of the flag that `source` writes on `owner` in `slot`: the epoch, then the signatures.
    fn word(&self, owner: usize, slot: usize, source: usize, word: usize) -> &AtomicU32 {
        const { assert!(3 * size_of::<u32>() <= FLAG_STRIDE) };
        let index = slot * self.world() + source;
        let flag = self.0.flags.0[owner].add(index * FLAG_STRIDE);
        // SAFETY: every rank's pad has flags for all slots and sources, of three words at least, accessed by
        // atomics only; the pad lives, as `new` was promised.
        unsafe { AtomicU32::from_ptr(flag.add(word * size_of::<u32>()).as_host()) }
    }
}

impl Barrier for HostGroup {
    type Flag = AtomicU32;
    type Signature = AtomicU32;

    fn flag(&self, owner: usize, slot: usize, source: usize) -> &AtomicU32 {
        self.word(owner, slot, source, 0)
    }

    fn signature_of(&self, owner: usize, slot: usize, source: usize, parity: u32) -> &AtomicU32 {
        self.word(owner, slot, source, 1 + parity as usize)
    }
}
