//! Operations with their addresses, ready to be enqueued.

use std::sync::Arc;

use warpweave_gemm::{
    AllGatherMatmul, ChunkedMatmul, GemmOperands, GemmProblem, MatmulReduce, Provider,
};
use warpweave_kernels::{GatherMatmul, LocalReduce, NaiveRemoteRead};
use warpweave_symm_mem::{DevicePtr, SignalPad};

use super::ExecuteBackend;
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
    NaiveRemoteRead(NaiveRemoteRead),
    GatherMatmul(GatherMatmul),
    ChunkedMatmul(B::PreparedChunked),
    AllGatherMatmul(B::PreparedAllGather),
    MatmulReduce(B::PreparedReduce),
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
            Action::NaiveRemoteRead(_) => NaiveRemoteRead::NAME,
            Action::GatherMatmul(launch) => launch.name(),
            Action::ChunkedMatmul(_) => ChunkedMatmul::NAME,
            Action::AllGatherMatmul(_) => AllGatherMatmul::NAME,
            Action::MatmulReduce(_) => MatmulReduce::NAME,
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
            Action::NaiveRemoteRead(launch) => {
                // SAFETY: the caller's obligation; sizes were checked against the buffers.
                unsafe { backend.naive_remote_read(stream, launch)? };
            }
            Action::GatherMatmul(launch) => {
                // SAFETY: as above.
                unsafe { backend.gather_matmul(stream, launch)? };
            }
            Action::ChunkedMatmul(plan) => {
                // SAFETY: as above; the peers' plans signal as often as this rank's kernel declares to wait.
                unsafe { backend.chunked_matmul(stream, plan)? };
            }
            Action::AllGatherMatmul(plan) => {
                // SAFETY: as above; all ranks enqueue plans with this kernel, and the executor found their
                // interfaces equal.
                unsafe { backend.all_gather_matmul(stream, plan)? };
            }
            Action::MatmulReduce(plan) => {
                // SAFETY: as above; every rank's kernel has the same shards and groups, in slots of its own.
                unsafe { backend.matmul_reduce(stream, plan)? };
            }
        }
        Ok(())
    }
}
