//! The kernels of a plan: what their launches are told, and whether they can be launched at all.

use std::fmt::Debug;

use warpweave_kernels::{LocalReduce, Strided};
use warpweave_symm_mem::{Backend, DevicePtr, PadView, SignalPad};

use super::Binder;
use crate::execute::ExecuteBackend;
use crate::execute::buffers::Buffers;
use crate::execute::error::{ExecuteError, Result};
use crate::execute::step::Action;
use crate::kernels::AnyKernel;
use crate::plan::{BufferId, Plan, Region};

/// What a plan's kernel is bound to: memory, signals and a device.
#[derive(Debug)]
pub struct Binding<'a, B: Backend> {
    backend: &'a B,
    plan: &'a Plan,
    buffers: &'a Buffers<B>,
    pad: Option<&'a SignalPad<B>>,
}

impl<B: Backend> Binding<'_, B> {
    /// The device.
    pub fn backend(&self) -> &B {
        self.backend
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.plan.rank
    }

    /// How many ranks take part.
    pub fn world(&self) -> usize {
        self.plan.world
    }

    /// First address of this rank's copy of a buffer, of the first one where it alternates. The second
    /// follows it.
    pub fn own(&self, id: BufferId) -> DevicePtr {
        self.copy_of(id, self.plan.rank)
    }

    /// First address of `rank`'s copy of a symmetric buffer, as mapped here; this rank's own if the buffer is
    /// local.
    pub fn copy_of(&self, id: BufferId, rank: usize) -> DevicePtr {
        self.buffers.copy_of(id, rank)
    }

    /// [`Binding::copy_of`] each rank.
    pub fn copies(&self, id: BufferId) -> Vec<DevicePtr> {
        (0..self.world())
            .map(|rank| self.copy_of(id, rank))
            .collect()
    }

    /// Device address of the table of all copies' addresses; null for a local buffer.
    pub fn table(&self, id: BufferId) -> DevicePtr {
        self.buffers.table(id)
    }

    /// The multicast address; null on the host backend, and for buffers without one.
    pub fn multicast(&self, id: BufferId) -> DevicePtr {
        self.buffers.multicast(id)
    }

    /// The pad of the plan's slots.
    ///
    /// # Errors
    /// [`ExecuteError::InvalidPlan`] for a plan without slots.
    pub fn pad(&self) -> Result<PadView> {
        self.pad
            .map(SignalPad::view)
            .ok_or_else(|| ExecuteError::InvalidPlan {
                plan: self.plan.name.clone(),
                rank: self.plan.rank,
                place: "slots".into(),
                why: "a kernel that signals needs a signal pad".into(),
            })
    }
}

/// A kernel with its addresses, ready to be enqueued.
pub trait Launch<B: Backend>: Debug + Send + Sync {
    /// Enqueues one call on `stream`.
    ///
    /// # Errors
    /// What the backend reports.
    ///
    /// # Safety
    /// - The addresses of the [`Binding`] outlive the enqueued work, and nothing that is not ordered with the
    ///   launch touches what the kernel's lanes name.
    /// - All ranks enqueue the same kernel, in the order of plans that belong together.
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream) -> Result<()>;

    /// Enqueues the kernel on a problem without rows and peers, which touches nothing. So what the device or
    /// the build lacks is found before any rank waits for this one. Kernels that find it when they are bound
    /// have nothing to do.
    ///
    /// # Errors
    /// What the device or the build lacks.
    fn probe(&self, _backend: &B, _stream: &B::Stream) -> Result<()> {
        Ok(())
    }

    /// The algorithm that was chosen for it, where there is a choice: for tables and logs.
    fn algorithm(&self) -> Option<String> {
        None
    }
}

/// A launch of some kernel.
pub type BoxedLaunch<B> = Box<dyn Launch<B>>;

/// The pad of a launch without peers, for [`Launch::probe`].
pub(crate) fn without_peers(pad: PadView) -> PadView {
    PadView {
        rank: 0,
        world: 1,
        ..pad
    }
}

impl<B: ExecuteBackend> Binder<'_, B> {
    /// The launch of a kernel, which has been probed.
    pub(super) fn kernel(&self, kernel: &AnyKernel) -> Result<Action<B>> {
        let backend = &self.executor.backend;
        let launch = B::bind_kernel(
            &**kernel,
            &Binding {
                backend,
                plan: self.plan,
                buffers: self.buffers,
                pad: self.pad,
            },
        )?;
        let stream = backend.setup_stream()?;
        launch.probe(backend, &stream)?;
        backend.synchronize(&stream)?;
        let name = kernel.name();
        Ok(Action::Kernel { name, launch })
    }

    /// The reduction of boxes where they are, which has been probed.
    pub(super) fn sum(&self, srcs: &[Region], dst: &Region) -> Result<Action<B>> {
        let buffer = |region: &Region| &self.plan.buffers[region.buffer.0];
        let strided = |region: &Region| Strided {
            address: self.address(region),
            row_stride: buffer(region).cols,
        };
        let partials: Vec<_> = srcs.iter().map(strided).collect();
        let shape = (dst.rows.len(), dst.cols.len());
        let (rank, dtype) = (self.plan.rank, buffer(dst).dtype);
        let launch = LocalReduce::new(rank, &partials, strided(dst), shape, dtype)?;
        let backend = &self.executor.backend;
        let stream = backend.setup_stream()?;
        let empty = LocalReduce { rows: 0, ..launch };
        // SAFETY: the launch reads and writes no row.
        unsafe { backend.local_reduce(&stream, &empty)? };
        backend.synchronize(&stream)?;
        Ok(Action::Reduce(launch))
    }
}
