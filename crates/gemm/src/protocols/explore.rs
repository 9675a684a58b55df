//! Every order of the steps of a model.
//!
//! A state is where each thread is, what memory holds, and what is known of what: a clock for each thread, handed on from a
//! release to the acquires that see it. Two accesses to a cell of which one writes must be ordered by these clocks, in every
//! order of steps; else they race, and what is read may be anything. Words only grow and tickets are drawn by read-modify-write
//! instructions, so that a thread that sees an old value of one waits longer or draws behind others, which is one more order.
//!
//! Whoever waits for a word knows what was known to the signal that it waits for, though a later one may be there: it may
//! have looked before. So what comes of a signal, of a wait that is over, of arriving and of meeting does not depend on what
//! others do meanwhile, and one order of them stands for all.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Model, Step, reached};

const RACE: &str = "a race";
const OTHER_CALL: &str = "data of another call";

const MOST_THREADS: usize = 12;

/// For each thread how much of what it did is known, in releases.
type Clock = [u8; MOST_THREADS];

/// Which steps hand clocks on. Leaving one out is an error that must be found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    pub waits: bool,
    pub signals: bool,
    pub draws: bool,
}

impl Orders {
    pub(super) const ALL: Orders = Orders {
        waits: true,
        signals: true,
        draws: true,
    };

    /// All but one, each in turn.
    pub(super) fn but_one() -> [Orders; 3] {
        let all = Self::ALL;
        [
            Orders {
                waits: false,
                ..all
            },
            Orders {
                signals: false,
                ..all
            },
            Orders {
                draws: false,
                ..all
            },
        ]
    }
}

#[derive(Clone, Default, Hash)]
struct Cell {
    value: u32,
    /// Who wrote last and when, and when each thread has read since.
    writer: usize,
    written: u8,
    read: Clock,
}

#[derive(Clone, Hash)]
struct State {
    /// The next step of each thread.
    next: Vec<usize>,
    clocks: Vec<Clock>,
    atoms: Vec<(u32, Clock)>,
    /// The signals of each word so far: their epochs, and what was known to them.
    signals: Vec<Vec<(u32, Clock)>>,
    cells: Vec<Cell>,
}

/// Tries every order; the number of states that there are.
///
/// # Errors
/// The first order that goes wrong: a race, data of another call, a deadlock, a ticket that is not whole in the end.
pub(super) fn explore(model: &Model, orders: Orders) -> Result<usize, String> {
    let explorer = Explorer { model, orders };
    let first = State {
        next: vec![0; model.threads.len()],
        clocks: (0..model.threads.len())
            .map(|thread| std::array::from_fn(|other| u8::from(other == thread)))
            .collect(),
        atoms: model
            .atoms
            .iter()
            .map(|&value| (value, Clock::default()))
            .collect(),
        signals: vec![Vec::new(); model.atoms.len()],
        cells: model
            .cells
            .iter()
            .map(|&value| Cell {
                value,
                ..Cell::default()
            })
            .collect(),
    };
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut open = vec![first];
    while let Some(state) = open.pop() {
        let able: Vec<usize> = (0..model.threads.len())
            .filter(|&thread| explorer.is_able(&state, thread))
            .collect();
        if able.is_empty() {
            explorer.check_end(&state)?;
        }
        let quiet = able.iter().find(|&&thread| {
            matches!(
                explorer.step(&state, thread),
                Some(
                    Step::Arrive { .. }
                        | Step::Meet { .. }
                        | Step::Wait { .. }
                        | Step::Signal { .. }
                )
            )
        });
        for &thread in quiet.map_or(&able[..], std::slice::from_ref) {
            let mut state = state.clone();
            explorer.run(&mut state, thread)?;
            if seen.insert(fingerprint(&state)) {
                open.push(state);
            }
        }
    }
    Ok(seen.len())
}

/// Whether the error of [`explore`] is that something was read that was not there yet or not any more.
pub(super) fn is_wrong_data(error: &str) -> bool {
    error.starts_with(RACE) || error.starts_with(OTHER_CALL)
}

/// States are told apart by 128 bits of hash.
fn fingerprint(state: &State) -> (u64, u64) {
    let hashed = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, state).hash(&mut hasher);
        hasher.finish()
    };
    (hashed(0), hashed(1))
}

struct Explorer<'a> {
    model: &'a Model,
    orders: Orders,
}

