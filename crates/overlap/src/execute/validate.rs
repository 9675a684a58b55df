//! What must be true of one rank's plan before addresses are made of it.

use warpweave_symm_mem::DType;

use super::error::{ExecuteError, Result};
use crate::plan::{
    Buffer, BufferId, Effect, Kernel, MulticastRegion, OpKind, Placement, Plan, Region, SlotId,
    shard,
};

/// Checks that every id names something, every region lies in its buffer, and shapes fit.
pub(super) fn validate(plan: &Plan, rank: usize, world: usize) -> Result<()> {
    let at = |place: &str, why: String| {
        Err(ExecuteError::InvalidPlan {
            plan: plan.name.clone(),
            rank: plan.rank,
            place: place.into(),
            why,
        })
    };
    if (plan.rank, plan.world) != (rank, world) {
        let why = format!(
            "it is for rank {} of {}, this is rank {rank} of {world}",
            plan.rank, plan.world
        );
        return at("ranks", why);
    }
    if plan.streams == 0 {
        return at("streams", "stream 0, the caller's, is missing".into());
    }
    for (i, buffer) in plan.buffers.iter().enumerate() {
        let elements = buffer.rows.checked_mul(buffer.cols);
        if elements
            .and_then(|n| n.checked_mul(buffer.dtype.size()))
            .is_none()
        {
            let why = format!(
                "{}x{} elements are beyond any memory",
                buffer.rows, buffer.cols
            );
            return at(&format!("buffer `{}`", buffer.name), why);
        }
        if plan.buffers[..i].iter().any(|b| b.name == buffer.name) {
            return at(
                &format!("buffer `{}`", buffer.name),
                "the name is taken twice".into(),
            );
        }
    }
    let mut recorded = vec![false; plan.events];
    for (i, op) in plan.ops.iter().enumerate() {
        let checked = if op.stream.0 < plan.streams {
            Checker { plan }.op(&op.kind, &mut recorded)
        } else {
            Err(format!("stream {} of {}", op.stream.0, plan.streams))
        };
        if let Err(why) = checked {
            return at(&format!("operation {i}"), why);
        }
    }
    Ok(())
}

type Check<T = ()> = Result<T, String>;

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(why()) }
}

struct Checker<'a> {
    plan: &'a Plan,
}

impl<'a> Checker<'a> {
    fn op(&self, kind: &OpKind, recorded: &mut [bool]) -> Check {
        match kind {
            OpKind::Copy { src, dst, .. } => {
                self.same_shape(src, dst)?;
                ensure(!src.overlaps(dst), || {
                    "source and destination overlap".into()
                })
            }
            OpKind::MulticastCopy { src, dst } => {
                self.multicast(dst)?;
                self.same_shape(src, &dst.on(self.plan.rank))?;
                self.own(src)
            }
            OpKind::Signal { slot, to } => self.signal(*slot, to),
            OpKind::Wait { slot, from, .. } => self.signal(*slot, from),
            OpKind::Record { event } => {
                let events = recorded.len();
                let event = recorded.get_mut(event.0);
                *event.ok_or_else(|| format!("an event beyond the {events} of the plan"))? = true;
                Ok(())
            }
            OpKind::WaitEvent { event } => {
                let recorded = recorded.get(event.0).copied().unwrap_or(false);
                ensure(recorded, || {
                    format!("event {} was not recorded before", event.0)
                })
            }
            OpKind::AllGather { src, dst, .. } => self.all_gather(src, dst),
            OpKind::Gemm { a, b, c, .. } => self.gemm(a, b, c),
            OpKind::Kernel { kernel, lanes } => {
                ensure(
                    *lanes == kernel.lanes(self.plan.rank, self.plan.world),
                    || format!("{} does not declare what it does", kernel.name()),
                )?;
                lanes
                    .iter()
                    .flatten()
                    .try_for_each(|effect| self.effect(effect))?;
                self.kernel(kernel)
            }
        }
    }

