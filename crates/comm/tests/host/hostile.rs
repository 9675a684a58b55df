//! A store under attack: whatever unauthenticated connections send, the ranks are served and those
//! connections are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use warpweave_comm::{Job, JobToken, Store, StoreServer};

pub const TOKEN: &str = "a token of these tests";
/// Five seconds to greet, and one to close.
const GONE: Duration = Duration::from_secs(8);

pub fn server(world: usize) -> StoreServer {
    let any = "127.0.0.1:0".parse().expect("an address");
    StoreServer::bind(any, world, JobToken::new(TOKEN).expect("long enough")).expect("a server")
}

fn join(server: &StoreServer, rank: usize, world: usize) -> Store {
    let token = JobToken::new(TOKEN).expect("long enough");
    let job = Job::new(rank, world, server.address().to_string(), token).expect("a place");
    Store::join(&job).expect("a welcome")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a listener");
    stream.set_read_timeout(Some(GONE)).expect("a timeout");
    stream.set_write_timeout(Some(GONE)).expect("a timeout");
    stream
}

/// Bytes of the store's challenge, and of its welcome: a header, the message's kind, and 32 bytes.
pub const CHALLENGE: usize = 8 + 1 + 32;

pub fn frame(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [b"WW\x02\x00".as_slice(), &length, payload].concat()
}

/// The greeting of who knows `token` and was sent `challenge`.
fn hello(challenge: &[u8], token: &str, rank: u8, world: u8) -> Vec<u8> {
    let own = [5; 32];
    let key = blake3::derive_key("warpweave connections", token.as_bytes());
    let purpose = (u64::from(rank) << 32 | u64::from(world)).to_le_bytes();
    let proved = [b"guest", challenge, &own, &purpose].concat();
    let proof = blake3::keyed_hash(&key, &proved);
    frame(&[&[0, rank, world], own.as_slice(), proof.as_bytes()].concat())
}

/// A connection, and what the store challenges it with.
pub fn challenged(address: SocketAddr) -> (TcpStream, Vec<u8>) {
    let mut stream = connect(address);
    let mut bytes = [0; CHALLENGE];
    stream.read_exact(&mut bytes).expect("a challenge");
    (stream, bytes[9..].to_vec())
}

/// How long until the other end closes.
fn ends(stream: &mut TcpStream) -> Duration {
    let start = Instant::now();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return start.elapsed(),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return start.elapsed(),
            Err(e) => panic!("still open after {:?}: {e}", start.elapsed()),
        }
    }
}

#[test]
fn silent_and_slow_strangers_go_and_hold_nobody_up() {
    let server = server(3);
    let store = join(&server, 2, 3);
    let (mut slow, challenge) = challenged(server.address());
    let greeting = hello(&challenge, TOKEN, 1, 3);
    let starts: [&[u8]; 4] = [&[], b"WW", &greeting[..8], &greeting[..greeting.len() - 1]];
    let dripping = greeting.clone();
    let drip = std::thread::spawn(move || {
        // A byte now and then does not buy more time.
        let start = Instant::now();
        for byte in dripping {
            if slow.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(400));
        }
        ends(&mut slow);
        start.elapsed()
    });
    let mut strangers: Vec<_> = starts
        .map(|bytes| {
            let mut stream = connect(server.address());
            stream.write_all(bytes).expect("room to send");
            stream
        })
        .into();
    for _ in 0..20 {
        assert!(store.ping().expect("an answer") < Duration::from_secs(1));
    }
    let start = Instant::now();
    strangers.iter_mut().for_each(|s| {
        ends(s);
    });
    assert!(start.elapsed() < GONE);
    assert!(drip.join().expect("no panic") < 2 * GONE);
    store.ping().expect("still served");
}

#[test]
fn a_rank_joins_through_a_flood_of_strangers() {
    let server = server(3);
    let flood: Vec<_> = (0..300).map(|_| connect(server.address())).collect();
    let stores = [join(&server, 1, 3), join(&server, 2, 3)];
    stores[0].set("key", b"value").expect("served");
    let more: Vec<_> = (0..300).map(|_| connect(server.address())).collect();
    assert_eq!(stores[1].get("key").expect("served"), b"value");
    assert!(stores[1].ping().expect("served") < Duration::from_secs(1));
    drop((flood, more));
}

#[test]
fn spoilt_greetings_over_sockets_end_and_hurt_nobody() {
    let server = server(3);
    let store = join(&server, 2, 3);
    let mut dice = Rng::with_seed(11);
    let mut open = Vec::new();
    for _ in 0..300 {
        let (mut stream, challenge) = challenged(server.address());
        let mut bytes = hello(&challenge, "another job's token", 1, 3);
        for _ in 0..=dice.usize(..4) {
            let at = dice.usize(..bytes.len());
            bytes[at] = dice.u8(..);
        }
        bytes.truncate(1 + dice.usize(..bytes.len()));
        stream.write_all(&bytes).expect("room to send");
        open.push(stream);
        if open.len() == 40 {
            store.ping().expect("served");
            open.clear();
        }
    }
    // A message larger than a greeting is not even read to its end.
    for claimed in [513u32, 1 << 20, u32::MAX] {
        let mut stream = connect(server.address());
        let header = [b"WW\x02\x00".as_slice(), &claimed.to_le_bytes()].concat();
        stream.write_all(&header).expect("room to send");
        assert!(ends(&mut stream) < Duration::from_secs(2));
    }
    let other = join(&server, 1, 3);
    other.set("k", b"v").expect("served");
    assert_eq!(store.get("k").expect("served"), b"v");
}

