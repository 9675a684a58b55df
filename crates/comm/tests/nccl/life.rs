//! Initialization, failure, abort and close.

use std::path::Path;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use warpweave_comm::nccl::{Element, Launch, NcclComm, NcclLibrary, NcclOptions, WindowKind};
use warpweave_comm::{CommError, Communicator, ExchangeError};
use warpweave_symm_mem::ThreadExchange;

use crate::fake::{Fake, patient, single, soon, within, writable};

#[test]
fn a_peer_that_never_comes_ends_at_the_deadline_and_is_aborted() {
    let fake = Fake::new(&["POLLS=-1"]);
    let start = Instant::now();
    let error = single(&fake.open(), soon()).expect_err("never comes up");
    assert!(
        matches!(&error, CommError::Timeout { rank: 0, what, .. } if what.contains("ncclCommInitRankConfig")),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(fake.count("aborts"), 1);
}

#[test]
fn a_failure_that_the_store_hears_of_ends_the_initialisation_early() {
    let fake = Fake::new(&["POLLS=-1"]);
    let library = fake.open();
    let mut comms = Communicator::threads(2).expect("a job");
    let b = comms.pop().expect("two ranks");
    let a = comms.pop().expect("two ranks");
    let start = Instant::now();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            a.nccl_from(Ok(library.clone()), within(Duration::from_secs(30)))
                .err()
        });
        b.nccl_from(Ok(library.clone()), soon())
            .expect_err("times out");
        b.abort("gave up on NCCL");
        let error = waiting.join().expect("no panic").expect("ends early");
        assert!(
            matches!(&error, CommError::PeerFailed { peer: 1, cause, .. } if cause == "gave up on NCCL"),
            "{error}"
        );
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(fake.count("aborts"), 2);
}

#[test]
fn a_rank_without_the_library_is_an_error_on_all() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    std::thread::scope(|s| {
        for comm in Communicator::threads(2).expect("a job") {
            let library = library.clone();
            s.spawn(move || {
                let mine = match comm.rank() {
                    0 => Ok(library),
                    _ => NcclLibrary::open(Path::new("/nowhere/libnccl.so.2")),
                };
                let error = comm.nccl_from(mine, soon()).expect_err("rank 1 has none");
                assert!(error.is_unavailable(), "{error}");
                match (comm.rank(), error) {
                    (0, CommError::PeerFailed { peer: 1, cause, .. }) => {
                        assert!(cause.contains("/nowhere"))
                    }
                    (1, CommError::NcclMissing { .. }) => {}
                    (rank, other) => panic!("rank {rank}: {other}"),
                }
            });
        }
    });
}

