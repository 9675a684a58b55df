//! Every call among ranks that are threads: what it moves, where it puts it, and how it combines. Even calls
//! run twice, on a version that has them all and on one where they are sends and receives.

use std::ptr::null_mut;

use warpweave_comm::CommError;
use warpweave_comm::nccl::{Element, NcclComm, ReduceOp};

use crate::fake::{Fake, address, patient, ranks, single, writable};

const WORLD: usize = 3;

/// Runs `rank` where everything is native and where all-to-all, gather and scatter are not.
fn with_old_and_new(natives: i32, rank: impl Fn(&NcclComm, i64) + Sync) {
    for (version, natives) in [("VERSION=22803", natives), ("VERSION=22105", 0)] {
        let fake = Fake::new(&[version]);
        ranks(&fake.open(), WORLD, &patient(), |comm, _| {
            for call in 0..3 {
                rank(&comm, call);
            }
            comm.check().expect("healthy");
            comm.close().expect("closes");
        });
        assert_eq!(fake.count("natives"), 3 * natives * WORLD as i32);
        assert_eq!((fake.count("destroys"), fake.count("aborts")), (3, 0));
        fake.was_used_well();
    }
}

/// Element `i` of rank `rank` in call `call`: all are different.
fn value(rank: usize, i: usize, call: i64) -> i64 {
    1000 * call + 100 * rank as i64 + i as i64
}

fn values(rank: usize, count: usize, call: i64) -> Vec<i64> {
    (0..count).map(|i| value(rank, i, call)).collect()
}

#[test]
fn all_gather_and_broadcast() {
    with_old_and_new(0, |comm, call| {
        let mine = values(comm.rank(), 2, call);
        let mut all = [0i64; 2 * WORLD];
        let stream = null_mut();
        // SAFETY: the stand-in reads and writes the elements that it is given before it returns, here and
        // below.
        unsafe { comm.all_gather(address(&mine), writable(&mut all), 2, Element::I64, stream) }
            .expect("launches");
        let expected: Vec<i64> = (0..WORLD).flat_map(|r| values(r, 2, call)).collect();
        assert_eq!(all[..], expected);

        for root in 0..WORLD {
            let mut got = [0i64; 2];
            let (from, to) = (address(&mine), writable(&mut got));
            // SAFETY: as above.
            unsafe { comm.broadcast(from, to, 2, Element::I64, root, stream) }.expect("launches");
            assert_eq!(got[..], values(root, 2, call));
        }
    });
}

#[test]
fn reductions() {
    with_old_and_new(0, |comm, call| {
        let stream = null_mut();
        let count = 2 * WORLD;
        let mine: Vec<f64> = values(comm.rank(), count, call)
            .iter()
            .map(|v| *v as f64)
            .collect();
        let combined = |op, i: usize| {
            let all = (0..WORLD).map(|r| value(r, i, call) as f64);
            match op {
                ReduceOp::Sum => all.sum::<f64>(),
                ReduceOp::Prod => all.product(),
                ReduceOp::Max => all.fold(f64::MIN, f64::max),
                ReduceOp::Min => all.fold(f64::MAX, f64::min),
                _ => all.sum::<f64>() / WORLD as f64,
            }
        };
        let element = Element::F64;
        for op in [
            ReduceOp::Sum,
            ReduceOp::Prod,
            ReduceOp::Max,
            ReduceOp::Min,
            ReduceOp::Avg,
        ] {
            let expected: Vec<f64> = (0..count).map(|i| combined(op, i)).collect();
            let (me, from) = (comm.rank(), address(&mine));
            let mut all = vec![0f64; count];
            // SAFETY: as above.
            unsafe { comm.all_reduce(from, writable(&mut all), count, element, op, stream) }
                .expect("launches");
            assert_eq!(all, expected, "{op:?}");

            let mut part = [0f64; 2];
            // SAFETY: as above.
            unsafe { comm.reduce_scatter(from, writable(&mut part), 2, element, op, stream) }
                .expect("launches");
            assert_eq!(part, expected[2 * me..][..2], "{op:?}");

            let mut rooted = vec![-1f64; count];
            let to = writable(&mut rooted);
            // SAFETY: as above.
            unsafe { comm.reduce(from, to, count, element, op, 1, stream) }.expect("launches");
            match me {
                1 => assert_eq!(rooted, expected, "{op:?}"),
                _ => assert!(rooted.iter().all(|v| *v == -1.0), "only the root's"),
            }

            let counts = [4, 0, 2];
            let mut uneven = vec![-1f64; counts[me]];
            let to = writable(&mut uneven);
            // SAFETY: as above.
            unsafe { comm.reduce_scatter_uneven(from, to, &counts, element, op, stream) }
                .expect("launches");
            assert_eq!(uneven, expected[[0, 4, 4][me]..][..counts[me]], "{op:?}");
        }
    });
}

