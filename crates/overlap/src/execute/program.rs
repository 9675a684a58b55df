//! A plan that is bound: its steps, which can be enqueued at the addresses of any call.

use std::sync::Arc;

use warpweave_symm_mem::SignalPad;

use super::ExecuteBackend;
use super::addresses::{Addresses, Location};
use super::collective::ProcessGroup;
use super::error::Result;
use super::step::{Action, Resources, Step};
use crate::plan::Plan;

/// A plan's steps with what they use besides memory.
#[derive(Debug)]
pub(super) struct Program<B: ExecuteBackend> {
    pub plan: Plan,
    pub steps: Vec<Step<B>>,
    /// The plan's streams other than the caller's.
    pub streams: Vec<B::Stream>,
    pub events: Vec<B::Event>,
    pub groups: Vec<Arc<ProcessGroup<B>>>,
}

impl<B: ExecuteBackend> Program<B> {
    /// What the steps of a call on `main` share, where the plan's buffers lie at `locations`.
    pub fn resources<'a>(
        &'a self,
        backend: &'a B,
        main: &'a B::Stream,
        pad: Option<&'a SignalPad<B>>,
        locations: &'a [Location],
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
        }
    }

    /// The algorithms of the plan's GEMMs, in order, for tables and logs.
    pub fn algorithms(&self) -> Vec<String> {
        let gemms = self.steps.iter().filter_map(|step| match &step.action {
            Action::Gemm(gemm) => Some(format!(
                "{}: {}",
                gemm.provider,
                B::gemm_algorithm(&gemm.plan)
            )),
            Action::Kernel { launch, .. } => launch.algorithm(),
            _ => None,
        });
        gemms.collect()
    }

    /// Enqueues one call.
    ///
    /// # Safety
    /// As for [`Step::enqueue`]. Nothing else is enqueued on these streams and events until it returns.
    pub unsafe fn enqueue(&self, with: &Resources<'_, B>) -> Result<()> {
        for step in &self.steps {
            // SAFETY: the caller's obligation.
            unsafe { step.enqueue(with)? };
        }
        Ok(())
    }
}
