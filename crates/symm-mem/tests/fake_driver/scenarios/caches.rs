//! The work of one rank in the scenarios of caches and pools.

use std::sync::Arc;

use cudarc::driver::{DevicePtr as _, DriverError, sys};
use warpweave_symm_mem::ipc::CacheLimits;
use warpweave_symm_mem::{
    Backend, Cuda, DevicePtr, Error, IpcCache, Mapping, Memory, MulticastCache, Priority, Result,
    Sharing, SymmetricBuffer, SymmetricPool,
};

use super::bodies::{BYTES, read, write};
use super::{Kept, Rank};

/// Shares `memory` of every rank by a cache: each writes to the next one's and reads its own.
fn share(rank: &Rank, device: &Cuda, memory: DevicePtr) -> Result<()> {
    let exchange = rank.exchange.as_ref();
    let cache = IpcCache::new(device)?;
    let at = memory.add(512);
    let shared = cache.register(exchange, at, 1000)?;
    let next = (rank.rank + 1) % rank.world;
    write(device, shared.peer(next).add(3), &[rank.rank as u8 + 1])?;
    rank.barrier("written")?;
    let writer = (rank.rank + rank.world - 1) % rank.world;
    assert_eq!(read(device, at.add(3), 1)?, [writer as u8 + 1]);
    rank.barrier("read")?;
    let again = cache.register(exchange, at, 1000)?;
    assert!(Arc::ptr_eq(&shared, &again), "a hit");
    drop(again);
    let other = cache.register(exchange, memory, 10)?;
    cache.release(exchange, shared)?;
    drop(other);
    cache.trim(exchange)?;
    cache.close(exchange)
}

/// Memory of `cuMemAlloc`.
pub fn plain_memory(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let memory = device.allocate(BYTES)?;
    share(rank, &device, memory.address())?;
    rank.barrier("done")?;
    Ok(Box::new((memory, device)))
}

/// Virtual memory that can be exported as a descriptor.
pub fn virtual_memory(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let segment = device.create_segment(device.granularity(), Sharing::Descriptors)?;
    let mapping = device.map_segments(&[&segment])?;
    // The mapping keeps the memory.
    drop(segment);
    share(rank, &device, mapping.address())?;
    rank.barrier("done")?;
    Ok(Box::new((mapping, device)))
}

/// Virtual memory that can be exported only as a fabric handle.
pub fn fabric_memory(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let memory = FabricMemory::new(&device)?;
    share(rank, &device, DevicePtr(memory.at))?;
    rank.barrier("done")?;
    Ok(Box::new((memory, device)))
}

/// Memory of a stream-ordered pool, which devices of one process can share.
pub fn pooled_memory(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    device.bind()?;
    let theirs = |e: DriverError| Error::Stream {
        device: device.name().into(),
        cause: e.to_string(),
    };
    let stream = device.context().new_stream().map_err(theirs)?;
    let slice = stream.alloc_zeros::<u8>(BYTES).map_err(theirs)?;
    stream.synchronize().map_err(theirs)?;
    let at = DevicePtr(slice.device_ptr(&stream).0);
    share(rank, &device, at)?;
    rank.barrier("done")?;
    Ok(Box::new((slice, stream, device)))
}

/// Memory that a program made with the driver.
struct FabricMemory {
    at: u64,
    bytes: usize,
    mapped: bool,
}

fn check(result: sys::CUresult, call: &'static str) -> Result<()> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(Error::Driver {
            call,
            code: failed as i32,
            name: format!("{failed:?}"),
            device: "a device".into(),
            hint: String::new(),
        }),
    }
}

impl FabricMemory {
    fn new(device: &Cuda) -> Result<Self> {
        let bytes = device.granularity();
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device.context().cu_device(),
        };
        let prop = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let access = sys::CUmemAccessDesc {
            location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (mut at, mut handle) = (0, 0);
        // SAFETY: all arguments live through the calls; what was reserved and mapped is undone by the value's
        // drop.
        unsafe {
            match sys::cuMemAddressReserve(&mut at, bytes, 0, 0, 0) {
                sys::CUresult::CUDA_SUCCESS => {}
                _ => return Err(no_memory(device, bytes)),
            }
            let mut memory = FabricMemory {
                at,
                bytes,
                mapped: false,
            };
            match sys::cuMemCreate(&mut handle, bytes, &prop, 0) {
                sys::CUresult::CUDA_SUCCESS => {}
                _ => return Err(no_memory(device, bytes)),
            }
            let mapped = sys::cuMemMap(at, bytes, 0, handle, 0);
            // The mapping keeps the memory.
            let _ = sys::cuMemRelease(handle);
            check(mapped, "cuMemMap")?;
            memory.mapped = true;
            check(sys::cuMemSetAccess(at, bytes, &access, 1), "cuMemSetAccess")?;
            Ok(memory)
        }
    }
}

fn no_memory(device: &Cuda, bytes: usize) -> Error {
    Error::OutOfMemory {
        bytes,
        kind: "device",
        device: device.name().into(),
        cause: "the scenario's own call".into(),
    }
}

impl Drop for FabricMemory {
    fn drop(&mut self) {
        // SAFETY: mapped and reserved by `new`; no work is in flight.
        unsafe {
            if self.mapped {
                let _ = sys::cuMemUnmap(self.at, self.bytes);
            }
            let _ = sys::cuMemAddressFree(self.at, self.bytes);
        }
    }
}

/// Blocks that come back.
pub fn pool(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let (a, b) = (
        device.stream(Priority::Normal)?,
        device.stream(Priority::Normal)?,
    );
    let pool = SymmetricPool::new(&device, "pool");
    let first = pool.allocate(&rank.exchange, &a, 600)?;
    let second = pool.allocate(&rank.exchange, &a, 600)?;
    let next = (rank.rank + 1) % rank.world;
    write(&device, second.peer(next), &[rank.rank as u8 + 1])?;
    rank.barrier("written")?;
    let writer = (rank.rank + rank.world - 1) % rank.world;
    assert_eq!(read(&device, second.local(), 1)?, [writer as u8 + 1]);
    let at = first.local();
    drop(first);
    let again = pool.allocate(&rank.exchange, &b, 600)?;
    assert_eq!(again.local(), at, "the same block");
    drop((again, second));
    pool.trim(rank.exchange.as_ref())?;
    pool.close(rank.exchange.as_ref())?;
    rank.barrier("done")?;
    Ok(Box::new((a, b, device)))
}

/// Multicast objects that are kept while their buffers live.
pub fn multicast(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let exchange = rank.exchange.as_ref();
    let cache = MulticastCache::new(&device, CacheLimits::default());
    let one = SymmetricBuffer::new(&device, &rank.exchange, "one", BYTES)?;
    let two = SymmetricBuffer::new(&device, &rank.exchange, "two", BYTES)?;
    let object = cache.get(&rank.exchange, &one)?;
    assert!(
        Arc::ptr_eq(&object, &cache.get(&rank.exchange, &one)?),
        "a hit"
    );
    drop(cache.get(&rank.exchange, &two)?);
    drop(object);
    assert_eq!(cache.trim(exchange)?, 2);
    drop(cache.get(&rank.exchange, &two)?);
    cache.close(exchange)?;
    rank.barrier("done")?;
    Ok(Box::new((one, two, device)))
}
