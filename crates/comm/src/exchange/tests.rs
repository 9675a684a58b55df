use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::link::{FLAGS, Greeting, LARGEST_PACKET, Link, LinkError};
use super::pending::PendingConnections;
use super::*;
use crate::network::Network;
use warpweave_symm_mem::{Error, agree};

fn group(world: usize) -> Vec<LocalExchange> {
    let stores = Store::threads(world).unwrap();
    stores
        .into_iter()
        .map(|store| LocalExchange::new(Arc::new(store), "test"))
        .collect()
}

/// Runs `member` on each of three ranks that wait for each other as long as this. Nobody leaves before all
/// have ended: who leaves is lost to the others.
fn three(patience: Duration, member: impl Fn(&LocalExchange) + Sync) {
    std::thread::scope(|s| {
        let (jobs, member) = (crate::Job::threads(3).unwrap(), &member);
        let run = |(job, server): (crate::Job, _)| {
            s.spawn(move || {
                let store = Store::adopt(&job.with_timeout(patience), server).unwrap();
                let exchange = LocalExchange::new(Arc::new(store), "test");
                member(&exchange);
                exchange
            })
        };
        let ranks: Vec<_> = jobs.into_iter().map(run).collect();
        let _exchanges: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    });
}

fn assert_rank_2_is_missed(error: &ExchangeError) {
    let is_missed = matches!(error, ExchangeError::Timeout { waiting_for, .. }
        if waiting_for.contains(&2));
    assert!(is_missed, "{error}");
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
                // Rank 0 gives none, rank 2 more than one packet holds. Each reader empties one pipe of each
                // rank.
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
fn a_mark_names_the_rank_that_left_it_first() {
    let group = group(3);
    assert_eq!(group[0].mark("late", false).unwrap(), None);
    assert_eq!(group[2].mark("late", true).unwrap(), Some(2));
    for exchange in &group {
        assert_eq!(exchange.mark("late", true).unwrap(), Some(2));
        assert_eq!(exchange.mark("lost", false).unwrap(), None);
    }
}

/// One that has no descriptor left for its socket.
#[test]
fn a_rank_that_cannot_listen_is_named_at_once() {
    let exchange = &group(2)[0];
    let failed = mesh::encode(&mesh::Said::<()>::Err("no descriptors".into())).unwrap();
    let mut gather =
        |_: &str, own: &[u8], _: Option<&CommError>| Ok(vec![own.to_vec(), failed.clone()]);
    let opened = mesh::Mesh::open(&exchange.store, &mut gather);
    let error = opened.err().expect("rank 1 does not listen");
    assert!(
        matches!(&error, CommError::PeerFailed { peer: 1, cause, .. } if cause == "no descriptors"),
        "{error}"
    );
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
        Err(LinkError::TimedOut)
    ));
    let rung = pipe_with(b"x");
    assert!(matches!(
        a.receive(rung.as_fd(), soon()),
        Err(LinkError::Interrupted)
    ));
    // A peer that reads nothing: the socket fills, and the sender does not hang.
    let filled = std::iter::repeat_with(|| a.send(&[1; 200], &[], quiet.as_fd(), soon()))
        .take(100_000)
        .find_map(Result::err);
    assert!(matches!(filled, Some(LinkError::TimedOut)), "{filled:?}");
    drop(b);
    assert!(matches!(
        a.receive(quiet.as_fd(), soon()),
        Err(LinkError::Closed)
    ));
    assert!(matches!(
        a.send(&[1], &[], quiet.as_fd(), soon()),
        Err(LinkError::Closed)
    ));
}

fn pair() -> (Link, Link) {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
    (Link { socket: a }, Link { socket: b })
}

