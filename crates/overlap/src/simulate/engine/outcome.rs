//! What came of a simulation: the time of every step, or who waits for ever.

use super::{Engine, op_of};
use crate::check::Site;
use crate::check::program::NodeId;
use crate::plan::OpKind;
use crate::show;
use crate::simulate::error::SimulateError;
use crate::timeline::{Origin, Span, Timeline};

impl Engine<'_, '_> {
    pub(super) fn timeline(self) -> Result<Timeline, SimulateError> {
        let program = self.program;
        let blocked: Vec<NodeId> = (0..program.nodes.len())
            .filter(|&id| self.end[id].is_none() && self.start[id].is_some())
            .collect();
        let unfinished = self.end.iter().any(Option::is_none);
        if unfinished {
            return Err(SimulateError::Deadlock {
                after_us: self.now as u64,
                blocked: blocked.iter().map(|&id| self.describe(id)).collect(),
            });
        }
        let spans = program.nodes.iter().enumerate().map(|(id, node)| Span {
            rank: node.rank,
            call: node.call + 1,
            stream: op_of(node.site).map_or(0, |op| program.plans[node.rank].ops[op].stream.0),
            site: node.site,
            text: self.text(id),
            start: self.start[id].unwrap_or_default(),
            end: self.end[id].unwrap_or_default(),
            cause: self.cause[id].0,
            after: self.cause[id].1,
        });
        Ok(Timeline {
            plan: program
                .plans
                .first()
                .map_or_else(String::new, |p| p.name.clone()),
            machine: self.machine.name.clone(),
            origin: Origin::Simulated,
            world: program.plans.len(),
            spans: spans.collect(),
        })
    }

    fn describe(&self, id: NodeId) -> String {
        let node = &self.program.nodes[id];
        format!(
            "rank {} call {} {}",
            node.rank,
            node.call + 1,
            self.text(id)
        )
    }

    fn text(&self, id: NodeId) -> String {
        let node = &self.program.nodes[id];
        let plan = self.program.plans[node.rank];
        match node.site {
            Site::CallerWrites => "the caller overwrites its inputs and outputs".into(),
            Site::CallerReads => "the caller reads its outputs".into(),
            Site::Op(op) | Site::End(op) | Site::Begin(op) => {
                show::op_line(plan, &plan.ops[op].kind)
            }
            Site::Effect { op, lane, index } => match &plan.ops[op].kind {
                OpKind::Kernel { lanes, .. } => show::effect_line(plan, &lanes[lane][index]),
                kind => show::op_line(plan, kind),
            },
        }
    }
}
