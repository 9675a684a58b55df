//! A plan on a device: memory, signals and streams of its own, ready to run any number of times.

use std::sync::Arc;
use std::time::Duration;

use warpweave_symm_mem::sync::Mutex;
use warpweave_symm_mem::{DevicePtr, Exchange, Memory, SignalPad};

use super::addresses::Location;
use super::buffers::Buffers;
use super::collective::{ProcessGroup, drain};
use super::error::{ExecuteError, Result};
use super::faults::most_informative;
use super::program::Program;
use super::step::Resources;
use super::{ExecuteBackend, Executor};
use crate::plan::{Buffer, BufferId, Plan};

/// A plan bound to a device and to its peers, by [`Executor::bind`].
///
/// Calls are enqueued and not waited for. They may follow each other with no synchronisation of any kind
/// between the ranks, as [`check`](crate::check::check()) has passed the plans of all of them. Dropping it
/// waits for this rank's enqueued work.
///
/// Threads may share it: each call is enqueued whole, in the order in which the threads come, which must be
/// the same on all ranks.
pub struct Bound<B: ExecuteBackend> {
    // Fields are dropped in this order: what refers to memory goes before the memory.
    /// Locked for each call: steps of two calls must not mix on the streams, and one graph is launched by one
    /// thread at a time.
    pub(super) captured: Mutex<Option<Captured<B>>>,
    pub(super) program: Program<B>,
    pub(super) groups: Vec<Arc<ProcessGroup<B>>>,
    pub(super) pad: Option<SignalPad<B>>,
    /// Where the buffers lie.
    pub(super) locations: Vec<Location>,
    /// Scratch memory of GEMMs.
    pub(super) scratch: Option<B::Memory>,
    pub(super) _buffers: Buffers<B>,
    pub(super) stream: B::Stream,
    pub(super) backend: B,
    /// The ranks of the node.
    pub(super) node: Arc<dyn Exchange>,
}

/// A captured call, and the generations of the plan's groups that it was captured for.
pub(super) struct Captured<B: ExecuteBackend> {
    graph: B::Graph,
    generations: Vec<u64>,
}

