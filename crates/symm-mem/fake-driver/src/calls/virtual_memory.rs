//! Virtual memory management: physical memory by handle, addresses, mappings, access.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags as F, CUmemAccessDesc, CUmemAllocationGranularity_flags as G,
    CUmemAllocationHandleType as T, CUmemAllocationProp, CUmemAllocationType as AT,
    CUmemGenericAllocationHandle as Handle, CUmemLocation, CUmemLocationType as L, CUresult as R,
};

use super::ipc::Ticket;
use super::put;
use crate::journal::{Outcome, fault, refuse, require};
use crate::state::object::{Kind, Object};
use crate::state::space::{self, By, Region};
use crate::state::{Driver, lock};

const DESCRIPTOR: u32 = T::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
const FABRIC: u32 = T::CU_MEM_HANDLE_TYPE_FABRIC.0;

impl Driver {
    fn on_device(&self, location: &CUmemLocation) -> Outcome<i32> {
        require(
            location.type_ == L::CU_MEM_LOCATION_TYPE_DEVICE,
            R::CUDA_ERROR_NOT_SUPPORTED,
            "memory that is not on a device",
        )?;
        require(
            self.machine.vmm,
            R::CUDA_ERROR_NOT_SUPPORTED,
            "the device has no virtual memory management",
        )?;
        self.device(location.id)
    }

    /// Checks the handle types of a request for memory.
    pub(super) fn types(&self, types: u32) -> Outcome<u32> {
        let machine = &self.machine;
        let descriptor = if machine.descriptor { DESCRIPTOR } else { 0 };
        let known = descriptor | if machine.fabric { FABRIC } else { 0 };
        require(
            types & !known == 0,
            R::CUDA_ERROR_NOT_SUPPORTED,
            format!("handles of the types {types:#x}"),
        )?;
        require(
            types & FABRIC == 0 || machine.imex,
            R::CUDA_ERROR_NOT_PERMITTED,
            "fabric handles without an IMEX channel",
        )?;
        Ok(types)
    }

    pub(super) fn whole_units(&self, what: &str, value: u64) -> Outcome {
        require(
            value.is_multiple_of(self.machine.granularity as u64),
            R::CUDA_ERROR_INVALID_VALUE,
            format!("{what} {value:#x} is no multiple of the granularity"),
        )
    }
}

/// # Safety
/// `properties` is null or valid for a read.
unsafe fn read<T: Copy>(properties: *const T) -> Outcome<T> {
    require(
        !properties.is_null(),
        R::CUDA_ERROR_INVALID_VALUE,
        "no properties",
    )?;
    // SAFETY: the caller's obligation.
    Ok(unsafe { *properties })
}

