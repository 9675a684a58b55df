//! The corpus and seeded mutations of it, through the entries of the fuzz targets.

use std::path::Path;
use std::time::{Duration, Instant};

use super::store::hello;
use super::*;
use crate::store::wire::{Op, ToServer, encode};
use fastrand::Rng;

/// Mutations for each entry, or fewer on a slow machine, where `LONGEST` ends them.
const RUNS: usize = 60_000;
const LONGEST: Duration = Duration::from_secs(4);

/// Numbers at the edges of lengths, varints and limits.
const EDGES: [&[u8]; 9] = [
    &[0],
    &[0xff],
    &[0x7f],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
    &[0xff, 0xff, 0xff, 0xff],
    &[0, 0, 0, 0x80],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    b"WW\x01\x00",
    b"=",
];

fn mutate(dice: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[dice.usize(..corpus.len())].clone();
    for _ in 0..=dice.usize(..5) {
        let at = dice.usize(..=bytes.len());
        match dice.usize(..8) {
            0 if !bytes.is_empty() => {
                let at = at.min(bytes.len() - 1);
                bytes[at] ^= 1 << dice.usize(..8);
            }
            1 if !bytes.is_empty() => {
                let at = at.min(bytes.len() - 1);
                bytes[at] = dice.u8(..);
            }
            2 => bytes.truncate(at),
            3 => {
                let end = at + dice.usize(..=bytes.len() - at);
                bytes.drain(at..end);
            }
            4 => {
                let edge = EDGES[dice.usize(..EDGES.len())];
                bytes.splice(at..at, edge.iter().copied());
            }
            5 => {
                let edge = EDGES[dice.usize(..EDGES.len())];
                let end = (at + edge.len()).min(bytes.len());
                bytes.splice(at..end, edge.iter().copied());
            }
            6 => {
                let end = at + dice.usize(..=bytes.len() - at);
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let other = &corpus[dice.usize(..corpus.len())];
                let from = dice.usize(..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

/// The files of `tests/corpus/<name>`.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus is checked in")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let read = |path| std::fs::read(path).expect("a readable file");
    files.into_iter().map(read).collect()
}

fn fuzz(name: &str, seed: u64, entry: fn(&[u8])) {
    let corpus = corpus(name);
    corpus.iter().for_each(|bytes| entry(bytes));
    let (mut dice, start) = (Rng::with_seed(seed), Instant::now());
    for run in 0..RUNS {
        if start.elapsed() > LONGEST {
            break;
        }
        let bytes = mutate(&mut dice, &corpus);
        if std::panic::catch_unwind(|| entry(&bytes)).is_err() {
            panic!("{name}: run {run} of seed {seed} breaks a promise: {bytes:02x?}");
        }
    }
}

#[test]
fn frames_hold_under_mutation() {
    fuzz("frames", 1, frames);
}

#[test]
fn sessions_hold_under_mutation() {
    fuzz("session", 2, session);
}

#[test]
fn packets_hold_under_mutation() {
    fuzz("packets", 3, packets);
}

#[test]
fn places_hold_under_mutation() {
    fuzz("places", 4, places);
}

/// A frame as it stands in a session's bytes.
fn sent(connection: u8, message: &ToServer) -> Vec<u8> {
    let frame = encode(message, "a frame", 1 << 16).expect("a small one");
    let mut bytes = vec![connection];
    bytes.extend((frame.len() as u16).to_le_bytes());
    bytes.extend(frame);
    bytes
}

fn request(id: u64, op: Op) -> ToServer {
    ToServer::Request {
        id,
        timeout_ms: 500,
        op,
    }
}

fn every_op() -> Vec<Op> {
    let (key, value) = (String::from("k"), vec![1, 2, 3]);
    vec![
        Op::Ping,
        Op::Get { key: key.clone() },
        Op::Wait {
            keys: vec![key.clone(), "l".into()],
        },
        Op::Set {
            key: key.clone(),
            value: value.clone(),
        },
        Op::Add {
            key: "n".into(),
            delta: i64::MIN,
        },
        Op::CompareAndSet {
            key,
            expected: Some(value.clone()),
            value: vec![],
        },
        Op::AllGather {
            scope: "s".into(),
            call: 1,
            tag: "t".into(),
            bytes: value,
        },
        Op::Abort {
            message: "over".into(),
        },
    ]
}

/// The corpus is what the code says that it is: with `WARPWEAVE_BLESS` set it is written anew.
#[test]
fn the_corpus_speaks_the_present_protocol() {
    let session: Vec<u8> = std::iter::once(sent(0, &hello(2)))
        .chain(
            (1..)
                .zip(every_op())
                .map(|(id, op)| sent(0, &request(id, op))),
        )
        .chain([
            sent(0, &ToServer::Goodbye),
            vec![1, 0xff, 0xff],
            vec![0, 0, 0],
        ])
        .flatten()
        .collect();
    let greeting = sent(0, &hello(2));
    let (half, _) = greeting.split_at(greeting.len() / 2);
    let frames = |chunk: u8| {
        let messages = (1..).zip(every_op()).map(|(id, op)| request(id, op));
        let frames = messages
            .chain([hello(1), ToServer::Goodbye])
            .flat_map(|m| encode(&m, "a frame", 1 << 16).expect("a small one"));
        std::iter::once(chunk).chain(frames).collect::<Vec<u8>>()
    };
    let mut expected = vec![
        ("session/member", session),
        ("session/half-a-greeting", half.to_vec()),
        (
            "session/two-strangers",
            [sent(0, &hello(2)), sent(1, &hello(2))].concat(),
        ),
        ("frames/whole", frames(255)),
        ("frames/byte-by-byte", frames(0)),
    ];
    expected.extend(crate::exchange::samples());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for (name, bytes) in expected {
        let path = root.join(name);
        if std::env::var_os("WARPWEAVE_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
            std::fs::write(&path, &bytes).expect("a writable corpus");
        }
        let held = std::fs::read(&path).expect("the corpus is checked in");
        assert!(
            held == bytes,
            "{name} is out of date: run the test with WARPWEAVE_BLESS=1"
        );
    }
}
