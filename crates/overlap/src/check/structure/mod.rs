//! What can be said of one plan by itself, before anything is unrolled: here that what it names exists and
//! can be reached, in `operands` that the operands of an operation fit together.

mod operands;

use crate::plan::{
    Buffer, BufferId, Effect, EventId, MulticastRegion, OpKind, Placement, Plan, Region, Role,
    SlotId,
};
use crate::show;
use std::collections::HashSet;
use std::fmt;

/// Signals that may be outstanding: more than this is a mistake, and would unroll as many calls.
const MAX_LAG: u32 = 64;

/// Streams, and events, of one plan: more are a mistake.
const MAX_COUNT: usize = 1 << 16;

/// A fault of one rank's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank whose plan it is.
    pub rank: usize,
    /// The operation, where it is one's.
    pub op: Option<usize>,
    /// What sort of fault.
    pub kind: FaultKind,
    /// The fault as text.
    pub what: String,
}

/// What can be wrong with a plan by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// A rank, buffer, stream, event or slot that does not exist, or a name that two buffers share.
    NoSuchThing,
    /// A box that reaches outside its buffer.
    OutOfBounds,
    /// A peer's local memory, or a multicast store to a buffer without a multicast object.
    Unreachable,
    /// Operands whose shapes or element types do not fit together.
    WrongShape,
    /// An epsilon of an RMSNorm that is not finite, or negative.
    WrongEpsilon,
    /// An operation that reads and writes the same elements.
    InPlace,
    /// A write to a buffer that is constant.
    WritesWeight,
    /// A wait for an event that no operation before it in the list records.
    EventNotRecorded,
    /// An alternating buffer that is not one kernel's alone.
    WrongTurn,
    /// A slot that a kernel must have alone, named by another operation.
    SharedSlot,
    /// A kernel whose lanes in the plan are not its own.
    Undeclared,
    /// More streams, events, outstanding signals or effects of a kernel than any schedule needs.
    Excess,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some(op) => write!(f, "rank {} %{op}: {}", self.rank, self.what),
            None => write!(f, "rank {}: {}", self.rank, self.what),
        }
    }
}

/// All faults of one plan.
pub(crate) fn faults_of(plan: &Plan) -> Vec<Fault> {
    let mut inspector = Inspector {
        plan,
        op: None,
        faults: Vec::new(),
    };
    inspector.plan();
    inspector.faults
}

/// The slots that an operation names.
fn slots_of(kind: &OpKind) -> Vec<SlotId> {
    match kind {
        OpKind::Signal { slot, .. } | OpKind::Wait { slot, .. } => vec![*slot],
        OpKind::Kernel { kernel, lanes } => {
            let named = lanes.iter().flatten().filter_map(|effect| match effect {
                Effect::Signal { slot, .. } | Effect::Wait { slot, .. } => Some(*slot),
                _ => None,
            });
            kernel.slots().into_iter().chain(named).collect()
        }
        _ => Vec::new(),
    }
}

struct Inspector<'a> {
    plan: &'a Plan,
    op: Option<usize>,
    faults: Vec<Fault>,
}

impl<'a> Inspector<'a> {
    fn fault(&mut self, kind: FaultKind, what: impl Into<String>) {
        self.faults.push(Fault {
            rank: self.plan.rank,
            op: self.op,
            kind,
            what: what.into(),
        });
    }

    fn expect(&mut self, holds: bool, kind: FaultKind, what: impl FnOnce() -> String) {
        if !holds {
            self.fault(kind, what());
        }
    }

    fn plan(&mut self) {
        let plan = self.plan;
        self.rank(plan.rank);
        self.expect(!plan.streams.is_empty(), FaultKind::NoSuchThing, || {
            "there is no stream 0".into()
        });
        self.expect(plan.node_size > 0, FaultKind::NoSuchThing, || {
            "a node has at least one rank".into()
        });
        for (what, count) in [("streams", plan.streams.len()), ("events", plan.events)] {
            self.expect(count <= MAX_COUNT, FaultKind::Excess, || {
                format!("{count} {what} are more than {MAX_COUNT}")
            });
        }
        for (id, buffer) in plan.buffers.iter().enumerate() {
            let twin = plan.buffers[..id].iter().any(|b| b.name == buffer.name);
            self.expect(!twin, FaultKind::NoSuchThing, || {
                format!("two buffers are called `{}`", buffer.name)
            });
            let bytes = buffer
                .rows
                .checked_mul(buffer.cols)
                .and_then(|n| n.checked_mul(buffer.dtype.size()))
                .and_then(|n| n.checked_mul(buffer.copies()));
            self.expect(bytes.is_some(), FaultKind::WrongShape, || {
                format!("the size of buffer `{}` overflows", buffer.name)
            });
        }
        let mut recorded = HashSet::new();
        for (op, crate::plan::Op { stream, kind }) in plan.ops.iter().enumerate() {
            self.op = Some(op);
            self.expect(
                stream.0 < plan.streams.len(),
                FaultKind::NoSuchThing,
                || format!("there is no stream {}", stream.0),
            );
            self.op(kind, &mut recorded);
        }
        self.op = None;
        // What is looked at next is there.
        if self.faults.is_empty() {
            self.alternating();
            self.slots_alone();
        }
    }

