//! What must be true of one rank's plan before addresses are made of it: that it is sound by itself, as *check* says, and
//! what the executor asks for besides.

use std::collections::BTreeSet;

use warpweave_kernels::MAX_PARTIALS;

use super::error::{ExecuteError, Result};
use crate::check;
use crate::plan::{
    BufferId, GatherProtocol, Kernel, OneShot, OpKind, Placement, Plan, Region, Transport,
    layout_of, shard,
};

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
        let why = format!(
            "it is for rank {} of {}, this is rank {rank} of {world}",
            plan.rank, plan.world
        );
        return at("ranks".into(), why);
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
                ..
            } => self.collective((src, dst), ranks, *transport),
            OpKind::Gemm { a, bias, .. } => ensure(bias.is_none() || !a.cols.is_empty(), || {
                "a bias of a product of no terms".into()
            }),
            OpKind::Reduce { srcs, .. } => ensure(srcs.len() <= MAX_PARTIALS, || {
                format!(
                    "a sum of {} boxes: {MAX_PARTIALS} can be added with one rounding",
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
        let whole = |r: &Region| r.cols.len() == self.plan.buffers[r.buffer.0].cols;
        ensure(whole(src) && whole(dst), || {
            "a collective takes whole rows".into()
        })?;
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

    /// Kernels see matrices without gaps, by their first address and one element type.
    fn kernel(&self, kernel: &Kernel) -> Check {
        let shape = kernel.shape();
        let (rank, world) = (self.plan.rank, self.plan.world);
        let matrix = |id: BufferId, rows: usize, cols: usize, needed: Placement| {
            let buffer = &self.plan.buffers[id.0];
            ensure(
                buffer.rows >= rows && buffer.cols == cols && buffer.dtype == shape.dtype,
                || {
                    format!(
                        "{} takes {rows}x{cols} {}, `{}` is {}x{} {}",
                        kernel.name(),
                        shape.dtype,
                        buffer.name,
                        buffer.rows,
                        buffer.cols,
                        buffer.dtype
                    )
                },
            )?;
            ensure(
                needed == Placement::Local || buffer.placement == needed,
                || {
                    format!(
                        "{} takes a {needed} buffer, `{}` is {}",
                        kernel.name(),
                        buffer.name,
                        buffer.placement
                    )
                },
            )
        };
        let own_rows = shard(shape.m, rank, world).len();
        let most_rows = shape.m.div_ceil(world);
        if let Kernel::ReducingMatmul(of) = kernel {
            let depth = of.depth(rank, world);
            let (b_rows, b_cols) = layout_of(of.b_transposed).stored(depth, shape.n);
            let (c_rows, placement) = match of.everyone() {
                false => (own_rows, Placement::Local),
                true => (shape.m, Placement::Symmetric),
            };
            matrix(of.a, shape.m, depth, Placement::Local)?;
            matrix(of.b, b_rows, b_cols, Placement::Local)?;
            matrix(of.c, c_rows, shape.n, placement)?;
            let parts = most_rows * (world - 1);
            matrix(of.staging, parts, shape.n, Placement::Symmetric)?;
            matrix(of.pulled, parts, shape.n, Placement::Local)?;
            let groups = most_rows.div_ceil(of.rows.max(1));
            ensure(of.groups == groups && of.rows > 0, || {
                format!("{groups} groups of {} rows, not {}", of.rows, of.groups)
            })?;
        }
        if let Kernel::OneShotMatmul(of) = kernel {
            let depth = of.depth(rank, world);
            let (b_rows, b_cols) = layout_of(of.b_transposed).stored(depth, shape.n);
            matrix(of.a, shape.m, depth, Placement::Local)?;
            matrix(of.b, b_rows, b_cols, Placement::Local)?;
            matrix(of.c, shape.m, shape.n, Placement::Local)?;
            let parts = shape.m.saturating_mul(world);
            matrix(of.staging, parts, shape.n, Placement::Symmetric)?;
            self.alternating(kernel, of.staging, parts)?;
            let units = OneShot::units(shape);
            ensure(of.units == units, || {
                format!("{units} units, not {}", of.units)
            })?;
        }
        match *kernel {
            Kernel::ReducingMatmul(_) | Kernel::OneShotMatmul(_) => {}
            Kernel::AllGatherMatmul {
                a,
                protocol: GatherProtocol::Eager { .. },
                ..
            } => matrix(a, own_rows, shape.k, Placement::Local)?,
            Kernel::NaiveRemoteRead { a, .. }
            | Kernel::ThreadloadGatherMatmul { a, .. }
            | Kernel::ThreadloadGather { a, .. }
            | Kernel::AllGatherMatmul { a, .. } => {
                matrix(a, most_rows, shape.k, Placement::Symmetric)?;
            }
            Kernel::MultimemGatherMatmul { a, .. }
            | Kernel::MultimemGather { a, .. }
            | Kernel::WaitingMatmul { a, .. } => {
                matrix(a, own_rows, shape.k, Placement::Local)?;
            }
        }
        match *kernel {
            Kernel::NaiveRemoteRead { b, c, .. }
            | Kernel::ThreadloadGatherMatmul { b, c, .. }
            | Kernel::MultimemGatherMatmul { b, c, .. }
            | Kernel::WaitingMatmul { b, c, .. } => {
                matrix(b, shape.k, shape.n, Placement::Local)?;
                matrix(c, shape.m, shape.n, Placement::Local)?;
            }
            Kernel::AllGatherMatmul {
                b,
                b_transposed,
                bias,
                c,
                ..
            } => {
                let (rows, cols) = layout_of(b_transposed).stored(shape.k, shape.n);
                matrix(b, rows, cols, Placement::Local)?;
                if let Some(bias) = bias {
                    matrix(bias, 1, shape.n, Placement::Local)?;
                }
                matrix(c, shape.m, shape.n, Placement::Local)?;
            }
            Kernel::ThreadloadGather { .. }
            | Kernel::MultimemGather { .. }
            | Kernel::ReducingMatmul(_)
            | Kernel::OneShotMatmul(_) => {}
        }
        match *kernel {
            Kernel::NaiveRemoteRead { .. }
            | Kernel::ReducingMatmul(_)
            | Kernel::OneShotMatmul(_) => {}
            Kernel::ThreadloadGatherMatmul { staging, .. }
            | Kernel::ThreadloadGather { staging, .. }
            | Kernel::AllGatherMatmul {
                staging,
                protocol: GatherProtocol::Rendezvous { pushed: 0, .. },
                ..
            } => {
                matrix(staging, shape.m, shape.k, Placement::Local)?;
            }
            Kernel::WaitingMatmul { staging, .. } | Kernel::AllGatherMatmul { staging, .. } => {
                matrix(staging, shape.m, shape.k, Placement::Symmetric)?;
            }
            Kernel::MultimemGatherMatmul { staging, .. }
            | Kernel::MultimemGather { staging, .. } => {
                matrix(staging, shape.m, shape.k, Placement::Multicast)?;
            }
        }
        if let Kernel::AllGatherMatmul {
            staging,
            chunk_rows,
            protocol: GatherProtocol::Eager { chunks },
            ..
        } = *kernel
        {
            let needed = most_rows.div_ceil(chunk_rows.max(1));
            ensure(chunks == needed && chunk_rows > 0, || {
                format!("{needed} chunks of {chunk_rows} rows, not {chunks}")
            })?;
            self.alternating(kernel, staging, shape.m)?;
        }
        let slots = kernel.slots();
        let distinct: BTreeSet<usize> = slots.iter().map(|slot| slot.0).collect();
        ensure(distinct.len() == slots.len(), || {
            format!("{} needs {} slots", kernel.name(), slots.len())
        })
    }

    /// Of such buffers there are two of as many rows as the kernel takes, one behind the other.
    fn alternating(&self, kernel: &Kernel, staging: BufferId, rows: usize) -> Check {
        let buffer = &self.plan.buffers[staging.0];
        ensure(buffer.alternating && buffer.rows == rows, || {
            format!(
                "{} takes two stagings of {rows} rows in turn, `{}` is {} of {}",
                kernel.name(),
                buffer.name,
                buffer.copies(),
                buffer.rows
            )
        })
    }
}
