//! Sharing what a user allocated on GPUs: among processes and among threads, on one device each where there
//! are enough, else all on the first.

use std::sync::Arc;

use crate::processes::processes;
use crate::sharing::{exchange_data, read, write};
use cudarc::driver::sys;
use warpweave_symm_mem::ipc::MemoryHandle;
use warpweave_symm_mem::{
    Backend, Cuda, DevicePtr, Error, Exchange, IpcCache, Mapping, Memory, Sharing, ThreadExchange,
};

fn device(rank: usize) -> Cuda {
    let devices = Cuda::device_count().expect("a GPU");
    Cuda::new(rank % devices).unwrap()
}

fn threads(world: usize, body: impl Fn(Cuda, Arc<dyn Exchange>) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let threads: Vec<_> = ThreadExchange::group(world)
        .into_iter()
        .map(|exchange| {
            let body = body.clone();
            std::thread::spawn(move || body(device(exchange.rank()), Arc::new(exchange)))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a rank panicked");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn memory_is_shared_freed_and_shared_again() {
    processes(
        "ipc::memory_is_shared_freed_and_shared_again",
        2,
        |exchange| {
            let device = device(exchange.rank());
            crate::sharing::memory_is_shared_freed_and_shared_again(&device, &exchange);
        },
    );
}

#[test]
#[ignore = "needs a GPU"]
fn one_registration_is_released() {
    processes("ipc::one_registration_is_released", 2, |exchange| {
        crate::sharing::one_registration_is_released(&device(exchange.rank()), &exchange);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_pool_is_used_again_and_again() {
    processes("ipc::a_pool_is_used_again_and_again", 2, |exchange| {
        crate::sharing::a_pool_is_used_again_and_again(&device(exchange.rank()), &exchange);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn threads_share_memory_freed_and_shared_again() {
    threads(2, |device, exchange| {
        crate::sharing::memory_is_shared_freed_and_shared_again(&device, &exchange);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn virtual_memory_is_shared_by_descriptor() {
    processes(
        "ipc::virtual_memory_is_shared_by_descriptor",
        2,
        |exchange| {
            virtual_memory(&device(exchange.rank()), exchange.as_ref());
        },
    );
}

#[test]
#[ignore = "needs a GPU"]
fn threads_share_virtual_memory() {
    threads(2, |device, exchange| {
        virtual_memory(&device, exchange.as_ref())
    });
}

fn virtual_memory(device: &Cuda, exchange: &dyn Exchange) {
    let bytes = 2 * device.granularity();
    let segment = device.create_segment(bytes, Sharing::Descriptors).unwrap();
    let mapping = device.map_segments(&[&segment]).unwrap();
    let identity = device.identity(mapping.address().add(100)).unwrap();
    assert_eq!((identity.base, identity.bytes), (mapping.address(), bytes));
    let handle = device.export_memory(mapping.address()).unwrap().handle;
    assert_eq!(handle, MemoryHandle::Descriptor);
    let cache = IpcCache::new(device).unwrap();
    exchange_data(
        device,
        exchange,
        &cache,
        mapping.address().add(4096),
        10_000,
        3,
    );
    exchange_data(
        device,
        exchange,
        &cache,
        mapping.address().add(bytes - 100),
        100,
        4,
    );
    cache.close(exchange).unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn slices_of_cudarc_are_shared_among_threads_and_refused_among_processes() {
    let test = "ipc::slices_of_cudarc_are_shared_among_threads_and_refused_among_processes";
    processes(test, 2, |exchange| {
        let device = device(exchange.rank());
        let stream = device.context().new_stream().unwrap();
        let queue = device.adopt_stream(stream.clone()).unwrap();
        let slice = stream.alloc_zeros::<f32>(5000).unwrap();
        stream.synchronize().unwrap();
        let (at, bytes) = device.address_of(&slice, &queue).unwrap();
        assert_eq!(bytes, 20_000);
        let cache = IpcCache::new(&device).unwrap();
        let outcome = cache.register(exchange.as_ref(), at, bytes).map(drop);
        if device.context().has_async_alloc() {
            let error = outcome.unwrap_err();
            assert!(error.to_string().contains("shareable_slice"), "{error}");
        } else {
            outcome.unwrap();
            cache.trim(exchange.as_ref()).unwrap();
        }
        // The way that the message names.
        let mut shared = device.shareable_slice::<f32>(&stream, 5000).unwrap();
        assert_eq!(
            (shared.bytes(), shared.num_bytes_of_slice()),
            (20_000, 20_000)
        );
        stream
            .memcpy_htod(&[1.5; 5000], &mut shared.as_view_mut())
            .unwrap();
        stream.synchronize().unwrap();
        let registered = cache
            .register(exchange.as_ref(), shared.address(), 20_000)
            .unwrap();
        exchange.barrier("written").unwrap();
        let theirs = read(&device, registered.peer(1 - exchange.rank()), 20_000);
        assert!(theirs.chunks(4).all(|b| b == 1.5f32.to_ne_bytes()));
        exchange.barrier("read").unwrap();
        drop(registered);
        cache.close(exchange.as_ref()).unwrap();
    });
    threads(2, |device, exchange| {
        let stream = device.context().new_stream().unwrap();
        let queue = device.adopt_stream(stream.clone()).unwrap();
        let slice = stream.alloc_zeros::<u8>(5000).unwrap();
        stream.synchronize().unwrap();
        let (at, _) = device.address_of(&slice, &queue).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        exchange_data(&device, exchange.as_ref(), &cache, at.add(8), 4000, 9);
        cache.close(exchange.as_ref()).unwrap();
        drop(slice);
        stream.synchronize().unwrap();
        exchange.barrier("freed").unwrap();
    });
}

/// Length of a slice in bytes, by cudarc's word.
trait NumBytes {
    fn num_bytes_of_slice(&self) -> usize;
}

impl<T> NumBytes for cudarc::driver::CudaSlice<T> {
    fn num_bytes_of_slice(&self) -> usize {
        self.len() * size_of::<T>()
    }
}

#[test]
#[ignore = "needs a GPU"]
fn freed_memory_is_another_allocation_even_at_the_same_address() {
    let device = device(0);
    let mut seen = std::collections::HashSet::new();
    let mut again = false;
    let mut addresses = std::collections::HashSet::new();
    for _ in 0..100 {
        let memory = device.allocate(8 << 20).unwrap();
        let identity = device.identity(memory.address().add(77)).unwrap();
        assert_eq!((identity.base, identity.bytes), (memory.address(), 8 << 20));
        assert!(seen.insert(identity.id), "{identity:?}");
        again |= !addresses.insert(memory.address());
    }
    assert!(again, "the driver gives an address again");
    let error = device.identity(DevicePtr(4096)).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn virtual_memory_without_handles_is_confined() {
    let device = device(0);
    device.bind().unwrap();
    let bytes = device.granularity();
    let (mut handle, mut address) = (0, 0);
    let location = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device.context().cu_device(),
    };
    let properties = sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    // SAFETY: every argument lives through its call, and the range is mapped once and unmapped below.
    unsafe {
        sys::cuMemCreate(&mut handle, bytes, &properties, 0)
            .result()
            .unwrap();
        sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0)
            .result()
            .unwrap();
        sys::cuMemMap(address, bytes, 0, handle, 0)
            .result()
            .unwrap();
    }
    let exported = device.export_memory(DevicePtr(address)).unwrap();
    let MemoryHandle::Confined(why) = exported.handle else {
        panic!("{exported:?}")
    };
    assert!(why.contains("requestedHandleTypes"), "{why}");
    // SAFETY: as above; nothing uses the range.
    unsafe {
        sys::cuMemUnmap(address, bytes).result().unwrap();
        sys::cuMemAddressFree(address, bytes).result().unwrap();
        sys::cuMemRelease(handle).result().unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn fabric_handles_have_a_typed_answer() {
    let device = device(0);
    let answer = device.fabric_handles().unwrap();
    println!("fabric handles: {answer:?}");
    assert_eq!(answer, device.fabric_handles().unwrap());
    let opened = device.import_memory(&MemoryHandle::Fabric([0; 64]), None, device.granularity());
    let error = opened.unwrap_err();
    assert!(answer.is_yes() || error.is_unavailable(), "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn a_wrong_handle_is_a_typed_error_and_the_context_survives() {
    let device = device(0);
    let memory = device.allocate(100).unwrap();
    let garbage = MemoryHandle::Legacy([7; 64]);
    let error = device.import_memory(&garbage, None, 100).unwrap_err();
    println!("{error}");
    let own = device.export_memory(memory.address()).unwrap();
    // Drivers differ in whether a process may open its own memory.
    match device.import_memory(&own.handle, own.fd, 100) {
        Ok(opened) => println!("opened at {:?}", opened.address()),
        Err(error) => println!("{error}"),
    }
    write(&device, memory.address(), &[5; 100]);
    assert_eq!(read(&device, memory.address(), 100), [5; 100]);
}
