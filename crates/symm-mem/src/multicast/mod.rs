//! Multicast objects: one store reaches the memory of all ranks (NVLS on NVIDIA's switches).
//!
//! # The guard
//!
//! A fault in the multicast path can take the fabric of a shared server down, so it is opt-in: [`guard`] allows it only
//! where `WARPWEAVE_MULTICAST=1` is set and none of `NCCL_NVLS_ENABLE=0`, `TORCH_SYMM_MEM_DISABLE_MULTICAST=1` and
//! `NVSHMEM_DISABLE_NVLS=1` is. Every multicast call of the CUDA backend takes the [`Allowed`] that only the guard gives
//! out. The host backend emulates the object and needs no permission.
//!
//! # The order of steps
//!
//! Set-up: one rank creates the object, all import it, all add their device, all bind their memory, all map. Teardown is
//! the mirror image: all end their stores, all unmap, all unbind their memory and let the object go. No step begins
//! before the step before it has ended on every rank, so no rank waits inside the driver for one that waits elsewhere:
//! [`MulticastBuffer`] does one object, [`MulticastCache`] keeps those of several buffers.
//!
//! # The rule
//!
//! The multicast address is stored to and never read: plain loads through it are undefined, and the one instruction that may
//! load through it brings the sum of what all ranks hold (`cuda/include/warpweave/multimem.cuh`). What was stored is read
//! through the buffer's own mapping, behind a signal.

mod buffer;
mod cache;

use crate::backend::Support;
use crate::error::Result;

pub use buffer::MulticastBuffer;
pub use cache::MulticastCache;

/// Permission to use multicast on this machine, from [`guard`] alone.
#[derive(Clone, Copy, Debug)]
pub struct Allowed(());

/// Whether the environment behind `lookup` allows multicast, and if not, why.
pub fn guard(lookup: impl Fn(&str) -> Option<String>) -> std::result::Result<Allowed, String> {
    let refusals = [
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ];
    for (name, value) in refusals {
        if lookup(name).is_some_and(|set| set.trim() == value) {
            return Err(format!(
                "{name}={value} is set: whoever runs this machine wants no multicast"
            ));
        }
    }
    match lookup("WARPWEAVE_MULTICAST").as_deref().map(str::trim) {
        Some("1") => Ok(Allowed(())),
        _ => Err("it is opt-in: set WARPWEAVE_MULTICAST=1 on a machine that is yours alone".into()),
    }
}

/// [`guard`] on the environment of this process.
pub fn guard_process() -> std::result::Result<Allowed, String> {
    guard(|name| std::env::var(name).ok())
}

/// What a device that may have multicast answers once the guard has been asked.
pub(crate) fn guarded(device: impl FnOnce() -> Result<Support>) -> Result<Support> {
    match guard_process() {
        Ok(Allowed(())) => device(),
        Err(why) => Ok(Support::No(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(set: &[(&str, &str)]) -> std::result::Result<Allowed, String> {
        guard(|name| {
            set.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.to_string())
        })
    }

    #[test]
    fn multicast_is_opt_in() {
        assert!(ask(&[]).unwrap_err().contains("WARPWEAVE_MULTICAST=1"));
        assert!(ask(&[("WARPWEAVE_MULTICAST", "0")]).is_err());
        assert!(ask(&[("WARPWEAVE_MULTICAST", "yes")]).is_err());
        assert!(ask(&[("WARPWEAVE_MULTICAST", "1")]).is_ok());
        assert!(ask(&[("WARPWEAVE_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "1")]).is_ok());
    }

    #[test]
    fn who_runs_the_machine_has_the_last_word() {
        for (name, value) in [
            ("NCCL_NVLS_ENABLE", "0"),
            ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
            ("NVSHMEM_DISABLE_NVLS", " 1 "),
        ] {
            let why = ask(&[("WARPWEAVE_MULTICAST", "1"), (name, value)]).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }
}