calls! {
    fn cuMemGetAllocationGranularity(bytes: *mut usize, prop: *const CUmemAllocationProp, _option: G) {
        // SAFETY: the caller's obligation, here and below.
        let prop = unsafe { read(prop)? };
        let driver = lock();
        driver.on_device(&prop.location)?;
        // SAFETY: as above.
        unsafe { put(bytes, driver.machine.granularity) }
    }

    fn cuMemCreate(handle: *mut Handle, bytes: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong) {
        // SAFETY: as above.
        let prop = unsafe { read(prop)? };
        let mut driver = lock();
        let device = driver.on_device(&prop.location)?;
        let types = driver.types(prop.requestedHandleTypes.0)?;
        require(
            flags == 0 && bytes > 0 && prop.type_ == AT::CU_MEM_ALLOCATION_TYPE_PINNED,
            R::CUDA_ERROR_INVALID_VALUE,
            "flags, size or type of the memory",
        )?;
        driver.whole_units("the size", bytes as u64)?;
        let object = driver.memory(Kind::Created, device, types, bytes)?;
        let name = driver.own_handle(object);
        // SAFETY: as above.
        unsafe { put(handle, name) }
    }

    fn cuMemRelease(handle: Handle) {
        let mut driver = lock();
        driver.handle(handle)?;
        if let Some(held) = driver.handles.get_mut(&handle) {
            held.references -= 1;
            if held.references == 0 {
                if !held.bound.is_empty() {
                    fault("a multicast object is released with memory bound to it");
                }
                driver.handles.remove(&handle);
            }
        }
        Ok(())
    }

    fn cuMemRetainAllocationHandle(handle: *mut Handle, address: *mut c_void) {
        let mut driver = lock();
        let region = driver.space.find(address as u64).cloned();
        let Some(Region { by: By::Map { handle: name, .. }, object, .. }) = region else {
            return refuse(R::CUDA_ERROR_INVALID_VALUE, "no memory of a handle is mapped there");
        };
        let name = match driver.handles.get_mut(&name) {
            Some(held) => {
                held.references += 1;
                name
            }
            None => driver.own_handle(object),
        };
        // SAFETY: as above.
        unsafe { put(handle, name) }
    }

    fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: Handle) {
        let driver = lock();
        let label = driver.handle(handle)?.object.label;
        // SAFETY: zeros are valid for every field: numbers, null, and enumerations that have a zero.
        let mut answer: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        answer.type_ = AT::CU_MEM_ALLOCATION_TYPE_PINNED;
        answer.requestedHandleTypes = T(label.types);
        answer.location = CUmemLocation { type_: L::CU_MEM_LOCATION_TYPE_DEVICE, id: label.device };
        // SAFETY: as above.
        unsafe { put(prop, answer) }
    }

    fn cuMemExportToShareableHandle(to: *mut c_void, handle: Handle, types: T, flags: c_ulonglong) {
        let driver = lock();
        let object = &driver.handle(handle)?.object;
        require(
            flags == 0 && types.0.is_power_of_two() && object.label.types & types.0 != 0,
            R::CUDA_ERROR_INVALID_VALUE,
            "the memory was not made to be exported like that",
        )?;
        if types.0 == FABRIC {
            // SAFETY: as above: 64 bytes for this type of handle.
            return unsafe { put(to.cast(), Ticket::of(object).bytes()) };
        }
        match object.export() {
            // SAFETY: as above: an int for this type of handle.
            Ok(fd) => unsafe { put(to.cast::<c_int>(), fd.into_raw_fd()) },
            Err(error) => refuse(R::CUDA_ERROR_OPERATING_SYSTEM, error.to_string()),
        }
    }

    fn cuMemImportFromShareableHandle(handle: *mut Handle, from: *mut c_void, types: T) {
        let mut driver = lock();
        driver.types(types.0)?;
        let object = if types.0 == FABRIC {
            // SAFETY: as above: 64 bytes for this type of handle.
            Ticket::from_bytes(&unsafe { read(from.cast::<[u8; 64]>())? }).and_then(|t| t.open())
        } else {
            let fd = from as usize as i32;
            require(fd >= 0, R::CUDA_ERROR_INVALID_VALUE, "no descriptor")?;
            // SAFETY: the caller lends an open descriptor; one that is not open is found out by its link.
            Object::received(unsafe { BorrowedFd::borrow_raw(fd) })
        };
        let shared = object.filter(|o| o.label.kind != Kind::Allocated && o.label.types & types.0 != 0);
        let Some(object) = shared else {
            return refuse(R::CUDA_ERROR_INVALID_VALUE, "that is no shared memory of this driver");
        };
        let name = driver.own_handle(Arc::new(object));
        // SAFETY: as above.
        unsafe { put(handle, name) }
    }

    fn cuMemAddressReserve(
        address: *mut CUdeviceptr,
        bytes: usize,
        alignment: usize,
        _wanted: CUdeviceptr,
        flags: c_ulonglong,
    ) {
        let mut driver = lock();
        require(
            bytes > 0 && flags == 0 && (alignment == 0 || alignment.is_power_of_two()),
            R::CUDA_ERROR_INVALID_VALUE,
            "size, alignment or flags",
        )?;
        driver.whole_units("the size", bytes as u64)?;
        let alignment = alignment.max(driver.machine.granularity);
        let base = match space::reserve(bytes, alignment) {
            Ok(base) => base,
            Err(error) => return refuse(R::CUDA_ERROR_OUT_OF_MEMORY, error.to_string()),
        };
        driver.space.reservations.insert(base, bytes);
        // SAFETY: as above.
        unsafe { put(address, base) }
    }

    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) {
        let mut driver = lock();
        require(
            driver.space.reservations.get(&address) == Some(&bytes),
            R::CUDA_ERROR_INVALID_VALUE,
            format!("{bytes} bytes at {address:#x} were not reserved like that, or were freed before"),
        )?;
        require(
            driver.space.is_empty(address, bytes),
            R::CUDA_ERROR_INVALID_VALUE,
            "something is still mapped there",
        )?;
        driver.space.reservations.remove(&address);
        space::unreserve(address, bytes);
        Ok(())
    }

    fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong) {
        let mut driver = lock();
        let object = driver.handle(handle)?.object.clone();
        let is_whole = flags == 0 && offset == 0 && bytes > 0;
        require(is_whole, R::CUDA_ERROR_INVALID_VALUE, "size, offset or flags")?;
        driver.whole_units("the address", address)?;
        driver.whole_units("the size", bytes as u64)?;
        require(bytes <= object.label.bytes, R::CUDA_ERROR_INVALID_VALUE, "more than there is")?;
        let around = driver.space.reservations.range(..=address).next_back();
        let inside = around.is_some_and(|(base, all)| address + bytes as u64 <= base + *all as u64);
        require(inside, R::CUDA_ERROR_INVALID_VALUE, "the range was not reserved")?;
        require(
            driver.space.is_empty(address, bytes),
            R::CUDA_ERROR_INVALID_VALUE,
            "something is mapped there",
        )?;
        match &object.table {
            Some(table) => require(
                table.all_bound().count() == object.label.device as usize,
                R::CUDA_ERROR_ILLEGAL_STATE,
                "a multicast object is mapped before all devices have bound memory",
            )?,
            None => {
                let placed = space::place(address, bytes, object.file(), false);
                require(placed.is_ok(), R::CUDA_ERROR_MAP_FAILED, format!("{placed:?}"))?;
            }
        }
        let id = driver.name();
        let by = By::Map { handle, access: 0 };
        driver.space.regions.insert(address, Region { base: address, bytes, object, by, id });
        Ok(())
    }

    fn cuMemUnmap(address: CUdeviceptr, bytes: usize) {
        let mut driver = lock();
        let bases = driver.space.exactly(address, bytes)?;
        driver.unused(address, bytes)?;
        for base in bases {
            if let Some(region) = driver.space.regions.remove(&base) {
                space::displace(region.base, region.bytes);
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, what: *const CUmemAccessDesc, count: usize) {
        let mut driver = lock();
        let bases = driver.space.exactly(address, bytes)?;
        for i in 0..count {
            // SAFETY: as above: an array of `count`.
            let desc = unsafe { read(what.wrapping_add(i))? };
            let device = driver.on_device(&desc.location)?;
            let grants = desc.flags == F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            for base in &bases {
                let peer = driver.machine.peer;
                let Some(region) = driver.space.regions.get_mut(base) else { continue };
                let near = region.object.label.device == device || region.object.table.is_some();
                require(
                    near || peer,
                    R::CUDA_ERROR_NOT_SUPPORTED,
                    format!("device {device} has no access to memory of its peer"),
                )?;
                if let (By::Map { access, .. }, true) = (&mut region.by, grants) {
                    *access |= 1 << device;
                }
                if region.object.table.is_none() {
                    let shown = space::show(region.base, region.bytes);
                    require(shown.is_ok(), R::CUDA_ERROR_MAP_FAILED, format!("{shown:?}"))?;
                }
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) {
        let driver = lock();
        // SAFETY: as above.
        let device = driver.on_device(&unsafe { read(location)? })?;
        let bits = match driver.space.find(address).map(|r| r.by) {
            Some(By::Map { access, .. }) if access & (1 << device) != 0 => {
                F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            }
            Some(By::Map { .. }) => F::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            _ => return refuse(R::CUDA_ERROR_INVALID_VALUE, "nothing is mapped there"),
        };
        // SAFETY: as above.
        unsafe { put(flags, bits as c_ulonglong) }
    }
}
