//! The words, tickets and counters of the fused kernels, as programs for model checkers.
//!
//! A [`Model`] has a list of steps for each thread of all ranks that waits, signals or draws: what `all_gather.cu`, `eager.cu`,
//! `one_shot.cu` and `reduction.cu` do, without the arithmetic. `explore` tries every order of the steps; under `--cfg loom`
//! the smallest models run on loom's memory, too. Both must find what is [`Planted`]. `late` has waits that fail.

mod eager;
#[cfg(not(loom))]
mod explore;
mod gathering;
#[cfg(not(loom))]
mod late;
#[cfg(loom)]
mod on_loom;
mod one_shot;
mod reducing;

use std::collections::HashMap;

/// The epoch before the first call: words go round within a model.
const FIRST: u32 = u32::MAX - 1;

/// An index into [`Model::atoms`] or [`Model::cells`].
type Place = usize;

/// One step of a thread. The epoch of a step is its counter's value and one.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Waits until the word has reached the epoch. An acquire.
    Wait { word: Place, counter: Place },
    /// Publishes the epoch. A release.
    Signal { word: Place, counter: Place },
    /// Makes the epoch the counter's value.
    Advance { counter: Place },
    /// Makes the value of a counter that of another: what a thread keeps of a counter that is advanced beside it.
    Keep { counter: Place, own: Place },
    /// Draws from a ticket of `all`. An acquire and a release. Whoever is not the last leaves the next `skip` steps out.
    Draw {
        ticket: Place,
        all: u32,
        skip: usize,
    },
    /// Arrives at a barrier of a block, or at the end of a kernel.
    Arrive { barrier: Place },
    /// Waits until `all` have arrived there.
    Meet { barrier: Place, all: u32 },
    /// Writes the data of a call.
    Write { cell: Place, call: u32 },
    /// Writes them into memory of a peer.
    Push { cell: Place, call: u32 },
    /// Reads data, which must be those of a call.
    Read { cell: Place, call: u32 },
    /// The caller, after a call, asks whether a wait has failed.
    Check,
}

/// What all threads do.
#[derive(Debug, Default)]
struct Model {
    /// Initial values of words, tickets and barriers.
    atoms: Vec<u32>,
    /// Initial values of counters and data.
    cells: Vec<u32>,
    /// Those of [`Model::atoms`] that must be zero in the end.
    tickets: Vec<Place>,
    names: HashMap<String, Place>,
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

