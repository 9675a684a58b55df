//! The references of `direct.cu`: moves and reductions of symmetric operands in place, and the barrier.

use super::elements::{self, BATCH};
use super::group::{self, HostGroup, Member, Phase};
use crate::collective::launch::{Direct, Group};
use warpweave_symm_mem::host::Element;

/// A barrier of all ranks.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn barrier(group: &Group) {
    // SAFETY: the caller's obligation.
    let group = unsafe { HostGroup::new(group) };
    let epoch = group.epoch();
    group::barrier(&group, Phase::Enter, epoch);
    group.advance(epoch);
}

/// Moves between this rank and each peer.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn exchange(launch: &Direct) {
    let bytes = launch.bytes as usize;
    // SAFETY: the caller's obligation.
    unsafe {
        between_barriers(launch, |group| {
            for peer in rank_order(group) {
                let (from, to) = (launch.from.0[peer], launch.to.0[peer]);
                if from.0 != 0 {
                    std::ptr::copy_nonoverlapping(from.as_host::<u8>(), to.as_host(), bytes);
                }
            }
        });
    }
}

/// Reduces each element over the sources, in the order of ranks, and stores the result to every destination.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn reduce<T: Element>(launch: &Direct) {
    let count = launch.bytes as usize / size_of::<T>();
    // SAFETY: the caller's obligation. All sources of an element are read before it is stored anywhere.
    unsafe {
        between_barriers(launch, |group| {
            let mut sums = [T::default(); BATCH];
            for start in (0..count).step_by(BATCH) {
                let sums = &mut sums[..BATCH.min(count - start)];
                let sources = &launch.from.0[..group.world()];
                let at = |address: &warpweave_symm_mem::DevicePtr| {
                    address.as_host::<T>().add(start).cast_const()
                };
                elements::reduce(sources.iter().map(at), sums);
                for peer in rank_order(group) {
                    let to = launch.to.0[peer];
                    if to.0 != 0 {
                        let to = to.as_host::<T>().add(start);
                        std::ptr::copy_nonoverlapping(sums.as_ptr(), to, sums.len());
                    }
                }
            }
        });
    }
}

/// The ranks from this one on, so that no two ranks touch the same peer's memory at the same time.
fn rank_order(group: &impl Member) -> impl Iterator<Item = usize> {
    std::iter::once(group.rank()).chain(group.peers())
}

/// Runs `body` between the barriers that the launch asks for, unless a peer misses the first.
///
/// # Safety
/// As for [`CollectiveKernels`](crate::CollectiveKernels).
unsafe fn between_barriers(launch: &Direct, body: impl FnOnce(&HostGroup)) {
    // SAFETY: the caller's obligation.
    let group = unsafe { HostGroup::new(&launch.group) };
    let epoch = group.epoch();
    if launch.enter == 0 || group::barrier(&group, Phase::Enter, epoch) {
        body(&group);
    }
    if launch.leave != 0 {
        group::barrier(&group, Phase::Leave, epoch);
    }
    if launch.enter != 0 || launch.leave != 0 {
        group.advance(epoch);
    }
}
