//! The flags, tickets and counters of the fused kernels, as programs for model checkers.
//!
//! A [`Model`] has a list of steps for each thread of all ranks that waits, signals or takes a ticket: what
//! `all_gather.cu`, `eager.cu`, `one_shot.cu`, `reduction.cu` and `multimem_reduction.cu` do, without the
//! arithmetic. `explore` tries every order of the steps; under `--cfg loom` the smallest models also run on
//! loom's memory. Both must find every [`Planted`] error. In `late` waits fail, by the rules of `health`.

mod all_gather;
mod eager;
#[cfg(not(loom))]
mod explore;
#[cfg(not(loom))]
mod health;
#[cfg(not(loom))]
mod late;
#[cfg(not(loom))]
mod multimem;
#[cfg(loom)]
mod on_loom;
mod one_shot;
mod reduction;

use std::collections::HashMap;

/// The epoch before the first call: epochs go round within a model.
const FIRST: u32 = u32::MAX - 1;

/// That of flags: calls of fewer rows have not written them for half a turn.
const IDLE: u32 = FIRST.wrapping_add(1 << 31);

/// An index into [`Model::atoms`] or [`Model::cells`].
type Index = usize;

/// One step of a thread. The epoch of a step is its counter's value and one.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Waits until the flag has reached the epoch. An acquire.
    Wait { flag: Index, counter: Index },
    /// Publishes the epoch. A release.
    Signal { flag: Index, counter: Index },
    /// Makes the epoch the counter's value.
    Advance { counter: Index },
    /// Copies a counter that another thread may advance meanwhile.
    Keep { counter: Index, own: Index },
    /// Takes one of `all` tickets. An acquire and a release. Whoever is not the last leaves the next `skip`
    /// steps out.
    Ticket {
        ticket: Index,
        all: u32,
        skip: usize,
    },
    /// Arrives at a barrier of a block, or at the end of a kernel.
    Arrive { barrier: Index },
    /// Waits at the barrier until `all` have arrived.
    Barrier { barrier: Index, all: u32 },
    /// Writes the data of a call.
    Write { cell: Index, call: u32 },
    /// Writes them into memory of a peer.
    Push { cell: Index, call: u32 },
    /// Reads data, which must be those of a call.
    Read { cell: Index, call: u32 },
    /// The caller, after a call, asks whether a wait has failed.
    Check,
}

/// What all threads do.
#[derive(Debug, Default)]
struct Model {
    /// Initial values of flags, tickets and barriers.
    atoms: Vec<u32>,
    /// Initial values of counters and data.
    cells: Vec<u32>,
    /// Those of [`Model::atoms`] that must be zero in the end.
    tickets: Vec<Index>,
    names: HashMap<String, Index>,
    threads: Vec<Vec<Step>>,
    /// The rank of each thread.
    ranks: Vec<usize>,
}

/// A thread that is being written.
struct Thread<'a> {
    model: &'a mut Model,
    steps: Vec<Step>,
}

