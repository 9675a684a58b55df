//! What must hold for one rank's plan before it is bound: that it is sound by itself, as *check* finds, and
//! what the executor needs in addition.

use std::collections::BTreeSet;

use warpweave_comm::collective::norm::launch::RowNorm;
use warpweave_kernels::MAX_PARTIALS;

use super::error::{ExecuteError, Result};
use crate::check;
use crate::kernels::{AnyKernel, KernelBuffer};
use crate::plan::{AddRmsNorm, OpKind, Placement, Plan, Region, Transport};

/// Refuses a plan that no device could run.
pub(super) fn validate(plan: &Plan, rank: usize, world: usize) -> Result<()> {
    let at = |place: String, why: String| {
        Err(ExecuteError::InvalidPlan {
            plan: plan.name.clone(),
            rank: plan.rank,
            place,
            why,
        })
    };
    if (plan.rank, plan.world) != (rank, world) {
        return Err(wrong_ranks(plan, rank, world));
    }
    if let Some(fault) = check::faults_of(plan).into_iter().next() {
        let place = fault
            .op
            .map_or("plan".into(), |op| format!("operation {op}"));
        return at(place, fault.what);
    }
    for (i, op) in plan.ops.iter().enumerate() {
        if let Err(why) = (Checker { plan }).op(&op.kind) {
            return at(format!("operation {i}"), why);
        }
    }
    Ok(())
}

/// That a plan is for another rank or world.
pub(super) fn wrong_ranks(plan: &Plan, rank: usize, world: usize) -> ExecuteError {
    ExecuteError::InvalidPlan {
        plan: plan.name.clone(),
        rank: plan.rank,
        place: "ranks".into(),
        why: format!(
            "it is for rank {} of {}, this is rank {rank} of {world}",
            plan.rank, plan.world
        ),
    }
}

type Check<T = ()> = Result<T, String>;

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(why()) }
}

/// Asks a plan without faults for what the executor needs. Every id in it names something.
struct Checker<'a> {
    plan: &'a Plan,
}

impl Checker<'_> {
    fn op(&self, kind: &OpKind) -> Check {
        match kind {
            OpKind::Collective {
                src,
                dst,
                ranks,
                transport,
                then,
                ..
            } => {
                self.collective((src, dst), ranks, *transport)?;
                then.as_ref().map_or(Ok(()), |norm| self.norm(norm))
            }
            OpKind::Gemm { a, bias, .. } => ensure(bias.is_none() || !a.cols.is_empty(), || {
                "a bias of a GEMM of no terms".into()
            }),
            OpKind::Reduce { srcs, .. } => ensure(srcs.len() <= MAX_PARTIALS, || {
                format!(
                    "a reduction of {} boxes: {MAX_PARTIALS} can be added with one rounding",
                    srcs.len()
                )
            }),
            OpKind::Kernel { kernel, lanes } => {
                ensure(
                    *lanes == kernel.lanes(self.plan.rank, self.plan.world),
                    || format!("{} does not declare what it does", kernel.name()),
                )?;
                self.kernel(kernel)
            }
            _ => Ok(()),
        }
    }

    /// What moves the bytes of collectives takes whole rows; *check* has seen to what may overlap.
    fn collective(
        &self,
        (src, dst): (&Region, &Region),
        ranks: &[usize],
        transport: Transport,
    ) -> Check {
        self.whole_rows("a collective", [src, dst])?;
        match transport {
            Transport::Nccl => Ok(()),
            Transport::SymmetricMemory => {
                let node = self.plan.node_of(self.plan.rank);
                ensure(ranks.iter().all(|rank| node.contains(rank)), || {
                    format!(
                        "symmetric memory reaches the ranks {node:?} of a node, not all of {ranks:?}"
                    )
                })
            }
            other => Err(format!("there are no collectives by {other}")),
        }
    }

    /// The same for what follows an all-reduce.
    fn norm(&self, norm: &AddRmsNorm) -> Check {
        let values = norm.quantized.as_ref().map(|to| &to.values);
        let rows = [&norm.residual, &norm.residual_out].into_iter();
        self.whole_rows("an RMSNorm", rows.chain(values))?;
        let rows = norm.residual.rows.len();
        ensure(u32::try_from(rows).is_ok(), || {
            format!("an RMSNorm of {rows} rows")
        })?;
        let buffer = &self.plan.buffers[norm.weight.buffer.0];
        let bytes = norm.weight.cols.len() * buffer.dtype.size();
        ensure((1..=RowNorm::MOST_BYTES).contains(&bytes), || {
            let most = RowNorm::MOST_BYTES;
            format!("an RMSNorm of rows of {bytes} bytes: {most} at most, and not none")
        })
    }

    fn whole_rows<'a>(&self, what: &str, regions: impl IntoIterator<Item = &'a Region>) -> Check {
        let whole = |r: &Region| r.cols.len() == self.plan.buffers[r.buffer.0].cols;
        ensure(regions.into_iter().all(whole), || {
            format!("{what} takes whole rows")
        })
    }

    /// Kernels see matrices without gaps, by their first address and an element type.
    fn kernel(&self, kernel: &AnyKernel) -> Check {
        let (rank, world) = (self.plan.rank, self.plan.world);
        for needed in kernel.operands(rank, world) {
            self.operand(kernel, needed)?;
        }
        kernel.validate(rank, world)?;
        let slots = kernel.slots();
        let distinct: BTreeSet<usize> = slots.iter().map(|slot| slot.0).collect();
        ensure(distinct.len() == slots.len(), || {
            format!("{} needs {} slots", kernel.name(), slots.len())
        })
    }

    fn operand(&self, kernel: &AnyKernel, needed: KernelBuffer) -> Check {
        let buffer = &self.plan.buffers[needed.id.0];
        let KernelBuffer {
            rows,
            cols,
            placement,
            alternates,
            dtype,
            ..
        } = needed;
        let (name, dtype) = (kernel.name(), dtype.unwrap_or(kernel.shape().dtype));
        ensure(
            buffer.rows >= rows && buffer.cols == cols && buffer.dtype == dtype,
            || {
                format!(
                    "{name} takes {rows}x{cols} {dtype}, `{}` is {}x{} {}",
                    buffer.name, buffer.rows, buffer.cols, buffer.dtype
                )
            },
        )?;
        ensure(
            placement == Placement::Local || buffer.placement == placement,
            || {
                format!(
                    "{name} takes a {placement} buffer, `{}` is {}",
                    buffer.name, buffer.placement
                )
            },
        )?;
        // Its two copies lie one after the other.
        let in_turn = buffer.alternating && buffer.rows == rows;
        ensure(!alternates || in_turn, || {
            format!(
                "{name} alternates between two stagings of {rows} rows, `{}` is {} of {}",
                buffer.name,
                buffer.copies(),
                buffer.rows
            )
        })
    }
}
