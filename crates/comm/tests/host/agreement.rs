//! Endpoints and collectives are made, and recover, on all ranks or on none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweave_comm::CommError;
use warpweave_comm::collective::{CollectiveOptions, Collectives};
use warpweave_comm::p2p::{Options, PointToPoint};
use warpweave_symm_mem::host::HostStream;
use warpweave_symm_mem::{Backend, Error, Exchange, Host, SignalPad, ThreadExchange};

/// Far longer than any of this takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs `body` on two ranks, which end long before the exchange gives up.
fn ranks<T: Send>(body: impl Fn(Arc<dyn Exchange>) -> T + Sync) -> Vec<T> {
    let (body, start) = (&body, Instant::now());
    let group = ThreadExchange::group_with_timeout(2, DEADLINE).into_iter();
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = group
            .map(|exchange| scope.spawn(move || body(Arc::new(exchange))))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(start.elapsed() < DEADLINE / 2, "a rank was left waiting");
    results
}

#[test]
fn an_endpoint_with_wrong_lanes_on_one_rank_is_an_error_on_all() {
    let errors = ranks(|exchange| {
        let device = Host::new();
        let lanes = usize::from(exchange.rank() == 0);
        let options = Options {
            lanes,
            ..Options::default()
        };
        let error = PointToPoint::new(&device, &exchange, "odd", options).unwrap_err();
        // The ranks are at the same step: they make one that works.
        PointToPoint::new(&device, &exchange, "even", Options::default()).unwrap();
        exchange.barrier("made").unwrap();
        error
    });
    assert!(
        matches!(
            &errors[0],
            CommError::Memory(Error::PeerFailed { rank: 1, .. })
        ),
        "{}",
        errors[0]
    );
    assert!(
        matches!(&errors[1], CommError::InvalidArgument { .. }),
        "{}",
        errors[1]
    );
}

#[test]
fn collectives_recover_on_all_ranks_or_on_none() {
    let errors = ranks(|exchange| {
        let device = Host::new();
        let options = CollectiveOptions {
            packet_bytes: 1500,
            staging_bytes: 4096,
            ..CollectiveOptions::default()
        };
        let collectives = Collectives::new(&device, &exchange, "c", options).unwrap();
        let stream = device.setup_stream().unwrap();
        break_work(&device, &stream, exchange.rank());
        let error = collectives.recover(&stream, exchange.as_ref()).unwrap_err();
        collectives.recover(&stream, exchange.as_ref()).unwrap();
        collectives.barrier(&stream).unwrap();
        device.synchronize(&stream).unwrap();
        collectives.check(&stream).unwrap();
        collectives.close(&stream, exchange.as_ref()).unwrap();
        error
    });
    all_blame_rank_1(errors);
}

#[test]
fn work_that_fails_before_a_close_is_an_error_on_all() {
    let errors = ranks(|exchange| {
        let device = Host::new();
        let stream = device.setup_stream().unwrap();
        let broken = || break_work(&device, &stream, exchange.rank());
        let (options, lanes) = (CollectiveOptions::default(), Options::default());
        let collectives = Collectives::new(&device, &exchange, "c", options).unwrap();
        let endpoint = PointToPoint::new(&device, &exchange, "e", lanes).unwrap();
        let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
        let exchange = exchange.as_ref();
        broken();
        let first = collectives.close(&stream, exchange).unwrap_err();
        broken();
        let second = match endpoint.close(&stream, exchange).unwrap_err() {
            CommError::Memory(error) => error,
            other => panic!("{other}"),
        };
        broken();
        [first, second, pad.close(&stream, exchange).unwrap_err()]
    });
    let [of_first, of_second] = errors.try_into().unwrap();
    for (one, other) in of_first.into_iter().zip(of_second) {
        all_blame_rank_1(vec![one, other]);
    }
}

/// Enqueues work that fails on rank 1.
fn break_work(device: &Host, stream: &HostStream, rank: usize) {
    let broken = || {
        Err(Error::Unavailable {
            what: "work".into(),
            why: "on purpose".into(),
        })
    };
    if rank == 1 {
        device.launch(stream, "broken", broken).unwrap();
    }
}

fn all_blame_rank_1(errors: Vec<Error>) {
    assert!(
        matches!(errors[0], Error::PeerFailed { rank: 1, .. }),
        "{}",
        errors[0]
    );
    assert!(matches!(errors[1], Error::Stream { .. }), "{}", errors[1]);
    for error in errors {
        assert!(error.to_string().contains("on purpose"), "{error}");
    }
}
