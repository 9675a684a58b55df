//! Ranks that run their plans, a step at a time.

use super::{CALLS, Rows, element, normalized, stored};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use warpweave_overlap::operation::Operand;
use warpweave_overlap::plan::{AddRmsNorm, Collective, OpKind, Plan, Region, Role, shard};

/// What memory holds before anybody has written it.
const NONSENSE: i64 = 1 << 40;

/// What a stream has to do.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The caller writes its inputs.
    Writes { call: usize },
    /// An operation; a wait for an event with the record that it needs, a collective with how many of these
    /// ranks were before.
    Op {
        call: usize,
        op: usize,
        needs: usize,
    },
    /// The caller reads its outputs.
    Reads,
}

/// One rank's part in a collective: what it gives, what it gets, and what follows.
type Part<'a> = (Collective, &'a Region, &'a Region, Option<&'a AddRmsNorm>);

/// The flag of a signal: slot, source, destination.
type Flag = (usize, usize, usize);

/// All ranks, with their memory.
pub struct Machine<'a> {
    plans: &'a [Plan],
    operands: Vec<Vec<Operand>>,
    /// Elements of each rank's copy of each buffer.
    memory: HashMap<(usize, usize), Vec<i64>>,
    flags: HashMap<Flag, i64>,
    waits: HashMap<Flag, i64>,
    /// Records that have run, as rank, call and operation.
    recorded: HashSet<(usize, usize, usize)>,
    /// Steps of each rank's streams.
    queues: Vec<Vec<VecDeque<Step>>>,
    /// What each rank has read after its latest call, by output.
    pub outputs: Vec<Vec<Rows>>,
}

impl<'a> Machine<'a> {
    pub fn new(plans: &'a [Plan], operands: Vec<Vec<Operand>>) -> Self {
        let mut memory = HashMap::new();
        for plan in plans {
            for (id, buffer) in plan.buffers.iter().enumerate() {
                let elements = vec![NONSENSE; buffer.rows * buffer.cols];
                memory.insert((plan.rank, id), elements);
            }
        }
        let mut machine = Machine {
            plans,
            memory,
            flags: HashMap::new(),
            waits: HashMap::new(),
            recorded: HashSet::new(),
            queues: plans.iter().map(queues).collect(),
            outputs: vec![Vec::new(); plans.len()],
            operands,
        };
        for rank in 0..plans.len() {
            machine.fill(rank, Role::Weight, 0);
        }
        machine
    }

    /// Runs everything, in an order that depends on `seed`.
    pub fn run(&mut self, seed: usize) {
        for turn in 0.. {
            let streams = self.queues.iter().enumerate().flat_map(|(rank, queues)| {
                let open = queues.iter().enumerate().filter(|(_, q)| !q.is_empty());
                open.map(move |(stream, _)| (rank, stream))
            });
            let open: Vec<(usize, usize)> = streams.collect();
            if open.is_empty() {
                return;
            }
            let first = (turn + seed).wrapping_mul(2_654_435_761 * (seed + 1)) >> 7;
            let mut order = (0..open.len()).map(|i| open[(first + i) % open.len()]);
            let next = order.find(|&(rank, stream)| self.ready(rank, stream));
            let (rank, stream) = next.unwrap_or_else(|| panic!("stuck: {:?}", self.queues));
            self.step(rank, stream);
        }
    }

    fn head(&self, rank: usize, stream: usize) -> Option<Step> {
        self.queues[rank][stream].front().copied()
    }

