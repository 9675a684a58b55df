//! Operations with their addresses, ready to be enqueued.

use std::sync::Arc;

use warpweave_gemm::{GemmOperands, GemmProblem, Provider};
use warpweave_kernels::LocalReduce;
use warpweave_symm_mem::{DevicePtr, SignalPad};

use super::ExecuteBackend;
use super::bind::BoxedLaunch;
use super::collective::{GroupCall, ProcessGroup};
use super::error::Result;

/// A contiguous run of bytes to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub dst: DevicePtr,
    pub src: DevicePtr,
    pub bytes: usize,
    /// Whether it writes memory of a peer.
    pub pushes: bool,
}

/// A GEMM with its algorithm.
#[derive(Debug)]
pub(super) struct Gemm<B: ExecuteBackend> {
    pub problem: GemmProblem,
    pub provider: Provider,
    pub plan: B::PreparedGemm,
    pub operands: GemmOperands,
}

/// What one operation of a plan enqueues.
#[derive(Debug)]
pub(super) enum Action<B: ExecuteBackend> {
    Copy(Vec<Run>),
    /// Zeros to contiguous bytes.
    Zero(Vec<(DevicePtr, usize)>),
    Signal {
        slot: usize,
        to: Vec<usize>,
    },
    Wait {
        slot: usize,
        from: Vec<usize>,
        lag: u32,
    },
    Record(usize),
    WaitEvent(usize),
    Collective {
        group: Arc<ProcessGroup<B>>,
        call: GroupCall,
    },
    Gemm(Gemm<B>),
    Reduce(LocalReduce),
    Kernel {
        name: &'static str,
        launch: BoxedLaunch<B>,
    },
}

/// An action, where it stands in the plan, and its stream.
#[derive(Debug)]
pub(super) struct Step<B: ExecuteBackend> {
    /// Place in the plan.
    pub op: usize,
    pub stream: usize,
    pub action: Action<B>,
}

/// What the steps of a plan share.
pub(super) struct Resources<'a, B: ExecuteBackend> {
    pub backend: &'a B,
    pub streams: &'a [B::Stream],
    pub events: &'a [B::Event],
    pub pad: Option<&'a SignalPad<B>>,
}

impl<B: ExecuteBackend> Action<B> {
    fn kind(&self) -> &'static str {
        match self {
            Action::Copy(_) => "copy",
            Action::Zero(_) => "zero",
            Action::Signal { .. } => "signal",
            Action::Wait { .. } => "wait",
            Action::Record(_) => "record",
            Action::WaitEvent(_) => "wait-event",
            Action::Collective { .. } => "collective",
            Action::Gemm(_) => "gemm",
            Action::Reduce(_) => LocalReduce::NAME,
            Action::Kernel { name, .. } => name,
        }
    }
}

impl<B: ExecuteBackend> Step<B> {
    /// Enqueues the step.
    ///
    /// # Safety
    /// The addresses were made for `with`'s buffers, inside their bounds, and outlive the enqueued work; all
    /// ranks enqueue the steps of plans that belong together, in the order of the plans.
    pub unsafe fn enqueue(&self, with: &Resources<'_, B>) -> Result<()> {
        let span = tracing::debug_span!("plan.op", kind = self.action.kind(), stream = self.stream);
        let _entered = span.enter();
        let (backend, stream) = (with.backend, &with.streams[self.stream]);
        match &self.action {
            Action::Copy(runs) => {
                for &Run {
                    dst,
                    src,
                    bytes,
                    pushes,
                } in runs
                {
                    // SAFETY: the caller's obligation.
                    unsafe {
                        // What a peer has is its own until it gives it for this call, and a wait for that may
                        // have failed. What is pulled nobody else sees: whether it may be used, the checks of
                        // the pads say.
                        match pushes {
                            true => backend.copy_unless_stopped(stream, dst, src, bytes)?,
                            false => backend.copy(stream, dst, src, bytes)?,
                        }
                    }
                }
            }
            Action::Zero(spans) => {
                for &(dst, bytes) in spans {
                    // SAFETY: the caller's obligation.
                    unsafe { backend.fill(stream, dst, 0, bytes)? };
                }
            }
            Action::Signal { slot, to } => {
                if let Some(pad) = with.pad {
                    // SAFETY: the caller's obligation; *check* found the signals of a flag ordered.
                    unsafe { backend.signal(stream, &pad.view(), *slot, to)? };
                }
            }
            Action::Wait { slot, from, lag } => {
                if let Some(pad) = with.pad {
                    // SAFETY: as above, of waits.
                    unsafe { backend.wait(stream, &pad.view(), *slot, from, *lag)? };
                }
            }
            Action::Record(event) => backend.record(&with.events[*event], stream)?,
            Action::WaitEvent(event) => backend.wait_event(stream, &with.events[*event])?,
            Action::Collective { group, call } => {
                // SAFETY: the caller's obligation; *check* found the collectives of a rank ordered.
                unsafe { group.enqueue(stream, call)? };
            }
            Action::Gemm(gemm) => {
                // SAFETY: the caller's obligation; the problem's extents are those of the regions.
                unsafe { backend.gemm(stream, &gemm.plan, gemm.operands)? };
            }
            Action::Reduce(launch) => {
                // SAFETY: the caller's obligation; the boxes are regions, which *check* found apart or equal.
                unsafe { backend.local_reduce(stream, launch)? };
            }
            Action::Kernel { launch, .. } => {
                // SAFETY: the caller's obligation; the executor found the kernels of all ranks equal.
                unsafe { launch.enqueue(backend, stream)? };
            }
        }
        Ok(())
    }
}