/// What a thread does in a call.
type Part<'a> = &'a dyn Fn(&mut Thread<'_>, u32);

impl Model {
    fn thread(&mut self, rank: usize, write: impl FnOnce(&mut Thread<'_>)) {
        let mut thread = Thread {
            model: self,
            steps: Vec::new(),
        };
        write(&mut thread);
        let steps = thread.steps;
        self.threads.push(steps);
        self.ranks.push(rank);
    }

    /// A block of a rank with so many: in each call it begins, does each of what may be done `overlapped` the
    /// rest or before it, the rest, and ends.
    fn block(
        &mut self,
        (rank, block, blocks): (usize, usize, usize),
        (calls, overlapped): (u32, bool),
        sides: &[Part<'_>],
        [begin, rest, end]: [Part<'_>; 3],
    ) {
        for side in sides.iter().filter(|_| overlapped) {
            self.aux_thread((rank, block, blocks), calls, side);
        }
        self.thread(rank, |thread| {
            for call in 1..=calls {
                begin(thread, call);
                for side in sides.iter().filter(|_| !overlapped) {
                    side(thread, call);
                }
                rest(thread, call);
                if overlapped {
                    thread.barrier_wait(aux_ended(rank, block, call), sides.len());
                }
                end(thread, call);
            }
        });
    }

    /// The thread of a block that pulls, or pushes, during its GEMM, in each call of a rank with so many
    /// blocks.
    fn aux_thread(
        &mut self,
        (rank, block, blocks): (usize, usize, usize),
        calls: u32,
        work: impl Fn(&mut Thread<'_>, u32),
    ) {
        self.thread(rank, |thread| {
            for call in 1..=calls {
                thread.barrier_wait(begin(rank, call), 1);
                work(thread, call);
                thread.arrive(aux_ended(rank, block, call));
                thread.barrier_wait(end(rank, call), blocks);
            }
        });
    }

    fn atom(&mut self, name: String, initial: u32) -> Index {
        let next = self.atoms.len();
        let place = *self.names.entry(name).or_insert(next);
        if place == next {
            self.atoms.push(initial);
        }
        place
    }

    fn cell(&mut self, name: String, initial: u32) -> Index {
        let next = self.cells.len();
        let place = *self.names.entry(name).or_insert(next);
        if place == next {
            self.cells.push(initial);
        }
        place
    }

    fn flag(&mut self, name: String) -> Index {
        self.atom(format!("flag {name}"), IDLE)
    }

    fn counter(&mut self, name: String) -> Index {
        self.cell(format!("counter {name}"), FIRST)
    }

    fn barrier(&mut self, name: String) -> Index {
        self.atom(format!("barrier {name}"), 0)
    }
}

impl Thread<'_> {
    fn wait(&mut self, flag: String, counter: String) {
        let (flag, counter) = (self.model.flag(flag), self.model.counter(counter));
        self.steps.push(Step::Wait { flag, counter });
    }

    fn signal(&mut self, flag: String, counter: String) {
        let (flag, counter) = (self.model.flag(flag), self.model.counter(counter));
        self.steps.push(Step::Signal { flag, counter });
    }

    fn advance(&mut self, counter: String) {
        let counter = self.model.counter(counter);
        self.steps.push(Step::Advance { counter });
    }

    fn keep(&mut self, counter: String, own: String) {
        let (counter, own) = (self.model.counter(counter), self.model.counter(own));
        self.steps.push(Step::Keep { counter, own });
    }

    /// `after` is for the last. A ticket that one thread takes a ticket alone is of no interest to others.
    fn take_ticket(&mut self, ticket: String, all: usize, after: impl FnOnce(&mut Self)) {
        if all == 1 {
            return after(self);
        }
        let ticket = self.model.atom(format!("ticket {ticket}"), 0);
        if !self.model.tickets.contains(&ticket) {
            self.model.tickets.push(ticket);
        }
        let (at, all) = (self.steps.len(), all as u32);
        let ticket_step = |skip| Step::Ticket { ticket, all, skip };
        self.steps.push(ticket_step(0));
        after(self);
        self.steps[at] = ticket_step(self.steps.len() - at - 1);
    }

    /// Does a part of what is published, and takes a ticket; the last publishes.
    fn part(
        &mut self,
        (ticket, all): (String, usize),
        what: Published,
        (planted, part): (Option<Planted>, usize),
        work: impl FnOnce(&mut Self),
        publish: impl FnOnce(&mut Self),
    ) {
        match planted {
            Some(Planted::BeforeArrival(planted)) if planted == what => {
                self.take_ticket(ticket, all, publish);
                work(self);
            }
            Some(Planted::BeforeLastTicket(planted)) if planted == what => {
                work(self);
                if part == 0 {
                    publish(self);
                }
                self.take_ticket(ticket, all, |_| {});
            }
            _ => {
                work(self);
                self.take_ticket(ticket, all, publish);
            }
        }
    }

    fn arrive(&mut self, barrier: String) {
        let barrier = self.model.barrier(barrier);
        self.steps.push(Step::Arrive { barrier });
    }

    fn barrier_wait(&mut self, barrier: String, all: usize) {
        let (barrier, all) = (self.model.barrier(barrier), all as u32);
        self.steps.push(Step::Barrier { barrier, all });
    }

    fn write(&mut self, cell: String, call: u32) {
        let cell = self.model.cell(format!("data {cell}"), 0);
        self.steps.push(Step::Write { cell, call });
    }

    fn push(&mut self, cell: String, call: u32) {
        let cell = self.model.cell(format!("data {cell}"), 0);
        self.steps.push(Step::Push { cell, call });
    }

    /// By the thread that stands for the stream.
    fn check(&mut self) {
        self.steps.push(Step::Check);
    }

    fn read(&mut self, cell: String, call: u32) {
        let cell = self.model.cell(format!("data {cell}"), 0);
        self.steps.push(Step::Read { cell, call });
    }
}

/// The other ranks, the next one first.
fn peers(rank: usize, world: usize) -> impl DoubleEndedIterator<Item = usize> {
    (1..world).map(move |step| (rank + step) % world)
}

/// The barriers between a kernel and what the stream does before and after it.
fn begin(rank: usize, call: u32) -> String {
    format!("begin of call {call} on {rank}")
}

fn end(rank: usize, call: u32) -> String {
    format!("end of call {call} on {rank}")
}

/// The barrier at which a block's other threads have ended.
fn aux_ended(rank: usize, block: usize, call: u32) -> String {
    format!("of {rank}.{block} in call {call}")
}

/// The number of the call, which all flags of a rank carry.
fn calls(rank: usize) -> String {
    format!("calls of {rank}")
}

/// What the stream leaves in a rank's shard before a call.
fn shard(chunk: usize, rank: usize) -> String {
    format!("chunk {chunk} of {rank}")
}

/// What is published once all have taken the ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Published {
    /// A partial of a group or a unit.
    Partial,
    /// The results of a group.
    Results,
    /// That a rank has pulled everything.
    Done,
    /// A copy of a rank's rows.
    Copy,
}

/// An error that a checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// A call does not end after those who pull from it.
    NoDone,
    /// A rank signals that its staging may be written while it reads what was pushed there.
    DoneAfterPulling,
    /// A block publishes when its own part is done, whoever has taken a ticket.
    BeforeLastTicket(Published),
    /// A block takes a ticket before its part is done.
    BeforeArrival(Published),
    /// A block counts what it pulls before it is there.
    CountBeforeArrival,
    /// A block advances the counters when it is done itself.
    EarlyEpoch,
    /// A block takes the last ticket of its call while others of its threads are at work.
    NoBlockBarrier,
    /// A block takes a ticket before its threads have read the number of the call.
    UnreadCall,
    /// All calls take the same staging.
    OneStaging,
    /// A call does not wait for those who have no rows.
    NoWaitForNone,
    /// A rank signals that a chunk is in staging before it has written it.
    FlagBeforeChunk,
    /// A rank does not wait for one of its peers before it reduces.
    #[cfg_attr(loom, expect(dead_code, reason = "planted where all orders are tried"))]
    UnheardPeer,
    /// A rank does not wait for its own partial before it reduces.
    #[cfg_attr(loom, expect(dead_code, reason = "planted where all orders are tried"))]
    UnheardSelf,
}
