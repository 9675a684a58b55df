//! Contexts.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUcontext, CUctxCreateParams, CUdevice, CUresult as R};

use super::put;
use crate::journal::{Outcome, fault, refuse, require};
use crate::state::space::By;
use crate::state::{Context, Driver, current, lock, set_current};
use crate::work::queue;

impl Driver {
    /// Destroys a context and everything in it. A program that cleans up leaves nothing for this.
    fn end_context(&mut self, name: u64) {
        let streams = self.streams.values().filter(|s| s.context == name).count();
        let events = self.events.values().filter(|e| e.context == name).count();
        let modules = self.modules.values().filter(|m| m.context == name).count();
        let graphs = self.graphs.values().filter(|g| g.context == name).count()
            + self.execs.values().filter(|g| g.context == name).count();
        let of_context = |by: By| match by {
            By::Alloc { context } | By::Pool { context } | By::Open { context, .. } => {
                context == name
            }
            _ => false,
        };
        let regions = self.space.regions.values();
        let memory = regions.filter(|r| of_context(r.by)).count();
        if streams + events + modules + graphs + memory > 0 {
            fault(format!(
                "a context ends with {streams} streams, {events} events, {modules} modules, \
                 {graphs} graphs and {memory} allocations in it"
            ));
        }
        if self.queues.keys().any(|(_, context)| *context == name) {
            fault("a context ends under work");
        }
        self.contexts.remove(&name);
        self.failed.remove(&name);
    }
}

calls! {
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) {
        let mut driver = lock();
        driver.device(device)?;
        let held = driver.contexts.iter_mut().find(|(_, c)| c.primary && c.device == device);
        let name = match held {
            Some((name, held)) => {
                held.retained += 1;
                *name
            }
            None => {
                let name = driver.name();
                let made = Context { device, primary: true, retained: 1, peers: BTreeSet::new() };
                driver.contexts.insert(name, made);
                name
            }
        };
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(context, name as CUcontext) }
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        let mut driver = lock();
        driver.device(device)?;
        let held = driver.contexts.iter_mut().find(|(_, c)| c.primary && c.device == device);
        let Some((name, held)) = held else {
            return refuse(R::CUDA_ERROR_INVALID_CONTEXT, "the primary context is not retained");
        };
        held.retained -= 1;
        if held.retained == 0 {
            let name = *name;
            driver.end_context(name);
        }
        Ok(())
    }

    fn cuCtxCreate_v4(
        context: *mut CUcontext,
        parameters: *mut CUctxCreateParams,
        _flags: c_uint,
        device: CUdevice,
    ) {
        require(parameters.is_null(), R::CUDA_ERROR_NOT_SUPPORTED, "parameters of a context")?;
        let mut driver = lock();
        driver.device(device)?;
        let name = driver.name();
        let made = Context { device, primary: false, retained: 1, peers: BTreeSet::new() };
        driver.contexts.insert(name, made);
        set_current(name);
        // SAFETY: as above.
        unsafe { put(context, name as CUcontext) }
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        let mut driver = lock();
        let name = context as u64;
        match driver.contexts.get(&name) {
            Some(found) if !found.primary => driver.end_context(name),
            _ => return refuse(R::CUDA_ERROR_INVALID_CONTEXT, "no context that can be destroyed"),
        }
        if current() == name {
            set_current(0);
        }
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let name = context as u64;
        if name != 0 && !lock().contexts.contains_key(&name) {
            return refuse(R::CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context is gone");
        }
        set_current(name);
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut CUcontext) {
        // SAFETY: as above.
        unsafe { put(context, current() as CUcontext) }
    }

    fn cuCtxGetDevice(device: *mut CUdevice) {
        let of = lock().context()?.1.device;
        // SAFETY: as above.
        unsafe { put(device, of) }
    }

    fn cuCtxSynchronize() {
        let context = lock().context()?.0;
        queue::drain_context(context);
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        lock().context()?;
        // SAFETY: as above.
        unsafe { put(least, 0).and_then(|()| put(greatest, -5)) }
    }

    fn cuCtxEnablePeerAccess(context: CUcontext, flags: c_uint) {
        require(flags == 0, R::CUDA_ERROR_INVALID_VALUE, "flags must be 0")?;
        let mut driver = lock();
        let (own, peer) = peers(&driver, context)?;
        let fresh = driver.contexts.get_mut(&own).is_some_and(|c| c.peers.insert(peer));
        require(fresh, R::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "it was enabled before")
    }

    fn cuCtxDisablePeerAccess(context: CUcontext) {
        let mut driver = lock();
        let (own, peer) = peers(&driver, context)?;
        let had = driver.contexts.get_mut(&own).is_some_and(|c| c.peers.remove(&peer));
        require(had, R::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "it was not enabled")
    }
}

/// The current context, and the context of another device that it will access.
fn peers(driver: &Driver, context: CUcontext) -> Outcome<(u64, u64)> {
    let (own, from) = driver.context()?;
    let name = context as u64;
    let Some(to) = driver.contexts.get(&name) else {
        return refuse(R::CUDA_ERROR_INVALID_CONTEXT, "the peer's context is gone");
    };
    require(
        driver.machine.peer && from.device != to.device,
        R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        "these devices have no access to each other",
    )?;
    Ok((own, name))
}
