//! Multicast objects: one store reaches the memory of all ranks (NVLS on NVIDIA's switches).
//!
//! # The guard
//!
//! A fault in the multicast path can take the fabric of a shared server down, so it is opt-in: [`guard`] allows it only
//! where `WARPWEAVE_MULTICAST=1` is set and none of `NCCL_NVLS_ENABLE=0`, `TORCH_SYMM_MEM_DISABLE_MULTICAST=1` and
//! `NVSHMEM_DISABLE_NVLS=1` is. Every multicast call of the CUDA backend takes the [`Allowed`] that only the guard gives
//! out. The host backend emulates the object and needs no permission.
//!
//! # The rule
//!
//! The multicast address is stored to and never read: plain loads through it are undefined. What was stored is read
//! through the buffer's own mapping, behind a signal.

use std::sync::Arc;

use crate::backend::{Backend, DevicePtr, Mapping, Support};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::symmetric::{SymmetricBuffer, together};

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

/// A multicast object over the parts of a [`SymmetricBuffer`].
///
/// Drop it before the buffer, on all ranks, once their stores have ended.
#[derive(Debug)]
pub struct MulticastBuffer<B: Backend> {
    // The mapping goes before the object.
    mapping: B::Mapping,
    _object: B::Multicast,
}

impl<B: Backend> MulticastBuffer<B> {
    /// Makes the object, binds every rank's part of `buffer` and maps it. Collective.
    ///
    /// The steps cannot deadlock: rank 0 creates, all import, all join, and only when all have joined does any bind; only
    /// when all have bound does any map. An error on one rank is an error on all, at the same step.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) where the device or the guard refuses; what the driver and the
    /// exchange report.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        buffer: &SymmetricBuffer<B>,
    ) -> Result<Self> {
        let exchange = exchange.as_ref();
        let (bytes, world) = (buffer.stride(), exchange.world());
        together(
            exchange,
            "multicast.support",
            backend.device().multicast.require("multicast"),
        )?;

        let created = if exchange.rank() == 0 {
            backend
                .create_multicast(bytes, world)
                .and_then(|object| Ok(Some((backend.export_multicast(&object)?, object))))
        } else {
            Ok(None)
        };
        let created = together(exchange, "multicast.create", created)?;
        use std::os::fd::AsFd;
        let fds: Vec<_> = created.iter().map(|(fd, _)| fd.as_fd()).collect();
        let mut gathered = exchange.all_gather_fds("multicast.fd", &fds)?;
        let object = match created {
            Some((_, object)) => Ok(object),
            None => match gathered.first_mut().and_then(Vec::pop) {
                Some(fd) => backend.import_multicast(fd, bytes, world),
                None => Err(crate::ExchangeError::MissingDescriptor {
                    rank: 0,
                    tag: "multicast.fd".into(),
                    expected: 1,
                    got: 0,
                }
                .into()),
            },
        };
        drop(gathered);
        let object = together(exchange, "multicast.import", object)?;
        together(exchange, "multicast.join", backend.join_multicast(&object))?;
        together(
            exchange,
            "multicast.bind",
            backend.bind_multicast(&object, buffer.segment()),
        )?;
        let mapping = together(exchange, "multicast.map", backend.map_multicast(&object))?;
        Ok(MulticastBuffer {
            mapping,
            _object: object,
        })
    }

    /// The address to store to; [`DevicePtr::NULL`] on the host backend, whose kernels store to every mapping.
    pub fn address(&self) -> DevicePtr {
        self.mapping.address()
    }
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
