//! Explores every order of the steps of a model.
//!
//! A state is the next step of each thread, the contents of memory, and a vector clock for each thread,
//! handed from a release to the acquires that see it. These clocks must order every two accesses to a cell of
//! which one writes, in every order of steps; otherwise they race, and a read may return anything. Flags only
//! grow and tickets are taken by read-modify-write instructions, so a thread that sees an old value waits
//! longer or takes its ticket after others, which is just another order.
//!
//! A wait learns the clock of the signal that it waits for, even if a later signal is already there: it may
//! have polled before. So signals, finished waits and barriers commute with what other threads do meanwhile,
//! and one order stands for all of them. States after which only one step may come are not kept.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use warpweave_symm_mem::pad::flag::reached_call;

use super::health::{Health, Late, Move};
use super::{Index, Model, Step};

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
    pub tickets: bool,
}

impl Orders {
    pub(super) const ALL: Orders = Orders {
        waits: true,
        signals: true,
        tickets: true,
    };

    /// All but one, for each one.
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
                tickets: false,
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
    /// Whether a rank wrote it that has read what it was not meant to.
    tainted: bool,
}

#[derive(Clone, Hash)]
struct State {
    /// The next step of each thread.
    next: Vec<usize>,
    clocks: Vec<Clock>,
    atoms: Vec<(u32, Clock)>,
    /// The signals so far, by flag and then in their order: their epochs, and what was known to them.
    signals: Vec<(Index, u32, Clock)>,
    cells: Vec<Cell>,
    health: Health,
}

/// Tries every order; the number of states that there are.
///
/// # Errors
/// The first order that goes wrong: a race, data of another call, a deadlock, a ticket that is not whole in
/// the end.
pub(super) fn explore(model: &Model, orders: Orders) -> Result<usize, String> {
    Explorer {
        model,
        orders,
        late: None,
    }
    .explore()
}

/// As [`explore`], with waits that fail. What a rank reads in calls that it has been told of may be anything.
///
/// # Errors
/// As [`explore`], and the first order in which a rank reads what it was not meant to and is not told.
pub(super) fn explore_late(model: &Model, late: Late) -> Result<usize, String> {
    Explorer {
        model,
        orders: Orders::ALL,
        late: Some(late),
    }
    .explore()
}

/// Whether the error of [`explore`] is that something was read that was not there yet or not any more.
pub(super) fn is_wrong_data(error: &str) -> bool {
    error.starts_with(RACE) || error.starts_with(OTHER_CALL)
}

/// States are told apart by 128 bits of hash: two multiplications for each word, as in wyhash. Most of the
/// time goes here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Fingerprint(u64, u64);

impl Fingerprint {
    fn of(state: &State) -> Self {
        let mut hasher = Self(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
        state.hash(&mut hasher);
        hasher
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let folded = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        *self = Self(
            folded(self.0 ^ word, 0x9e37_79b9_7f4a_7c15).rotate_left(23),
            folded(self.1 ^ word.rotate_left(32), 0xd6e8_feb8_6659_fd93) ^ self.0,
        );
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Explorer<'a> {
    model: &'a Model,
    orders: Orders,
    late: Option<Late>,
}

impl Explorer<'_> {
    fn step(&self, state: &State, thread: usize) -> Option<Step> {
        self.model.threads[thread].get(state.next[thread]).copied()
    }

    fn explore(&self) -> Result<usize, String> {
        let model = self.model;
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
            signals: Vec::new(),
            cells: model
                .cells
                .iter()
                .map(|&value| Cell {
                    value,
                    ..Cell::default()
                })
                .collect(),
            health: Health::default(),
        };
        let mut seen = HashSet::new();
        let mut open = vec![first];
        while let Some(mut state) = open.pop() {
            let mut moves = self.moves(&state);
            while let [(thread, how)] = moves[..] {
                self.run(&mut state, thread, how)?;
                moves = self.moves(&state);
            }
            let Some(last) = moves.pop() else {
                self.check_end(&state)?;
                continue;
            };
            if seen.insert(Fingerprint::of(&state)) {
                for (thread, how) in moves {
                    let mut state = state.clone();
                    self.run(&mut state, thread, how)?;
                    open.push(state);
                }
                self.run(&mut state, last.0, last.1)?;
                open.push(state);
            }
        }
        Ok(seen.len())
    }

