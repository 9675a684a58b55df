//! Jobs of real processes: the test binary starts itself again, and a variable tells a child what to do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use warpweave_comm::{CommError, Communicator, ExchangeError, Job, JobToken, Store};

const ROLE: &str = "WARPWEAVE_TEST_ROLE";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let result = Communicator::init().and_then(|comm| match role.as_str() {
        "barrier" => barrier(&comm),
        "agree" => comm.agree("shape", &(8, if comm.rank() == 1 { 17 } else { 16 })),
        "abort" => abort(&comm),
        "absent" => absent(&comm),
        "pipes" => pipes(&comm),
        "few descriptors" => few_descriptors(&comm),
        "cycles" => cycles(&comm),
        other => panic!("unknown role {other}"),
    });
    match result {
        Ok(()) => say("fine"),
        Err(e) => say(&format!("culprit {:?}: {e}", e.culprit())),
    }
}

fn say(line: &str) {
    println!("\nchild: {line}");
    let _ = std::io::stdout().flush();
}

/// One barrier, so that all have joined; then the highest rank waits to be killed while the others wait for
/// it.
fn barrier(comm: &Communicator) -> Result<(), CommError> {
    comm.barrier()?;
    say("ready");
    let victim: usize = std::env::var("VICTIM")
        .expect("the parent names it")
        .parse()
        .expect("a rank");
    if comm.rank() == victim {
        std::thread::sleep(Duration::from_secs(60));
    }
    comm.barrier_at("last")
}

fn abort(comm: &Communicator) -> Result<(), CommError> {
    comm.barrier()?;
    if comm.rank() == 1 {
        comm.abort("device 1 is out of memory");
        // Alive until the others have the message: so the message reaches them, and not the death.
        std::thread::sleep(Duration::from_secs(1));
        return Ok(());
    }
    comm.barrier()
}

fn absent(comm: &Communicator) -> Result<(), CommError> {
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_secs(2));
        return Ok(());
    }
    comm.barrier()
}

fn pipe_with(text: &str) -> OwnedFd {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    rustix::io::write(&write, text.as_bytes()).expect("room in the pipe");
    read
}

fn pipes(comm: &Communicator) -> Result<(), CommError> {
    let mine: Vec<_> = (0..comm.world())
        .map(|to| pipe_with(&format!("{} to {to}", comm.rank())))
        .collect();
    let fds: Vec<_> = mine.iter().map(AsFd::as_fd).collect();
    let all = comm.exchange().all_gather_fds("pipes", &fds)?;
    for (from, fds) in all.iter().enumerate() {
        let mut text = [0; 16];
        let n = rustix::io::read(&fds[comm.rank()], &mut text).expect("a pipe that was filled");
        assert_eq!(text[..n], *format!("{from} to {}", comm.rank()).as_bytes());
    }
    comm.barrier()
}

/// Rank 1 may not open as many descriptors as rank 2 gives.
fn few_descriptors(comm: &Communicator) -> Result<(), CommError> {
    comm.exchange().all_gather_fds("none yet", &[])?;
    if comm.rank() == 1 {
        let open = std::fs::read_dir("/proc/self/fd").expect("procfs").count() as u64;
        let limit = rustix::process::Rlimit {
            current: Some(open + 5),
            maximum: Some(open + 5),
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)
            .expect("lowering a limit");
    }
    let pipe = pipe_with("x");
    let fds = vec![pipe.as_fd(); if comm.rank() == 2 { 100 } else { 0 }];
    let failed = comm
        .exchange()
        .all_gather_fds("many", &fds)
        .expect_err("rank 1 lacks room");
    let ExchangeError::MissingDescriptor {
        rank: 2,
        expected: 100,
        got,
        ..
    } = failed
    else {
        panic!("{failed}");
    };
    assert!(got < 100);
    // The group lives on.
    let one = comm
        .exchange()
        .all_gather_fds("one", &fds[..fds.len().min(1)])?;
    assert_eq!(one.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1]);
    comm.barrier()
}

/// Many exchanges leave no descriptor behind.
fn cycles(comm: &Communicator) -> Result<(), CommError> {
    let count = || std::fs::read_dir("/proc/self/fd").expect("procfs").count();
    let pipe = pipe_with("x");
    comm.exchange().all_gather_fds("first", &[pipe.as_fd()])?;
    let before = count();
    for _ in 0..1000 {
        comm.exchange()
            .all_gather_fds("again", &[pipe.as_fd(), pipe.as_fd()])?;
    }
    assert_eq!(count(), before);
    comm.barrier()
}

