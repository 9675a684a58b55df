//! Memory, windows and registrations: ownership, the order of teardown, and the failure of one rank.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use warpweave_comm::CommError;
use warpweave_comm::nccl::{
    Collective, CtaPolicy, Element, Launch, NcclMemory, NcclOptions, NoZeroCta, WindowKind,
};
use warpweave_symm_mem::{Exchange, ThreadExchange};

use crate::fake::{Fake, patient, ranks, single, within, writable};

const SYMMETRIC: WindowKind = WindowKind::Symmetric;

fn blocking() -> NcclOptions {
    NcclOptions {
        launch: Launch::Blocking,
        ..patient()
    }
}

#[test]
fn windows_register_and_close_together() {
    for options in [patient(), blocking()] {
        let fake = Fake::new(&[]);
        ranks(&fake.open(), 3, &options, |comm, exchange| {
            let (from, to) = (
                NcclMemory::new(&comm, 8).expect("allocates"),
                NcclMemory::new(&comm, 24).expect("allocates"),
            );
            let windows = [&from, &to]
                .map(|memory| comm.window(exchange, memory, SYMMETRIC).expect("registers"));
            assert_eq!(
                (windows[1].address(), windows[1].bytes(), windows[1].kind()),
                (to.address(), 24, SYMMETRIC)
            );
            exchange.barrier("registered").expect("all are there");
            assert_eq!(fake.count("windows"), 6);
            for call in 0..3 {
                // SAFETY: host memory of 8 and 24 bytes, which no other thread touches.
                unsafe { *(from.address() as *mut u64) = 10 * call + comm.rank() as u64 };
                // SAFETY: as above, and the stand-in is done when it returns.
                unsafe {
                    comm.all_gather(from.address(), to.address(), 1, Element::U64, null_mut())
                }
                .expect("launches");
                // SAFETY: as above.
                let got = unsafe { *(to.address() as *const [u64; 3]) };
                assert_eq!(got, [10 * call, 10 * call + 1, 10 * call + 2]);
            }
            for window in windows {
                window.close(exchange).expect("closes");
            }
            comm.close().expect("closes");
        });
        let left = ["windows", "allocations"].map(|name| fake.count(name));
        assert_eq!(left, [0, 0]);
        fake.was_used_well();
    }
}

#[test]
fn whatever_is_dropped_first_nccl_lets_go_before_memory_is_freed() {
    for options in [patient(), blocking()] {
        // Each number is an order in which to drop communicator, window, registration and memory.
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [3, 0, 2, 1], [1, 3, 0, 2]] {
            let fake = Fake::new(&[]);
            let exchange = &ThreadExchange::group(1)[0];
            let comm = single(&fake.open(), options.clone()).expect("comes up");
            let memory = NcclMemory::new(&comm, 4096).expect("allocates");
            let window = comm
                .window(exchange, &memory, WindowKind::Default)
                .expect("registers");
            let registration = comm.register(&memory).expect("registers");
            let mut things: [Option<Box<dyn std::any::Any>>; 4] = [
                Some(Box::new(comm)),
                Some(Box::new(window)),
                Some(Box::new(registration)),
                Some(Box::new(memory)),
            ];
            for thing in order {
                things[thing] = None;
            }
            let left = ["windows", "buffers", "allocations"].map(|name| fake.count(name));
            assert_eq!(left, [0, 0, 0], "{order:?}");
            fake.was_used_well();
        }
    }
}

#[test]
fn closing_the_communicator_deregisters_what_still_is() {
    let fake = Fake::new(&[]);
    let exchange = &ThreadExchange::group(1)[0];
    let comm = single(&fake.open(), patient()).expect("comes up");
    let memory = NcclMemory::new(&comm, 4096).expect("allocates");
    let window = comm
        .window(exchange, &memory, SYMMETRIC)
        .expect("registers");
    let registration = comm.register(&memory).expect("registers");
    drop(memory);
    assert_eq!(fake.count("allocations"), 1, "both hold a share");
    comm.close().expect("closes");
    let left = ["windows", "buffers", "allocations"].map(|name| fake.count(name));
    assert_eq!(left, [0, 0, 0]);
    assert_eq!(registration.bytes(), 4096);
    let error = window.close(exchange).expect_err("it has gone").to_string();
    assert!(error.contains("ncclCommWindowDeregister"), "{error}");
    fake.was_used_well();
}