    /// A block of a rank with so many: in each call it begins, does each of what may be done `beside` the rest or before it, the rest, and
    /// ends.
    fn block(
        &mut self,
        (rank, block, blocks): (usize, usize, usize),
        (calls, beside): (u32, bool),
        sides: &[Part<'_>],
        [begin, rest, end]: [Part<'_>; 3],
    ) {
        for side in sides.iter().filter(|_| beside) {
            self.beside((rank, block, blocks), calls, side);
        }
        self.thread(rank, |thread| {
            for call in 1..=calls {
                begin(thread, call);
                for side in sides.iter().filter(|_| !beside) {
                    side(thread, call);
                }
                rest(thread, call);
                if beside {
                    thread.meet(ended_beside(rank, block, call), sides.len());
                }
                end(thread, call);
            }
        });
    }

    /// The thread of a block that fetches, or sends, beside its product, in each call of a rank with so many blocks.
    fn beside(
        &mut self,
        (rank, block, blocks): (usize, usize, usize),
        calls: u32,
        work: impl Fn(&mut Thread<'_>, u32),
    ) {
        self.thread(rank, |thread| {
            for call in 1..=calls {
                thread.meet(begin(rank, call), 1);
                work(thread, call);
                thread.arrive(ended_beside(rank, block, call));
                thread.meet(end(rank, call), blocks);
            }
        });
    }

    fn atom(&mut self, name: String, initial: u32) -> Place {
        let next = self.atoms.len();
        let place = *self.names.entry(name).or_insert(next);
        if place == next {
            self.atoms.push(initial);
        }
        place
    }

    fn cell(&mut self, name: String, initial: u32) -> Place {
        let next = self.cells.len();
        let place = *self.names.entry(name).or_insert(next);
        if place == next {
            self.cells.push(initial);
        }
        place
    }

    fn word(&mut self, name: String) -> Place {
        self.atom(format!("word {name}"), FIRST)
    }

    fn counter(&mut self, name: String) -> Place {
        self.cell(format!("counter {name}"), FIRST)
    }

    fn barrier(&mut self, name: String) -> Place {
        self.atom(format!("barrier {name}"), 0)
    }
}

impl Thread<'_> {
    fn wait(&mut self, word: String, counter: String) {
        let (word, counter) = (self.model.word(word), self.model.counter(counter));
        self.steps.push(Step::Wait { word, counter });
    }

    fn signal(&mut self, word: String, counter: String) {
        let (word, counter) = (self.model.word(word), self.model.counter(counter));
        self.steps.push(Step::Signal { word, counter });
    }

    fn advance(&mut self, counter: String) {
        let counter = self.model.counter(counter);
        self.steps.push(Step::Advance { counter });
    }

    fn keep(&mut self, counter: String, own: String) {
        let (counter, own) = (self.model.counter(counter), self.model.counter(own));
        self.steps.push(Step::Keep { counter, own });
    }

    /// `behind` is for the last. A ticket that one thread draws from alone is of no interest to others.
    fn draw(&mut self, ticket: String, all: usize, behind: impl FnOnce(&mut Self)) {
        if all == 1 {
            return behind(self);
        }
        let ticket = self.model.atom(format!("ticket {ticket}"), 0);
        if !self.model.tickets.contains(&ticket) {
            self.model.tickets.push(ticket);
        }
        let (at, all) = (self.steps.len(), all as u32);
        let draw = |skip| Step::Draw { ticket, all, skip };
        self.steps.push(draw(0));
        behind(self);
        self.steps[at] = draw(self.steps.len() - at - 1);
    }

    /// Does a part of what is announced, and draws; the last announces.
    fn part(
        &mut self,
        (ticket, all): (String, usize),
        what: Announced,
        (planted, part): (Option<Planted>, usize),
        work: impl FnOnce(&mut Self),
        announce: impl FnOnce(&mut Self),
    ) {
        match planted {
            Some(Planted::BeforeArrival(planted)) if planted == what => {
                self.draw(ticket, all, announce);
                work(self);
            }
            Some(Planted::BeforeLastDraw(planted)) if planted == what => {
                work(self);
                if part == 0 {
                    announce(self);
                }
                self.draw(ticket, all, |_| {});
            }
            _ => {
                work(self);
                self.draw(ticket, all, announce);
            }
        }
    }

    fn arrive(&mut self, barrier: String) {
        let barrier = self.model.barrier(barrier);
        self.steps.push(Step::Arrive { barrier });
    }

    fn meet(&mut self, barrier: String, all: usize) {
        let (barrier, all) = (self.model.barrier(barrier), all as u32);
        self.steps.push(Step::Meet { barrier, all });
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

/// The barriers between a kernel and what the stream does before and behind it.
fn begin(rank: usize, call: u32) -> String {
    format!("begin of call {call} on {rank}")
}

fn end(rank: usize, call: u32) -> String {
    format!("end of call {call} on {rank}")
}

/// The barrier at which a block's other threads have ended.
fn ended_beside(rank: usize, block: usize, call: u32) -> String {
    format!("of {rank}.{block} in call {call}")
}

/// The number of the call, which all words of a rank carry.
fn calls(rank: usize) -> String {
    format!("calls of {rank}")
}

/// What the stream leaves in a rank's shard before a call.
fn shard(chunk: usize, rank: usize) -> String {
    format!("chunk {chunk} of {rank}")
}

/// True once the epoch `seen` has reached `wanted`, compared cyclically.
fn reached(seen: u32, wanted: u32) -> bool {
    seen.wrapping_sub(wanted) as i32 >= 0
}

/// What is announced once all draws of a ticket are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// A part of sums.
    Part,
    /// Sums.
    Sums,
    /// That a rank has fetched everything.
    Done,
}

/// An error that a checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// A call does not end behind those who fetch from it.
    NoDone,
    /// A rank says that its staging may be written while it reads what was pushed there.
    DoneBehindFetching,
    /// A block announces when its own part is done, whoever has drawn.
    BeforeLastDraw(Announced),
    /// A block draws before its part is done.
    BeforeArrival(Announced),
    /// A block counts what it fetches before it is there.
    CountBeforeArrival,
    /// A block advances the counters when it is done itself.
    EarlyEpoch,
    /// A block draws the last ticket of its call while others of its threads are at work.
    UnmetBlock,
    /// A block draws before its threads have read the number of the call.
    UnreadCall,
    /// All calls take the same staging.
    OneStaging,
    /// A call does not wait for those who have no rows.
    NoWaitForNone,
    /// A rank says that a chunk is in staging before it has written it.
    WordBeforeChunk,
    /// A rank does not wait for one of its peers before it sums.
    #[cfg_attr(loom, expect(dead_code, reason = "planted where all orders are tried"))]
    UnheardPeer,
    /// A rank does not wait for its own part before it sums.
    #[cfg_attr(loom, expect(dead_code, reason = "planted where all orders are tried"))]
    UnheardSelf,
}