impl<B: ExecuteBackend> Bound<B> {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.program.plan
    }

    /// The caller's stream, given when the plan was bound. Inputs are written and outputs read in its order.
    pub fn stream(&self) -> &B::Stream {
        &self.stream
    }

    /// Enqueues one call. Allocates nothing and waits for nothing, but for the other ranks before NCCL's
    /// first collective of a kind and size, in which it connects them.
    ///
    /// # Errors
    /// What the backend reports while enqueuing; what goes wrong later is found by [`Bound::check`].
    pub fn run(&self) -> Result<()> {
        let _call = self.captured.lock();
        self.enqueue()
    }

    /// One call, whole.
    fn enqueue(&self) -> Result<()> {
        // SAFETY: the steps were made by `Executor::bind` from regions inside these buffers, whose drop waits
        // for the work; the ranks agreed on what they share.
        unsafe { self.program.enqueue(&self.resources()) }
    }

    /// Captures one call for [`Bound::replay`]. Nothing runs, and no epoch moves.
    ///
    /// # Errors
    /// What the backend reports; a former capture is gone then.
    pub fn capture(&mut self) -> Result<()> {
        *self.captured.lock() = None;
        let graph = self.backend.capture(&self.stream, || self.enqueue())?;
        let generations = self.generations().collect();
        *self.captured.lock() = Some(Captured { graph, generations });
        Ok(())
    }

    /// Enqueues the captured call. Nothing is enqueued once a wait of this device has failed, on whichever
    /// pad: what was captured may copy to peers, who have not given their memory for it.
    ///
    /// # Errors
    /// [`ExecuteError::NotCaptured`]; [`ExecuteError::Stopped`]; what the backend reports.
    pub fn replay(&self) -> Result<()> {
        if self.backend.is_stopped() {
            return Err(ExecuteError::Stopped {
                plan: self.plan().name.clone(),
            });
        }
        let current = |captured: &&Captured<B>| {
            let generations = captured.generations.iter().copied();
            self.generations().eq(generations)
        };
        let captured = self.captured.lock();
        let captured = captured.as_ref().filter(current);
        let captured = captured.ok_or_else(|| ExecuteError::NotCaptured {
            plan: self.plan().name.clone(),
        })?;
        // SAFETY: one call, which is sound at any time (see `run`); its buffers, pad and collectives are this
        // plan's, the latter of the generation that was captured, and their drop waits for the work.
        let launched = unsafe { self.backend.launch_graph(&captured.graph, &self.stream) };
        Ok(launched?)
    }

    /// Chooses the fastest algorithm of each GEMM by trying them on this device, with the data that the
    /// buffers hold now; run the plan once before, so that these are real. A GEMM that another plan of
    /// `executor` has tuned takes over the choice. Overwrites the GEMMs' outputs, waits for the stream, and
    /// drops a captured graph.
    ///
    /// # Errors
    /// What the provider reports.
    pub fn tune(&mut self, executor: &Executor<B>) -> Result<()> {
        *self.captured.lock() = None;
        self.backend.synchronize(&self.stream)?;
        // SAFETY: the operands are those of the steps, whose regions lie inside the buffers; the stream is
        // idle.
        unsafe {
            self.program
                .tune(executor, &self.stream, &self.resources().at)?
        };
        self.scratch = self.program.prepare_again(executor)?;
        Ok(())
    }

    /// The algorithms of the plan's GEMMs, in order, for tables and logs.
    pub fn algorithms(&self) -> Vec<String> {
        self.program.algorithms()
    }

    /// Waits until everything enqueued so far has ended, and reports what went wrong in it.
    ///
    /// # Errors
    /// [`SignalFault`](warpweave_symm_mem::SignalFault) naming the peer whose signal did not come in time;
    /// [`ExecuteError::CollectiveTimeout`]; what the stream and the collectives report.
    pub fn synchronize(&self) -> Result<()> {
        let drained = drain(&self.backend, &self.stream, &self.groups);
        let checked = self.check();
        drained?;
        checked
    }

    /// Reports what went wrong in the work so far, after the stream was synchronised.
    ///
    /// # Errors
    /// As [`Bound::synchronize`].
    pub fn check(&self) -> Result<()> {
        let stream = &self.stream;
        let pad = self.pad.iter().map(|pad| {
            let ranks: Vec<usize> = self.plan().node_of(self.plan().rank).collect();
            let checked = pad.check(stream).map_err(ExecuteError::from);
            checked.map_err(|error| error.with_ranks(&ranks))
        });
        most_informative(pad.chain(self.groups.iter().map(|group| group.check(stream))))
    }

    /// Makes the plan usable again after a fault. Collective: all ranks of the world call it, with none of
    /// their work under way. Plans share what does their collectives: with this plan all plans of the
    /// executor recover that have the same ones, and those that were captured are to be captured anew.
    ///
    /// # Errors
    /// What the pad and the exchange report; collectives that cannot be made whole again.
    pub fn recover(&mut self) -> Result<()> {
        // A failure of the past is what is recovered from.
        let _ = self.backend.synchronize(&self.stream);
        if let Some(pad) = &self.pad {
            pad.recover(&self.stream, self.node.as_ref())?;
        }
        for group in &self.groups {
            group.recover(&self.stream)?;
        }
        Ok(self.backend.resume_waits(&self.stream)?)
    }

    fn generations(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().map(|group| group.generation())
    }

    /// The plan's buffer of this name and the address of this rank's copy of it, of the first where it
    /// alternates. Row-major, without gaps.
    ///
    /// # Errors
    /// [`ExecuteError::Buffer`] if there is none.
    pub fn buffer(&self, name: &str) -> Result<(&Buffer, DevicePtr)> {
        let found = self.plan().buffers.iter().position(|b| b.name == name);
        let index =
            found.ok_or_else(|| self.buffer_error(name, "the plan has no such buffer".into()))?;
        let address = self.resources().at.own(BufferId(index));
        Ok((&self.plan().buffers[index], address))
    }

    /// Copies `bytes` to the start of this rank's copy of a buffer, the first where it alternates, after all
    /// earlier work, and returns when they are there.
    ///
    /// # Errors
    /// [`ExecuteError::Buffer`] if there is no such buffer or it is smaller; what the backend reports.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let address = self.sized(name, bytes.len())?;
        // SAFETY: the range lies in the buffer. Where *check* passes the plans, work of this rank is on
        // streams that are joined to this one, and no peer touches an input between calls.
        unsafe { self.backend.upload(&self.stream, address, bytes)? };
        Ok(())
    }

    /// Copies the start of this rank's copy of a buffer, the first where it alternates, to `bytes`, after all
    /// earlier work.
    ///
    /// # Errors
    /// As [`Bound::write`].
    pub fn read(&self, name: &str, bytes: &mut [u8]) -> Result<()> {
        let address = self.sized(name, bytes.len())?;
        // SAFETY: as in `write`.
        unsafe { self.backend.download(&self.stream, address, bytes)? };
        Ok(())
    }

    /// How long waits of the plan last before they give up.
    pub fn timeout(&self) -> Duration {
        self.backend.timeout()
    }

    fn sized(&self, name: &str, bytes: usize) -> Result<DevicePtr> {
        let (buffer, address) = self.buffer(name)?;
        if bytes > buffer.bytes() {
            let why = format!("{bytes} bytes in a buffer of {}", buffer.bytes());
            return Err(self.buffer_error(name, why));
        }
        Ok(address)
    }

    fn buffer_error(&self, name: &str, why: String) -> ExecuteError {
        ExecuteError::Buffer {
            plan: self.plan().name.clone(),
            buffer: name.into(),
            why,
        }
    }

    pub(super) fn resources(&self) -> Resources<'_, B> {
        let pad = self.pad.as_ref();
        let scratch = self
            .scratch
            .as_ref()
            .map_or(DevicePtr::NULL, Memory::address);
        self.program
            .resources(&self.backend, &self.stream, pad, &self.locations, scratch)
    }
}

impl<B: ExecuteBackend> std::fmt::Debug for Bound<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Bound({}, rank {} of {})",
            self.plan().name,
            self.plan().rank,
            self.plan().world
        )
    }
}

#[cfg(test)]
mod tests {
    use warpweave_symm_mem::{Cuda, Host};

    use super::*;

    #[test]
    fn threads_may_share_a_plan() {
        fn is_shared<T: Send + Sync>() {}
        is_shared::<Bound<Host>>();
        is_shared::<Bound<Cuda>>();
    }
}