/// Whether all copies of the other end of the pipe are closed.
fn is_closed(read: &OwnedFd) -> bool {
    rustix::io::ioctl_fionbio(read, true).unwrap();
    rustix::io::read(read, &mut [0; 1]) == Ok(0)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[test]
fn intruders_at_the_socket_hold_nobody_up_and_their_descriptors_are_closed() {
    use rustix::net::{bind, connect, getsockname, listen, socket_with};
    let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).unwrap();
    let listener = socket();
    // With no name given the system gives an abstract one.
    bind(&listener, &rustix::net::SocketAddrUnix::new_unnamed()).unwrap();
    listen(&listener, 128).unwrap();
    let address = getsockname(&listener).unwrap();
    let come = || {
        let socket = socket();
        connect(&socket, &address).unwrap();
        Link { socket }
    };
    let (quiet, _writer) = rustix::pipe::pipe().unwrap();
    let greeting = |secret: u8| {
        let greeting = Greeting {
            secret: [secret; 32],
            rank: 3,
        };
        postcard::to_stdvec(&greeting).unwrap()
    };
    let mut pending = PendingConnections::new(listener, [7; 32]);
    let silent: Vec<_> = (0..20).map(|_| come()).collect();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let intruders: Vec<_> = [greeting(8), vec![0], vec![1; LARGEST_PACKET + 100]]
        .iter()
        .map(|bytes| {
            let link = come();
            let fds = vec![write.as_fd(); 64];
            link.send(bytes, &fds, quiet.as_fd(), soon()).unwrap();
            link
        })
        .collect();
    let peer = come();
    peer.send(&greeting(7), &[], quiet.as_fd(), soon()).unwrap();
    let start = Instant::now();
    let (rank, link) = pending.next(quiet.as_fd(), soon()).unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(rank, 3);
    link.send(b"x", &[], quiet.as_fd(), soon()).unwrap();
    assert_eq!(peer.receive(quiet.as_fd(), soon()).unwrap().bytes, b"x");
    // Connections that do not greet are closed, and the wait ends by its own deadline.
    let start = Instant::now();
    let late = pending.next(quiet.as_fd(), start + Duration::from_millis(2500));
    assert!(matches!(late, Err(LinkError::TimedOut)));
    for link in silent.iter().chain(&intruders) {
        assert!(matches!(
            link.receive(quiet.as_fd(), soon()),
            Err(LinkError::Closed)
        ));
    }
    drop(write);
    assert!(is_closed(&read), "an unexpected descriptor is still open");
}

#[test]
fn unexpected_descriptors_are_closed_and_named() {
    let store = Store::threads(2).unwrap().swap_remove(0);
    let label = |total: u32, here: u32| postcard::to_stdvec(&(total, here)).unwrap();
    // Expected: two.
    let lies: [(Vec<u8>, usize); 6] = [
        (label(2, 2), 3),
        (label(2, 2), 64),
        (label(3, 3), 3),
        (label(2, 60), 60),
        (label(u32::MAX, u32::MAX), 2),
        (vec![0xff; 12], 2),
    ];
    for (bytes, given) in lies {
        let (ours, theirs) = pair();
        let mesh = mesh::Mesh::of(0, vec![None, Some(ours)]);
        let (read, write) = rustix::pipe::pipe().unwrap();
        let fds = vec![write.as_fd(); given];
        let quiet = store.failed();
        theirs.send(&bytes, &fds, quiet, soon()).unwrap();
        let failed = mesh
            .transfer(&store, "two", &[], &[0, 2], soon())
            .expect_err("a lie");
        assert!(
            matches!(
                failed,
                CommError::Exchange(ExchangeError::Protocol { rank: 1, .. })
                    | CommError::Protocol { .. }
            ),
            "{failed}"
        );
        drop(fds);
        drop(write);
        assert!(is_closed(&read), "{given} descriptors with {bytes:?}");
    }
}

