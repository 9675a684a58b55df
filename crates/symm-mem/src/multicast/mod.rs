//! Multicast objects: one store reaches the memory of all ranks (NVLS on NVIDIA switches).
//!
//! # The guard
//!
//! A fault in the multicast path can take down the fabric of a shared server, so multicast is opt-in.
//! [`guard`] allows it only if `WARPWEAVE_MULTICAST=1` is set and none of `NCCL_NVLS_ENABLE=0`,
//! `TORCH_SYMM_MEM_DISABLE_MULTICAST=1` and `NVSHMEM_DISABLE_NVLS=1` is. Every multicast call of the CUDA
//! backend takes an [`Allowed`], which only the guard creates. The host backend emulates the object and needs
//! no permission.
//!
//! # The order of steps
//!
//! Set-up: one rank creates the object, all import it, all add their device, all bind their memory, all map
//! it. Teardown is the reverse: all end their stores, all unmap, all unbind their memory and release the
//! object. No step begins before the previous one has ended on every rank, so no rank waits inside the driver
//! for a rank that waits elsewhere. [`MulticastBuffer`] does this for one object; [`MulticastCache`] keeps
//! those of several buffers.
//!
//! # The rule
//!
//! The multicast address is stored to and never read. Plain loads through it are undefined; the only
//! instruction that may load through it returns the sum over all ranks
//! (`cuda/include/warpweave/multimem.cuh`). Read stored data through the buffer's own mapping, after a
//! signal.

mod buffer;
mod cache;

use crate::backend::Support;
use crate::error::Result;

pub use buffer::MulticastBuffer;
pub use cache::MulticastCache;

/// Permission to use multicast on this machine, created only by [`guard`].
#[derive(Clone, Copy, Debug)]
pub struct Allowed(());

/// Whether the environment, read by `lookup`, allows multicast, and if not, why.
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

/// Asks the guard first, then `device`.
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
