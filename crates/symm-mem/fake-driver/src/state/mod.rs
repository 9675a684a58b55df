//! The driver's state in one process.

pub(crate) mod multicast;
pub(crate) mod object;
pub(crate) mod space;
pub(crate) mod streams;
pub(crate) mod work;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use cudarc::driver::sys::CUresult as R;
use parking_lot::{Mutex, MutexGuard};

use crate::journal::{Outcome, refuse, require};
use crate::machine::{DEVICE_BYTES, Machine};
use object::{Kind, Object};
use space::{By, Region, Space};
use streams::{Capture, Event, Exec, Graph, Stream};
use work::{Key, Queue};

/// A context, the device's primary one or another.
#[derive(Debug)]
pub(crate) struct Context {
    pub device: i32,
    pub primary: bool,
    /// Retains without a release.
    pub retained: u32,
    /// Contexts whose memory it may access.
    pub peers: BTreeSet<u64>,
}

/// A handle of physical memory or of a multicast object.
#[derive(Debug)]
pub(crate) struct Handle {
    pub object: Arc<Object>,
    pub references: u32,
    /// For a multicast object: the devices whose memory was bound through this handle, with the memory.
    pub bound: BTreeMap<i32, Arc<Object>>,
}

#[derive(Debug)]
pub(crate) struct Module {
    pub context: u64,
    pub code: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub module: u64,
    pub name: String,
    pub shared_bytes: u32,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub machine: Machine,
    pub initialized: bool,
    pub contexts: BTreeMap<u64, Context>,
    pub space: Space,
    pub handles: BTreeMap<u64, Handle>,
    pub streams: BTreeMap<u64, Stream>,
    pub events: BTreeMap<u64, Event>,
    pub captures: BTreeMap<u64, Capture>,
    pub graphs: BTreeMap<u64, Graph>,
    pub execs: BTreeMap<u64, Exec>,
    pub modules: BTreeMap<u64, Module>,
    pub functions: BTreeMap<u64, Function>,
    /// For each device's pool, a bit for each device that may access its memory.
    pub pools: BTreeMap<i32, u64>,
    /// Streams with work.
    pub queues: BTreeMap<Key, Queue>,
    /// Contexts in which work has failed.
    pub failed: BTreeMap<u64, R>,
    next: u64,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| {
    Mutex::new(Driver {
        machine: Machine::of_environment(),
        initialized: false,
        contexts: BTreeMap::new(),
        space: Space::default(),
        handles: BTreeMap::new(),
        streams: BTreeMap::new(),
        events: BTreeMap::new(),
        captures: BTreeMap::new(),
        graphs: BTreeMap::new(),
        execs: BTreeMap::new(),
        modules: BTreeMap::new(),
        functions: BTreeMap::new(),
        pools: BTreeMap::new(),
        queues: BTreeMap::new(),
        failed: BTreeMap::new(),
        next: 0x1000,
    })
});

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Locks the state. No call may hold it while it waits for another rank.
pub(crate) fn lock() -> MutexGuard<'static, Driver> {
    DRIVER.lock()
}

pub(crate) fn current() -> u64 {
    CURRENT.get()
}

pub(crate) fn set_current(context: u64) {
    CURRENT.set(context);
}

impl Driver {
    /// A new unique handle that looks like an address.
    pub fn name(&mut self) -> u64 {
        self.next += 0x10;
        self.next
    }

    pub fn device(&self, device: i32) -> Outcome<i32> {
        require(
            self.machine.has(device),
            R::CUDA_ERROR_INVALID_DEVICE,
            format!("there is no device {device}"),
        )?;
        Ok(device)
    }

    /// The context that is current in this thread.
    pub fn context(&self) -> Outcome<(u64, &Context)> {
        let handle = current();
        match self.contexts.get(&handle) {
            Some(context) => Ok((handle, context)),
            None if handle == 0 => refuse(R::CUDA_ERROR_INVALID_CONTEXT, "no context is current"),
            None => refuse(
                R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
                "the current context is gone",
            ),
        }
    }

    pub fn handle(&self, handle: u64) -> Outcome<&Handle> {
        match self.handles.get(&handle) {
            Some(found) => Ok(found),
            None => refuse(
                R::CUDA_ERROR_INVALID_HANDLE,
                format!("no memory or multicast object has the handle {handle:#x}"),
            ),
        }
    }

    pub fn own_handle(&mut self, object: Arc<Object>) -> u64 {
        let name = self.name();
        let handle = Handle {
            object,
            references: 1,
            bound: BTreeMap::new(),
        };
        self.handles.insert(name, handle);
        name
    }