impl Explorer<'_> {
    fn step(&self, state: &State, thread: usize) -> Option<Step> {
        self.model.threads[thread].get(state.next[thread]).copied()
    }

    fn is_able(&self, state: &State, thread: usize) -> bool {
        match self.step(state, thread) {
            None => false,
            Some(Step::Wait { word, counter }) => {
                let epoch = state.cells[counter].value.wrapping_add(1);
                reached(state.atoms[word].0, epoch)
            }
            Some(Step::Meet { barrier, all }) => state.atoms[barrier].0 == all,
            Some(_) => true,
        }
    }

    fn check_end(&self, state: &State) -> Result<(), String> {
        let threads = 0..self.model.threads.len();
        let stuck: Vec<_> = threads
            .filter_map(|thread| {
                self.step(state, thread)
                    .map(|step| (thread, self.show(step)))
            })
            .collect();
        if !stuck.is_empty() {
            return Err(format!("deadlock: {stuck:?}"));
        }
        let mut tickets = self.model.tickets.iter();
        match tickets.find(|&&ticket| state.atoms[ticket].0 != 0) {
            Some(&ticket) => Err(format!("{} is not whole", self.name(ticket, true))),
            None => Ok(()),
        }
    }

    /// Runs a step, and those behind it that concern cells alone: clocks tell of them whatever their order.
    fn run(&self, state: &mut State, thread: usize) -> Result<(), String> {
        let mut is_first = true;
        while let Some(step) = self.step(state, thread) {
            let is_data = matches!(
                step,
                Step::Advance { .. } | Step::Keep { .. } | Step::Write { .. } | Step::Read { .. }
            );
            if !is_first && !is_data {
                break;
            }
            is_first = false;
            state.next[thread] += 1;
            let done = self.perform(state, thread, step);
            done.map_err(|what| format!("{what}: thread {thread}, {}", self.show(step)))?;
        }
        Ok(())
    }

    fn perform(&self, state: &mut State, thread: usize, step: Step) -> Result<(), &'static str> {
        match step {
            Step::Wait { word, counter } => {
                let epoch = state.load(thread, counter)?.wrapping_add(1);
                let mut signals = state.signals[word].iter();
                if let Some(&(_, known)) = signals.find(|(signalled, _)| reached(*signalled, epoch))
                    && self.orders.waits
                {
                    state.learn(thread, known);
                }
            }
            Step::Signal { word, counter } => {
                let epoch = state.load(thread, counter)?.wrapping_add(1);
                state.atoms[word].0 = epoch;
                if self.orders.signals {
                    state.signals[word].push((epoch, state.clocks[thread]));
                    state.clocks[thread][thread] += 1;
                }
            }
            Step::Advance { counter } => {
                let epoch = state.load(thread, counter)?.wrapping_add(1);
                state.store(thread, counter, epoch)?;
            }
            Step::Keep { counter, own } => {
                let value = state.load(thread, counter)?;
                state.store(thread, own, value)?;
            }
            Step::Draw { ticket, all, skip } => {
                if self.orders.draws {
                    state.acquire(thread, ticket);
                    state.release(thread, ticket);
                }
                let drawn = &mut state.atoms[ticket].0;
                *drawn = (*drawn + 1) % all;
                if *drawn != 0 {
                    state.next[thread] += skip;
                }
            }
            Step::Arrive { barrier } => {
                state.atoms[barrier].0 += 1;
                state.release(thread, barrier);
            }
            Step::Meet { barrier, .. } => state.acquire(thread, barrier),
            Step::Write { cell, call } => state.store(thread, cell, call)?,
            Step::Read { cell, call } => {
                if state.load(thread, cell)? != call {
                    return Err(OTHER_CALL);
                }
            }
        }
        Ok(())
    }

    fn show(&self, step: Step) -> String {
        let places = match step {
            Step::Wait { word, counter } | Step::Signal { word, counter } => {
                format!("{}, {}", self.name(word, true), self.name(counter, false))
            }
            Step::Draw { ticket: atom, .. }
            | Step::Arrive { barrier: atom }
            | Step::Meet { barrier: atom, .. } => self.name(atom, true),
            Step::Keep { counter, own } => {
                format!("{}, {}", self.name(counter, false), self.name(own, false))
            }
            Step::Advance { counter: cell }
            | Step::Write { cell, .. }
            | Step::Read { cell, .. } => self.name(cell, false),
        };
        format!("{step:?} ({places})")
    }

    fn name(&self, place: usize, is_atom: bool) -> String {
        let is_cell = |name: &str| name.starts_with("data") || name.starts_with("counter");
        let mut names = self.model.names.iter();
        let found = names.find(|(name, at)| **at == place && is_cell(name) != is_atom);
        found.map_or_else(String::new, |(name, _)| name.clone())
    }
}

impl State {
    fn acquire(&mut self, thread: usize, atom: usize) {
        self.learn(thread, self.atoms[atom].1);
    }

    fn learn(&mut self, thread: usize, known: Clock) {
        for (mine, known) in self.clocks[thread].iter_mut().zip(known) {
            *mine = (*mine).max(known);
        }
    }

    /// What is released stays: who draws has acquired before.
    fn release(&mut self, thread: usize, atom: usize) {
        for (known, mine) in self.atoms[atom].1.iter_mut().zip(self.clocks[thread]) {
            *known = (*known).max(mine);
        }
        self.clocks[thread][thread] += 1;
    }

    fn load(&mut self, thread: usize, cell: usize) -> Result<u32, &'static str> {
        let (cell, clock) = (&mut self.cells[cell], &self.clocks[thread]);
        if cell.written > clock[cell.writer] {
            return Err(RACE);
        }
        cell.read[thread] = clock[thread];
        Ok(cell.value)
    }

    fn store(&mut self, thread: usize, cell: usize, value: u32) -> Result<(), &'static str> {
        let (cell, clock) = (&mut self.cells[cell], &self.clocks[thread]);
        let is_read = cell
            .read
            .iter()
            .zip(clock)
            .any(|(read, known)| read > known);
        if is_read || cell.written > clock[cell.writer] {
            return Err(RACE);
        }
        *cell = Cell {
            value,
            writer: thread,
            written: clock[thread],
            read: Clock::default(),
        };
        Ok(())
    }
}
