use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::link::{Link, Trouble};
use super::*;

fn group(world: usize) -> Vec<LocalExchange> {
    let stores = Store::threads(world).unwrap();
    stores
        .into_iter()
        .map(|store| LocalExchange::new(Arc::new(store), "test"))
        .collect()
}

fn pipe_with(content: &[u8]) -> OwnedFd {
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&write, content).unwrap();
    read
}

fn content(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 16];
    let n = rustix::io::read(fd, &mut bytes).unwrap();
    bytes[..n].to_vec()
}

#[test]
fn descriptors_reach_every_rank_in_order() {
    std::thread::scope(|s| {
        for ex in group(3) {
            s.spawn(move || {
                // Rank 0 gives none, rank 2 more than one packet holds. Each reader empties one pipe of each rank.
                for round in 0..3u8 {
                    let me = ex.rank();
                    let pipes: Vec<_> = (0..me * 70)
                        .map(|n| pipe_with(&[me as u8, n as u8, round].repeat(3)))
                        .collect();
                    let fds: Vec<_> = pipes.iter().map(AsFd::as_fd).collect();
                    let all = ex.all_gather_fds("pipes", &fds).unwrap();
                    ex.barrier("all have them").unwrap();
                    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [0, 70, 140]);
                    for (rank, fds) in all.iter().enumerate() {
                        for (n, fd) in fds.iter().enumerate().filter(|(n, _)| n % 3 == me) {
                            assert_eq!(content(fd)[..3], [rank as u8, n as u8, round]);
                        }
                    }
                    ex.barrier("read").unwrap();
                }
            });
        }
    });
}

#[test]
fn bytes_and_descriptors_at_the_same_tag_are_told_apart() {
    let mut group = group(2);
    let (b, a) = (group.pop().unwrap(), group.pop().unwrap());
    let other = std::thread::spawn(move || b.all_gather("x", b"abc").map(drop));
    let error = a.all_gather_fds("x", &[]).unwrap_err();
    assert!(
        matches!(error, ExchangeError::Mismatch { rank: 1, .. }),
        "{error}"
    );
    other.join().unwrap().unwrap();
}

#[test]
fn too_many_descriptors_are_refused_on_every_rank() {
    let pipe = pipe_with(b"x");
    std::thread::scope(|s| {
        for ex in group(2) {
            let pipe = &pipe;
            s.spawn(move || {
                let fds = vec![
                    pipe.as_fd();
                    if ex.rank() == 1 {
                        MOST_DESCRIPTORS + 1
                    } else {
                        0
                    }
                ];
                let error = ex.all_gather_fds("many", &fds).unwrap_err().to_string();
                assert!(error.contains("number of descriptors of rank 1"), "{error}");
            });
        }
    });
}

#[test]
fn one_rank_alone_gets_duplicates() {
    let ex = group(1).pop().unwrap();
    let pipe = pipe_with(b"x");
    let all = ex.all_gather_fds("own", &[pipe.as_fd()]).unwrap();
    assert_eq!(content(&all[0][0]), b"x");
}

#[test]
fn a_link_ends_by_its_deadline_by_a_call_and_by_the_peer() {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (a, b) = (Link { socket: a }, b);
    let (quiet, _writer) = rustix::pipe::pipe().unwrap();
    let soon = || std::time::Instant::now() + Duration::from_millis(20);
    assert!(matches!(
        a.receive(quiet.as_fd(), soon()),
        Err(Trouble::Late)
    ));
    let rung = pipe_with(b"x");
    assert!(matches!(
        a.receive(rung.as_fd(), soon()),
        Err(Trouble::Called)
    ));
    // A peer that reads nothing: the socket fills, and the sender does not hang.
    let filled = std::iter::repeat_with(|| a.send(&[1; 200], &[], quiet.as_fd(), soon()))
        .take(100_000)
        .find_map(Result::err);
    assert!(matches!(filled, Some(Trouble::Late)), "{filled:?}");
    drop(b);
    assert!(matches!(
        a.receive(quiet.as_fd(), soon()),
        Err(Trouble::Closed)
    ));
    assert!(matches!(
        a.send(&[1], &[], quiet.as_fd(), soon()),
        Err(Trouble::Closed)
    ));
}