    /// Whether code of `context` may touch `region`.
    pub fn may_touch(&self, context: u64, region: &Region) -> bool {
        let Some(by) = self.contexts.get(&context) else {
            return false;
        };
        match region.by {
            By::Map { access, .. } => access & (1 << by.device) != 0,
            By::Open { context: of, .. } => {
                self.contexts.get(&of).map(|c| c.device) == Some(by.device)
            }
            By::Alloc { context: of } => {
                let same = self.contexts.get(&of).map(|c| c.device) == Some(by.device);
                same || by.peers.contains(&of)
            }
            By::Pool { .. } => {
                let device = region.object.label.device;
                let granted = self.pools.get(&device).copied().unwrap_or(0);
                device == by.device || granted & (1 << by.device) != 0
            }
        }
    }

    /// Bytes of `device` that this process has allocated.
    pub fn taken(&self, device: i32) -> usize {
        let handles = self.handles.values().map(|h| &h.object);
        let regions = self.space.regions.values().map(|r| &r.object);
        let mut seen = BTreeSet::new();
        handles
            .chain(regions)
            .filter(|o| o.label.kind != Kind::Multicast && o.label.device == device)
            .filter(|o| seen.insert(o.identity()))
            .map(|o| o.label.bytes)
            .sum()
    }

    /// Allocates memory of `device`.
    pub fn memory(
        &self,
        kind: Kind,
        device: i32,
        types: u32,
        bytes: usize,
    ) -> Outcome<Arc<Object>> {
        let out_of_memory = || R::CUDA_ERROR_OUT_OF_MEMORY;
        require(
            bytes <= DEVICE_BYTES.saturating_sub(self.taken(device)),
            out_of_memory(),
            format!("device {device} has no {bytes} bytes left"),
        )?;
        match Object::create(kind, device, types, bytes) {
            Ok(object) => Ok(Arc::new(object)),
            Err(error) => refuse(out_of_memory(), format!("a file of {bytes} bytes: {error}")),
        }
    }

    /// Frees everything.
    pub fn wipe(&mut self) {
        for (_, region) in std::mem::take(&mut self.space.regions) {
            match region.by {
                By::Map { .. } => space::displace(region.base, region.bytes),
                _ => space::unreserve(region.base, region.bytes.next_multiple_of(4096)),
            }
        }
        for (base, bytes) in std::mem::take(&mut self.space.reservations) {
            space::unreserve(base, bytes);
        }
        self.contexts.clear();
        self.handles.clear();
        self.streams.clear();
        self.events.clear();
        self.captures.clear();
        self.graphs.clear();
        self.execs.clear();
        self.modules.clear();
        self.functions.clear();
        self.pools.clear();
        self.failed.clear();
    }

    /// What is still allocated, mapped, open or bound, one item per line.
    pub fn live(&self) -> Vec<String> {
        let mut live = Vec::new();
        for context in self.contexts.values() {
            let Context {
                device, retained, ..
            } = context;
            live.push(format!(
                "context of device {device}, retained {retained} times"
            ));
        }
        for (base, bytes) in &self.space.reservations {
            live.push(format!("reservation of {bytes} bytes at {base:#x}"));
        }
        for region in self.space.regions.values() {
            let what = match region.by {
                By::Map { .. } => "mapping",
                By::Alloc { .. } | By::Pool { .. } => "allocation",
                By::Open { .. } => "opened memory of another process",
            };
            let Region { base, bytes, .. } = region;
            live.push(format!("{what} of {bytes} bytes at {base:#x}"));
        }
        for handle in self.handles.values() {
            let label = &handle.object.label;
            let what = match label.kind {
                Kind::Multicast => "handle of a multicast object",
                _ => "handle of memory",
            };
            live.push(format!("{what} of {} bytes", label.bytes));
            let bound = handle.bound.keys();
            live.extend(bound.map(|device| format!("multicast binding of device {device}")));
        }
        let counts = [
            ("stream", self.streams.len()),
            ("stream with work", self.queues.len()),
            ("event", self.events.len()),
            ("capture", self.captures.len()),
            ("graph", self.graphs.len()),
            ("instantiated graph", self.execs.len()),
            ("module", self.modules.len()),
            ("descriptor", object::descriptors_given()),
        ];
        for (what, count) in counts {
            live.extend((0..count).map(|_| what.to_owned()));
        }
        live
    }
}
