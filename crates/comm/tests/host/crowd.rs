//! The largest job: what its exchanges take of the store's memory at their peak.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::hostile::{CHALLENGE, TOKEN, challenged, frame, server};

const RANKS: usize = 4096;

/// What each rank gives to the all-gather. All replies have 150 MB, which a busy machine reads within the ten
/// seconds after which a connection that reads nothing is given up.
const BYTES: usize = 8;

/// The limit for everything: the sessions of all ranks, and every reply.
const MOST: usize = 64 << 20;

const ROLE: &str = "WARPWEAVE_TEST_ROLE";
const CROWD: &str = "a crowd";

/// In a process of its own, since its memory is measured.
#[test]
fn as_many_ranks_as_can_be_exchange_in_little_memory() {
    let output = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "crowd::child", "--nocapture"])
        .env(ROLE, CROWD)
        .output()
        .expect("starting this binary");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    println!("{text}");
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("child: measured") || text.contains("child: skipped"),
        "{text}"
    );
}

/// Not a test of its own: the process of the test above.
#[test]
fn child() {
    if std::env::var(ROLE).is_ok_and(|role| role == CROWD) {
        measure();
    }
}

fn measure() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let needed = 2 * RANKS as u64 + 200;
    if limit.maximum.is_some_and(|most| most < needed) {
        println!(
            "child: skipped: {RANKS} ranks of one process need more descriptors than {limit:?}"
        );
        return;
    }
    let before = status("VmRSS:");
    let server = server(RANKS);
    let mut ranks: Vec<TcpStream> = (0..RANKS).map(|rank| join(&server, rank)).collect();
    let joined = status("VmHWM:");

    // The fifth operation: an all-gather of a scope, a call, a tag and bytes.
    let barrier = frame(&[1, 1, 0xff, 0x7f, 5, 1, b's', 1, 1, b't', 0]);
    for stream in &mut ranks {
        stream.write_all(&barrier).expect("room");
    }
    for stream in &mut ranks {
        let empty = answer(stream, 1) == [0; RANKS];
        assert!(empty, "an empty message of each rank");
    }
    let met = status("VmHWM:");

    for (rank, stream) in ranks.iter_mut().enumerate() {
        let head = [1, 2, 0xff, 0x7f, 5, 1, b's', 2, 1, b't', BYTES as u8];
        let gather = frame(&[head.as_slice(), &given(rank)].concat());
        stream.write_all(&gather).expect("room");
    }
    let expected: Vec<u8> = (0..RANKS)
        .flat_map(|rank| [&[BYTES as u8], given(rank).as_slice()].concat())
        .collect();
    for (rank, stream) in ranks.iter_mut().enumerate() {
        let answer = answer(stream, 2);
        assert!(
            answer == expected,
            "rank {rank} has not what all ranks gave"
        );
    }
    let gathered = status("VmHWM:");

    let [joined, met, gathered] = [joined, met, gathered].map(|peak| peak - before);
    let kib = |bytes: usize| bytes >> 10;
    println!(
        "child: measured: {RANKS} ranks take {} KiB to join, {} with a barrier, {} with an all-gather of \
         {BYTES} bytes each",
        kib(joined),
        kib(met),
        kib(gathered)
    );
    assert!(gathered < MOST, "{gathered}");
}

/// What `rank` gives.
fn given(rank: usize) -> [u8; BYTES] {
    std::array::from_fn(|index| (rank * 31 + index) as u8)
}

/// Ranks above 127 take two bytes each.
fn varint(n: u16) -> Vec<u8> {
    match n {
        0..=127 => vec![n as u8],
        _ => vec![n as u8 | 0x80, (n >> 7) as u8],
    }
}

fn join(server: &warpweave_comm::StoreServer, rank: usize) -> TcpStream {
    let (mut stream, challenge) = challenged(server.address());
    // A busy machine takes long to answer so many.
    let patience = Duration::from_secs(120);
    stream.set_read_timeout(Some(patience)).expect("a timeout");
    let own = [5; 32];
    let key = blake3::derive_key("warpweave connections", TOKEN.as_bytes());
    let purpose = ((rank as u64) << 32 | RANKS as u64).to_le_bytes();
    let proved = [b"guest", challenge.as_slice(), &own, &purpose].concat();
    let proof = blake3::keyed_hash(&key, &proved);
    let place = [vec![0], varint(rank as u16), varint(RANKS as u16)].concat();
    let greeting = frame(&[&place, own.as_slice(), proof.as_bytes()].concat());
    stream.write_all(&greeting).expect("room");
    let mut welcome = [0; CHALLENGE];
    stream.read_exact(&mut welcome).expect("a welcome");
    assert_eq!(welcome[8], 1, "rank {rank}");
    stream
}

/// The messages in the reply to an all-gather, after their number: as many as ranks.
fn answer(stream: &mut TcpStream, request: u8) -> Vec<u8> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).expect("an answer");
    let [.., a, b, c, d] = header;
    let mut answer = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
    stream.read_exact(&mut answer).expect("all of it");
    assert_eq!(answer[..3], [3, request, 4], "an all-gather");
    // What is encoded once for all ranks, after its length.
    let length = answer[3..]
        .iter()
        .position(|byte| byte & 0x80 == 0)
        .expect("a length")
        + 1;
    let messages = answer.split_off(3 + length);
    let count = varint(RANKS as u16);
    assert!(messages.starts_with(&count));
    messages[count.len()..].to_vec()
}

/// A figure of this process's memory in bytes: what it has now, or the most that it had.
fn status(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.expect("a figure of memory") << 10
}