    fn kind(&self, rank: usize, op: usize) -> &'a OpKind {
        &self.plans[rank].ops[op].kind
    }

    fn ready(&self, rank: usize, stream: usize) -> bool {
        let Some(Step::Op { call, op, needs }) = self.head(rank, stream) else {
            return true;
        };
        match self.kind(rank, op) {
            OpKind::Wait { slot, from, lag } => from.iter().all(|&src| {
                let flag = (slot.0, src, rank);
                let count = |of: &HashMap<Flag, i64>| of.get(&flag).copied().unwrap_or(0);
                count(&self.flags) > count(&self.waits) - i64::from(*lag)
            }),
            OpKind::WaitEvent { .. } => self.recorded.contains(&(rank, call, needs)),
            OpKind::Collective { ranks, .. } => {
                let entered = |&rank: &usize| self.entered(rank, ranks, needs).is_some();
                ranks.iter().all(entered)
            }
            _ => true,
        }
    }

    /// The stream and operation by which `rank` has entered the collective of `ranks` before which there were
    /// `before`.
    fn entered(&self, rank: usize, ranks: &[usize], before: usize) -> Option<(usize, usize)> {
        (0..self.queues[rank].len()).find_map(|stream| match self.head(rank, stream)? {
            Step::Op { op, needs, .. } if needs == before => match self.kind(rank, op) {
                OpKind::Collective { ranks: theirs, .. } => {
                    (theirs == ranks).then_some((stream, op))
                }
                _ => None,
            },
            _ => None,
        })
    }

    fn step(&mut self, rank: usize, stream: usize) {
        match self.head(rank, stream) {
            Some(Step::Writes { call }) => self.fill(rank, Role::Input, call),
            Some(Step::Reads) => self.outputs[rank] = self.read_outputs(rank),
            Some(Step::Op { call, op, needs }) => {
                if let OpKind::Collective { ranks, .. } = self.kind(rank, op) {
                    return self.collective(ranks, needs);
                }
                self.op(rank, call, op);
            }
            None => {}
        }
        self.queues[rank][stream].pop_front();
    }

    fn op(&mut self, rank: usize, call: usize, op: usize) {
        match self.kind(rank, op) {
            OpKind::Copy { src, dst, .. } => {
                let values = self.read(src);
                self.write(dst, values);
            }
            OpKind::MulticastCopy { src, dst } => {
                for to in self.plans[rank].node_of(rank) {
                    let values = self.read(src);
                    self.write(&dst.on(to), values);
                }
            }
            OpKind::Signal { slot, to } => {
                for &to in to {
                    *self.flags.entry((slot.0, rank, to)).or_default() += 1;
                }
            }
            OpKind::Wait { slot, from, .. } => {
                for &src in from {
                    *self.waits.entry((slot.0, src, rank)).or_default() += 1;
                }
            }
            OpKind::Record { .. } => {
                self.recorded.insert((rank, call, op));
            }
            OpKind::WaitEvent { .. } => {}
            OpKind::Gemm {
                a,
                b,
                c,
                bias,
                b_transposed,
                batch,
                ..
            } => {
                let b = self.read(b);
                let bias = bias.as_ref().map(|bias| self.read(bias));
                for (a, c) in batch.of_a(a).iter().zip(batch.of_c(c)) {
                    let value = |row: &[i64], col: usize| {
                        let term = |(i, x): (usize, &i64)| match b_transposed {
                            false => x * b[i][col],
                            true => x * b[col][i],
                        };
                        let sum: i64 = row.iter().enumerate().map(term).sum();
                        sum + bias.as_ref().map_or(0, |bias| bias[0][col])
                    };
                    let rows = self.read(a);
                    let gemm = rows
                        .iter()
                        .map(|row| (0..c.cols.len()).map(|col| value(row, col)).collect())
                        .collect();
                    self.write(&c, gemm);
                }
            }
            OpKind::Reduce { srcs, dst } => {
                let sum = sum(srcs.iter().map(|src| self.read(src)));
                self.write(dst, sum);
            }
            other => panic!("{other:?} says what it does, but not what it computes"),
        }
    }

    /// Carries out a collective for all who take part.
    fn collective(&mut self, ranks: &'a [usize], before: usize) {
        let entered: Vec<(usize, (usize, usize))> = ranks
            .iter()
            .map(|&rank| (rank, self.entered(rank, ranks, before).unwrap()))
            .collect();
        let parts: Vec<Part<'_>> = entered
            .iter()
            .map(|&(rank, (_, op))| match self.kind(rank, op) {
                OpKind::Collective {
                    collective,
                    src,
                    dst,
                    then,
                    ..
                } => (*collective, src, dst, then.as_ref()),
                other => panic!("{other:?} is no collective"),
            })
            .collect();
        let given: Vec<Rows> = parts.iter().map(|(_, src, ..)| self.read(src)).collect();
        for (place, (collective, src, dst, then)) in parts.iter().enumerate() {
            let got = match collective {
                Collective::AllGather => given.concat(),
                Collective::AllReduce => sum(given.iter().cloned()),
                Collective::ReduceScatter => {
                    let shard = shard(src.rows.len(), place, ranks.len());
                    sum(given.iter().cloned())[shard].to_vec()
                }
                other => panic!("{other} is not known here"),
            };
            let Some(norm) = then else {
                self.write(dst, got);
                continue;
            };
            let [residual, weight] = [&norm.residual, &norm.weight].map(|region| self.read(region));
            let sums = sum([got, residual].into_iter());
            let rows = sums.iter().map(|row| normalized(row, &weight[0]));
            let nonsense = vec![vec![NONSENSE; src.cols.len()]; src.rows.len()];
            self.write(src, nonsense);
            self.write(dst, rows.collect());
            self.write(&norm.residual_out, sums);
        }
        for (rank, (stream, _)) in entered {
            self.queues[rank][stream].pop_front();
        }
    }

    fn place(&self, region: &Region, row: usize) -> Range<usize> {
        let cols = self.plans[region.rank].buffers[region.buffer.0].cols;
        row * cols + region.cols.start..row * cols + region.cols.end
    }

    fn read(&self, region: &Region) -> Rows {
        let elements = &self.memory[&(region.rank, region.buffer.0)];
        let rows = region.rows.clone();
        rows.map(|row| elements[self.place(region, row)].to_vec())
            .collect()
    }

    fn write(&mut self, region: &Region, values: Rows) {
        assert_eq!(values.len(), region.rows.len(), "{region:?}");
        for (row, values) in region.rows.clone().zip(values) {
            let place = self.place(region, row);
            let elements = self.memory.get_mut(&(region.rank, region.buffer.0));
            elements.unwrap()[place].copy_from_slice(&values);
        }
    }

    /// Where an operand lies: in the first rows of its buffer.
    fn region(&self, rank: usize, operand: &Operand) -> Region {
        let buffer = self.plans[rank].buffer_named(operand.buffer).unwrap();
        let (rows, cols) = operand.stored();
        Region {
            rank,
            buffer,
            rows: 0..rows,
            cols: 0..cols,
        }
    }

    fn fill(&mut self, rank: usize, role: Role, call: usize) {
        for operand in self.operands[rank].clone() {
            if operand.role() == role {
                let values = stored(&operand, |row, col| element(operand.matrix, call, row, col));
                self.write(&self.region(rank, &operand), values);
            }
        }
    }

    fn read_outputs(&self, rank: usize) -> Vec<Rows> {
        let outputs = self.operands[rank]
            .iter()
            .filter(|o| o.role() == Role::Output);
        outputs.map(|o| self.read(&self.region(rank, o))).collect()
    }
}

