//! Machines and drivers that lack something.

use std::sync::Arc;

use warpweave_fake_driver::Control;
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{Backend, Cuda, Error, Exchange, SymmetricBuffer, ThreadExchange};

/// Functions that older drivers do not have, and one that every driver has.
pub fn missing() -> [&'static str; 5] {
    [
        "cuMemCreate",
        "cuEventElapsedTime_v2",
        "cuLaunchKernelEx",
        "cuMulticastCreate",
        "cuFuncLoad",
    ]
}

/// What the process of a machine that lacks `LACKS` is told.
pub fn answer(driver: &Control) {
    let lacks = std::env::var("LACKS").unwrap();
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let buffer = |device: &Cuda| SymmetricBuffer::new(device, &exchange, "b", 100);
    match lacks.as_str() {
        "device" => {
            for error in [Cuda::device_count().unwrap_err(), Cuda::new(0).unwrap_err()] {
                assert!(error.is_unavailable(), "{error}");
                assert!(
                    error.to_string().contains("the driver does not start"),
                    "{error}"
                );
            }
        }
        "cuMemCreate" | "cuEventElapsedTime_v2" | "cuLaunchKernelEx" => {
            for error in [Cuda::device_count().unwrap_err(), Cuda::new(0).unwrap_err()] {
                assert!(error.is_unavailable(), "{error}");
                assert!(error.to_string().contains(&lacks), "{error}");
            }
        }
        "vmm" | "descriptor" => {
            let device = Cuda::new(0).unwrap();
            drop(device.allocate(10).unwrap());
            let error = buffer(&device).unwrap_err();
            assert!(error.is_unavailable(), "{error}");
        }
        "peer" => without_peer_access(),
        "permission" | "multicast" | "cuMulticastCreate" => {
            let device = Cuda::new(0).unwrap();
            let buffer = buffer(&device).unwrap();
            let error = MulticastBuffer::new(&device, &exchange, &buffer).unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            let touched = driver
                .calls()
                .into_iter()
                .any(|call| call.function.contains("Multicast"));
            assert!(!touched, "no multicast call without leave");
        }
        // It is only a hint to the driver.
        "cuFuncLoad" => drop(Cuda::new(0).unwrap()),
        other => panic!("nothing lacks {other}"),
    }
    let error = Cuda::new(1000).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    drop(exchange);
    assert_eq!(driver.live(), [""; 0]);
}

/// Two devices that cannot reach each other: both ranks are told so.
fn without_peer_access() {
    let threads: Vec<_> = ThreadExchange::group(2)
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || {
                let device = Cuda::new(exchange.rank()).unwrap();
                let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                SymmetricBuffer::new(&device, &exchange, "b", 100)
                    .map(drop)
                    .unwrap_err()
            })
        })
        .collect();
    for thread in threads {
        let error = thread.join().unwrap();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("peer access"), "{error}");
    }
}
