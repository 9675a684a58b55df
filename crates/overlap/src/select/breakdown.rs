//! What a critical path consists of.

use crate::check::Site;
use crate::plan::{Effect, OpKind, Plan};
use crate::timeline::{Span, Timeline};
use std::fmt;

/// The critical path by what its steps do, µs. They add up to the predicted time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// GEMMs.
    pub gemms_us: f64,
    /// Copies, and what kernels load and store.
    pub transfers_us: f64,
    /// Collectives.
    pub collectives_us: f64,
    /// Reductions.
    pub reductions_us: f64,
    /// Signals, waits, events, and whatever else moves no data.
    pub synchronisation_us: f64,
}

impl Breakdown {
    /// The critical path of `timeline`, which is that of `plans`, by rank.
    pub(super) fn of(timeline: &Timeline, plans: &[Plan]) -> Self {
        let mut parts = Breakdown::default();
        let mut from = 0.0;
        for index in timeline.critical_path() {
            let span = &timeline.spans[index];
            // Of spans that overlap, what goes beyond the one before.
            let until = span.end.max(from);
            *parts.part(span, &plans[span.rank]) += until - from;
            from = until;
        }
        parts
    }

    fn part(&mut self, span: &Span, plan: &Plan) -> &mut f64 {
        let op = match span.site {
            Site::Op(op) | Site::End(op) | Site::Begin(op) => &plan.ops[op].kind,
            Site::Effect { op, lane, index } => {
                return match &plan.ops[op].kind {
                    OpKind::Kernel { kernel, lanes } => match &lanes[lane][index] {
                        Effect::Write(region)
                            if region.rank == span.rank
                                && kernel.result() == Some(region.buffer) =>
                        {
                            &mut self.gemms_us
                        }
                        // Of loads from here only those take time that stand for a GEMM.
                        Effect::Read(region) if region.rank == span.rank => &mut self.gemms_us,
                        Effect::Read(_) | Effect::Write(_) | Effect::WriteMulticast(_) => {
                            &mut self.transfers_us
                        }
                        Effect::Signal { .. } | Effect::Wait { .. } | Effect::After(_) => {
                            &mut self.synchronisation_us
                        }
                    },
                    _ => &mut self.synchronisation_us,
                };
            }
            Site::CallerWrites | Site::CallerReads => return &mut self.synchronisation_us,
        };
        match op {
            OpKind::Gemm { .. } => &mut self.gemms_us,
            OpKind::Copy { .. } | OpKind::MulticastCopy { .. } => &mut self.transfers_us,
            OpKind::Collective { .. } => &mut self.collectives_us,
            OpKind::Reduce { .. } => &mut self.reductions_us,
            _ => &mut self.synchronisation_us,
        }
    }
}

/// `gemms 90 %, transfers 8 %, synchronisation 2 %`, what is less than a hundredth left out.
impl fmt::Display for Breakdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("GEMMs", self.gemms_us),
            ("transfers", self.transfers_us),
            ("collectives", self.collectives_us),
            ("reductions", self.reductions_us),
            ("synchronisation", self.synchronisation_us),
        ];
        let total: f64 = parts.iter().map(|(_, us)| us).sum();
        let percent = |us: f64| 100.0 * us / total.max(f64::MIN_POSITIVE);
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, us)| percent(*us) >= 1.0)
            .map(|(name, us)| format!("{name} {:.0} %", percent(*us)))
            .collect();
        f.write_str(&parts.join(", "))
    }
}
