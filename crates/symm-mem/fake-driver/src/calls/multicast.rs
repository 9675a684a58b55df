//! Multicast objects: create, add every device, bind every device's memory, map; unbind before release.

use std::ffi::c_ulonglong;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice, CUmemGenericAllocationHandle as Handle, CUmulticastGranularity_flags as G,
    CUmulticastObjectProp, CUresult as R,
};

use super::put;
use crate::journal::{Outcome, fault, refuse, require};
use crate::machine::MOST_DEVICES;
use crate::state::multicast::Bound;
use crate::state::object::{Kind, Object};
use crate::state::space::By;
use crate::state::{Driver, lock};

impl Driver {
    /// The object of a multicast handle.
    fn multicast(&self, handle: Handle) -> Outcome<Arc<Object>> {
        require(
            self.machine.multicast,
            R::CUDA_ERROR_NOT_SUPPORTED,
            "the devices have no multicast",
        )?;
        let object = &self.handle(handle)?.object;
        require(
            object.label.kind == Kind::Multicast,
            R::CUDA_ERROR_INVALID_VALUE,
            "the handle is of no multicast object",
        )?;
        Ok(object.clone())
    }

    /// Properties that an object can have.
    ///
    /// # Safety
    /// `prop` is null or valid for a read.
    unsafe fn props(&self, prop: *const CUmulticastObjectProp) -> Outcome<CUmulticastObjectProp> {
        require(
            self.machine.multicast,
            R::CUDA_ERROR_NOT_SUPPORTED,
            "the devices have no multicast",
        )?;
        require(
            !prop.is_null(),
            R::CUDA_ERROR_INVALID_VALUE,
            "no properties",
        )?;
        // SAFETY: the caller's obligation.
        let prop = unsafe { *prop };
        let devices = (1..=MOST_DEVICES as u32).contains(&prop.numDevices);
        require(
            devices && prop.flags == 0 && prop.size > 0,
            R::CUDA_ERROR_INVALID_VALUE,
            "number of devices, size or flags",
        )?;
        self.types(prop.handleTypes as u32)?;
        Ok(prop)
    }

    fn bound_units(&self, values: [usize; 3]) -> Outcome {
        let unit = self.machine.multicast_granularity;
        require(
            values.iter().all(|value| value.is_multiple_of(unit)),
            R::CUDA_ERROR_INVALID_VALUE,
            format!("{values:?} are no multiples of the multicast granularity {unit}"),
        )
    }
}

calls! {
    fn cuMulticastGetGranularity(bytes: *mut usize, prop: *const CUmulticastObjectProp, _option: G) {
        let driver = lock();
        // SAFETY: the caller's obligation, here and below.
        unsafe {
            driver.props(prop)?;
            put(bytes, driver.machine.multicast_granularity)
        }
    }

    fn cuMulticastCreate(handle: *mut Handle, prop: *const CUmulticastObjectProp) {
        let mut driver = lock();
        // SAFETY: as above.
        let prop = unsafe { driver.props(prop)? };
        driver.bound_units([prop.size, 0, 0])?;
        let devices = prop.numDevices as i32;
        let object = match Object::create(Kind::Multicast, devices, prop.handleTypes as u32, prop.size) {
            Ok(object) => Arc::new(object),
            Err(error) => return refuse(R::CUDA_ERROR_OUT_OF_MEMORY, error.to_string()),
        };
        let name = driver.own_handle(object);
        // SAFETY: as above.
        unsafe { put(handle, name) }
    }

    fn cuMulticastAddDevice(handle: Handle, device: CUdevice) {
        let driver = lock();
        let object = driver.multicast(handle)?;
        driver.device(device)?;
        let Some(table) = &object.table else { return Ok(()) };
        require(
            table.all_bound().next().is_none(),
            R::CUDA_ERROR_ILLEGAL_STATE,
            "a device is added after memory was bound",
        )?;
        require(
            table.has(device) || (table.devices() as i32) < object.label.device,
            R::CUDA_ERROR_INVALID_VALUE,
            "all devices were added before",
        )?;
        require(table.add(device), R::CUDA_ERROR_INVALID_VALUE, "the device was added before")
    }

    fn cuMulticastBindMem(
        handle: Handle,
        at: usize,
        memory: Handle,
        offset: usize,
        bytes: usize,
        flags: c_ulonglong,
    ) {
        let mut driver = lock();
        let object = driver.multicast(handle)?;
        let memory = driver.handle(memory)?.object.clone();
        require(
            flags == 0 && bytes > 0 && memory.label.kind == Kind::Created,
            R::CUDA_ERROR_INVALID_VALUE,
            "flags, size, or memory that cannot be bound",
        )?;
        driver.bound_units([at, offset, bytes])?;
        require(
            at + bytes <= object.label.bytes && offset + bytes <= memory.label.bytes,
            R::CUDA_ERROR_INVALID_VALUE,
            "more than there is",
        )?;
        let device = memory.label.device;
        let Some(table) = &object.table else { return Ok(()) };
        require(
            table.devices() as i32 == object.label.device,
            R::CUDA_ERROR_ILLEGAL_STATE,
            "memory is bound before all devices were added",
        )?;
        require(table.has(device), R::CUDA_ERROR_INVALID_DEVICE, "the memory's device was not added")?;
        require(table.bound(device).is_none(), R::CUDA_ERROR_INVALID_VALUE, "the device has bound memory")?;
        table.bind(device, Bound {
            pid: process::id(),
            fd: memory.file().as_raw_fd(),
            serial: memory.label.serial,
            at,
            offset,
            bytes,
        });
        if let Some(held) = driver.handles.get_mut(&handle) {
            held.bound.insert(device, memory);
        }
        Ok(())
    }

    fn cuMulticastUnbind(handle: Handle, device: CUdevice, at: usize, bytes: usize) {
        let mut driver = lock();
        let object = driver.multicast(handle)?;
        driver.device(device)?;
        let Some(table) = &object.table else { return Ok(()) };
        let same = table.bound(device).is_some_and(|b| b.at == at && b.bytes == bytes);
        let own = driver.handle(handle)?.bound.contains_key(&device);
        require(same && own, R::CUDA_ERROR_INVALID_VALUE, "no such memory is bound through this handle")?;
        let mapped = |by| matches!(by, By::Map { handle: of, .. } if of == handle);
        if driver.space.regions.values().any(|r| mapped(r.by)) {
            fault("memory is unbound while the multicast object is mapped");
        }
        table.unbind(device);
        if let Some(held) = driver.handles.get_mut(&handle) {
            held.bound.remove(&device);
        }
        Ok(())
    }
}