#[test]
fn all_to_all() {
    with_old_and_new(1, |comm, call| {
        let (me, stream) = (comm.rank(), null_mut());
        let mine = values(me, 2 * WORLD, call);
        let mut got = [0i64; 2 * WORLD];
        // SAFETY: as above.
        unsafe { comm.all_to_all(address(&mine), writable(&mut got), 2, Element::I64, stream) }
            .expect("launches");
        let expected: Vec<i64> = (0..WORLD)
            .flat_map(|r| values(r, 2 * WORLD, call)[2 * me..][..2].to_vec())
            .collect();
        assert_eq!(got[..], expected);

        // What rank s sends to rank r.
        let counts = [[1, 2, 0], [0, 1, 3], [2, 0, 1]];
        let sends = counts[me];
        let recvs: Vec<usize> = counts.iter().map(|row| row[me]).collect();
        let mut got = vec![0i64; recvs.iter().sum()];
        let (send, recv) = (
            (address(&mine), &sends[..]),
            (writable(&mut got), &recvs[..]),
        );
        // SAFETY: as above.
        unsafe { comm.all_to_all_uneven(send, recv, Element::I64, stream) }.expect("launches");
        let expected: Vec<i64> = (0..WORLD)
            .flat_map(|r| {
                let at: usize = counts[r][..me].iter().sum();
                values(r, 6, call)[at..][..counts[r][me]].to_vec()
            })
            .collect();
        assert_eq!(got, expected);
    });
}

#[test]
fn gather_and_scatter() {
    with_old_and_new(2 * WORLD as i32, |comm, call| {
        let (me, stream) = (comm.rank(), null_mut());
        let counts = [3, 0, 1];
        let places = [0, 3, 3];
        for root in 0..WORLD {
            let mine = values(me, 2 * WORLD, call);
            let mut all = [-1i64; 2 * WORLD];
            let (from, to) = (address(&mine), writable(&mut all));
            // SAFETY: as above.
            unsafe { comm.gather(from, to, 2, Element::I64, root, stream) }.expect("launches");
            let expected: Vec<i64> = (0..WORLD).flat_map(|r| values(r, 2, call)).collect();
            match me == root {
                true => assert_eq!(all[..], expected),
                false => assert_eq!(all, [-1; 2 * WORLD], "only the root's"),
            }

            let mut part = [0i64; 2];
            let to = writable(&mut part);
            // SAFETY: as above.
            unsafe { comm.scatter(from, to, 2, Element::I64, root, stream) }.expect("launches");
            assert_eq!(part, values(root, 2 * WORLD, call)[2 * me..][..2]);

            let mut all = [-1i64; 4];
            let to = writable(&mut all);
            // SAFETY: as above.
            unsafe { comm.gather_uneven(from, to, &counts, Element::I64, root, stream) }
                .expect("launches");
            let expected: Vec<i64> = (0..WORLD)
                .flat_map(|r| values(r, counts[r], call))
                .collect();
            if me == root {
                assert_eq!(all[..], expected);
            }

            let mut part = vec![0i64; counts[me]];
            let to = writable(&mut part);
            // SAFETY: as above.
            unsafe { comm.scatter_uneven(from, to, &counts, Element::I64, root, stream) }
                .expect("launches");
            assert_eq!(part, values(root, 4, call)[places[me]..][..counts[me]]);
        }
    });
}