    /// What may come next. Of steps that have no part in what others do one alone.
    fn moves(&self, state: &State) -> Vec<(usize, Move)> {
        let threads = || 0..self.model.threads.len();
        let mut able: Vec<_> = threads()
            .flat_map(|thread| {
                self.moves_of(state, thread)
                    .into_iter()
                    .map(move |how| (thread, how))
            })
            .collect();
        if able.is_empty() && self.late.is_some() {
            // Nothing else can happen: deadlines pass.
            let waits =
                |&thread: &usize| matches!(self.step(state, thread), Some(Step::Wait { .. }));
            able.extend(threads().filter(waits).map(|thread| (thread, Move::Fail)));
        }
        let quiet = |&&(thread, how): &&(usize, Move)| {
            how == Move::Go
                && match self.step(state, thread) {
                    Some(Step::Arrive { .. } | Step::Barrier { .. }) => true,
                    Some(Step::Wait { .. } | Step::Signal { .. }) => self.late.is_none(),
                    _ => false,
                }
        };
        match able.iter().find(quiet) {
            Some(&quiet) => vec![quiet],
            None => able,
        }
    }

    fn moves_of(&self, state: &State, thread: usize) -> Vec<Move> {
        if state.health.owes_notice(thread) {
            return vec![Move::Notice];
        }
        match self.step(state, thread) {
            None => Vec::new(),
            Some(Step::Wait { flag, counter }) => {
                let epoch = state.cells[counter].value.wrapping_add(1);
                let here = reached_call(state.atoms[flag].0, epoch);
                match self.late {
                    None => Vec::from_iter(here.then_some(Move::Go)),
                    Some(late) => state.health.waits(late, self.model.ranks[thread], here),
                }
            }
            Some(Step::Barrier { barrier, all }) => {
                Vec::from_iter((state.atoms[barrier].0 == all).then_some(Move::Go))
            }
            Some(_) => vec![Move::Go],
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
        if state.health.is_faulty() {
            return Ok(());
        }
        let mut tickets = self.model.tickets.iter();
        match tickets.find(|&&ticket| state.atoms[ticket].0 != 0) {
            Some(&ticket) => Err(format!("{} is not whole", self.name(ticket, true))),
            None => Ok(()),
        }
    }

    /// Runs a step, and those after it that concern cells alone: clocks tell of them whatever their order.
    fn run(&self, state: &mut State, thread: usize, how: Move) -> Result<(), String> {
        if how != Move::Go {
            state.next[thread] += usize::from(how == Move::Fail);
            let notices = self.late.is_some_and(|late| late.notices);
            state
                .health
                .fault(how, (thread, self.model.ranks[thread]), notices);
            return Ok(());
        }
        let mut is_first = true;
        while let Some(step) = self.step(state, thread) {
            let is_data = match step {
                Step::Advance { .. } | Step::Keep { .. } | Step::Write { .. } => true,
                Step::Push { .. } | Step::Read { .. } => true,
                Step::Check => self.late.is_none(),
                _ => false,
            };
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
        let rank = self.model.ranks[thread];
        let silent = state.health.is_stopped(rank) && self.late.is_some_and(|late| late.silence);
        match step {
            Step::Signal { .. } | Step::Push { .. } if silent => {}
            Step::Wait { flag, counter } => {
                let epoch = self.load(state, thread, counter)?.wrapping_add(1);
                let mut signals = state.signals.iter();
                let is_it = |signal: &&(Index, u32, Clock)| {
                    signal.0 == flag && reached_call(signal.1, epoch)
                };
                if let Some(&(_, _, known)) = signals.find(is_it)
                    && self.orders.waits
                {
                    state.learn(thread, known);
                }
            }
            Step::Signal { flag, counter } => {
                let epoch = self.load(state, thread, counter)?.wrapping_add(1);
                state.atoms[flag].0 = epoch;
                if self.orders.signals {
                    let place = state.signals.partition_point(|signal| signal.0 <= flag);
                    let signal = (flag, epoch, state.clocks[thread]);
                    state.signals.insert(place, signal);
                    state.clocks[thread][thread] += 1;
                }
            }
            Step::Advance { counter } => {
                let epoch = self.load(state, thread, counter)?.wrapping_add(1);
                self.store(state, thread, counter, epoch)?;
            }
            Step::Keep { counter, own } => {
                let value = self.load(state, thread, counter)?;
                self.store(state, thread, own, value)?;
            }
            Step::Ticket { ticket, all, skip } => {
                if self.orders.tickets {
                    state.acquire(thread, ticket);
                    state.release(thread, ticket);
                }
                let taken = &mut state.atoms[ticket].0;
                *taken = (*taken + 1) % all;
                if *taken != 0 {
                    state.next[thread] += skip;
                }
            }
            Step::Arrive { barrier } => {
                state.atoms[barrier].0 += 1;
                state.release(thread, barrier);
            }
            Step::Barrier { barrier, .. } => state.acquire(thread, barrier),
            Step::Write { cell, call } | Step::Push { cell, call } => {
                self.store(state, thread, cell, call)?;
            }
            Step::Read { cell, call } => {
                if self.load(state, thread, cell)? != call {
                    state.health.blame(rank, OTHER_CALL)?;
                }
                if state.cells[cell].tainted {
                    state.health.blame(rank, OTHER_CALL)?;
                }
            }
            Step::Check => {
                if let Some(late) = self.late {
                    state.health.check(late, rank)?;
                    // What is overwritten from now on was read in time.
                    let read = state
                        .cells
                        .iter_mut()
                        .flat_map(|cell| cell.read.iter_mut().zip(&self.model.ranks));
                    read.filter(|(_, of)| **of == rank)
                        .for_each(|(read, _)| *read = 0);
                }
            }
        }
        Ok(())
    }

    fn load(&self, state: &mut State, thread: usize, cell: usize) -> Result<u32, &'static str> {
        let (cell, clock) = (&mut state.cells[cell], &state.clocks[thread]);
        if cell.written > clock[cell.writer] {
            state.health.blame(self.model.ranks[thread], RACE)?;
        }
        cell.read[thread] = clock[thread];
        Ok(cell.value)
    }

    fn store(
        &self,
        state: &mut State,
        thread: usize,
        cell: usize,
        value: u32,
    ) -> Result<(), &'static str> {
        let (cell, clock) = (&mut state.cells[cell], &state.clocks[thread]);
        let ranks = &self.model.ranks;
        let writer = (cell.written > clock[cell.writer]).then_some(ranks[cell.writer]);
        let reads = cell.read.iter().zip(clock).zip(ranks);
        let readers = reads
            .filter(|((read, known), _)| read > known)
            .map(|(_, &rank)| rank);
        for rank in writer.into_iter().chain(readers) {
            state.health.blame(rank, RACE)?;
        }
        *cell = Cell {
            value,
            writer: thread,
            written: clock[thread],
            read: Clock::default(),
            tainted: state.health.is_tainted(ranks[thread]),
        };
        Ok(())
    }

    fn show(&self, step: Step) -> String {
        let places = match step {
            Step::Wait { flag, counter } | Step::Signal { flag, counter } => {
                format!("{}, {}", self.name(flag, true), self.name(counter, false))
            }
            Step::Ticket { ticket: atom, .. }
            | Step::Arrive { barrier: atom }
            | Step::Barrier { barrier: atom, .. } => self.name(atom, true),
            Step::Keep { counter, own } => {
                format!("{}, {}", self.name(counter, false), self.name(own, false))
            }
            Step::Advance { counter: cell }
            | Step::Write { cell, .. }
            | Step::Push { cell, .. }
            | Step::Read { cell, .. } => self.name(cell, false),
            Step::Check => String::new(),
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

    /// What is released stays: who takes a ticket has acquired before.
    fn release(&mut self, thread: usize, atom: usize) {
        for (known, mine) in self.atoms[atom].1.iter_mut().zip(self.clocks[thread]) {
            *known = (*known).max(mine);
        }
        self.clocks[thread][thread] += 1;
    }
}
