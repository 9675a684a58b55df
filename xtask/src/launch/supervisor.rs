//! Watches the ranks of a job and ends all of them when one fails.
//!
//! | state | ends by | into |
//! |---|---|---|
//! | `Running` | a rank fails, Ctrl-C, the job's limit | `Grace` |
//! | `Grace` | its deadline | `Terminating`, with SIGTERM |
//! | `Terminating` | its deadline, a second Ctrl-C | `Killed`, with SIGKILL |
//! | `Killed` | its deadline | the verdict that ranks are stuck |
//!
//! In every state the job is over when the last rank has ended.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::rank::Rank;
use super::{PEER_LOST, Result};
use crate::error::{End, Error, SignalName};

/// After SIGTERM, before SIGKILL.
const TERM: Duration = Duration::from_secs(3);
/// Until a killed process is gone: the driver may have to destroy a GPU context first.
const AFTER_KILL: Duration = Duration::from_secs(20);
/// For the last output of a rank that has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

enum Event {
    Ended(usize),
    Signal(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Running,
    Grace,
    Terminating,
    Killed,
}

pub(super) struct Supervisor {
    grace: Duration,
    /// For the whole job.
    limit: Option<Duration>,
    ranks: Vec<Rank>,
    /// Ranks that failed before they got a signal, in the order in which they did, then those that outlived
    /// the grace.
    failures: Vec<(usize, End)>,
    /// Why the job is being ended before its time, unless a rank has failed first.
    reason: Option<Error>,
    logs: PathBuf,
    state: State,
    /// When the next, harder state follows.
    until: Option<Instant>,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl Supervisor {
    pub fn new(grace: Duration, limit: Option<Duration>, logs: &Path) -> Result<Self> {
        let (sender, events) = channel();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let to_me = sender.clone();
        thread::spawn(move || {
            // Nobody listens once the job is over: then a launcher ends soon, or starts another job.
            for signal in signals.forever() {
                let _ = to_me.send(Event::Signal(signal));
            }
        });
        Ok(Self {
            grace,
            limit,
            ranks: Vec::new(),
            failures: Vec::new(),
            reason: None,
            logs: logs.to_owned(),
            state: State::Running,
            until: limit.map(|limit| Instant::now() + limit),
            sender,
            events,
        })
    }

    /// Takes charge of a rank. Ranks come in order.
    pub fn watch(&mut self, rank: Rank) {
        let (to_me, index) = (self.sender.clone(), rank.index);
        rank.on_end(move || drop(to_me.send(Event::Ended(index))));
        self.ranks.push(rank);
    }

    /// Runs the job to its end. Returns the ranks that failed before they got a signal, or outlived the
    /// grace; the one to name comes first.
    pub fn run(&mut self) -> Result<Vec<(usize, End)>> {
        while self.ranks.iter().any(|rank| rank.end.is_none()) {
            match self.next() {
                Some(Event::Ended(index)) => self.ended(index),
                Some(Event::Signal(signal)) => self.asked_to_end(signal),
                None if self.state == State::Killed => break,
                None => self.press(),
            }
        }
        let failures = std::mem::take(&mut self.failures);
        self.reason.take().map_or(Ok(cause_first(failures)), Err)
    }

    /// Passes on the last output. Says which ranks are still there, and whether all output was written.
    pub fn finish(self) -> (Vec<usize>, Result<()>) {
        let ended = self.ranks.iter().filter(|rank| rank.end.is_some());
        let drained = ended.map(|rank| rank.drain(LAST_OUTPUT));
        (self.running(), drained.fold(Ok(()), Result::and))
    }

    /// The next event; `None` when the state's deadline passes first.
    fn next(&self) -> Option<Event> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let left = self.until.map_or(Duration::MAX, left);
        self.events.recv_timeout(left).ok()
    }

