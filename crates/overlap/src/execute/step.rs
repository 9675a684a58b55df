//! Operations with the places of their operands, ready to be enqueued at the addresses of a call.

use std::sync::Arc;

use warpweave_gemm::{GemmOperands, GemmProblem, Provider};
use warpweave_kernels::{LocalReduce, Strided};
use warpweave_symm_mem::{DType, DevicePtr, SignalPad};

use super::ExecuteBackend;
use super::addresses::{Addresses, Place};
use super::bind::BoxedLaunch;
use super::collective::{GroupCall, ProcessGroup};
use super::error::Result;

/// Whose memory a copy writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Own,
    /// Staging of a peer, or of all ranks by the multicast address.
    Staging,
    /// An operand of a peer, which the peer's caller uses between calls.
    Operand,
}

/// A contiguous run of bytes to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub dst: Place,
    pub src: Place,
    pub bytes: usize,
    pub to: Target,
}

/// A GEMM with its algorithm.
#[derive(Debug)]
pub(super) struct Gemm<B: ExecuteBackend> {
    pub problem: GemmProblem,
    pub provider: Provider,
    pub plan: B::PreparedGemm,
    pub a: Place,
    pub b: Place,
    pub c: Place,
    pub bias: Option<Place>,
    pub scales: Option<[Place; 2]>,
}

impl<B: ExecuteBackend> Gemm<B> {
    /// Where its operands lie.
    pub fn operands(&self, at: &Addresses<'_>) -> GemmOperands {
        let bias = self.bias.map_or(DevicePtr::NULL, |bias| at.place(bias));
        let scales = self.scales.map_or([DevicePtr::NULL; 2], |scales| {
            scales.map(|one| at.place(one))
        });
        GemmOperands::new(at.place(self.a), at.place(self.b), at.place(self.c))
            .with_bias(bias)
            .with_scales(scales)
    }
}

/// A reduction of boxes of `rows` × `cols` elements: where they begin, and elements from a row to the next.
#[derive(Debug)]
pub(super) struct Reduction {
    pub partials: Vec<(Place, usize)>,
    pub dst: (Place, usize),
    pub shape: (usize, usize),
    pub dtype: DType,
    pub rank: usize,
}

impl Reduction {
    /// Its launch at the addresses of a call.
    pub fn launch(&self, at: &Addresses<'_>) -> Result<LocalReduce> {
        let strided = |(place, row_stride): (Place, usize)| Strided {
            address: at.place(place),
            row_stride,
        };
        let mut partials = [Strided::NONE; warpweave_kernels::MAX_PARTIALS];
        for (partial, place) in partials.iter_mut().zip(&self.partials) {
            *partial = strided(*place);
        }
        let partials = &partials[..self.partials.len().min(partials.len())];
        let dst = strided(self.dst);
        Ok(LocalReduce::new(
            self.rank, partials, dst, self.shape, self.dtype,
        )?)
    }
}

/// What one operation of a plan enqueues.
#[derive(Debug)]
pub(super) enum Action<B: ExecuteBackend> {
    Copy(Vec<Run>),
    /// Zeros to contiguous bytes.
    Zero(Vec<(Place, usize)>),
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
    Reduce(Reduction),
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

/// What the steps of a call share.
pub(super) struct Resources<'a, B: ExecuteBackend> {
    pub backend: &'a B,
    /// The caller's stream.
    pub main: &'a B::Stream,
    /// The plan's other streams.
    pub others: &'a [B::Stream],
    pub events: &'a [B::Event],
    pub pad: Option<&'a SignalPad<B>>,
    pub at: Addresses<'a>,
    /// Scratch memory of GEMMs, and where in it each stream has its own.
    pub scratch: DevicePtr,
    pub scratch_of: &'a [usize],
}

impl<B: ExecuteBackend> Resources<'_, B> {
    /// The stream of this number.
    pub fn stream(&self, number: usize) -> &B::Stream {
        match number.checked_sub(1) {
            None => self.main,
            Some(other) => &self.others[other],
        }
    }
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
    /// The GEMM, if it is one.
    pub fn gemm(&self) -> Option<&Gemm<B>> {
        match &self.action {
            Action::Gemm(gemm) => Some(gemm),
            _ => None,
        }
    }

    /// Enqueues the step.
    ///
    /// # Safety
    /// The memory at `with`'s addresses has the plan's buffers, and outlives the enqueued work; all ranks
    /// enqueue the steps of plans that belong together, in the order of the plans.
    pub unsafe fn enqueue(&self, with: &Resources<'_, B>) -> Result<()> {
        let span = tracing::debug_span!("plan.op", kind = self.action.kind(), stream = self.stream);
        let _entered = span.enter();
        let (backend, stream, at) = (with.backend, with.stream(self.stream), &with.at);
        match &self.action {
            Action::Copy(runs) => {
                for run in runs {
                    let (dst, src) = (at.place(run.dst), at.place(run.src));
                    // SAFETY: the caller's obligation.
                    unsafe {
                        // What a peer has is its own until it gives it for this call, and a wait for that may
                        // have failed. Staging is read within calls only, and nobody else sees what is
                        // pulled: whether either may be used, the checks of the pads say.
                        match run.to {
                            Target::Own => backend.copy(stream, dst, src, run.bytes)?,
                            Target::Staging => {
                                backend.push_by_engine(stream, dst, src, run.bytes)?
                            }
                            Target::Operand => {
                                backend.copy_unless_stopped(stream, dst, src, run.bytes)?;
                            }
                        }
                    }
                }
            }
            Action::Zero(spans) => {
                for &(dst, bytes) in spans {
                    // SAFETY: the caller's obligation.
                    unsafe { backend.fill(stream, at.place(dst), 0, bytes)? };
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
                unsafe { group.enqueue(stream, call, at)? };
            }
            Action::Gemm(gemm) => {
                // GEMMs of one stream, which has its own scratch memory, follow each other.
                let scratch = with.scratch.add(with.scratch_of[self.stream]);
                // SAFETY: the caller's obligation; the problem's extents are those of the regions.
                unsafe { backend.gemm(stream, &gemm.plan, gemm.operands(at), scratch)? };
            }
            Action::Reduce(reduction) => {
                // SAFETY: the caller's obligation; the boxes are regions, which *check* found apart or equal.
                unsafe { backend.local_reduce(stream, &reduction.launch(at)?)? };
            }
            Action::Kernel { launch, .. } => {
                // SAFETY: the caller's obligation; the executor found the kernels of all ranks equal.
                unsafe { launch.enqueue(backend, stream, at)? };
            }
        }
        Ok(())
    }
}
