//! Steps and accesses as text.

use super::access::Access;
use super::program::{Boundary, NodeId, Program, Site};
use super::report::{Flag, Step, Touch};
use super::run::FlagKey;
use crate::plan::OpKind;
use crate::show;

impl Program<'_> {
    pub(super) fn step(&self, id: NodeId) -> Step {
        let node = &self.nodes[id];
        let plan = self.plans[node.rank];
        let line = |op: usize| show::op_line(plan, &plan.ops[op].kind);
        let text = match node.site {
            Site::CallerWrites => match self.boundary {
                Boundary::Operands => "the caller overwrites its inputs and outputs".to_owned(),
                Boundary::Everything => {
                    "the call begins: its inputs, outputs and staging may be overwritten before"
                        .to_owned()
                }
            },
            Site::CallerReads => "the caller reads its outputs".to_owned(),
            Site::Op(op) => format!("%{op} {}", line(op)),
            Site::Begin(op) => format!("%{op} begins: {}", line(op)),
            Site::End(op) => format!("%{op} ends"),
            Site::Effect { op, lane, index } => match &plan.ops[op].kind {
                OpKind::Kernel { lanes, kernel } => format!(
                    "%{op} {} lane {lane}: {}",
                    kernel.name(),
                    show::effect_line(plan, &lanes[lane][index])
                ),
                _ => format!("%{op}"),
            },
        };
        Step {
            rank: node.rank,
            call: node.call + 1,
            site: node.site,
            text,
        }
    }

    pub(super) fn touch(&self, access: &Access) -> Touch {
        let step = self.step(access.begin);
        Touch {
            kind: access.kind,
            text: show::region(self.plans[step.rank], &access.region),
            region: access.region.clone(),
            step,
        }
    }

    pub(super) fn flag(&self, (slot, src, dst): FlagKey) -> Flag {
        Flag {
            slot,
            name: show::slot_name(self.plans[dst], slot).to_owned(),
            src,
            dst,
        }
    }
}
