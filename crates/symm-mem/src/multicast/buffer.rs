//! One multicast object: set-up and teardown on all ranks.

use std::sync::{Arc, Weak};

use crate::agreement::agree;
use crate::backend::{Backend, DevicePtr, Mapping};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::symmetric::SymmetricBuffer;

/// A multicast object over the parts of a [`SymmetricBuffer`].
///
/// Close it before the buffer. Dropping it takes the same steps, but without waiting for other ranks.
#[derive(Debug)]
pub struct MulticastBuffer<B: Backend> {
    // The mapping is dropped before the object.
    mapping: B::Mapping,
    object: B::Multicast,
    buffer: u64,
    alive: Weak<()>,
}

impl<B: Backend> MulticastBuffer<B> {
    /// Creates the object, binds every rank's part of `buffer` and maps it. Collective.
    ///
    /// The steps cannot deadlock: rank 0 creates, all import, all join; only when all have joined does any
    /// rank bind, and only when all have bound does any rank map. An error on one rank is an error on all, at
    /// the same step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `exchange` is of another [group](Exchange::group_id) than `buffer`;
    /// [`Error::Unavailable`] if the device or the guard refuses; errors of the driver and the exchange.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        buffer: &SymmetricBuffer<B>,
    ) -> Result<Self> {
        let exchange = exchange.as_ref();
        let (bytes, world) = (buffer.stride(), exchange.world());
        let own_group = match buffer.group_id() == exchange.group_id() {
            true => Ok(()),
            false => Err(Error::InvalidArgument {
                what: "exchange of a multicast object",
                why: "the buffer's memory is that of other ranks: pass the exchange that the buffer was made \
                      with"
                    .into(),
            }),
        };
        let supported = own_group.and_then(|()| backend.device().multicast.require("multicast"));
        agree(exchange, "multicast.support", supported)?;

        let created = if exchange.rank() == 0 {
            backend
                .create_multicast(bytes, world)
                .and_then(|object| Ok(Some((backend.export_multicast(&object)?, object))))
        } else {
            Ok(None)
        };
        let created = agree(exchange, "multicast.create", created)?;
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
        let object = agree(exchange, "multicast.import", object)?;
        agree(exchange, "multicast.join", backend.join_multicast(&object))?;
        agree(
            exchange,
            "multicast.bind",
            backend.bind_multicast(&object, buffer.segment()),
        )?;
        let mapping = agree(exchange, "multicast.map", backend.map_multicast(&object))?;
        Ok(MulticastBuffer {
            mapping,
            object,
            buffer: buffer.id(),
            alive: buffer.alive(),
        })
    }

    /// The address to store to; [`DevicePtr::NULL`] on the host backend, whose kernels store to every
    /// mapping.
    pub fn address(&self) -> DevicePtr {
        self.mapping.address()
    }

    /// The [`SymmetricBuffer::id`] of its buffer.
    pub fn buffer(&self) -> u64 {
        self.buffer
    }

    /// False once the buffer is dropped on this rank.
    pub fn is_current(&self) -> bool {
        self.alive.strong_count() > 0
    }

    /// Destroys the object on all ranks and returns when every rank has. Stores to it must have ended.
    /// Collective.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        close_all(vec![self], exchange)
    }
}

/// The teardown steps for the same objects on all ranks.
pub(super) fn close_all<B: Backend>(
    objects: Vec<MulticastBuffer<B>>,
    exchange: &dyn Exchange,
) -> Result<()> {
    let (mappings, objects): (Vec<_>, Vec<_>) = objects
        .into_iter()
        .map(
            |MulticastBuffer {
                 mapping, object, ..
             }| (mapping, object),
        )
        .unzip();
    exchange.barrier("multicast.idle")?;
    drop(mappings);
    exchange.barrier("multicast.unmapped")?;
    drop(objects);
    exchange.barrier("multicast.unbound")?;
    Ok(())
}
