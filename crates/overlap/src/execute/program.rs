//! A plan that is bound: its steps, which can be enqueued at the addresses of any call.

use warpweave_symm_mem::{DevicePtr, SignalPad};

use super::addresses::{Addresses, Location};
use super::error::Result;
use super::step::{Action, Gemm, Resources, Step};
use super::{ExecuteBackend, Executor};
use crate::plan::Plan;

/// The scratch memory of a stream begins at a multiple of this many bytes.
const SCRATCH_ALIGNMENT: usize = 256;

/// A plan's steps with what they use besides memory.
#[derive(Debug)]
pub(super) struct Program<B: ExecuteBackend> {
    pub plan: Plan,
    pub steps: Vec<Step<B>>,
    /// The plan's streams other than the caller's.
    pub streams: Vec<B::Stream>,
    pub events: Vec<B::Event>,
    /// Where each stream, the caller's first, has the scratch memory of its GEMMs; and bytes of all of it.
    scratch_of: (Vec<usize>, usize),
}

impl<B: ExecuteBackend> Program<B> {
    /// `streams` are those other than the caller's.
    pub fn new(
        plan: Plan,
        steps: Vec<Step<B>>,
        streams: Vec<B::Stream>,
        events: Vec<B::Event>,
    ) -> Self {
        Program {
            scratch_of: scratch_of(&steps, streams.len() + 1),
            plan,
            steps,
            streams,
            events,
        }
    }

    /// Bytes of scratch memory that calls need.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_of.1
    }

    /// Scratch memory of calls that are not in an arena.
    pub fn scratch(&self, backend: &B) -> Result<Option<B::Memory>> {
        match self.scratch_bytes() {
            0 => Ok(None),
            bytes => Ok(Some(backend.allocate(bytes)?)),
        }
    }

    /// What the steps of a call on `main` share, where the plan's buffers lie at `locations`.
    pub fn resources<'a>(
        &'a self,
        backend: &'a B,
        main: &'a B::Stream,
        pad: Option<&'a SignalPad<B>>,
        locations: &'a [Location],
        scratch: DevicePtr,
    ) -> Resources<'a, B> {
        Resources {
            backend,
            main,
            others: &self.streams,
            events: &self.events,
            pad,
            at: Addresses {
                plan: &self.plan,
                first_rank: self.plan.node_of(self.plan.rank).start,
                locations,
                pad: pad.map(SignalPad::view),
            },
            scratch,
            scratch_of: &self.scratch_of.0,
        }
    }

    /// The algorithms of the plan's GEMMs, in order, for tables and logs.
    pub fn algorithms(&self) -> Vec<String> {
        let gemms = self.steps.iter().filter_map(|step| match &step.action {
            Action::Gemm(gemm) => Some(B::gemm_algorithm(&gemm.plan)),
            Action::Kernel { launch, .. } => launch.algorithm(),
            _ => None,
        });
        gemms.collect()
    }

    /// Chooses the fastest algorithm of each GEMM by trying them on `main`, which is idle, with the operands
    /// of a call. What was tried before keeps its choice. [`Program::prepare_again`] takes over the choices.
    ///
    /// # Safety
    /// As for [`Step::enqueue`], of the GEMMs alone.
    pub unsafe fn tune(
        &self,
        executor: &Executor<B>,
        main: &B::Stream,
        at: &Addresses<'_>,
    ) -> Result<()> {
        let gemms = executor.gemm();
        for gemm in self.steps.iter().filter_map(Step::gemm) {
            let &Gemm {
                problem, provider, ..
            } = gemm;
            let key = (problem, provider);
            if !executor.0.tuned.lock().contains(&key) {
                // SAFETY: the caller's obligation.
                unsafe { gemms.tune(main, &problem, provider, gemm.operands(at))? };
                executor.0.tuned.lock().insert(key);
            }
        }
        Ok(())
    }

    /// Prepares the GEMMs anew, with what tuning has chosen by now, and allocates their scratch memory. After
    /// an error they are as before.
    pub fn prepare_again(&mut self, executor: &Executor<B>) -> Result<Option<B::Memory>> {
        let gemms = executor.gemm();
        let (backend, handle) = (gemms.backend(), gemms.handle());
        let again = |gemm: &Gemm<B>| backend.prepare_gemm(handle, &gemm.problem, gemm.provider);
        let gemms_of = self.steps.iter().filter_map(Step::gemm);
        let mut plans = gemms_of.map(again).collect::<Result<Vec<_>, _>>()?;
        self.exchange_plans(&mut plans);
        let scratch = self.scratch(backend);
        if scratch.is_err() {
            self.exchange_plans(&mut plans);
        }
        scratch
    }

    /// Exchanges those of the GEMMs.
    fn exchange_plans(&mut self, plans: &mut [B::PreparedGemm]) {
        let steps = self.steps.iter_mut();
        let gemms = steps.filter_map(|step| match &mut step.action {
            Action::Gemm(gemm) => Some(gemm),
            _ => None,
        });
        for (gemm, plan) in gemms.zip(plans) {
            std::mem::swap(&mut gemm.plan, plan);
        }
        self.scratch_of = scratch_of(&self.steps, self.streams.len() + 1);
    }

    /// Enqueues one call. If only a part of it could be enqueued, the peers' signals for the rest would end
    /// waits of the next call: so the waits of this device are stopped, until a recovery. Of a capture
    /// nothing runs.
    ///
    /// # Safety
    /// As for [`Step::enqueue`]. Nothing else is enqueued on these streams and events until it returns.
    pub unsafe fn enqueue(&self, with: &Resources<'_, B>) -> Result<()> {
        for (index, step) in self.steps.iter().enumerate() {
            // SAFETY: the caller's obligation.
            let enqueued = unsafe { step.enqueue(with) };
            if enqueued.is_err()
                && index > 0
                && !matches!(with.backend.is_capturing(with.main), Ok(true))
            {
                with.backend.stop_waits();
            }
            enqueued?;
        }
        Ok(())
    }
}

/// Where each stream has the scratch memory of its GEMMs, and bytes of all of it.
fn scratch_of<B: ExecuteBackend>(steps: &[Step<B>], streams: usize) -> (Vec<usize>, usize) {
    let mut needs = vec![0; streams];
    for step in steps {
        if let Some(gemm) = step.gemm() {
            let bytes = B::workspace_bytes(&gemm.plan).next_multiple_of(SCRATCH_ALIGNMENT);
            needs[step.stream] = bytes.max(needs[step.stream]);
        }
    }
    let mut end = 0;
    let starts = needs.into_iter().map(|bytes| {
        end += bytes;
        end - bytes
    });
    let starts = starts.collect();
    (starts, end)
}
