//! Classes of plans that have the same proof.

use super::closing::{Closing, Copies};
use crate::check::{Proof, agreed};
use crate::plan::{BufferId, Effect, OpKind, Plan, Region};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The plans of all ranks without their sizes, as bytes. Plans that are written alike have the same proof.
///
/// What the proof reads of plans, once each has no fault by itself and they agree on what they share, is: the
/// list of operations with their streams, events, slots, ranks and lags; lanes; roles of buffers, and which
/// alternate; and of boxes which of them on one copy of one buffer overlap, contain each other or are empty.
/// The last is all that sizes matter for: conflicts and what was written before it is read are questions of
/// sets of elements, and the answer is the same where each endpoint of a range is replaced by its place among
/// all endpoints that the plans name on that copy. For endpoints are compared, and never added: the map from
/// endpoints to places keeps their order and which are equal, hence unions and differences of boxes too. Of a
/// collective the proof also asks whether its ranks [agree](crate::check::agreed): what is equal there is
/// written as equal numbers.
///
/// The faults of a plan by itself, and the agreement of ranks about shared buffers, do depend on sizes. Both
/// are looked for at every M.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Class(Box<[u8]>);

impl Class {
    /// Of plans indexed by rank without faults, and what [`Closing::apply`] knows of them besides.
    pub(super) fn of(plans: &[Plan], copies: &[Copies]) -> Self {
        let mut places = Places::of(plans);
        places.sort();
        let mut writer = Writer {
            bytes: Vec::new(),
            places,
            agreed: Vec::new(),
        };
        for (plan, copies) in plans.iter().zip(copies) {
            writer.plan(plan, copies);
        }
        Class(writer.bytes.into())
    }
}

/// The endpoints of ranges on each copy of each buffer, rows and columns apart, in their order.
struct Places {
    /// Of each rank: where its first buffer is in `endpoints`.
    first: Vec<usize>,
    endpoints: Vec<[Vec<usize>; 2]>,
}

impl Places {
    fn of(plans: &[Plan]) -> Self {
        let mut places = Places {
            first: Vec::new(),
            endpoints: Vec::new(),
        };
        for plan in plans {
            places.first.push(places.endpoints.len());
            let extents = plan.buffers.iter();
            let extents = extents.map(|b| [vec![0, b.rows], vec![0, b.cols]]);
            places.endpoints.extend(extents);
        }
        for plan in plans {
            for op in &plan.ops {
                each_region(plan, &op.kind, &mut |region| places.add(region));
            }
        }
        places
    }

    fn at(&self, region: &Region) -> usize {
        self.first[region.rank] + region.buffer.0
    }

    fn add(&mut self, region: &Region) {
        let at = self.at(region);
        let [rows, cols] = &mut self.endpoints[at];
        rows.extend([region.rows.start, region.rows.end]);
        cols.extend([region.cols.start, region.cols.end]);
    }

    fn sort(&mut self) {
        for endpoints in self.endpoints.iter_mut().flatten() {
            endpoints.sort_unstable();
            endpoints.dedup();
        }
    }

    fn place(endpoints: &[usize], endpoint: usize) -> usize {
        endpoints.partition_point(|&other| other < endpoint)
    }
}

/// Calls `each` for every box that the proof looks at.
fn each_region(plan: &Plan, kind: &OpKind, each: &mut impl FnMut(&Region)) {
    if let OpKind::Kernel { lanes, .. } = kind {
        for effect in lanes.iter().flatten() {
            match effect {
                Effect::Read(region) | Effect::Write(region) => each(region),
                Effect::WriteMulticast(region) => {
                    let node = plan.node_of(plan.rank);
                    node.for_each(|rank| each(&region.on(rank)));
                }
                Effect::Signal { .. } | Effect::Wait { .. } | Effect::After(_) => {}
            }
        }
    }
    kind.reads().iter().for_each(&mut *each);
    let writes = kind.writes(plan.node_of(plan.rank));
    writes.iter().for_each(each);
}

struct Writer {
    bytes: Vec<u8>,
    places: Places,
    /// What ranks agree on for their collectives, in order of first use.
    agreed: Vec<String>,
}

impl Writer {
    /// Seven bits a byte, the last without the eighth: each number can be read back, so equal bytes are equal
    /// numbers.
    fn number(&mut self, mut number: usize) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn numbers(&mut self, numbers: &[usize]) {
        self.number(numbers.len());
        numbers.iter().for_each(|&number| self.number(number));
    }

    fn plan(&mut self, plan: &Plan, copies: &Copies) {
        let Plan {
            rank,
            world,
            node_size,
            buffers,
            streams,
            events,
            slots,
            ops,
            name: _,
        } = plan;
        let counts = [*rank, *world, *node_size, streams.len(), *events];
        self.numbers(&counts);
        self.numbers(&[copies.first, copies.last]);
        self.numbers(&[slots.len(), buffers.len(), ops.len()]);
        for (id, buffer) in buffers.iter().enumerate() {
            let whole = Region {
                rank: *rank,
                buffer: BufferId(id),
                rows: 0..buffer.rows,
                cols: 0..buffer.cols,
            };
            self.region(&whole);
            let role = buffer.role as usize;
            self.numbers(&[
                buffer.placement as usize,
                role,
                usize::from(buffer.alternating),
            ]);
        }
        for op in ops {
            self.number(op.stream.0);
            self.op(plan, &op.kind);
        }
    }