    fn ended(&mut self, index: usize) {
        let end = self.ranks[index].reap();
        if end == End::Code(0) {
            return;
        }
        if self.state <= State::Grace {
            self.failures.push((index, end));
        }
        if self.state == State::Running {
            if !self.running().is_empty() {
                let grace = self.grace;
                eprintln!(
                    "rank {index} {end}; the other ranks have {grace:?} to end by themselves"
                );
            }
            self.enter(State::Grace, None);
        }
    }

    fn asked_to_end(&mut self, signal: i32) {
        if self.state > State::Running {
            return self.enter(State::Killed, Some(Signal::KILL));
        }
        let name = SignalName(signal);
        eprintln!("{name}: ending the ranks (once more to kill them)");
        self.reason = Some(Error::Interrupted(signal));
        let forwarded = match signal {
            SIGINT => Signal::INT,
            SIGHUP => Signal::HUP,
            _ => Signal::TERM,
        };
        self.enter(State::Grace, Some(forwarded));
    }

    /// The deadline of the state has passed: the next, harder one.
    fn press(&mut self) {
        let running = self.running();
        if self.state >= State::Terminating {
            eprintln!("ranks {running:?} are still running: SIGKILL");
            return self.enter(State::Killed, Some(Signal::KILL));
        }
        match self.limit.filter(|_| self.state == State::Running) {
            Some(limit) => {
                eprintln!("the job has run for {limit:?}: ending ranks {running:?}");
                self.reason = Some(Error::JobTimeout {
                    limit,
                    running,
                    logs: self.logs.clone(),
                });
            }
            None => {
                eprintln!("ranks {running:?} are still running: SIGTERM");
                let overdue = running.iter().map(|&rank| (rank, End::Overdue(self.grace)));
                self.failures.extend(overdue);
            }
        }
        self.enter(State::Terminating, Some(Signal::TERM));
    }

    fn enter(&mut self, state: State, signal: Option<Signal>) {
        if let Some(signal) = signal {
            self.ranks.iter().for_each(|rank| rank.signal(signal));
        }
        self.state = state;
        self.until = match state {
            State::Running => self.until,
            State::Grace => Some(Instant::now() + self.grace),
            State::Terminating => Some(Instant::now() + TERM),
            State::Killed => Some(Instant::now() + AFTER_KILL),
        };
    }

    fn running(&self) -> Vec<usize> {
        let running = self.ranks.iter().filter(|rank| rank.end.is_none());
        running.map(|rank| rank.index).collect()
    }
}

/// The rank to name, then the others by number. A rank that lost its peer is seldom the cause, although it
/// may be the first to end, because a process that holds a GPU takes longer to die than its peers to notice,
/// and one that is stopped does not end at all.
fn cause_first(mut failures: Vec<(usize, End)>) -> Vec<(usize, End)> {
    let is_cause = |(_, end): &(usize, End)| *end != End::Code(PEER_LOST);
    let cause = failures.iter().position(is_cause).unwrap_or(0);
    if !failures.is_empty() {
        failures[..=cause].rotate_right(1);
        failures[1..].sort_unstable_by_key(|&(rank, _)| rank);
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_culprit_is_not_the_rank_that_lost_its_peer() {
        let (lost, also_lost) = ((0, End::Code(PEER_LOST)), (3, End::Code(PEER_LOST)));
        let (killed, failed) = ((2, End::Signal(9)), (1, End::Code(1)));
        let [stopped, late] = [4, 5].map(|rank| (rank, End::Overdue(Duration::ZERO)));
        for (failures, expected) in [
            (
                vec![also_lost, lost, killed, failed],
                vec![killed, lost, failed, also_lost],
            ),
            (vec![failed, killed], vec![failed, killed]),
            (vec![also_lost, lost], vec![also_lost, lost]),
            // Of ranks that all outlived the grace, the first.
            (
                vec![also_lost, lost, stopped, late],
                vec![stopped, lost, also_lost, late],
            ),
            (
                vec![also_lost, failed, stopped],
                vec![failed, also_lost, stopped],
            ),
            (vec![], vec![]),
        ] {
            assert_eq!(cause_first(failures), expected);
        }
    }
}