#[test]
fn codes_come_back_with_their_names_and_the_librarys_words() {
    let fake = Fake::new(&["INIT_RESULT=4"]);
    let error = single(&fake.open(), soon())
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("rank 0: ncclCommInitRankConfig failed with ncclInvalidArgument (4)"),
        "{error}"
    );
    assert!(
        error.contains("invalid argument: the fake says no"),
        "{error}"
    );

    let fake = Fake::new(&["REDUCE_RESULT=99"]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    // SAFETY: the stand-in fails before it looks at the addresses.
    let error = unsafe { comm.barrier(0, null_mut()) }.expect_err("a code from the future");
    assert!(
        matches!(
            error,
            CommError::Nccl {
                code: 99,
                call: "ncclAllReduce",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn dropping_aborts_and_later_calls_fail() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    drop(single(&library, patient()).expect("comes up"));
    assert_eq!(fake.count("aborts"), 1);
    let comm = single(&library, patient()).expect("comes up");
    assert!(comm.abort());
    assert!(comm.abort(), "the second time there is nothing to do");
    // SAFETY: the call is refused before the address is looked at.
    let error = unsafe { comm.barrier(0, null_mut()) }.expect_err("aborted");
    assert!(error.to_string().contains("aborted"), "{error}");
    drop(comm);
    assert_eq!(fake.count("aborts"), 2);
}

#[test]
fn an_abort_that_hangs_does_not_hold_the_drop_up_for_ever() {
    let fake = Fake::new(&["ABORT_SECONDS=30"]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let start = Instant::now();
    assert!(!comm.abort());
    drop(comm);
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn blocking_launches_come_from_a_split() {
    let fake = Fake::new(&[]);
    let blocking = NcclOptions {
        launch: Launch::Blocking,
        ..patient()
    };
    let comm = single(&fake.open(), blocking).expect("comes up");
    let mut word = [5i32];
    // SAFETY: the stand-in reads and writes one element of host memory.
    unsafe { comm.barrier(writable(&mut word), null_mut()) }.expect("launches");
    assert_eq!(fake.count("splits"), 1);
    comm.close().expect("closes");
    assert_eq!(
        (fake.count("destroys"), fake.count("aborts")),
        (1, 1),
        "the parent is let go too"
    );
}

#[test]
fn a_split_that_never_ends_takes_both_communicators_with_it() {
    let fake = Fake::new(&["SPLIT_HANGS=1"]);
    let blocking = NcclOptions {
        launch: Launch::Blocking,
        name: Some("named".into()),
        ..soon()
    };
    let error = single(&fake.open(), blocking).expect_err("never split");
    assert!(
        matches!(&error, CommError::Timeout { what, .. } if what.contains("ncclCommSplit")),
        "{error}"
    );
    assert_eq!(fake.count("aborts"), 2);
    fake.was_used_well();
}

#[test]
fn a_peer_that_is_gone_before_the_id_is_named() {
    let fake = Fake::new(&[]);
    let mut group = ThreadExchange::group(2);
    drop(group.pop());
    let error = NcclComm::init(&fake.open(), &group[0], soon()).expect_err("alone");
    assert!(
        matches!(error, CommError::PeerLost { peer: 1, .. }),
        "{error}"
    );
    assert!(!matches!(
        error,
        CommError::Exchange(ExchangeError::PeerLost { .. })
    ));
}

#[test]
fn a_watch_ends_a_pending_initialisation() {
    let fake = Fake::new(&["POLLS=-1"]);
    let library = fake.open();
    let exchange = &ThreadExchange::group(1)[0];
    let start = Instant::now();
    let watch = |what: &str| match start.elapsed() > Duration::from_millis(20) {
        true => Err(CommError::Protocol {
            what: format!("enough of {what}"),
        }),
        false => Ok(()),
    };
    let error = NcclComm::init_watched(&library, exchange, patient(), &watch);
    let error = error.expect_err("ended by the watch").to_string();
    assert_eq!(error, "enough of ncclCommInitRankConfig");
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(fake.count("aborts"), 1);
    fake.was_used_well();
}

/// Enqueued work would wait for the lost rank forever: the abort needs no request, and every error names the
/// rank.
#[test]
fn the_loss_of_a_rank_ends_the_communicators_of_the_others() {
    for (launch, aborts) in [(Launch::NonBlocking, 2), (Launch::Blocking, 4)] {
        let fake = Fake::new(&[]);
        let library = fake.open();
        let options = NcclOptions {
            launch,
            ..patient()
        };
        std::thread::scope(|s| {
            for comm in Communicator::threads(2).expect("a job") {
                let (library, options) = (library.clone(), options.clone());
                s.spawn(move || {
                    let nccl = comm.nccl_from(Ok(library), options).expect("comes up");
                    comm.barrier().expect("both are here");
                    let start = Instant::now();
                    if comm.rank() == 1 {
                        comm.abort("its device is gone");
                    }
                    let error = loop {
                        if let Err(error) = nccl.check() {
                            break error;
                        }
                        assert!(start.elapsed() < Duration::from_secs(3), "still up");
                        std::thread::sleep(Duration::from_millis(1));
                    };
                    assert!(
                        matches!(&error, CommError::PeerLost { peer: 1, cause, .. }
                            if cause.contains("its device is gone")),
                        "{error}"
                    );
                    // Whoever drops it waits for the abort.
                    drop(nccl);
                });
            }
        });
        assert_eq!(fake.count("aborts"), aborts);
        fake.was_used_well();
    }
}

/// NCCL waits for its peers inside the first call of a kind. The call cannot be ended, but its caller goes
/// on.
#[test]
fn a_call_that_connects_has_a_deadline() {
    let fake = Fake::new(&["REDUCE_SECONDS=1"]);
    let library = fake.open();
    let connect = |options| {
        let comm = single(&library, options).expect("comes up");
        let mut word = Box::new([1i32]);
        // SAFETY: one element of host memory, which the call has to itself.
        let connected =
            comm.connecting(move |comm| unsafe { comm.barrier(writable(&mut *word), null_mut()) });
        (comm, connected)
    };
    connect(patient()).1.expect("a second is short enough");
    let start = Instant::now();
    let (comm, error) = connect(soon());
    let error = error.expect_err("a second is too long");
    assert!(
        matches!(&error, CommError::Timeout { what, .. } if what.contains("left behind")),
        "{error}"
    );
    assert!(comm.check().is_err(), "it has ended");
    assert!(comm.as_raw().is_null());
    let exchange = ThreadExchange::group(1).remove(0);
    // SAFETY: nothing is registered.
    let window = unsafe { comm.window_at(&exchange, 1 << 20, 1 << 12, WindowKind::Default) };
    let error = window.map(drop).expect_err("it has ended").to_string();
    assert!(error.contains("aborted"), "{error}");
    assert!(start.elapsed() < Duration::from_millis(900));
    // The call itself aborts it in the end.
    assert!(comm.abort());
    assert_eq!(fake.count("aborts"), 2);
    fake.was_used_well();
}

#[test]
fn a_panic_in_a_call_that_connects_is_an_error_at_once() {
    let fake = Fake::new(&[]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let start = Instant::now();
    let error = comm.connecting(|_| panic!("on purpose"));
    let error = error.expect_err("its calls panicked").to_string();
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(error.contains("panicked"), "{error}");
    assert!(comm.check().is_err(), "it has ended");
    drop(comm);
    assert_eq!(fake.count("aborts"), 1);
    fake.was_used_well();
}

#[test]
fn a_call_that_connects_ends_with_the_loss_of_a_rank() {
    let fake = Fake::new(&["REDUCE_SECONDS=4"]);
    let library = fake.open();
    std::thread::scope(|s| {
        for comm in Communicator::threads(2).expect("a job") {
            let library = library.clone();
            s.spawn(move || {
                let nccl = comm.nccl_from(Ok(library), patient()).expect("comes up");
                comm.barrier().expect("both are here");
                let start = Instant::now();
                if comm.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(200));
                    return comm.abort("its device is gone");
                }
                let mut word = Box::new([1i32]);
                // SAFETY: one element of host memory, which the call has to itself.
                let connected = nccl.connecting(move |comm| unsafe {
                    comm.barrier(writable(&mut *word), null_mut())
                });
                let error = connected.expect_err("rank 1 is gone");
                assert!(
                    matches!(&error, CommError::PeerLost { peer: 1, .. }),
                    "{error}"
                );
                drop(nccl);
                let took = start.elapsed();
                assert!(took < Duration::from_secs(2), "{took:?}");
            });
        }
    });
}

#[test]
fn an_abort_from_another_thread_waits_for_the_call_that_is_open() {
    let fake = Fake::new(&["REDUCE_SECONDS=2"]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let aborter = comm.aborter();
    std::thread::scope(|s| {
        let mut word = [1i32];
        let other = s.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            (aborter.abort(), aborter.abort())
        });
        // SAFETY: the stand-in reads and writes one element of host memory.
        let error = unsafe { comm.barrier(writable(&mut word), null_mut()) };
        assert!(error.is_err(), "aborted while it was launched");
        assert_eq!(other.join().expect("no panic"), (true, true));
    });
    assert!(comm.check().is_err());
    drop(comm);
    assert_eq!(fake.count("aborts"), 1);
    fake.was_used_well();
}

#[test]
fn an_abort_beside_a_call_that_takes_too_long_is_left_to_that_call() {
    let fake = Fake::new(&["REDUCE_SECONDS=8"]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let aborter = comm.aborter();
    std::thread::scope(|s| {
        let mut word = [1i32];
        let other = s.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            aborter.abort()
        });
        // SAFETY: as above.
        let error = unsafe { comm.barrier(writable(&mut word), null_mut()) };
        assert!(error.is_err());
        assert!(!other.join().expect("no panic"), "it has not ended then");
        assert_eq!(fake.count("aborts"), 1, "the call itself ended it");
    });
    fake.was_used_well();
}

#[test]
fn an_abort_in_a_group_waits_for_its_end() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    let comm = single(&library, patient()).expect("comes up");
    let (from, mut to) = ([3i32], [0i32]);
    let grouped = comm.group(|comm| {
        // SAFETY: one element of host memory each.
        unsafe {
            comm.send(from.as_ptr() as u64, 1, Element::I32, 0, null_mut())?;
            comm.recv(writable(&mut to), 1, Element::I32, 0, null_mut())?;
        }
        assert!(!comm.abort(), "the group is open");
        assert_eq!(fake.count("aborts"), 0);
        // SAFETY: refused before the address is looked at.
        let later = unsafe { comm.barrier(0, null_mut()) };
        assert!(later.is_err(), "no call begins any more");
        Ok(())
    });
    let error = grouped.expect_err("aborted").to_string();
    assert!(error.contains("aborted"), "{error}");
    assert_eq!(fake.count("aborts"), 1);
    let fresh = single(&library, patient()).expect("the thread's group has ended");
    fresh.close().expect("closes");
    fake.was_used_well();
}

#[test]
fn groups_nest_and_take_in_other_communicators() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    let outer = single(&library, patient()).expect("comes up");
    let inner = single(&library, patient()).expect("comes up");
    let from = [[1i32], [2]];
    let (mut a, mut b) = ([0i32], [0i32]);
    let crossed = outer.group(|outer| {
        // SAFETY: one element of host memory each, here and below.
        unsafe { outer.send(from[0].as_ptr() as u64, 1, Element::I32, 0, null_mut())? };
        inner.group(|inner| {
            // SAFETY: as above.
            unsafe { inner.send(from[1].as_ptr() as u64, 1, Element::I32, 0, null_mut()) }
        })?;
        assert!(!inner.abort(), "it is part of the group that is open");
        // SAFETY: as above.
        unsafe { outer.recv(writable(&mut a), 1, Element::I32, 0, null_mut()) }
    });
    assert!(crossed.is_err(), "one of its communicators was aborted");
    drop(inner);
    // SAFETY: as above.
    unsafe { outer.recv(writable(&mut b), 1, Element::I32, 0, null_mut()) }.expect("launches");
    assert_eq!((a, b), ([1], [2]), "the calls of both went out");
    outer.close().expect("closes");
    fake.was_used_well();
}

#[test]
fn a_group_whose_calls_panic_is_ended() {
    let fake = Fake::new(&[]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        comm.group(|_| -> Result<(), CommError> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    let mut word = [5i32];
    // SAFETY: one element of host memory.
    unsafe { comm.barrier(writable(&mut word), null_mut()) }.expect("launches at once");
    assert_eq!(word, [5]);
    comm.close().expect("closes");
    fake.was_used_well();
}
