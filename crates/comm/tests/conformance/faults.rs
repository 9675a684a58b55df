//! A rank that makes no call is named within the deadline, and then the group goes on.

use std::time::{Duration, Instant};

use warpweave_comm::CollectiveKernels;
use warpweave_comm::collective::{Operation, Variant};
use warpweave_symm_mem::{DType, Error, FaultCause};

use crate::case::{Case, Reach};
use crate::play::{Played, Step};
use crate::random::Random;
use crate::rank::Rank;
use crate::suite::{Mixture, mixed};

/// Calls that cover every kernel that waits.
pub const CALLS: [(Operation, Variant); 13] = [
    (Operation::AllGather, Variant::Packets),
    (Operation::Broadcast, Variant::Packets),
    (Operation::AllReduce, Variant::Packets),
    (Operation::AllReduce, Variant::Sentinel),
    (Operation::AllToAll, Variant::Push),
    (Operation::AllGather, Variant::PushCopyEngine),
    (Operation::ReduceScatter, Variant::Pull),
    (Operation::AllReduce, Variant::TwoShotTma),
    (Operation::AllReduce, Variant::PushCopyEngine),
    (Operation::AllReduce, Variant::TwoShotPush),
    (Operation::Broadcast, Variant::ScatterAllGather),
    (Operation::AllReduce, Variant::Staged),
    (Operation::AllGather, Variant::Staged),
];

/// One rank does not come to a call of the operation; the others do, twice.
pub fn a_silent_peer_is_named<B: CollectiveKernels>(
    rank: &Rank<B>,
    (operation, variant): (Operation, Variant),
    timeout: Duration,
) -> Played {
    let failed = |error: Error| format!("rank {}: {operation} {variant}: {error}", rank.rank());
    let case = Case::new(operation, variant, DType::F32, 100, Reach::BOTH);
    let place = rank.place(&case).map_err(failed)?;
    let silent = rank.world() - 1;
    if rank.rank() != silent {
        let start = Instant::now();
        for _ in 0..2 {
            // SAFETY: the place is live; nothing is done with what it holds afterwards.
            unsafe {
                rank.collectives
                    .enqueue(&rank.stream, &place.call, variant)
                    .map_err(failed)?;
            }
        }
        rank.backend.synchronize(&rank.stream).map_err(failed)?;
        let took = start.elapsed();
        // Calls after the first fault end at once.
        assert!(took < 4 * timeout + Duration::from_secs(2), "{took:?}");
        match rank.collectives.check(&rank.stream) {
            Err(Error::SignalFault(fault)) => {
                assert_eq!(fault.rank, rank.rank(), "{fault}");
                // One waits until its deadline; the others are notified.
                let is_first = matches!(fault.cause, FaultCause::Deadline { .. });
                assert!(!is_first || fault.waited >= timeout, "{fault}");
                assert!(is_first || rank.world() > 2, "{fault}");
                assert_eq!(fault.peer, silent, "{variant}: {fault}");
            }
            other => return Err(format!("{operation} {variant}: no fault but {other:?}")),
        }
    }
    let exchange = rank.exchange.as_ref();
    rank.collectives
        .recover(&rank.stream, exchange)
        .map_err(failed)?;
    rank.collectives.check(&rank.stream).map_err(failed)?;
    let mixture = Mixture {
        calls: 12,
        most: 500,
        micros: 50,
        graphs: 6,
    };
    let mut steps = vec![Step::Call(case)];
    steps.extend(mixed(&mut Random::with_seed(7), &rank.limits(), &mixture));
    rank.play(&steps, 7)
        .map_err(|why| format!("after the fault of {operation} {variant}: {why}"))
}