/// One that stops before it passes its descriptor to anyone, or with rank 0's passed and rank 1's not. Once
/// it goes on, so do all.
#[test]
fn a_rank_that_stops_among_descriptors_costs_the_others_one_deadline() {
    let patience = Duration::from_secs(1);
    let member = |exchange: &LocalExchange, passed, given_up: &std::sync::Barrier| {
        let pipe = pipe_with(b"x");
        let pass = |tag| exchange.all_gather_fds(tag, &[pipe.as_fd()]);
        pass("first").unwrap();
        if exchange.rank() == 2 {
            let mut calls = exchange.calls.lock();
            let count = 1u64.to_le_bytes();
            exchange.gather(&mut calls, "second", &count).unwrap();
            let (failed, soon) = (exchange.store.failed(), Instant::now() + patience);
            let mesh = calls.mesh.take().unwrap();
            for (_, link) in mesh.peers().take(passed) {
                link.send(&[1, 1], &[pipe.as_fd()], failed, soon).unwrap();
            }
            given_up.wait();
            let (fds, counts) = ([pipe.as_fd()], [1; 3]);
            let received = mesh.transfer(&exchange.store, "second", &fds, &counts, soon);
            calls.mesh = Some(mesh);
            let received = calls.record(received);
            let error = exchange.agree_on_receipts(&mut calls, "second", received);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("gave this call up"), "{error}");
            drop(calls);
            assert!((0..9).any(|_| pass("again").is_ok()), "no mesh again");
            return;
        }
        let start = Instant::now();
        let error = pass("second").unwrap_err();
        let took = start.elapsed();
        assert!(took < patience * 9 / 5, "{took:?}: {error}");
        assert_rank_2_is_missed(&error);
        given_up.wait();
        assert!((0..9).any(|_| pass("again").is_ok()), "no mesh again");
    };
    let given_up = [(); 2].map(|()| std::sync::Barrier::new(3));
    std::thread::scope(|s| {
        let member = &member;
        for (passed, given_up) in given_up.iter().enumerate() {
            s.spawn(move || three(patience, |exchange| member(exchange, passed, given_up)));
        }
    });
}

/// One that has said where it listens, and does not connect.
#[test]
fn a_rank_that_stops_while_the_sockets_are_opened_costs_the_others_one_deadline() {
    let patience = Duration::from_secs(2);
    let given_up = std::sync::Barrier::new(3);
    let member = |exchange: &LocalExchange| {
        exchange.barrier("first").unwrap();
        if exchange.rank() == 2 {
            let mut calls = exchange.calls.lock();
            let count = 0u64.to_le_bytes();
            exchange.gather(&mut calls, "pass", &count).unwrap();
            let mut gather = |tag: &str, own: &[u8], _: Option<&CommError>| {
                let all = exchange.gather(&mut calls, tag, own);
                if tag == "warpweave.mesh.contacts" {
                    given_up.wait();
                }
                all
            };
            let opened = mesh::Mesh::open(&exchange.store, &mut gather);
            assert!(opened.is_err(), "the others have given up");
            drop(calls);
            return;
        }
        let start = Instant::now();
        let error = exchange.all_gather_fds("pass", &[]).unwrap_err();
        let took = start.elapsed();
        given_up.wait();
        assert!(took < patience * 9 / 5, "{took:?}: {error}");
        assert_rank_2_is_missed(&error);
    };
    three(patience, member);
}

/// What a rank does of `Network::open` until all know where it listens.
fn give_contact(exchange: &LocalExchange, port: u16) {
    exchange.addresses().unwrap();
    agree(exchange, "network.listen", Ok::<_, Error>(())).unwrap();
    let contact = postcard::to_stdvec(&(port, [0u8; 32])).unwrap();
    exchange.all_gather("network.contacts", &contact).unwrap();
}

/// One that has said where it listens, and neither connects nor answers.
#[test]
fn a_rank_that_stops_while_a_network_connects_costs_the_others_one_deadline() {
    let patience = Duration::from_secs(1);
    let member = |exchange: &LocalExchange, stopped: usize, given_up: &std::sync::Barrier| {
        exchange.barrier("first").unwrap();
        if exchange.rank() == stopped {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            give_contact(exchange, listener.local_addr().unwrap().port());
            given_up.wait();
            return;
        }
        let start = Instant::now();
        let error = Network::open(exchange, "net", patience).unwrap_err();
        let took = start.elapsed();
        given_up.wait();
        assert!(took < patience * 9 / 5, "{took:?}: {error}");
        let is_missed = matches!(&error, Error::Exchange(ExchangeError::Timeout { waiting_for, .. })
            if *waiting_for == [stopped]);
        assert!(is_missed, "{error}");
    };
    let given_up = [(); 3].map(|()| std::sync::Barrier::new(3));
    std::thread::scope(|s| {
        let member = &member;
        for (stopped, given_up) in given_up.iter().enumerate() {
            s.spawn(move || three(patience, |exchange| member(exchange, stopped, given_up)));
        }
    });
}