    /// Which of two buffers a call takes is known to the kernel alone whose staging they are.
    fn alternating(&mut self) {
        let plan = self.plan;
        let alternating = plan
            .buffers
            .iter()
            .enumerate()
            .filter(|(_, b)| b.alternating);
        for (id, buffer) in alternating {
            let id = BufferId(id);
            let mut kernels = 0;
            for op in &plan.ops {
                let knows = match &op.kind {
                    OpKind::Kernel { kernel, .. } => kernel.alternates(id),
                    _ => false,
                };
                kernels += usize::from(knows);
                let mut touched = op.kind.reads();
                touched.extend(op.kind.writes(plan.node_of(plan.rank)));
                let stranger = !knows && touched.iter().any(|region| region.buffer == id);
                self.expect(!stranger, FaultKind::WrongTurn, || {
                    format!(
                        "`{}` alternates, and an operation touches it that does not",
                        buffer.name
                    )
                });
            }
            let is_staging = kernels == 1 && buffer.role == Role::Staging;
            self.expect(is_staging, FaultKind::WrongTurn, || {
                format!(
                    "`{}` alternates, and is not the staging of one kernel",
                    buffer.name
                )
            });
        }
    }

    /// The flags of a kernel that counts its calls carry their number, and those of its chunks or units are
    /// one to a plan. So nothing else may use them.
    fn slots_alone(&mut self) {
        let plan = self.plan;
        for (index, op) in plan.ops.iter().enumerate() {
            let OpKind::Kernel { kernel, .. } = &op.kind else {
                continue;
            };
            if !kernel.counts_calls() {
                continue;
            }
            let own: HashSet<SlotId> = kernel.slots().into_iter().collect();
            let others = plan
                .ops
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index);
            let shared = others
                .flat_map(|(_, op)| slots_of(&op.kind))
                .find(|slot| own.contains(slot));
            self.op = Some(index);
            self.expect(shared.is_none(), FaultKind::SharedSlot, || {
                format!(
                    "{} has its slots alone, and another operation uses one",
                    kernel.name()
                )
            });
        }
    }

    fn op(&mut self, kind: &OpKind, recorded: &mut HashSet<EventId>) {
        match kind {
            OpKind::Copy { src, dst, .. } => {
                self.read(src);
                self.write(dst);
                self.same_shape(src, dst);
                self.apart(src, dst);
            }
            OpKind::MulticastCopy { src, dst } => {
                self.read(src);
                self.own(src);
                self.write_multicast(dst);
                let dst = dst.on(self.plan.rank);
                self.same_shape(src, &dst);
                self.apart(src, &dst);
            }
            OpKind::Signal { slot, to } => self.signal(*slot, to),
            OpKind::Wait { slot, from, lag } => self.wait(*slot, from, *lag),
            OpKind::Record { event } => {
                self.event(*event);
                recorded.insert(*event);
            }
            OpKind::WaitEvent { event } => {
                self.event(*event);
                self.expect(
                    recorded.contains(event),
                    FaultKind::EventNotRecorded,
                    || {
                        format!(
                            "event {} is waited for but not recorded before in this call",
                            event.0
                        )
                    },
                );
            }
            OpKind::Collective {
                collective,
                src,
                dst,
                ranks,
                then,
                ..
            } => {
                self.collective(*collective, src, dst, ranks);
                if let Some(norm) = then {
                    self.norm(*collective, (src, dst), norm);
                }
            }
            OpKind::Gemm {
                a,
                b,
                c,
                bias,
                scales,
                activation,
                b_transposed,
                batch,
                provider,
            } => {
                if !self.batch(*batch, c) {
                    return;
                }
                let read: Vec<Region> = kind.reads();
                read.iter().for_each(|region| self.read(region));
                for written in batch.of_c(c) {
                    self.write(&written);
                    read.iter().for_each(|region| self.apart(region, &written));
                }
                let columns = activation.sums(c.cols.len());
                self.gemm(a, (b, *b_transposed), (c, columns), *activation);
                let by = (batch.count, *provider);
                self.scales(a, (b, c, columns), scales.as_ref(), by);
                if let Some(bias) = bias {
                    self.row_of("bias", bias, c, columns);
                }
            }
            OpKind::Reduce { srcs, dst } => self.reduce(srcs, dst),
            OpKind::Kernel { kernel, lanes } => {
                let effects = kernel.about_effects(self.plan.world);
                self.expect(effects <= Plan::MOST_STEPS, FaultKind::Excess, || {
                    format!(
                        "{} has about {effects} effects: {} at most",
                        kernel.name(),
                        Plan::MOST_STEPS
                    )
                });
                for id in kernel.buffers() {
                    self.buffer(id);
                }
                for id in kernel.slots() {
                    self.slot(id);
                }
                for (lane, effects) in lanes.iter().enumerate() {
                    effects.iter().for_each(|effect| self.effect(lane, effect));
                }
            }
        }
    }

    fn effect(&mut self, lane: usize, effect: &Effect) {
        match effect {
            Effect::Read(region) => self.read(region),
            Effect::Write(region) => self.write(region),
            Effect::WriteMulticast(region) => self.write_multicast(region),
            Effect::Signal { slot, to } => self.signal(*slot, to),
            Effect::Wait { slot, from, lag } => self.wait(*slot, from, *lag),
            Effect::After(lanes) => {
                for &other in lanes {
                    self.expect(other < lane, FaultKind::NoSuchThing, || {
                        format!(
                            "lane {lane} comes after lane {other}, which does not stand before it"
                        )
                    });
                }
            }
        }
    }

    fn signal(&mut self, slot: SlotId, to: &[usize]) {
        self.slot(slot);
        for &rank in to {
            self.rank(rank);
            self.same_node(rank, || format!("signals do not reach rank {rank}"));
        }
    }

    fn same_node(&mut self, rank: usize, what: impl FnOnce() -> String) {
        let plan = self.plan;
        let near = plan.node_of(plan.rank).contains(&rank) || rank >= plan.world;
        self.expect(near, FaultKind::Unreachable, || {
            format!("{} on another node", what())
        });
    }

    fn wait(&mut self, slot: SlotId, from: &[usize], lag: u32) {
        self.signal(slot, from);
        self.expect(lag <= MAX_LAG, FaultKind::Excess, || {
            format!("a lag of {lag} calls is more than {MAX_LAG}")
        });
    }

    fn rank(&mut self, rank: usize) {
        let world = self.plan.world;
        self.expect(rank < world, FaultKind::NoSuchThing, || {
            format!("rank {rank} is not one of the {world} ranks")
        });
    }

    fn event(&mut self, event: EventId) {
        self.expect(event.0 < self.plan.events, FaultKind::NoSuchThing, || {
            format!("there is no event {}", event.0)
        });
    }

    fn slot(&mut self, slot: SlotId) {
        self.expect(
            slot.0 < self.plan.slots.len(),
            FaultKind::NoSuchThing,
            || format!("there is no slot {}", slot.0),
        );
    }

    fn buffer(&mut self, id: BufferId) -> Option<&'a Buffer> {
        let plan = self.plan;
        let buffer = plan.buffer(id);
        self.expect(buffer.is_some(), FaultKind::NoSuchThing, || {
            format!("there is no buffer {}", id.0)
        });
        buffer
    }

    fn read(&mut self, region: &Region) {
        self.rank(region.rank);
        let Some(buffer) = self.buffer(region.buffer) else {
            return;
        };
        let plan = self.plan;
        let inside = region.rows.start <= region.rows.end
            && region.cols.start <= region.cols.end
            && region.rows.end <= buffer.rows
            && region.cols.end <= buffer.cols;
        self.expect(inside, FaultKind::OutOfBounds, || {
            format!(
                "{} reaches outside of {}x{}",
                show::region(plan, region),
                buffer.rows,
                buffer.cols
            )
        });
        let reachable = region.rank == plan.rank || buffer.placement != Placement::Local;
        self.expect(reachable, FaultKind::Unreachable, || {
            format!("{} is local to its rank", show::region(plan, region))
        });
        self.same_node(region.rank, || show::region(plan, region));
    }

    fn write(&mut self, region: &Region) {
        self.read(region);
        let weight = |b: &Buffer| b.role == Role::Weight;
        let constant = self.plan.buffer(region.buffer).is_some_and(weight);
        let plan = self.plan;
        self.expect(!constant, FaultKind::WritesWeight, || {
            format!("{} is constant", show::region(plan, region))
        });
    }

    fn write_multicast(&mut self, region: &MulticastRegion) {
        let own = region.on(self.plan.rank);
        self.write(&own);
        let bound = |b: &Buffer| b.placement == Placement::Multicast;
        let plan = self.plan;
        if let Some(buffer) = plan.buffer(region.buffer) {
            self.expect(bound(buffer), FaultKind::Unreachable, || {
                format!("`{}` is not bound to a multicast object", buffer.name)
            });
        }
    }
}
