//! Machines and drivers with missing features.

use std::sync::Arc;

use warpweave_fake_driver::Control;
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{
    Backend, Cuda, Error, Exchange, Priority, SymmetricBuffer, ThreadExchange,
};

/// What the backend uses and drivers of CUDA 12.2 lack.
pub const SINCE_12_2: [&str; 5] = [
    "cuStreamGetCaptureInfo_v3",
    "cuEventElapsedTime_v2",
    "cuFuncLoad",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
];

/// Functions without which there is no backend, and those of multicast.
pub fn missing() -> [&'static str; 7] {
    [
        "cuMemCreate",
        "cuLaunchKernelEx",
        "cuMulticastGetGranularity",
        "cuMulticastCreate",
        "cuMulticastAddDevice",
        "cuMulticastBindMem",
        "cuMulticastUnbind",
    ]
}

/// The errors on a machine that lacks `LACKS`.
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
        "cuMemCreate" | "cuLaunchKernelEx" => {
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
        multicast if multicast.contains("ulticast") || multicast == "permission" => {
            let device = Cuda::new(0).unwrap();
            let buffer = buffer(&device).unwrap();
            let error = MulticastBuffer::new(&device, &exchange, &buffer).unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            let names = lacks.starts_with("cu");
            assert!(!names || error.to_string().contains(&lacks), "{error}");
            let touched = driver
                .calls()
                .into_iter()
                .any(|call| call.function.contains("Multicast"));
            assert!(!touched, "no multicast call without leave");
        }
        // Then only timing is missing.
        "events" => {
            let device = Cuda::new(0).unwrap();
            let stream = device.stream(Priority::Normal).unwrap();
            let events = [device.event().unwrap(), device.event().unwrap()];
            for event in &events {
                device.record(event, &stream).unwrap();
            }
            device.synchronize(&stream).unwrap();
            let error = device.elapsed(&events[0], &events[1]).unwrap_err();
            assert!(error.is_unavailable(), "{error}");
            let installed = Cuda::installed().unwrap();
            assert_eq!(installed.len(), Cuda::device_count().unwrap());
            let (name, driver) = &installed[0];
            assert_eq!(format!("{name} (device 0)"), device.device().name);
            assert_eq!(*driver, device.device().driver);
        }
        other => panic!("nothing lacks {other}"),
    }
    let error = Cuda::new(1000).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    drop(exchange);
    assert_eq!(driver.live(), [""; 0]);
}

/// Two devices without peer access: both ranks get an error.
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
