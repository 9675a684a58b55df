//! The reference of `push_reduce.cu`, all slices at once: reduces what peers push to this rank's staging
//! memory.

use super::direct;
use super::group::{self, HostGroup, Member, Phase};
use crate::collective::launch::{Addresses, Direct, PushReduce};
use warpweave_symm_mem::DevicePtr;
use warpweave_symm_mem::host::Element;

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn push_reduce<T: Element>(launch: &PushReduce) {
    // SAFETY: the caller's obligation.
    let group = unsafe { HostGroup::new(&launch.group) };
    let (rank, epoch) = (group.rank(), group.epoch());
    let chunk_bytes = |owner: usize| {
        let start = owner as u64 * launch.chunk;
        launch.total.saturating_sub(start).min(launch.chunk)
    };
    let chunk = launch.chunk as usize;
    // A rank that gave up does not know whether its peers have reduced what it pushed before.
    let sound = group.is_sound(Phase::Enter.slot(0));
    for peer in group.peers().filter(|_| sound) {
        let from = launch.input.add(peer * chunk).as_host::<u8>();
        let to = launch.staging.0[peer].as_host::<u8>();
        // SAFETY: the caller's obligation; staging memory is free until its owner is signalled.
        unsafe { std::ptr::copy_nonoverlapping(from, to, chunk_bytes(peer) as usize) };
    }
    // The barrier signals that the peers' chunks have arrived.
    if group::barrier(&group, Phase::Enter, epoch) {
        let reduction = Direct {
            group: launch.group,
            from: Addresses::by_rank(group.world(), |source| match source == rank {
                true => launch.input.add(rank * chunk),
                false => launch.received.add(source * chunk),
            }),
            to: launch.to,
            bytes: chunk_bytes(rank),
            enter: 0,
            leave: 0,
        };
        // SAFETY: the caller's obligation.
        unsafe { direct::reduce::<T>(&reduction) };
    }
    let left = group::barrier(&group, Phase::Leave, epoch);
    let landed = launch.landed;
    for peer in group.peers().filter(|_| left && landed != DevicePtr::NULL) {
        let [from, to] = [landed, launch.output].map(|at| at.add(peer * chunk).as_host::<u8>());
        // SAFETY: the caller's obligation; the peer has written its chunk, and writes it again only after
        // this rank has begun its next launch.
        unsafe { std::ptr::copy_nonoverlapping(from, to, chunk_bytes(peer) as usize) };
    }
    group.advance(epoch);
}
