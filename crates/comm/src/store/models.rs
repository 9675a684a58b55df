//! Loom models of the store: its server and the clients of its ranks, with a queue in place of the sockets.
//!
//! The [`SessionTable`] and the [`ClientRequests`] are those of the crate. A test that ends has shown that no
//! wait hangs in any interleaving: loom reports a thread that can never go on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::requests::{ClientRequests, Outcome, Wake, Watch, closed_here, lost};
use super::sessions::{Action, Actions, SessionTable};
use super::sync::{Condvar, Mutex};
use super::wire::{Answer, Failure, FailureKind, Greeting, Op, Refusal, ToClient, ToServer};

/// In place of the eventfd.
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl WakeFlag {
    fn is_woken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// In place of a device whose waits end when a rank is lost.
#[derive(Clone)]
struct Watcher {
    /// How often it was called, and the last rank it was called with.
    called: Arc<Mutex<(usize, u32)>>,
}

impl Watcher {
    fn new() -> Self {
        Self {
            called: Arc::new(Mutex::new((0, u32::MAX))),
        }
    }

    fn calls(&self) -> (usize, u32) {
        *self.called.lock()
    }
}

impl Watch for Watcher {
    fn lost(&self, failure: &Failure) {
        let mut called = self.called.lock();
        *called = (called.0 + 1, failure.rank);
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// What reaches the server, in order.
enum Event {
    Message(usize, ToServer),
    Broken(usize),
    /// Every deadline has passed.
    Late,
    Stop,
}

/// The connections between the ranks and the server. A connection has its rank's number.
struct Job {
    events: Mutex<VecDeque<Event>>,
    came: Condvar,
    clients: Vec<ClientRequests<WakeFlag, Watcher>>,
}

impl Job {
    fn new(world: usize) -> Arc<Self> {
        let client = |_| ClientRequests::new(WakeFlag(AtomicBool::new(false)));
        Arc::new(Self {
            events: Mutex::new(VecDeque::new()),
            came: Condvar::new(),
            clients: (0..world).map(client).collect(),
        })
    }

    fn post(&self, event: Event) {
        self.events.lock().push_back(event);
        self.came.notify_all();
    }

    /// As a rank's `ask`.
    fn ask(&self, rank: usize, op: Op) -> Outcome {
        match self.clients[rank].register() {
            Err(failure) => Outcome::Ended(failure),
            Ok(id) => {
                let request = ToServer::Request {
                    id,
                    timeout_ms: 1000,
                    op,
                };
                self.post(Event::Message(rank, request));
                self.clients[rank].wait(id, Instant::now())
            }
        }
    }

    fn barrier(&self, rank: usize) -> Outcome {
        let bytes = vec![rank as u8];
        self.ask(
            rank,
            Op::AllGather {
                scope: "s".into(),
                call: 0,
                tag: "t".into(),
                bytes,
            },
        )
    }

    /// The server's thread and every rank's reader in one: a rank receives messages in the order in which
    /// they were sent.
    fn serve(&self, sessions: &mut SessionTable) {
        loop {
            let event = {
                let mut events = self.events.lock();
                loop {
                    match events.pop_front() {
                        Some(event) => break event,
                        None => self.came.wait(&mut events),
                    }
                }
            };
            let now = Instant::now();
            let actions = match event {
                Event::Message(rank, message) => sessions.handle(rank as u64, message, now),
                Event::Broken(rank) => sessions.disconnected(rank as u64, "killed"),
                Event::Late => sessions.expire(now + Duration::from_secs(3600)),
                Event::Stop => {
                    let actions = sessions.close();
                    self.deliver(actions);
                    for client in &self.clients {
                        client.close(lost("the connection closed".into()));
                    }
                    return;
                }
            };
            self.deliver(actions);
        }
    }

    fn deliver(&self, actions: Actions) {
        for action in actions {
            if let Action::Send(rank, message) = action {
                let client = &self.clients[rank as usize];
                if let Some(end) = client.receive(message) {
                    client.close(end);
                }
            }
        }
    }

    /// No request is left over, however its wait ended.
    fn is_tidy(&self) -> bool {
        self.clients.iter().all(|client| client.pending() == 0)
    }
}

/// A greeting, whose proof does not matter: hashes need more stack than a thread of a model has.
fn hello(rank: u32, world: u32) -> ToServer {
    let (challenge, proof) = ([8; 32], [9; 32]);
    ToServer::Hello(Greeting {
        rank,
        world,
        challenge,
        proof,
    })
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Runs the server and `others` concurrently with `own`, then stops the server.
fn with_server<T>(
    job: &Arc<Job>,
    others: Vec<Box<dyn FnOnce(&Job) + Send>>,
    own: impl FnOnce(&Job) -> T,
) -> T {
    let serving = {
        let job = job.clone();
        let mut sessions = SessionTable::of_members(job.clients.len());
        thread::spawn(move || job.serve(&mut sessions))
    };
    let others: Vec<_> = others
        .into_iter()
        .map(|other| {
            let job = job.clone();
            thread::spawn(move || other(&job))
        })
        .collect();
    let value = own(job);
    for other in others {
        other.join().unwrap();
    }
    job.post(Event::Stop);
    serving.join().unwrap();
    assert!(job.is_tidy());
    assert!(job.clients.iter().all(|client| client.failed().is_woken()));
    value
}

fn is_loss_of(outcome: &Outcome, rank: u32) -> bool {
    match outcome {
        Outcome::Answered(Answer::Failed(f)) => f.rank == rank && f.kind == FailureKind::Lost,
        _ => false,
    }
}

fn set(value: u8) -> Op {
    Op::Set {
        key: "k".into(),
        value: vec![value],
    }
}

fn get() -> Op {
    Op::Get { key: "k".into() }
}

#[test]
fn loom_a_wait_ends_by_its_value_or_by_the_servers_deadline() {
    explore(3, || {
        let job = Job::new(2);
        let set = |job: &Job| {
            let stored = job.ask(0, set(7));
            assert!(matches!(stored, Outcome::Answered(Answer::Done)));
        };
        let clock = |job: &Job| job.post(Event::Late);
        let got = with_server(&job, vec![Box::new(set), Box::new(clock)], |job| {
            job.ask(1, get())
        });
        match got {
            Outcome::Answered(Answer::Value(value)) => assert_eq!(value, [7]),
            Outcome::Answered(Answer::TimedOut { .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// The client's own deadline, for a store that does not answer, passes as the answer arrives.
#[test]
fn loom_an_answer_that_is_there_wins_over_the_deadline() {
    explore(4, || {
        let client = Arc::new(ClientRequests::<_, Watcher>::new(WakeFlag(
            AtomicBool::new(false),
        )));
        let id = client.register().unwrap();
        let peer = client.clone();
        let answering = thread::spawn(move || {
            let answer = Answer::Done;
            assert!(peer.receive(ToClient::Reply { id, answer }).is_none());
            peer.expire_waits();
        });
        let outcome = client.wait(id, Instant::now());
        assert!(
            matches!(outcome, Outcome::Answered(Answer::Done)),
            "{outcome:?}"
        );
        answering.join().unwrap();
        assert_eq!(client.pending(), 0);
    });
}

#[test]
fn loom_an_answer_after_the_deadline_is_dropped() {
    explore(4, || {
        let client = Arc::new(ClientRequests::<_, Watcher>::new(WakeFlag(
            AtomicBool::new(false),
        )));
        let id = client.register().unwrap();
        let (answerer, clock) = (client.clone(), client.clone());
        let answering = thread::spawn(move || {
            let answer = Answer::Done;
            assert!(answerer.receive(ToClient::Reply { id, answer }).is_none());
        });
        let striking = thread::spawn(move || clock.expire_waits());
        let outcome = client.wait(id, Instant::now());
        assert!(
            matches!(outcome, Outcome::Answered(Answer::Done) | Outcome::TimedOut),
            "{outcome:?}"
        );
        answering.join().unwrap();
        striking.join().unwrap();
        assert_eq!(client.pending(), 0);
    });
}

#[test]
fn loom_threads_of_a_rank_get_their_own_answers() {
    explore(2, || {
        let job = Job::new(1);
        let setting = |job: &Job| {
            assert!(matches!(
                job.ask(0, set(7)),
                Outcome::Answered(Answer::Done)
            ));
        };
        let pinging = |job: &Job| {
            assert!(matches!(
                job.ask(0, Op::Ping),
                Outcome::Answered(Answer::Done)
            ));
        };
        let got = with_server(&job, vec![Box::new(setting), Box::new(pinging)], |job| {
            job.ask(0, get())
        });
        assert!(matches!(got, Outcome::Answered(Answer::Value(v)) if v == [7]));
    });
}

#[test]
fn loom_a_lost_rank_ends_the_waits_of_the_others() {
    explore(2, || {
        let job = Job::new(3);
        let ended = |outcome: Outcome| {
            assert!(is_loss_of(&outcome, 2), "{outcome:?}");
        };
        let waiting = move |job: &Job| ended(job.barrier(0));
        let dying = |job: &Job| job.post(Event::Broken(2));
        with_server(&job, vec![Box::new(waiting), Box::new(dying)], |job| {
            ended(job.barrier(1));
            // The answer may arrive before the broadcast that sets the failure.
            let cause = job.clients[1].failure().map(|f| f.rank);
            assert!(cause.is_none_or(|rank| rank == 2));
        });
        let cause = job.clients[0].failure().unwrap();
        assert_eq!((cause.rank, cause.kind), (2, FailureKind::Lost));
    });
}

/// All ranks complete the barrier or none does, whenever the abort comes.
#[test]
fn loom_an_abort_during_a_barrier_is_the_same_for_all() {
    explore(2, || {
        let job = Job::new(2);
        let results = Arc::new(Mutex::new(Vec::new()));
        let complete = |outcome: Outcome| match outcome {
            Outcome::Answered(Answer::Gathered(all)) => {
                assert_eq!(all.decode().unwrap(), [[0], [1]]);
                true
            }
            Outcome::Answered(Answer::Failed(Failure {
                rank: 1,
                kind: FailureKind::Aborted,
                ..
            })) => false,
            other => panic!("{other:?}"),
        };
        let theirs = results.clone();
        let waiting = move |job: &Job| {
            let done = complete(job.barrier(0));
            theirs.lock().push(done);
        };
        let aborting = |job: &Job| {
            let message = "no memory".into();
            let done = job.ask(1, Op::Abort { message });
            assert!(matches!(done, Outcome::Answered(Answer::Done)));
        };
        let mine = with_server(&job, vec![Box::new(waiting), Box::new(aborting)], |job| {
            complete(job.barrier(1))
        });
        assert_eq!(*results.lock(), [mine]);
    });
}

/// The deadline of a barrier passes: all ranks complete it, or none does.
#[test]
fn loom_a_deadline_during_a_barrier_is_the_same_for_all() {
    explore(2, || {
        let job = Job::new(2);
        let results = Arc::new(Mutex::new(Vec::new()));
        let complete = |outcome: Outcome| match outcome {
            Outcome::Answered(Answer::Gathered(_)) => true,
            Outcome::Answered(Answer::TimedOut { .. } | Answer::Failed(_)) => false,
            other => panic!("{other:?}"),
        };
        let theirs = results.clone();
        let waiting = move |job: &Job| {
            let done = complete(job.barrier(0));
            theirs.lock().push(done);
        };
        let clock = |job: &Job| job.post(Event::Late);
        let mine = with_server(&job, vec![Box::new(waiting), Box::new(clock)], |job| {
            complete(job.barrier(1))
        });
        assert_eq!(*results.lock(), [mine]);
    });
}

#[test]
fn loom_the_end_of_the_store_ends_every_wait() {
    explore(3, || {
        let job = Job::new(2);
        let serving = {
            let job = job.clone();
            let mut sessions = SessionTable::of_members(2);
            thread::spawn(move || job.serve(&mut sessions))
        };
        let other = {
            let job = job.clone();
            thread::spawn(move || job.ask(1, get()))
        };
        job.post(Event::Stop);
        let mine = job.ask(1, Op::Ping);
        for outcome in [other.join().unwrap(), mine] {
            match outcome {
                Outcome::Ended(f) => assert_eq!((f.rank, f.kind), (0, FailureKind::Left)),
                Outcome::Answered(Answer::Done) => {}
                other => panic!("{other:?}"),
            }
        }
        serving.join().unwrap();
        assert!(job.is_tidy());
    });
}

/// A rank that breaks the protocol is refused, and lost to those who wait for it.
#[test]
fn loom_a_refused_rank_is_lost_to_the_others() {
    explore(3, || {
        let job = Job::new(2);
        let babbling = |job: &Job| {
            job.post(Event::Message(1, hello(1, 2)));
        };
        let outcome = with_server(&job, vec![Box::new(babbling)], |job| job.barrier(0));
        assert!(is_loss_of(&outcome, 1), "{outcome:?}");
        let end = job.clients[1].failure().unwrap();
        assert!(
            end.cause.contains(&Refusal::Malformed.to_string()),
            "{end:?}"
        );
    });
}

/// A rank without requests receives the loss once, whether it registers its watcher before or after.
#[test]
fn loom_whoever_watches_hears_of_a_lost_rank_once() {
    explore(3, || {
        let job = Job::new(2);
        let (early, late) = (Watcher::new(), Watcher::new());
        job.clients[0].watch(early.clone());
        let own = late.clone();
        let watching = move |job: &Job| job.clients[0].watch(own);
        with_server(&job, vec![Box::new(watching)], |job| {
            job.post(Event::Broken(1));
        });
        assert_eq!((early.calls(), late.calls()), ((1, 1), (1, 1)));
    });
}

/// The end of the connection is a loss of the rank that serves the store, unless it or this rank left
/// cleanly.
#[test]
fn loom_whoever_watches_hears_of_a_store_that_is_lost_and_of_no_goodbye() {
    let ends = [lost("the connection closed".into()), closed_here()];
    for (end, calls) in ends.into_iter().zip([(1, 0), (0, u32::MAX)]) {
        explore(4, move || {
            let client = Arc::new(ClientRequests::new(WakeFlag(AtomicBool::new(false))));
            let (early, late) = (Watcher::new(), Watcher::new());
            client.watch(early.clone());
            let reader = {
                let (client, end) = (client.clone(), end.clone());
                thread::spawn(move || client.close(end))
            };
            client.watch(late.clone());
            reader.join().unwrap();
            assert_eq!((early.calls(), late.calls()), (calls, calls));
        });
    }
}
