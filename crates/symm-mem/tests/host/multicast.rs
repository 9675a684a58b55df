//! Multicast objects on the host backend, which emulates them: a step that fails on one rank, and the cache.

use std::sync::Arc;

use crate::faulty::{Faulty, Step, all_blame, ranks};
use warpweave_symm_mem::ipc::CacheLimits;
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{
    DevicePtr, Error, Exchange, MulticastCache, Result, SubExchange, SymmetricBuffer,
};

/// Creates a multicast object on three ranks, with `culprit` failing at `fails`; then, with the same
/// exchanges, one that works.
fn attempt(culprit: usize, fails: Option<Step>) -> Vec<Result<()>> {
    ranks(3, move |exchange| {
        let device = Faulty::new();
        let buffer = SymmetricBuffer::new(&device, &exchange, "b", 100).unwrap();
        device.fail(fails.filter(|_| exchange.rank() == culprit));
        let outcome = MulticastBuffer::new(&device, &exchange, &buffer).map(drop);
        device.fail(None);
        let object = MulticastBuffer::new(&device, &exchange, &buffer).unwrap();
        assert_eq!(
            object.address(),
            DevicePtr::NULL,
            "host kernels store to every mapping"
        );
        assert_eq!(object.buffer(), buffer.id());
        object.close(exchange.as_ref()).unwrap();
        buffer.close(exchange.as_ref()).unwrap();
        outcome
    })
}

#[test]
fn all_ranks_get_an_object() {
    for outcome in attempt(0, None) {
        outcome.unwrap();
    }
}

#[test]
fn a_failure_on_one_rank_is_an_error_on_all_and_nobody_is_left_waiting() {
    let steps = [
        (0, Step::Create),
        (0, Step::Export),
        (2, Step::Import),
        (1, Step::Join),
        (0, Step::Bind),
        (2, Step::Bind),
        (1, Step::Map),
    ];
    for (culprit, step) in steps {
        all_blame(culprit, step, attempt(culprit, Some(step)));
    }
}

#[test]
fn an_exchange_of_another_group_than_the_buffer_is_refused_on_every_rank() {
    ranks(4, |exchange| {
        let device = Faulty::new();
        let buffer = SymmetricBuffer::new(&device, &exchange, "b", 100).unwrap();
        let first = exchange.rank() / 2 * 2;
        let pair = SubExchange::new(exchange.clone(), [first, first + 1]).unwrap();
        let pair: Arc<dyn Exchange> = Arc::new(pair);
        let error = MulticastBuffer::new(&device, &pair, &buffer).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        exchange.barrier("refused").unwrap();
    });
}

#[test]
fn a_buffer_has_one_object_until_it_is_gone() {
    ranks(3, |exchange| {
        let device = Faulty::new();
        let cache = MulticastCache::new(&device, CacheLimits::default());
        let buffer = |name| SymmetricBuffer::new(&device, &exchange, name, 100).unwrap();
        let (a, b) = (buffer("a"), buffer("b"));
        let first = cache.get(&exchange, &a).unwrap();
        let again = cache.get(&exchange, &a).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let other = cache.get(&exchange, &b).unwrap();
        assert_ne!(first.buffer(), other.buffer());
        assert_eq!(cache.len(), 2);
        drop((first, again, other));
        a.close(exchange.as_ref()).unwrap();
        let c = buffer("a");
        cache.get(&exchange, &c).unwrap();
        assert_eq!(
            cache.len(),
            2,
            "the object of a buffer that is gone is gone"
        );
        assert_eq!(cache.trim(exchange.as_ref()).unwrap(), 2);
        cache.close(exchange.as_ref()).unwrap();
    });
}

#[test]
fn objects_are_evicted_by_age_and_never_while_one_rank_holds_them() {
    ranks(2, |exchange| {
        let device = Faulty::new();
        let limits = CacheLimits {
            entries: 2,
            ..CacheLimits::default()
        };
        let cache = MulticastCache::new(&device, limits);
        let buffers: Vec<_> = ["a", "b", "c"]
            .map(|name| SymmetricBuffer::new(&device, &exchange, name, 100).unwrap())
            .into();
        // Only rank 1 holds the oldest.
        let oldest = cache.get(&exchange, &buffers[0]).unwrap();
        let oldest = (exchange.rank() == 1).then_some(oldest);
        cache.get(&exchange, &buffers[1]).unwrap();
        cache.get(&exchange, &buffers[2]).unwrap();
        assert_eq!(cache.len(), 2);
        let again = cache.get(&exchange, &buffers[0]).unwrap();
        if let Some(oldest) = &oldest {
            assert!(Arc::ptr_eq(oldest, &again));
        }
        drop((oldest, again));
        // A held object keeps every rank from closing the cache.
        let held = cache.get(&exchange, &buffers[0]).unwrap();
        let held = (exchange.rank() == 0).then_some(held);
        let error = cache.close(exchange.as_ref()).unwrap_err();
        match exchange.rank() {
            0 => assert!(matches!(error, Error::InUse { held: 1, .. }), "{error}"),
            _ => assert!(
                matches!(error, Error::PeerFailed { rank: 0, .. }),
                "{error}"
            ),
        }
        drop(held);
    });
}

#[test]
fn a_step_that_fails_leaves_the_cache_in_order() {
    for step in [Step::Import, Step::Join, Step::Bind, Step::Map] {
        let outcomes = ranks(3, move |exchange| {
            let device = Faulty::new();
            let cache = MulticastCache::new(&device, CacheLimits::default());
            let buffer = SymmetricBuffer::new(&device, &exchange, "b", 100).unwrap();
            device.fail((exchange.rank() == 1).then_some(step));
            let outcome = cache.get(&exchange, &buffer).map(drop);
            device.fail(None);
            assert!(cache.is_empty());
            cache.get(&exchange, &buffer).unwrap();
            cache.close(exchange.as_ref()).unwrap();
            outcome
        });
        all_blame(1, step, outcomes);
    }
}