fn sum(summands: impl Iterator<Item = Rows>) -> Rows {
    let add = |one: Rows, other: Rows| {
        let rows = one.into_iter().zip(other);
        rows.map(|(x, y)| x.into_iter().zip(y).map(|(x, y)| x + y).collect())
            .collect()
    };
    summands.reduce(add).expect("a sum of something")
}

/// The steps of all calls of one rank, by stream.
fn queues(plan: &Plan) -> Vec<VecDeque<Step>> {
    let mut queues = vec![VecDeque::new(); plan.streams.len()];
    let mut collectives: HashMap<&[usize], usize> = HashMap::new();
    for call in 0..CALLS {
        queues[0].push_back(Step::Writes { call });
        let mut records = HashMap::new();
        for (op, step) in plan.ops.iter().enumerate() {
            let needs = match &step.kind {
                OpKind::Record { event } => {
                    records.insert(event.0, op);
                    op
                }
                OpKind::WaitEvent { event } => records[&event.0],
                OpKind::Collective { ranks, .. } => {
                    let before = collectives.entry(ranks).or_default();
                    *before += 1;
                    *before - 1
                }
                _ => op,
            };
            queues[step.stream.0].push_back(Step::Op { call, op, needs });
        }
        queues[0].push_back(Step::Reads);
    }
    queues
}
