//! Copies between a caller's local memory and what peers reach.

use super::ScheduleError;
use super::closing::Copies;
use crate::operation::Operand;
use crate::plan::{Buffer, BufferId, Op, OpKind, Placement, Plan, Region, Role, StreamId};

/// Gives a plan local operands, but for those that the caller holds in symmetric memory.
///
/// The algorithm's buffer becomes staging under the name `NAME.staged`; a new local operand takes its name
/// and role. An input is copied in at the start, an output out at the end, both on stream 0, as many rows as
/// the rank holds, unless the kernel that alone uses the operand copies it itself.
pub(super) fn stage(
    plan: &mut Plan,
    operands: &[Operand],
    symmetric: &[&str],
) -> Result<Copies, ScheduleError> {
    let mut copies = Copies::default();
    for operand in operands {
        let Some(BufferId(id)) = plan.buffer_named(operand.buffer) else {
            continue;
        };
        let reached = match plan.buffers[id].placement {
            Placement::Local => false,
            Placement::Symmetric => !symmetric.contains(&operand.buffer),
            // Symmetric memory of the caller is not bound to a multicast object.
            Placement::Multicast => true,
        };
        if !reached {
            continue;
        }
        let role = plan.buffers[id].role;
        if role == Role::Weight {
            return Err(ScheduleError::LocalWeight {
                schedule: plan.name.clone(),
                operand: operand.buffer.into(),
            });
        }
        let (rows, cols) = operand.stored();
        plan.buffers[id].role = Role::Staging;
        plan.buffers[id].name = format!("{}.staged", operand.buffer);
        let local = Buffer {
            name: operand.buffer.into(),
            placement: Placement::Local,
            role,
            rows,
            cols,
            alternating: false,
            dtype: plan.buffers[id].dtype,
        };
        plan.buffers.push(local);
        if by_kernel(plan, BufferId(id), BufferId(plan.buffers.len() - 1)) {
            continue;
        }
        let part = |buffer| Region {
            rank: plan.rank,
            buffer: BufferId(buffer),
            rows: 0..rows,
            cols: 0..cols,
        };
        let [staged, local] = [id, plan.buffers.len() - 1].map(part);
        if local.is_empty() {
            continue;
        }
        let copy = |src, dst| Op {
            stream: StreamId::MAIN,
            kind: OpKind::Copy { src, dst },
        };
        match role {
            Role::Output => {
                plan.ops.push(copy(staged, local));
                copies.last += 1;
            }
            _ => {
                plan.ops.insert(copies.first, copy(local, staged));
                copies.first += 1;
            }
        }
    }
    Ok(copies)
}

/// Has the kernel that alone uses `staged` take or leave this rank's part in `local`, if it can.
fn by_kernel(plan: &mut Plan, staged: BufferId, local: BufferId) -> bool {
    let (rank, world, node) = (plan.rank, plan.world, plan.node_of(plan.rank));
    let uses = |op: &&mut Op| match &op.kind {
        OpKind::Kernel { kernel, .. } => kernel.buffers().contains(&staged),
        kind => {
            let regions = kind.reads().into_iter().chain(kind.writes(node.clone()));
            regions.into_iter().any(|region| region.buffer == staged)
        }
    };
    let mut users = plan.ops.iter_mut().filter(uses);
    let (Some(user), None) = (users.next(), users.next()) else {
        return false;
    };
    let OpKind::Kernel { kernel, lanes } = &mut user.kind else {
        return false;
    };
    let Some(copying) = kernel.copying(staged, local) else {
        return false;
    };
    *lanes = copying.lanes(rank, world);
    *kernel = copying;
    true
}
