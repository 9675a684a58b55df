//! Classes of plans that have the same proof.

use super::closing::{Closing, Copies};
use crate::check::{Proof, agreed};
use crate::plan::{BufferId, Effect, MulticastRegion, OpKind, Plan, Region};
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
    match kind {
        OpKind::Kernel { lanes, .. } => {
            for effect in lanes.iter().flatten() {
                match effect {
                    Effect::Read(region) | Effect::Write(region) => each(region),
                    Effect::WriteMulticast(region) => on_all(plan, region, each),
                    Effect::Signal { .. } | Effect::Wait { .. } | Effect::After(_) => {}
                }
            }
        }
        OpKind::Copy { src, dst } => {
            each(src);
            each(dst);
        }
        OpKind::Collective { .. } | OpKind::Gemm { .. } => {
            kind.reads().iter().for_each(&mut *each);
            kind.writes(plan.world).iter().for_each(each);
        }
        OpKind::MulticastCopy { src, dst } => {
            each(src);
            on_all(plan, dst, each);
        }
        OpKind::Reduce { srcs, dst } => {
            srcs.iter().for_each(&mut *each);
            each(dst);
        }
        OpKind::Signal { .. }
        | OpKind::Wait { .. }
        | OpKind::Record { .. }
        | OpKind::WaitEvent { .. } => {}
    }
}

fn on_all(plan: &Plan, region: &MulticastRegion, each: &mut impl FnMut(&Region)) {
    (0..plan.world).for_each(|rank| each(&region.on(rank)));
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
                let then = usize::from(then.is_some());
                self.numbers(&[6, collective, transport, agreed, then, discards]);
                self.numbers(ranks);
            }
            OpKind::Gemm { .. } => {
                let (reads, writes) = (kind.reads().len(), kind.writes(plan.world).len());
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
mod tests {
    use super::*;
    use crate::plan::{AddRmsNorm, Placement, PlanBuilder, Role, StreamId, Transport};
    use proptest::prelude::*;
    use warpweave_symm_mem::DType;

    type Ranges = [Range<usize>; 2];

    /// The most rows, and columns.
    const MOST: usize = 6;

    fn ranges() -> impl Strategy<Value = Ranges> {
        let range = || (0..MOST, 0..MOST).prop_map(|(one, other)| one.min(other)..one.max(other));
        (range(), range()).prop_map(|(rows, cols)| [rows, cols])
    }

    fn region([rows, cols]: &Ranges) -> Region {
        Region {
            rank: 0,
            buffer: BufferId(0),
            rows: rows.clone(),
            cols: cols.clone(),
        }
    }

    /// The class of a plan that reads these boxes of one buffer.
    fn class(boxes: &[Ranges]) -> Class {
        let mut plan = PlanBuilder::new("boxes", 0, 1);
        let extent = (2 * MOST, 2 * MOST);
        plan.buffer("x", Placement::Local, Role::Staging, DType::F32, extent);
        let srcs = boxes.iter().map(region).collect();
        let dst = region(&[0..0, 0..0]);
        plan.push(StreamId::MAIN, OpKind::Reduce { srcs, dst });
        Class::of(&[plan.draft().clone()], &[Copies::default()])
    }

    /// All that the proof asks about boxes.
    fn relations(boxes: &[Ranges]) -> Vec<bool> {
        let regions: Vec<Region> = boxes.iter().map(region).collect();
        let mut answers = Vec::new();
        for (place, one) in regions.iter().enumerate() {
            answers.push(one.is_empty());
            answers.extend(regions.iter().map(|other| one.overlaps(other)));
            // Whether some others hold all of it.
            answers.push(one.minus_all(&regions[..place]).is_empty());
            answers.push(one.minus_all(&regions[place + 1..]).is_empty());
        }
        answers
    }

    proptest! {
        #[test]
        fn one_class_has_one_answer_to_every_question(
            one in prop::collection::vec(ranges(), 3),
            other in prop::collection::vec(ranges(), 3),
        ) {
            if class(&one) == class(&other) {
                prop_assert_eq!(relations(&one), relations(&other));
            }
        }

        #[test]
        fn sizes_alone_do_not_change_the_class(
            boxes in prop::collection::vec(ranges(), 4),
            gaps in prop::collection::vec(1usize..4, MOST),
        ) {
            // Every endpoint moves, none meets another or the buffer's end.
            let moved = |endpoint: usize| match endpoint {
                0 => 0,
                _ => gaps[..endpoint].iter().sum::<usize>() * 2 / 3 + endpoint,
            };
            let stretched: Vec<Ranges> = boxes
                .iter()
                .map(|ranges| ranges.clone().map(|r| moved(r.start).min(11)..moved(r.end).min(11)))
                .collect();
            let kept = stretched.iter().flatten().all(|r| r.end < 11);
            if kept {
                prop_assert_eq!(class(&boxes), class(&stretched));
            }
        }
    }

    /// The class of two ranks whose all-reduces are followed by norms with these epsilons.
    fn class_of_norms(epsilons: [f32; 2]) -> Class {
        let plan = |rank: usize| {
            let mut plan = PlanBuilder::new("norms", rank, 2);
            let whole = |rows| Region {
                rank,
                ..region(&[0..rows, 0..1])
            };
            plan.buffer("x", Placement::Local, Role::Staging, DType::F32, (4, 1));
            let norm = AddRmsNorm {
                residual: whole(2),
                weight: whole(1),
                residual_out: whole(2),
                epsilon: epsilons[rank],
            };
            let operands = (whole(2), whole(2));
            plan.all_reduce_add_rms_norm(StreamId::MAIN, operands, norm, Transport::Nccl);
            plan.draft().clone()
        };
        Class::of(&[plan(0), plan(1)], &[Copies::default(); 2])
    }

    #[test]
    fn whether_ranks_agree_tells_classes_apart_and_not_on_what() {
        let agreed = class_of_norms([1e-5, 1e-5]);
        assert_eq!(agreed, class_of_norms([1e-6, 1e-6]));
        assert_ne!(agreed, class_of_norms([1e-5, 1e-6]));
    }

    #[test]
    fn boxes_that_touch_are_not_boxes_that_overlap() {
        let apart = class(&[[0..2, 0..4], [2..4, 0..4]]);
        assert_eq!(apart, class(&[[0..1, 0..3], [1..5, 0..3]]));
        assert_ne!(apart, class(&[[0..3, 0..4], [2..4, 0..4]]));
        assert_ne!(apart, class(&[[0..2, 0..4], [3..4, 0..4]]));
    }
}