    fn op(&mut self, plan: &Plan, kind: &OpKind) {
        match kind {
            // What reads and writes alike is alike to the proof, but it costs nothing to tell them apart.
            OpKind::Copy { .. } => self.number(0),
            OpKind::MulticastCopy { .. } => self.number(1),
            OpKind::Signal { slot, to } => {
                self.numbers(&[2, slot.0]);
                self.numbers(to);
            }
            OpKind::Wait { slot, from, lag } => {
                self.numbers(&[3, slot.0, *lag as usize]);
                self.numbers(from);
            }
            OpKind::Record { event } => self.numbers(&[4, event.0]),
            OpKind::WaitEvent { event } => self.numbers(&[5, event.0]),
            OpKind::Collective {
                collective,
                ranks,
                transport,
                then,
                ..
            } => {
                let agreed = agreed(plan, kind).unwrap_or_default();
                let known = self.agreed.iter().position(|known| *known == agreed);
                let agreed = known.unwrap_or_else(|| {
                    self.agreed.push(agreed);
                    self.agreed.len() - 1
                });
                let (collective, transport) = (*collective as usize, *transport as usize);
                let discards = usize::from(kind.discards().is_some());
                let then = then.as_ref().map_or(0, |norm| norm.results().count());
                self.numbers(&[6, collective, transport, agreed, then, discards]);
                self.numbers(ranks);
            }
            OpKind::Gemm { .. } => {
                let (reads, writes) = (
                    kind.reads().len(),
                    kind.writes(plan.node_of(plan.rank)).len(),
                );
                self.numbers(&[7, reads, writes]);
            }
            OpKind::Reduce { srcs, .. } => self.numbers(&[8, srcs.len()]),
            OpKind::Kernel { kernel, lanes } => {
                // Which changes are possible depends on it.
                self.numbers(&[9, usize::from(kernel.counts_calls()), lanes.len()]);
                for effects in lanes {
                    self.number(effects.len());
                    effects.iter().for_each(|effect| self.effect(effect));
                }
            }
        }
        let mut regions = Vec::new();
        each_region(plan, kind, &mut |region| regions.push(region.clone()));
        regions.iter().for_each(|region| self.region(region));
    }

    /// An effect without its boxes, which follow after the lanes in the same order.
    fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Read(_) => self.number(0),
            Effect::Write(_) => self.number(1),
            Effect::WriteMulticast(_) => self.number(2),
            Effect::Signal { slot, to } => {
                self.numbers(&[3, slot.0]);
                self.numbers(to);
            }
            Effect::Wait { slot, from, lag } => {
                self.numbers(&[4, slot.0, *lag as usize]);
                self.numbers(from);
            }
            Effect::After(lanes) => {
                self.number(5);
                self.numbers(lanes);
            }
        }
    }

    fn region(&mut self, region: &Region) {
        let [rows, cols] = &self.places.endpoints[self.places.at(region)];
        let places = |range: &Range<usize>, endpoints: &[usize]| {
            [range.start, range.end].map(|endpoint| Places::place(endpoints, endpoint))
        };
        let ([top, bottom], [left, right]) =
            (places(&region.rows, rows), places(&region.cols, cols));
        for number in [region.rank, region.buffer.0, top, bottom, left, right] {
            self.number(number);
        }
    }
}

/// What is known of a class: what closes its calls, and the proof of its plans then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) closing: Closing,
    pub(super) proof: Proof,
}

/// The most bytes of classes that the process remembers; the oldest go first.
const MOST_BYTES: usize = 16 << 20;

static KNOWN: Mutex<Option<Memory>> = Mutex::new(None);

#[derive(Default)]
struct Memory {
    known: HashMap<Arc<Class>, Known>,
    order: VecDeque<Arc<Class>>,
    bytes: usize,
}

/// What the process knows of a class.
pub(super) fn known(class: &Class) -> Option<Known> {
    let memory = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    memory.as_ref()?.known.get(class).copied()
}

/// Remembers what was proved of a class.
pub(super) fn remember(class: Class, known: Known) {
    let mut memory = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = memory.get_or_insert_default();
    let class = Arc::new(class);
    let bytes = class.0.len();
    if memory.known.insert(class.clone(), known).is_none() {
        memory.order.push_back(class);
        memory.bytes += bytes;
    }
    while memory.bytes > MOST_BYTES {
        let Some(oldest) = memory.order.pop_front() else {
            break;
        };
        memory.known.remove(&oldest);
        memory.bytes -= oldest.0.len();
    }
}

#[cfg(test)]
mod tests;