struct Rank {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Rank {
    /// The child's next line.
    fn hears(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let n = self.lines.read_line(&mut line).expect("a readable pipe");
            assert!(
                n > 0,
                "the child ended without a word: {:?}",
                self.process.wait()
            );
            if let Some(message) = line.strip_prefix("child: ") {
                return message.trim().to_owned();
            }
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(role: &str, world: usize, env: &[(&str, &str)]) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0")
        .expect("a free port")
        .local_addr()
        .expect("its number")
        .port();
    let store = format!("127.0.0.1:{port}");
    (0..world)
        .map(|rank| {
            let mut process = Command::new(std::env::current_exe().expect("this binary"))
                .args(["--exact", "processes::child", "--nocapture"])
                .env(ROLE, role)
                .env("WARPWEAVE_RANK", rank.to_string())
                .env("WARPWEAVE_WORLD_SIZE", world.to_string())
                .env("WARPWEAVE_STORE", &store)
                .env("WARPWEAVE_JOB_TOKEN", "test job token")
                .env("WARPWEAVE_TIMEOUT", "20")
                .envs(env.iter().copied())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starting this binary");
            let lines = BufReader::new(process.stdout.take().expect("a pipe"));
            Rank { process, lines }
        })
        .collect()
}

fn killed_in_a_barrier(victim: usize) {
    let name = victim.to_string();
    let mut ranks = start("barrier", 3, &[("VICTIM", &name)]);
    for rank in &mut ranks {
        assert_eq!(rank.hears(), "ready");
    }
    // Long enough for the others to wait already.
    std::thread::sleep(Duration::from_millis(100));
    ranks[victim].process.kill().expect("SIGKILL");
    let killed = Instant::now();
    for (rank, child) in ranks
        .iter_mut()
        .enumerate()
        .filter(|(rank, _)| *rank != victim)
    {
        let message = child.hears();
        let expected =
            format!("culprit Some({victim}): rank {rank}: lost rank {victim} during `last`");
        assert!(message.starts_with(&expected), "{message}");
    }
    assert!(
        killed.elapsed() < Duration::from_secs(2),
        "{:?}",
        killed.elapsed()
    );
}

#[test]
fn a_killed_rank_ends_the_waits_of_the_others() {
    killed_in_a_barrier(2);
}

#[test]
fn so_does_the_killed_rank_that_serves_the_store() {
    killed_in_a_barrier(0);
}

#[test]
fn values_that_differ_are_shown_on_every_rank() {
    let mut ranks = start("agree", 3, &[]);
    let message: Vec<_> = ranks.iter_mut().map(Rank::hears).collect();
    assert!(
        message[0].contains("`shape` differs between ranks: (8, 16) on rank 0, (8, 17) on rank 1"),
        "{message:?}"
    );
    assert!(
        message[1].contains("(8, 17) on rank 1, (8, 16) on rank 0"),
        "{message:?}"
    );
    assert!(
        message[2].contains("(8, 16) on rank 2, (8, 17) on rank 1"),
        "{message:?}"
    );
}

#[test]
fn a_posted_failure_reaches_the_others_with_its_message() {
    let mut ranks = start("abort", 3, &[]);
    for rank in [0, 2] {
        let message = ranks[rank].hears();
        assert!(message.starts_with("culprit Some(1)"), "{message}");
        assert!(message.contains("device 1 is out of memory"), "{message}");
    }
    assert_eq!(ranks[1].hears(), "fine");
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    let mut ranks = start("absent", 2, &[("WARPWEAVE_TIMEOUT", "0.5")]);
    let message = ranks[0].hears();
    assert!(
        message.starts_with("culprit Some(1)") && message.contains("timed out after"),
        "{message}"
    );
}

#[test]
fn descriptors_cross_processes() {
    let mut ranks = start("pipes", 4, &[]);
    assert!(ranks.iter_mut().all(|rank| rank.hears() == "fine"));
}

#[test]
fn a_descriptor_that_could_not_be_received_fails_the_call_on_every_rank() {
    let mut ranks = start("few descriptors", 3, &[]);
    for rank in [0, 2, 1] {
        assert_eq!(ranks[rank].hears(), "fine", "rank {rank}");
    }
}

#[test]
fn exchanges_leave_no_descriptors_behind() {
    let mut ranks = start("cycles", 2, &[]);
    assert!(ranks.iter_mut().all(|rank| rank.hears() == "fine"));
}

#[test]
fn strangers_are_refused_and_the_job_goes_on() {
    let stores = Store::threads(2).expect("a job");
    let address = stores[0].serving_at().expect("rank 0 serves");
    let joining = |rank, world, token: &str| {
        let token = JobToken::new(token).expect("long enough");
        let job = Job::new(rank, world, address.to_string(), token).expect("a place");
        match Store::join(&job.with_timeout(Duration::from_secs(5))) {
            Err(CommError::Refused { reason, .. }) => reason.to_string(),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("admitted"),
        }
    };
    assert!(joining(1, 2, "another job's token").contains("wrong job token"));
    assert!(
        joining(1, 3, "another job's token").contains("wrong job token"),
        "the token is asked for first"
    );
    stores[1].set("still", b"here").expect("a working store");
}

#[test]
fn a_second_process_of_the_same_rank_and_another_world_are_refused() {
    let token = JobToken::random().expect("randomness");
    let any = "127.0.0.1:0".parse().expect("an address");
    let server = warpweave_comm::StoreServer::bind(any, 4, token.clone()).expect("a server");
    let join = |rank, world| {
        Store::join(
            &Job::new(rank, world, server.address().to_string(), token.clone()).expect("a place"),
        )
    };
    let _first = join(1, 4).expect("a free rank");
    let refused = |result: Result<Store, CommError>| match result {
        Err(CommError::Refused { reason, .. }) => reason.to_string(),
        _ => panic!("should be refused"),
    };
    assert!(refused(join(1, 4)).contains("joined already"));
    assert!(refused(join(2, 3)).contains("a job of 4 ranks"));
}

#[test]
fn a_rank_that_joins_after_the_failure_hears_of_it_and_of_its_cause() {
    let token = JobToken::random().expect("randomness");
    let any = "127.0.0.1:0".parse().expect("an address");
    let server = warpweave_comm::StoreServer::bind(any, 3, token.clone()).expect("a server");
    let address = server.address().to_string();
    let join =
        |rank| Store::join(&Job::new(rank, 3, address.as_str(), token.clone()).expect("a place"));
    let one = join(1).expect("a free rank");
    one.abort("no device").expect("a store");
    let closing = std::thread::spawn(move || drop(server));
    std::thread::sleep(Duration::from_millis(200));
    let error = join(2)
        .expect("the store lingers")
        .gather("s", 1, "x", b"")
        .expect_err("the job has failed");
    assert!(
        matches!(&error, CommError::PeerFailed { peer: 1, cause, .. } if cause == "no device"),
        "{error}"
    );
    closing.join().expect("no panic");
}

#[test]
fn oversized_and_malformed_messages_are_refused() {
    let stores = Store::threads(2).expect("a job");
    let address = stores[0].serving_at().expect("rank 0 serves");
    let ends = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("a listener");
        stream
            .set_read_timeout(Some(Duration::from_secs(4)))
            .expect("a timeout");
        stream.write_all(bytes).expect("room to send");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the store hangs up");
        assert!(!answer.is_empty(), "a refusal says why");
    };
    ends(b"WW\x01\x00\xff\xff\xff\xff");
    ends(b"WW\x01\x00\x01\x02\x00\x00");
    ends(b"WW\x63\x00\x01\x00\x00\x00x");
    ends(b"GET / HTTP/1.1\r\n\r\n");
    let error = stores[1]
        .set("large", &vec![0; (1 << 20) + 1])
        .expect_err("above the limit");
    assert!(
        matches!(
            error,
            CommError::TooLarge {
                size: 1_048_577,
                limit: 1_048_576,
                ..
            }
        ),
        "{error}"
    );
    let error = stores[1]
        .set(&"k".repeat(2000), b"")
        .expect_err("above the limit");
    assert!(matches!(error, CommError::Rejected { .. }), "{error}");
    stores[1]
        .set("fits", &vec![7; 1 << 20])
        .expect("at the limit");
    assert_eq!(stores[0].get("fits").expect("stored").len(), 1 << 20);
}

#[test]
fn a_stranger_that_says_nothing_is_dropped_and_holds_nothing_up() {
    let stores = Store::threads(1).expect("a job");
    let mut stream =
        TcpStream::connect(stores[0].serving_at().expect("serving")).expect("a listener");
    stream
        .set_read_timeout(Some(Duration::from_secs(8)))
        .expect("a timeout");
    assert!(stores[0].ping().expect("an answer") < Duration::from_secs(1));
    // A header and what it is to prove itself with.
    stream.read_exact(&mut [0; 41]).expect("a challenge");
    assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
}

#[test]
fn waits_from_several_threads_of_a_rank_do_not_hold_each_other_up() {
    let store = Store::threads(1).expect("a job").pop().expect("one rank");
    std::thread::scope(|s| {
        let waiting = s.spawn(|| store.get("later"));
        std::thread::sleep(Duration::from_millis(20));
        store.set("later", b"now").expect("the connection is free");
        assert_eq!(waiting.join().expect("no panic").expect("a value"), b"now");
    });
    let start = Instant::now();
    let error = store
        .get_within("never", Duration::from_millis(50))
        .expect_err("nobody sets it");
    assert!(matches!(error, CommError::Timeout { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn dropping_ends_soon_even_under_waits() {
    let mut stores = Store::threads(2).expect("a job");
    let b = stores.pop().expect("two ranks");
    let waiting = std::thread::spawn(move || b.get("never"));
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    drop(stores);
    let error = waiting
        .join()
        .expect("no panic")
        .expect_err("the store is closed");
    assert!(
        matches!(error, CommError::PeerLost { peer: 0, .. }),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
}