#[test]
fn uneven_all_gather_sends_no_empty_parts() {
    let fake = Fake::new(&[]);
    ranks(&fake.open(), WORLD, &patient(), |comm, _| {
        let counts = [1, 0, 3];
        let mine = values(comm.rank(), 3, 0);
        let mut all = [0i64; 4];
        let (from, to) = (address(&mine), writable(&mut all));
        // SAFETY: as above.
        unsafe { comm.all_gather_uneven(from, to, &counts, Element::I64, null_mut()) }
            .expect("launches");
        assert_eq!(all, [0, 200, 201, 202]);
        comm.close().expect("closes");
    });
    assert_eq!(fake.count("calls"), 3 * 2);
    fake.was_used_well();
}

#[test]
fn sends_and_receives_cross_in_a_group() {
    let fake = Fake::new(&[]);
    ranks(&fake.open(), WORLD, &patient(), |comm, _| {
        let me = comm.rank();
        let (next, last) = ((me + 1) % WORLD, (me + WORLD - 1) % WORLD);
        for call in 0..3 {
            let (mine, mut got) = (values(me, 5, call), [0i64; 5]);
            let crossed = comm.group(|comm| {
                // SAFETY: as above.
                unsafe {
                    comm.recv(writable(&mut got), 5, Element::I64, last, null_mut())?;
                    comm.send(address(&mine), 5, Element::I64, next, null_mut())
                }
            });
            crossed.expect("launches");
            assert_eq!(got[..], values(last, 5, call));
        }
    });
    fake.was_used_well();
}

#[test]
fn wrong_ranks_and_counts_are_refused_before_nccl_hears_of_them() {
    let fake = Fake::new(&[]);
    let comm = single(&fake.open(), patient()).expect("comes up");
    let (stream, element, sum) = (null_mut(), Element::F32, ReduceOp::Sum);
    // SAFETY: all are refused before the addresses are looked at.
    let refused = unsafe {
        [
            comm.send(0, 2, element, 1, stream),
            comm.recv(0, 2, element, 1, stream),
            comm.broadcast(0, 0, 2, element, 9, stream),
            comm.reduce(0, 0, 2, element, sum, 1, stream),
            comm.gather(0, 0, 2, element, 1, stream),
            comm.scatter(0, 0, 2, element, 1, stream),
            comm.gather_uneven(0, 0, &[0], element, 1, stream),
            comm.scatter_uneven(0, 0, &[0], element, 1, stream),
            comm.gather_uneven(0, 0, &[1, 2], element, 0, stream),
            comm.scatter_uneven(0, 0, &[], element, 0, stream),
            comm.all_gather_uneven(0, 0, &[1, 2], element, stream),
            comm.all_gather_uneven(0, 0, &[], element, stream),
            comm.reduce_scatter_uneven(0, 0, &[1, 2], element, sum, stream),
            comm.all_to_all_uneven((0, &[1]), (0, &[]), element, stream),
            comm.all_to_all_uneven((0, &[usize::MAX]), (0, &[1]), element, stream),
        ]
    };
    for (at, refused) in refused.into_iter().enumerate() {
        let error = refused.expect_err("out of range");
        assert!(
            matches!(error, CommError::InvalidArgument { .. }),
            "{at}: {error}"
        );
    }
    assert_eq!(fake.count("calls"), 0);
    let failed = comm.group(|_| {
        Err::<(), _>(CommError::Protocol {
            what: "on purpose".into(),
        })
    });
    let failed = failed.expect_err("the closure failed").to_string();
    assert!(failed.contains("on purpose"), "{failed}");
    comm.group(|_| Ok(())).expect("the failed group was ended");
    fake.was_used_well();
}