/// The exchange learns of it a moment after the connection was refused.
#[test]
fn a_rank_that_is_lost_while_a_network_connects_is_named() {
    three(Duration::from_secs(5), |exchange| {
        if exchange.rank() == 0 {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            give_contact(exchange, port);
            std::thread::sleep(Duration::from_millis(50));
            exchange.store().abort("on purpose").unwrap();
        } else {
            let error = Network::open(exchange, "net", Duration::from_secs(5)).unwrap_err();
            let is_named = matches!(
                &error,
                Error::Exchange(ExchangeError::PeerLost { rank: 0, .. })
            );
            assert!(is_named, "{error}");
        }
    });
}

/// Such as an agreement on a step that timed out itself.
#[test]
fn a_rank_that_stops_costs_the_others_one_deadline_whatever_they_call_next() {
    let patience = Duration::from_secs(2);
    let member = |exchange: &LocalExchange| {
        exchange.barrier("first").unwrap();
        if exchange.rank() == 2 {
            return;
        }
        let start = Instant::now();
        let error = exchange.barrier("step").unwrap_err();
        assert_rank_2_is_missed(&error);
        exchange.barrier("agreement on the step").unwrap_err();
        exchange.all_gather_fds("another step", &[]).unwrap_err();
        let took = start.elapsed();
        assert!(took < patience * 9 / 5, "{took:?}");
    };
    three(patience, member);
}

/// The first question where the ranks are waits for all of them, too.
#[test]
fn a_rank_that_stops_before_the_nodes_are_known_costs_the_others_one_deadline() {
    let patience = Duration::from_secs(1);
    let missed = std::sync::Barrier::new(3);
    let member = |exchange: &LocalExchange| {
        exchange.barrier("first").unwrap();
        if exchange.rank() == 2 {
            missed.wait();
            while exchange.nodes().is_err() {}
            return;
        }
        let start = Instant::now();
        exchange.nodes().unwrap_err();
        exchange.barrier("step").unwrap_err();
        let error = exchange.nodes().unwrap_err();
        assert_rank_2_is_missed(&error);
        exchange.addresses().unwrap_err();
        let took = start.elapsed();
        assert!(took < patience * 9 / 5, "{took:?}");
        missed.wait();
        while exchange.nodes().is_err() {}
    };
    three(patience, member);
}

#[test]
fn a_rank_that_comes_back_is_waited_for_as_before() {
    let patience = [1, 30].map(Duration::from_secs);
    let is_back = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        for (job, server) in crate::Job::threads(2).unwrap() {
            let is_back = &is_back;
            s.spawn(move || {
                let is_late = job.rank() == 1;
                let job = job.with_timeout(patience[usize::from(is_late)]);
                let store = Store::adopt(&job, server).unwrap();
                let exchange = LocalExchange::new(Arc::new(store), "test");
                exchange.barrier("first").unwrap();
                if !is_late {
                    exchange.barrier("missed").unwrap_err();
                }
                is_back.wait();
                if is_late {
                    exchange.barrier("missed").unwrap_err();
                }
                while exchange.barrier("again").is_err() {}
                if is_late {
                    std::thread::sleep(2 * A_MOMENT);
                }
                exchange.barrier("last").unwrap();
            });
        }
    });
}

#[test]
fn the_longest_timeout_is_as_good_as_any() {
    let job = crate::Job::alone().unwrap().with_timeout(Duration::MAX);
    let store = Store::join(&job).unwrap();
    store.set("key", b"value").unwrap();
    assert_eq!(store.get_within("key", Duration::MAX).unwrap(), b"value");
    store.wait(&["key"], Duration::MAX).unwrap();
    let exchange = LocalExchange::new(Arc::new(store), "test");
    exchange
        .all_gather_fds("longest", &[pipe_with(b"x").as_fd()])
        .unwrap();
}
