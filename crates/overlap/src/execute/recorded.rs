//! What the host twins of a plan's kernels did in a call, in the plan's terms.

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::record::{Access, Recorder};

use super::bound::Bound;
use super::error::Result;
use crate::plan::{BufferId, Effect, Placement, Region, SlotId};

impl Bound<Host> {
    /// Runs a call, waits for it, and gives for each operation what it did, in order: reads, writes, and
    /// signals and waits with one peer each. Memory of no buffer, which a host kernel uses for itself, is
    /// left out; copies of an alternating buffer are one. For tests: [`twin`](crate::kernels::twin) compares
    /// it with the lanes of a kernel.
    ///
    /// Collective, as [`Bound::run`] and [`Bound::synchronize`].
    ///
    /// # Errors
    /// As both.
    pub fn run_recorded(&self) -> Result<Vec<Vec<Effect>>> {
        let call = self.captured.lock();
        let resources = self.resources();
        let mut records = Vec::new();
        for step in &self.program.steps {
            let recorder = Recorder::default();
            // SAFETY: as in `Bound::run`.
            recorder.during(|| unsafe { step.enqueue(&resources) })?;
            records.push((step.op, recorder));
        }
        drop(call);
        self.synchronize()?;
        let mut ops = vec![Vec::new(); self.plan().ops.len()];
        for (op, recorder) in records {
            let accesses = recorder.take();
            for effect in accesses.iter().flat_map(|access| self.effects(access)) {
                push(&mut ops[op], effect);
            }
        }
        Ok(ops)
    }

    fn effects(&self, access: &Access) -> Vec<Effect> {
        match *access {
            Access::Read { address, bytes } => {
                let regions = self.regions_at(address, bytes).into_iter();
                regions.map(Effect::Read).collect()
            }
            Access::Write { address, bytes } => {
                let regions = self.regions_at(address, bytes).into_iter();
                regions.map(Effect::Write).collect()
            }
            Access::Signal { slot, peer } => vec![Effect::Signal {
                slot: SlotId(slot),
                to: vec![self.first_of_node() + peer],
            }],
            Access::Wait { slot, peer, lag } => vec![Effect::Wait {
                slot: SlotId(slot),
                from: vec![self.first_of_node() + peer],
                lag,
            }],
        }
    }

    fn first_of_node(&self) -> usize {
        self.plan().node_of(self.plan().rank).start
    }

    /// What lies at an address of this rank's, which is in one buffer at most: rows, or a part of one.
    fn regions_at(&self, address: u64, bytes: usize) -> Vec<Region> {
        for (id, buffer) in self.plan().buffers.iter().enumerate() {
            let ranks = match buffer.placement {
                Placement::Local => self.plan().rank..self.plan().rank + 1,
                _ => self.plan().node_of(self.plan().rank),
            };
            for rank in ranks {
                let id = BufferId(id);
                let base = self.resources().at.copy_of(id, rank).0;
                let all = (buffer.copies() * buffer.bytes()) as u64;
                if bytes == 0 || address < base || address >= base + all {
                    continue;
                }
                let size = buffer.dtype.size();
                let start = (address - base) as usize % buffer.bytes() / size;
                let end = start + bytes / size;
                let cols = buffer.cols;
                let rows = start / cols..end.div_ceil(cols);
                let part = |row: usize| Region {
                    rank,
                    buffer: id,
                    rows: row..row + 1,
                    cols: start.max(row * cols) - row * cols
                        ..end.min((row + 1) * cols) - row * cols,
                };
                return rows.map(part).collect();
            }
        }
        Vec::new()
    }
}

/// Adds an effect to a trace; rows that follow those of the last one are added to it.
fn push(trace: &mut Vec<Effect>, effect: Effect) {
    match (trace.last_mut(), &effect) {
        (Some(Effect::Read(last)), Effect::Read(next))
        | (Some(Effect::Write(last)), Effect::Write(next))
            if last.same_copy(next)
                && last.cols == next.cols
                && last.rows.end == next.rows.start =>
        {
            last.rows.end = next.rows.end;
        }
        _ => trace.push(effect),
    }
}
