//! What the plans of different ranks share, and whether they belong together.

use serde::{Deserialize, Serialize};
use warpweave_symm_mem::{Exchange, ExchangeError};

use super::error::{ExecuteError, Result};
use crate::check::agreed;
use crate::plan::{Buffer, OpKind, Placement, Plan, Region, Transport};

/// What a plan shares with its peers. Local buffers are a rank's own business.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Interface {
    /// What all ranks share, one line each.
    lines: Vec<String>,
    /// The collectives, in order.
    pub collectives: Vec<SharedCollective>,
}

/// A collective as the ranks that take part in it must agree on it, with this rank's boxes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SharedCollective {
    /// What must be the same on the ranks that take part.
    line: String,
    pub ranks: Vec<usize>,
    pub transport: Transport,
    /// Bytes of all shards.
    pub bytes: usize,
    pub src: Region,
    pub dst: Region,
}

impl SharedCollective {
    fn new(plan: &Plan, kind: &OpKind) -> Option<Self> {
        let OpKind::Collective {
            collective,
            src,
            dst,
            ranks,
            transport,
            ..
        } = kind
        else {
            return None;
        };
        let (from, to) = (&plan.buffers[src.buffer.0], &plan.buffers[dst.buffer.0]);
        let rows = collective.all_rows(src, dst);
        let mut line = agreed(plan, kind)?;
        if *transport == Transport::SymmetricMemory {
            // The variant depends on which operands peers can reach, and on whether results overwrite them.
            let name = |buffer: &Buffer| match buffer.placement {
                Placement::Local => "local memory".to_owned(),
                _ => format!("`{}`", buffer.name),
            };
            let in_place = if src.overlaps(dst) { " in place" } else { "" };
            line += &format!(" from {} to {}{in_place}", name(from), name(to));
        }
        Some(Self {
            line,
            ranks: ranks.clone(),
            transport: *transport,
            bytes: rows * dst.cols.len() * to.dtype.size(),
            src: src.clone(),
            dst: dst.clone(),
        })
    }
}

impl Interface {
    /// What `plan` shares.
    pub fn of(plan: &Plan) -> Self {
        let mut lines = vec![format!(
            "plan {} of {} ranks, {} a node",
            plan.name, plan.world, plan.node_size
        )];
        for b in &plan.buffers {
            if b.placement != Placement::Local {
                lines.push(format!(
                    "{} buffer {}: {}x{} {}",
                    b.placement, b.name, b.rows, b.cols, b.dtype
                ));
            }
        }
        for slot in &plan.slots {
            lines.push(format!("slot {}", slot.name));
        }
        for op in &plan.ops {
            if let OpKind::Kernel { kernel, .. } = &op.kind {
                let shape = kernel.shape();
                lines.push(format!(
                    "kernel {} of {}x{}x{} {}, {}",
                    kernel.name(),
                    shape.m,
                    shape.n,
                    shape.k,
                    shape.dtype,
                    kernel.agreed()
                ));
            }
        }
        let shared = |op: &crate::plan::Op| SharedCollective::new(plan, &op.kind);
        Self {
            lines,
            collectives: plan.ops.iter().filter_map(shared).collect(),
        }
    }

    /// The lines that concern `peer`.
    fn with(&self, peer: usize) -> Vec<&str> {
        let theirs = |c: &&SharedCollective| c.ranks.contains(&peer);
        let collectives = self.collectives.iter().filter(theirs);
        let lines = self.lines.iter().map(String::as_str);
        lines.chain(collectives.map(|c| c.line.as_str())).collect()
    }

    /// The collectives of one set of ranks by one transport, in order.
    pub fn of_group<'a>(
        &'a self,
        ranks: &'a [usize],
        transport: Transport,
    ) -> impl Iterator<Item = &'a SharedCollective> {
        let same = move |c: &&SharedCollective| c.ranks == ranks && c.transport == transport;
        self.collectives.iter().filter(same)
    }
}

/// Makes sure that the plans of all ranks belong together: one name, one world, the same shared buffers,
/// slots, kernels, and collectives of the ranks that share them. Returns what each rank shares. Collective.
pub(super) fn same_interface(exchange: &dyn Exchange, plan: &Plan) -> Result<Vec<Interface>> {
    const TAG: &str = "plan.interface";
    let unclear = |rank: usize, error: serde_json::Error| ExchangeError::Protocol {
        rank,
        tag: TAG.into(),
        what: error.to_string(),
    };
    let rank = exchange.rank();
    let mine = Interface::of(plan);
    let bytes = serde_json::to_vec(&mine).map_err(|error| unclear(rank, error))?;
    let all = exchange.all_gather(TAG, &bytes)?;
    let parse = |(peer, bytes): (usize, &Vec<u8>)| {
        serde_json::from_slice(bytes).map_err(|error| unclear(peer, error))
    };
    let all: Vec<Interface> = all
        .iter()
        .enumerate()
        .map(parse)
        .collect::<Result<_, _>>()?;
    for (peer, theirs) in all.iter().enumerate() {
        let (mine, theirs) = (mine.with(peer), theirs.with(rank));
        for line in 0..mine.len().max(theirs.len()) {
            let [mine, theirs] =
                [&mine, &theirs].map(|l| l.get(line).copied().unwrap_or("nothing more"));
            if mine != theirs {
                return Err(ExecuteError::Disagreement {
                    rank,
                    mine: mine.into(),
                    peer,
                    theirs: theirs.into(),
                });
            }
        }
    }
    Ok(all)
}