#[test]
fn a_window_dropped_in_a_group_goes_later() {
    let fake = Fake::new(&[]);
    let exchange = &ThreadExchange::group(1)[0];
    let comm = single(&fake.open(), patient()).expect("comes up");
    let memory = NcclMemory::new(&comm, 4096).expect("allocates");
    let window = comm
        .window(exchange, &memory, SYMMETRIC)
        .expect("registers");
    comm.group(|comm| {
        drop(window);
        assert_eq!(fake.count("windows"), 1);
        let nested = comm.window(exchange, &memory, SYMMETRIC).err();
        assert!(matches!(nested, Some(CommError::InvalidArgument { .. })));
        Ok(())
    })
    .expect("launches");
    let again = comm.register(&memory).expect("registers");
    assert_eq!(fake.count("windows"), 0, "the next registration saw to it");
    drop((again, comm, memory));
    fake.was_used_well();
}

#[test]
fn what_one_rank_sees_beforehand_fails_on_all_and_hurts_nothing() {
    let fake = Fake::new(&[]);
    ranks(&fake.open(), 2, &patient(), |comm, exchange| {
        let odd = comm.rank() == 1;
        let memory = NcclMemory::new(&comm, 8192).expect("allocates");
        // SAFETY: the address is refused on rank 1, so that none is looked at.
        let unaligned =
            unsafe { comm.window_at(exchange, memory.address() + u64::from(odd), 64, SYMMETRIC) };
        match unaligned.expect_err("refused") {
            CommError::InvalidArgument { why, .. } if odd => assert!(why.contains("4096")),
            CommError::PeerFailed { peer: 1, cause, .. } if !odd => {
                assert!(cause.contains("4096"), "{cause}")
            }
            other => panic!("{other}"),
        }
        // SAFETY: the sizes differ, so that none is looked at.
        let uneven = unsafe {
            let bytes = 64 + usize::from(odd);
            comm.window_at(exchange, memory.address(), bytes, SYMMETRIC)
        };
        assert!(matches!(
            uneven.expect_err("refused"),
            CommError::Disagreement { .. }
        ));
        // SAFETY: no bytes, so that none is looked at.
        let empty = unsafe { comm.window_at(exchange, memory.address(), 0, SYMMETRIC) };
        assert!(empty.is_err());
        let stranger = &ThreadExchange::group(1)[0];
        let elsewhere = comm.window(stranger, &memory, SYMMETRIC);
        assert!(matches!(
            elsewhere.expect_err("refused"),
            CommError::InvalidArgument {
                what: "exchange",
                ..
            }
        ));
        let window = comm
            .window(exchange, &memory, SYMMETRIC)
            .expect("registers");
        let twice = comm.window(exchange, &memory, SYMMETRIC);
        assert!(matches!(
            twice.expect_err("refused"),
            CommError::InvalidArgument { .. }
        ));
        window.close(exchange).expect("closes");
        comm.close().expect("closes");
    });
    assert_eq!((fake.count("aborts"), fake.count("windows")), (0, 0));
    fake.was_used_well();
}

