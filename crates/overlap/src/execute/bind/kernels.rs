//! The kernels of a plan: what their launches are told, and whether they can be launched at all.

use std::fmt::Debug;

use warpweave_gemm::{Gemm, GemmBackend};
use warpweave_kernels::LocalReduce;
use warpweave_symm_mem::{Backend, PadView};

use super::Binder;
use crate::execute::ExecuteBackend;
use crate::execute::addresses::{Addresses, Nowhere};
use crate::execute::error::Result;
use crate::execute::step::{Action, Reduction};
use crate::kernels::AnyKernel;
use crate::plan::{Plan, Region};

/// What a plan's kernel is prepared for: a device, and this rank of a world.
#[derive(Debug)]
pub struct Binding<'a, B: GemmBackend> {
    gemm: &'a Gemm<B>,
    plan: &'a Plan,
    max_blocks: Option<u32>,
}

impl<B: GemmBackend> Binding<'_, B> {
    /// The device.
    pub fn backend(&self) -> &B {
        self.gemm.backend()
    }

    /// What the GEMMs of the device share.
    pub fn gemm(&self) -> &B::GemmHandle {
        self.gemm.handle()
    }

    /// The most blocks of a launch whose blocks wait for each other or for those of peers: for ranks that
    /// share a GPU. `None` for all that can be resident.
    pub fn max_blocks(&self) -> Option<u32> {
        self.max_blocks
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.plan.rank
    }

    /// How many ranks take part.
    pub fn world(&self) -> usize {
        self.plan.world
    }
}

/// A kernel that is prepared for its shape, ready to be enqueued at the addresses of any call.
pub trait Launch<B: Backend>: Debug + Send + Sync {
    /// Enqueues one call on `stream`.
    ///
    /// # Errors
    /// What the backend reports.
    ///
    /// # Safety
    /// - The memory at the addresses has the plan's buffers and outlives the enqueued work, and nothing that
    ///   is not ordered with the launch touches what the kernel's lanes name.
    /// - All ranks enqueue the same kernel, in the order of plans that belong together.
    unsafe fn enqueue(&self, backend: &B, stream: &B::Stream, at: &Addresses<'_>) -> Result<()>;

    /// Enqueues the kernel on a problem without rows and peers, which touches nothing, at addresses where
    /// nothing is. So what the device or the build lacks is found before any rank waits for this one. Kernels
    /// that find it when they are prepared have nothing to do.
    ///
    /// # Errors
    /// What the device or the build lacks.
    fn probe(&self, _backend: &B, _stream: &B::Stream, _at: &Addresses<'_>) -> Result<()> {
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
        let (gemm, plan) = (&self.executor.0.gemm, self.plan);
        let backend = gemm.backend();
        let max_blocks = self.executor.most_blocks()?;
        let with = Binding {
            gemm,
            plan,
            max_blocks,
        };
        let launch = B::bind_kernel(&**kernel, &with)?;
        if self.probes() {
            let stream = backend.setup_stream()?;
            let nowhere = Nowhere::of(plan, self.pad);
            launch.probe(backend, &stream, &nowhere.addresses(plan))?;
            backend.synchronize(&stream)?;
        }
        let name = kernel.name();
        Ok(Action::Kernel { name, launch })
    }

    /// The reduction of boxes where they are, which has been probed.
    pub(super) fn reduction(&self, srcs: &[Region], dst: &Region) -> Result<Action<B>> {
        let buffer = |region: &Region| &self.plan.buffers[region.buffer.0];
        let strided = |region: &Region| (self.place(region), buffer(region).cols);
        let shape = (dst.rows.len(), dst.cols.len());
        let most = LocalReduce::MOST_ELEMENTS;
        if dst.len() > most {
            return Err(warpweave_symm_mem::Error::Unavailable {
                what: format!("a reduction of {}x{} elements", shape.0, shape.1),
                why: format!("a launch counts {most}: take smaller chunks"),
            }
            .into());
        }
        let reduction = Reduction {
            partials: srcs.iter().map(strided).collect(),
            dst: strided(dst),
            shape,
            dtype: buffer(dst).dtype,
            rank: self.plan.rank,
        };
        let nowhere = Nowhere::of(self.plan, self.pad);
        let launch = reduction.launch(&nowhere.addresses(self.plan))?;
        if self.probes() {
            let backend = &self.executor.0.backend;
            let stream = backend.setup_stream()?;
            let empty = LocalReduce { rows: 0, ..launch };
            // SAFETY: the launch reads and writes no row.
            unsafe { backend.local_reduce(&stream, &empty)? };
            backend.synchronize(&stream)?;
        }
        Ok(Action::Reduce(reduction))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warpweave_symm_mem::{DType, Exchange, Host, ThreadExchange};

    use super::*;
    use crate::execute::Executor;
    use crate::execute::bind::{Asked, ProcessGroups, gemms};
    use crate::plan::{Placement, PlanBuilder, Role, StreamId};

    /// Each call would end in the middle, and stop the waits of its device.
    #[test]
    fn a_reduction_of_more_than_a_launch_counts_is_refused_before_the_calls() {
        let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
        let executor = Executor::new(&Host::new(), &exchange).unwrap();
        let bound = |rows: usize| {
            let mut plan = PlanBuilder::new("large", 0, 1);
            let [a, c] = [("a", Role::Input), ("c", Role::Output)].map(|(name, role)| {
                plan.buffer(name, Placement::Local, role, DType::F16, (rows, 1 << 15))
            });
            let (src, dst) = (plan.whole(a), plan.whole(c));
            plan.reduce(StreamId::MAIN, vec![src], dst);
            let plan = plan.finish().unwrap();
            let binder = Binder {
                executor: &executor,
                plan: &plan,
                pad: None,
                groups: &ProcessGroups::new(),
                interfaces: &[],
                probe: false,
            };
            binder.steps(gemms(&executor, &plan, Asked::default())?)
        };
        bound((1 << 16) - 1).unwrap();
        let error = bound(1 << 16).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(
            error.to_string().contains("65536x32768 elements"),
            "{error}"
        );
    }
}