#[test]
fn a_member_that_babbles_is_served_without_starving_the_others() {
    let server = server(3);
    let store = join(&server, 2, 3);
    let (mut babbler, challenge) = challenged(server.address());
    babbler
        .write_all(&hello(&challenge, TOKEN, 1, 3))
        .expect("room");
    let mut reader = babbler.try_clone().expect("a descriptor");
    // It babbles while the other rank calls, so that a slow machine takes longer and makes no fewer calls.
    const CALLS: usize = 100;
    let (are_over, expected) = (AtomicBool::new(false), AtomicUsize::new(usize::MAX));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut total, mut chunk) = (0, [0; 1 << 16]);
            while total < expected.load(Ordering::Acquire) {
                match reader.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(n) => total += n,
                    Err(e) => panic!("no answer after {total} bytes: {e}"),
                }
            }
            total
        });
        scope.spawn(|| {
            let ping = frame(&[1, 1, 1, 7]);
            let (some, mut pings) = (ping.repeat(1000), 1);
            while !are_over.load(Ordering::Relaxed) {
                babbler.write_all(&some).expect("it is read");
                pings += 1000;
            }
            // The welcome, and eleven bytes of each answer: reply, id, done. Stored before the last ping,
            // whose answer ends the reading.
            expected.store(CHALLENGE + 11 * pings, Ordering::Release);
            babbler.write_all(&ping).expect("it is read");
        });
        let pings: Result<Vec<_>, _> = (0..CALLS).map(|_| store.ping()).collect();
        are_over.store(true, Ordering::Relaxed);
        let worst = pings.expect("served").into_iter().max();
        assert!(worst < Some(Duration::from_secs(2)), "{worst:?}");
        let total = reading.join().expect("no panic");
        assert_eq!(total, expected.load(Ordering::Acquire));
    });
}

#[test]
fn a_taken_address_is_an_error_that_says_what_to_do() {
    let serve = |address| StoreServer::bind(address, 2, JobToken::random().expect("a token"));
    let earlier = serve("127.0.0.1:0".parse().expect("an address")).expect("a server");
    let error = serve(earlier.address()).err().expect("a taken address");
    let error = error.to_string();
    assert!(error.contains("another WARPWEAVE_STORE"), "{error}");
}

/// A token derived from a launcher's job id is not secret, so the store asks the kernel which user is
/// calling. If the tests run as root, another user calls, and knows the token.
#[test]
fn with_a_token_that_is_no_secret_only_the_own_user_gets_in() {
    let place = |rank: usize| {
        Job::from_lookup(|name| {
            let value = match name {
                "OMPI_COMM_WORLD_RANK" | "OMPI_COMM_WORLD_LOCAL_RANK" => rank.to_string(),
                "OMPI_COMM_WORLD_SIZE" | "OMPI_COMM_WORLD_LOCAL_SIZE" => "3".into(),
                "PMIX_NAMESPACE" => "job".into(),
                "WARPWEAVE_STORE" => "127.0.0.1:1".into(),
                _ => return None,
            };
            Some(value)
        })
        .expect("a place")
    };
    let known = place(1).token().clone();
    let any = "127.0.0.1:0".parse().expect("an address");
    let server = StoreServer::bind(any, 3, known.clone()).expect("a server");
    let address = server.address().to_string();
    let own = Job::new(2, 3, &address, known.clone()).expect("a place");
    let own = Store::join(&own).expect("the own user is let in");
    if rustix::process::geteuid().is_root() {
        let token = String::from_utf8(known.as_bytes().to_vec()).expect("text");
        let octal: String = hello(&[0; 32], &token, 1, 3)
            .iter()
            .map(|b| format!("\\{b:03o}"))
            .collect();
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; printf '{octal}' >&3; cat <&3",
            server.address().port()
        );
        let message = std::os::unix::process::CommandExt::uid(
            std::process::Command::new("bash").args(["-c", &script]),
            65534,
        )
        .output()
        .expect("bash");
        // Refused, because of its user: the messages' third kind and the refusals' eighth.
        assert_eq!(message.stdout[CHALLENGE..], frame(&[2, 7]), "{message:?}");
    }
    own.ping().expect("served");
}

/// The proof of one connection is of no use on another, whoever has seen it.
#[test]
fn a_greeting_that_was_overheard_admits_nobody() {
    let server = server(3);
    let (mut own, challenge) = challenged(server.address());
    let greeting = hello(&challenge, TOKEN, 1, 3);
    let (mut other, _) = challenged(server.address());
    other.write_all(&greeting).expect("room");
    let mut refused = Vec::new();
    other.read_to_end(&mut refused).expect("an answer");
    assert_eq!(refused[..9], frame(&[2, 0])[..9], "{refused:?}");
    own.write_all(&greeting).expect("room");
    let mut welcome = [0; CHALLENGE];
    own.read_exact(&mut welcome).expect("a welcome");
    assert_eq!(welcome[8], 1);
    assert!(
        !greeting
            .windows(TOKEN.len())
            .any(|part| part == TOKEN.as_bytes())
    );
}