#[test]
fn a_window_that_fails_on_one_rank_fails_on_all_at_once_and_each_names_it() {
    let fake = Fake::new(&["WINDOW_FAILS_ON=1"]);
    let start = Instant::now();
    ranks(&fake.open(), 3, &patient(), |comm, exchange| {
        let memory = NcclMemory::new(&comm, 64).expect("allocates");
        let error = comm.window(exchange, &memory, SYMMETRIC).err();
        let error = error.expect("rank 1 fails");
        match (comm.rank(), &error) {
            (
                1,
                CommError::Nccl {
                    rank: 1, code: 1, ..
                },
            ) => {}
            (0 | 2, CommError::PeerFailed { peer: 1, .. }) => assert_eq!(error.culprit(), Some(1)),
            (rank, other) => panic!("rank {rank} does not name rank 1: {other}"),
        }
        let error = error.to_string();
        assert!(error.contains("ncclCommWindowRegister"), "{error}");
        assert!(comm.check().is_err(), "the communicator has ended");
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!((fake.count("aborts"), fake.count("allocations")), (3, 0));
    fake.was_used_well();
}

#[test]
fn a_window_that_nccl_passes_over_is_an_error_on_all_and_the_communicator_lives() {
    for options in [patient(), blocking()] {
        let fake = Fake::new(&["WINDOW_NULL_ON=1"]);
        ranks(&fake.open(), 2, &options, |comm, exchange| {
            let memory = NcclMemory::new(&comm, 64).expect("allocates");
            match (comm.rank(), comm.window(exchange, &memory, SYMMETRIC).err()) {
                (1, Some(CommError::NcclUnregistered { rank: 1, .. })) => {}
                (0, Some(CommError::PeerFailed { peer: 1, cause, .. })) => {
                    assert!(cause.contains("NCCL_WIN_ENABLE"), "{cause}")
                }
                (rank, other) => panic!("rank {rank}: {other:?}"),
            }
            let registered = comm.register(&memory);
            assert_eq!(registered.is_ok(), comm.rank() == 0);
            let mut word = [1i32];
            // SAFETY: the stand-in reads and writes one element of host memory.
            unsafe { comm.barrier(writable(&mut word), null_mut()) }.expect("it lives");
            drop(registered);
            comm.close().expect("closes");
        });
        assert_eq!((fake.count("windows"), fake.count("buffers")), (0, 0));
        fake.was_used_well();
    }
}

#[test]
fn a_registration_that_hangs_in_a_blocking_communicator_ends_at_the_deadline() {
    let fake = Fake::new(&["WINDOW_SECONDS=9"]);
    let exchange = &ThreadExchange::group(1)[0];
    let options = NcclOptions {
        launch: Launch::Blocking,
        ..within(Duration::from_millis(300))
    };
    let comm = single(&fake.open(), options).expect("comes up");
    let memory = NcclMemory::new(&comm, 64).expect("allocates");
    let start = Instant::now();
    let error = comm.window(exchange, &memory, SYMMETRIC).err();
    let error = error.expect("hangs");
    assert!(matches!(&error, CommError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("left behind"), "{error}");
    drop(comm);
    assert!(start.elapsed() < Duration::from_secs(4));
    assert_eq!(fake.count("aborts"), 1, "the parent's, which nobody is in");
}

#[test]
fn a_deregistration_that_hangs_does_not_hold_the_drop_up_for_ever() {
    let fake = Fake::new(&["DEREGISTER_SECONDS=20"]);
    let exchange = &ThreadExchange::group(1)[0];
    let comm = single(&fake.open(), patient()).expect("comes up");
    let memory = NcclMemory::new(&comm, 64).expect("allocates");
    let window = comm
        .window(exchange, &memory, SYMMETRIC)
        .expect("registers");
    let start = Instant::now();
    drop((window, memory));
    assert!(comm.check().is_err(), "left behind");
    drop(comm);
    assert!(start.elapsed() < Duration::from_secs(8));
    assert_eq!(fake.count("allocations"), 1, "NCCL may still reach it");
}

#[test]
fn no_memory_is_an_answer() {
    let fake = Fake::new(&["MEMORY_RESULT=1"]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let full = NcclMemory::new(&comm, 1 << 40).expect_err("none left");
    assert!(
        matches!(
            full,
            CommError::Nccl {
                call: "ncclMemAlloc",
                code: 1,
                ..
            }
        ),
        "{full}"
    );
    let empty = NcclMemory::new(&comm, 0).expect_err("no bytes");
    assert!(matches!(empty, CommError::InvalidArgument { .. }));
}

#[test]
fn zero_cta_says_where_it_applies() {
    let fake = Fake::new(&[]);
    let options = NcclOptions {
        cta_policy: CtaPolicy::ZeroCta,
        ..patient()
    };
    ranks(&fake.open(), 2, &options, |comm, exchange| {
        let memory = NcclMemory::new(&comm, 4096).expect("allocates");
        let plain = NcclMemory::new(&comm, 4096).expect("allocates");
        let (inside, outside) = (memory.address() + 64, plain.address());
        let ask = |collective| comm.zero_cta(collective, inside, inside);
        assert_eq!(
            ask(Collective::AllGather),
            Err(NoZeroCta::Unregistered { address: inside })
        );
        let window = comm
            .window(exchange, &memory, SYMMETRIC)
            .expect("registers");
        let unsymmetric = comm
            .window(exchange, &plain, WindowKind::Default)
            .expect("registers");
        for copied in [
            Collective::AllGather,
            Collective::AllToAll,
            Collective::Gather,
            Collective::Scatter,
        ] {
            assert_eq!(ask(copied), Ok(()));
            assert_eq!(
                comm.zero_cta(copied, inside, outside),
                Err(NoZeroCta::Unregistered { address: outside })
            );
        }
        for reduced in [
            Collective::AllReduce,
            Collective::Broadcast,
            Collective::PointToPoint,
        ] {
            let answer = ask(reduced).expect_err("kernels do it");
            assert_eq!(answer, NoZeroCta::Collective(reduced));
            assert!(answer.to_string().contains("copy engines"), "{answer}");
        }
        unsymmetric.close(exchange).expect("closes");
        window.close(exchange).expect("closes");
        assert!(ask(Collective::AllGather).is_err(), "the window has gone");
        comm.close().expect("closes");
    });
    let comm = single(&fake.open(), patient()).expect("comes up");
    assert_eq!(
        comm.zero_cta(Collective::AllGather, 0, 0),
        Err(NoZeroCta::Policy(CtaPolicy::Default))
    );
    drop(comm);
    let comm = single(&fake.open(), options).expect("comes up");
    assert_eq!(
        comm.zero_cta(Collective::AllGather, 0, 0),
        Err(NoZeroCta::Alone)
    );
    drop(comm);
    fake.was_used_well();
}