    fn buffer(&self, id: BufferId) -> Check<&'a Buffer> {
        self.plan
            .buffer(id)
            .ok_or_else(|| format!("there is no buffer {}", id.0))
    }

    fn region(&self, region: &Region) -> Check<&'a Buffer> {
        let buffer = self.buffer(region.buffer)?;
        let inside = |r: &std::ops::Range<usize>, end: usize| r.start <= r.end && r.end <= end;
        ensure(
            inside(&region.rows, buffer.rows) && inside(&region.cols, buffer.cols),
            || {
                format!(
                    "rows {:?} and columns {:?} of `{}`, which is {}x{}",
                    region.rows, region.cols, buffer.name, buffer.rows, buffer.cols
                )
            },
        )?;
        ensure(region.rank < self.plan.world, || {
            format!("rank {} of {}", region.rank, self.plan.world)
        })?;
        let mapped = region.rank == self.plan.rank || buffer.placement != Placement::Local;
        ensure(mapped, || {
            format!("`{}` of rank {} is local to it", buffer.name, region.rank)
        })?;
        Ok(buffer)
    }

    fn own(&self, region: &Region) -> Check {
        ensure(region.rank == self.plan.rank, || {
            format!(
                "a region of rank {} where only the rank's own will do",
                region.rank
            )
        })
    }

    fn multicast(&self, region: &MulticastRegion) -> Check {
        let buffer = self.region(&region.on(self.plan.rank))?;
        ensure(buffer.placement == Placement::Multicast, || {
            format!("`{}` is not bound to a multicast object", buffer.name)
        })
    }

    fn same_shape(&self, src: &Region, dst: &Region) -> Check {
        let (from, to) = (self.region(src)?, self.region(dst)?);
        let shape = |r: &Region, b: &Buffer| (r.rows.len(), r.cols.len(), b.dtype);
        ensure(shape(src, from) == shape(dst, to), || {
            let text =
                |r: &Region, b: &Buffer| format!("{}x{} {}", r.rows.len(), r.cols.len(), b.dtype);
            format!("a copy of {} to {}", text(src, from), text(dst, to))
        })
    }

    fn signal(&self, slot: SlotId, peers: &[usize]) -> Check {
        ensure(slot.0 < self.plan.slots.len(), || {
            format!("slot {} of {}", slot.0, self.plan.slots.len())
        })?;
        match peers.iter().find(|&&p| p >= self.plan.world) {
            Some(peer) => Err(format!("rank {peer} of {}", self.plan.world)),
            None => Ok(()),
        }
    }

    fn all_gather(&self, src: &Region, dst: &Region) -> Check {
        let (from, to) = (self.region(src)?, self.region(dst)?);
        self.own(src)?;
        self.own(dst)?;
        let mine = shard(dst.rows.len(), self.plan.rank, self.plan.world).len();
        ensure(
            src.rows.len() == mine && src.cols.len() == dst.cols.len(),
            || {
                format!(
                    "{}x{} gathered into {}x{}, of which {mine} rows are this rank's",
                    src.rows.len(),
                    src.cols.len(),
                    dst.rows.len(),
                    dst.cols.len()
                )
            },
        )?;
        ensure(from.dtype == to.dtype, || {
            format!("{} gathered as {}", from.dtype, to.dtype)
        })?;
        ensure(
            src.cols.len() == from.cols && dst.cols.len() == to.cols,
            || "an all-gather takes whole rows".into(),
        )?;
        ensure(!src.overlaps(dst), || {
            "source and destination overlap".into()
        })
    }

    fn gemm(&self, a: &Region, b: &Region, c: &Region) -> Check {
        let (ab, bb, cb) = (self.region(a)?, self.region(b)?, self.region(c)?);
        let (m, n, k) = (c.rows.len(), c.cols.len(), a.cols.len());
        ensure(
            a.rows.len() == m && b.rows.len() == k && b.cols.len() == n,
            || {
                let text = |r: &Region| format!("{}x{}", r.rows.len(), r.cols.len());
                format!("{} times {} is not {}", text(a), text(b), text(c))
            },
        )?;
        ensure(
            ab.dtype == bb.dtype && (cb.dtype == ab.dtype || cb.dtype == DType::F32),
            || format!("{} times {} into {}", ab.dtype, bb.dtype, cb.dtype),
        )?;
        ensure(!c.overlaps(a) && !c.overlaps(b), || {
            "C overlaps A or B".into()
        })
    }

    fn effect(&self, effect: &Effect) -> Check {
        match effect {
            Effect::Read(region) | Effect::Write(region) => self.region(region).map(drop),
            Effect::WriteMulticast(region) => self.multicast(region),
            Effect::Signal { slot, to } => self.signal(*slot, to),
            Effect::Wait { slot, from, .. } => self.signal(*slot, from),
        }
    }

    /// Kernels see matrices without gaps, by their first address and one element type.
    fn kernel(&self, kernel: &Kernel) -> Check {
        let shape = kernel.shape();
        let matrix = |id: BufferId, rows: usize, cols: usize, needed: Placement| {
            let buffer = self.buffer(id)?;
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
        let own_rows = shard(shape.m, self.plan.rank, self.plan.world).len();
        let most_rows = shape.m.div_ceil(self.plan.world);
        let slots = match *kernel {
            Kernel::NaiveRemoteRead {
                a,
                b,
                c,
                ready,
                done,
                ..
            } => {
                matrix(a, most_rows, shape.k, Placement::Symmetric)?;
                matrix(b, shape.k, shape.n, Placement::Local)?;
                matrix(c, shape.m, shape.n, Placement::Local)?;
                [ready, done]
            }
            Kernel::ThreadloadGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                done,
                ..
            } => {
                matrix(a, most_rows, shape.k, Placement::Symmetric)?;
                matrix(b, shape.k, shape.n, Placement::Local)?;
                matrix(c, shape.m, shape.n, Placement::Local)?;
                matrix(staging, shape.m, shape.k, Placement::Local)?;
                [ready, done]
            }
            Kernel::ThreadloadGather {
                a,
                staging,
                ready,
                done,
                ..
            } => {
                matrix(a, most_rows, shape.k, Placement::Symmetric)?;
                matrix(staging, shape.m, shape.k, Placement::Local)?;
                [ready, done]
            }
            Kernel::MultimemGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                free,
                ..
            } => {
                matrix(a, own_rows, shape.k, Placement::Local)?;
                matrix(b, shape.k, shape.n, Placement::Local)?;
                matrix(c, shape.m, shape.n, Placement::Local)?;
                matrix(staging, shape.m, shape.k, Placement::Multicast)?;
                [ready, free]
            }
            Kernel::MultimemGather {
                a,
                staging,
                ready,
                free,
                ..
            } => {
                matrix(a, own_rows, shape.k, Placement::Local)?;
                matrix(staging, shape.m, shape.k, Placement::Multicast)?;
                [ready, free]
            }
        };
        slots
            .into_iter()
            .try_for_each(|slot| self.signal(slot, &[]))?;
        ensure(slots[0] != slots[1], || {
            format!("{} needs two slots", kernel.name())
        })
    }
}
