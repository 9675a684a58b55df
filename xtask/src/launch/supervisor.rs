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

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::rank::Rank;
use super::{Error, PEER_LOST, Patience, Result};
use crate::error::{End, SignalName};

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

/// How the job ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Failed {
        rank: usize,
        end: End,
        /// The other ranks that failed before they were told to end.
        others: Vec<(usize, End)>,
    },
    Interrupted {
        signal: i32,
    },
    TimedOut {
        limit: Duration,
        running: Vec<usize>,
    },
    Stuck,
}

/// Why the job is being ended before its time.
enum Reason {
    Failure,
    Signal(i32),
    Limit(Duration, Vec<usize>),
}

pub(super) struct Supervisor {
    patience: Patience,
    ranks: Vec<Rank>,
    /// Ranks that failed before they were told to end, in the order in which they did.
    failures: Vec<(usize, End)>,
    reason: Option<Reason>,
    state: State,
    /// When the next, harder state follows.
    until: Option<Instant>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    _listener: Listener,
}

impl Supervisor {
    pub fn new(patience: Patience) -> Result<Self> {
        let (sender, events) = channel();
        let to_me = sender.clone();
        // The receiver is gone only when the job is over.
        let listener = Listener::new(move |signal| drop(to_me.send(Event::Signal(signal))))
            .map_err(Error::file("cannot listen for signals on", "this process"))?;
        Ok(Self {
            patience,
            ranks: Vec::new(),
            failures: Vec::new(),
            reason: None,
            state: State::Running,
            until: patience.job.map(|limit| Instant::now() + limit),
            sender,
            events,
            _listener: listener,
        })
    }

    /// Takes charge of a rank. Ranks come in order.
    pub fn watch(&mut self, rank: Rank) {
        let (to_me, index) = (self.sender.clone(), rank.index);
        rank.on_end(move || drop(to_me.send(Event::Ended(index))));
        self.ranks.push(rank);
    }

    /// Runs the job to its end.
    pub fn run(&mut self) -> Verdict {
        while self.ranks.iter().any(|rank| rank.end().is_none()) {
            match self.next() {
                Some(Event::Ended(index)) => self.ended(index),
                Some(Event::Signal(signal)) => self.asked_to_end(signal),
                None if self.state == State::Killed => return self.verdict(true),
                None => self.press(),
            }
        }
        self.verdict(false)
    }

    /// Passes on the last output and says which ranks are still there.
    pub fn finish(self) -> Vec<usize> {
        for rank in self.ranks.iter().filter(|rank| rank.end().is_some()) {
            rank.drain(LAST_OUTPUT);
        }
        self.running()
    }

    /// The next event; `None` when the state's deadline passes first.
    fn next(&self) -> Option<Event> {
        let received = match self.until {
            Some(until) => self
                .events
                .recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self.events.recv().map_err(RecvTimeoutError::from),
        };
        received.ok()
    }

    fn ended(&mut self, index: usize) {
        let end = self.ranks[index].reap();
        if end.is_success() {
            return;
        }
        if self.state <= State::Grace {
            self.failures.push((index, end));
        }
        if self.state == State::Running {
            if !self.running().is_empty() {
                let grace = self.patience.grace;
                eprintln!(
                    "rank {index} {end}; the other ranks have {grace:?} to end by themselves"
                );
            }
            self.reason = Some(Reason::Failure);
            self.enter(State::Grace, None);
        }
    }

    fn asked_to_end(&mut self, signal: i32) {
        if self.state > State::Running {
            self.reason.get_or_insert(Reason::Signal(signal));
            return self.enter(State::Killed, Some(Signal::KILL));
        }
        let name = SignalName(signal);
        eprintln!("{name}: ending the ranks (once more to kill them)");
        self.reason = Some(Reason::Signal(signal));
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
        match self.patience.job.filter(|_| self.state == State::Running) {
            Some(limit) => {
                eprintln!("the job has run for {limit:?}: ending ranks {running:?}");
                self.reason = Some(Reason::Limit(limit, running));
            }
            None => eprintln!("ranks {running:?} are still running: SIGTERM"),
        }
        self.enter(State::Terminating, Some(Signal::TERM));
    }

    fn enter(&mut self, state: State, signal: Option<Signal>) {
        if let Some(signal) = signal {
            self.send(signal);
        }
        self.state = state;
        self.until = match state {
            State::Running => self.until,
            State::Grace => Some(Instant::now() + self.patience.grace),
            State::Terminating => Some(Instant::now() + self.patience.term),
            State::Killed => Some(Instant::now() + AFTER_KILL),
        };
    }

    fn send(&self, signal: Signal) {
        for rank in &self.ranks {
            rank.signal(signal);
        }
    }

    fn running(&self) -> Vec<usize> {
        self.ranks
            .iter()
            .filter(|rank| rank.end().is_none())
            .map(|rank| rank.index)
            .collect()
    }

    fn verdict(&mut self, stuck: bool) -> Verdict {
        match self.reason.take() {
            Some(Reason::Signal(signal)) => Verdict::Interrupted { signal },
            Some(Reason::Limit(limit, running)) => Verdict::TimedOut { limit, running },
            Some(Reason::Failure) => match culprit(&self.failures) {
                Some((rank, end)) => {
                    let mut others = std::mem::take(&mut self.failures);
                    others.retain(|&(other, _)| other != rank);
                    others.sort_unstable_by_key(|&(rank, _)| rank);
                    Verdict::Failed { rank, end, others }
                }
                None => Verdict::Stuck,
            },
            None if stuck => Verdict::Stuck,
            None => Verdict::Done,
        }
    }
}

/// The rank to name: a rank that lost its peer is seldom the cause, although it may be the first to end,
/// because a process that holds a GPU takes longer to die than its peers to notice.
fn culprit(failures: &[(usize, End)]) -> Option<(usize, End)> {
    failures
        .iter()
        .find(|(_, end)| *end != End::Code(PEER_LOST))
        .or(failures.first())
        .copied()
}

/// Listens for SIGINT, SIGTERM and SIGHUP until it is dropped.
///
/// After that they are ignored: a launcher ends soon after its job.
struct Listener(Handle);

impl Listener {
    /// Calls `received` with the number of every SIGINT, SIGTERM and SIGHUP.
    fn new(mut received: impl FnMut(i32) + Send + 'static) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        thread::spawn(move || {
            for signal in signals.forever() {
                received(signal);
            }
        });
        Ok(Self(handle))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_culprit_is_not_the_rank_that_lost_its_peer() {
        let (lost, killed, failed) = (
            (0, End::Code(PEER_LOST)),
            (2, End::Signal(9)),
            (1, End::Code(1)),
        );
        assert_eq!(culprit(&[lost, killed, failed]), Some(killed));
        assert_eq!(culprit(&[failed, killed]), Some(failed));
        assert_eq!(culprit(&[lost, (1, End::Code(PEER_LOST))]), Some(lost));
        assert_eq!(culprit(&[]), None);
    }
}
