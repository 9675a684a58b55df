//! A rank that is late, skips a call or repeats one: every rank gets the right result or an error, and never
//! what others have overwritten meanwhile.

use std::time::Duration;

use warpweave_comm::CollectiveKernels;
use warpweave_comm::collective::Operation;
use warpweave_symm_mem::{DType, Error, FaultCause, SignalFault};

use crate::case::{Case, Reach};
use crate::play::Played;
use crate::rank::{Rank, message};
use crate::suite::every_variant;

/// How one rank deviates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// Makes its second call when the others have given up.
    Late,
    /// Makes one call fewer.
    Skips,
    /// Makes one call more.
    Repeats,
}

/// Calls that each rank is to make.
const CALLS: usize = 3;

/// Every variant that can be called here, one after the other.
pub fn every_call<B: CollectiveKernels>(rank: &Rank<B>, stray: Stray, timeout: Duration) -> Played {
    let cases = every_variant().flat_map(|(operation, variant)| {
        let case = Case::new(operation, variant, DType::F32, 1500, Reach::BOTH);
        let last = Case {
            root: rank.world() - 1,
            ..case
        };
        let is_rooted = operation == Operation::Broadcast;
        std::iter::once(case).chain(is_rooted.then_some(last))
    });
    for (index, case) in cases.enumerate() {
        if case.applies(&rank.limits()) {
            one_call(rank, &case, stray, timeout, 1000 * (index as u64 + 1))
                .map_err(|why| format!("{stray:?}: {} {}: {why}", case.operation, case.variant))?;
        }
    }
    Ok(())
}

fn one_call<B: CollectiveKernels>(
    rank: &Rank<B>,
    case: &Case,
    stray: Stray,
    timeout: Duration,
    seed: u64,
) -> Played {
    let failed = |error: Error| format!("rank {}: {error}", rank.rank());
    let is_stray = rank.rank() == rank.world() - 1;
    let barrier = |tag| rank.exchange.barrier(tag).map_err(|e| failed(e.into()));
    // Something to take for the result.
    sound_calls(rank, case, 1, seed)?;
    if stray == Stray::Late && is_stray {
        std::thread::sleep(2 * timeout + timeout / 2);
    }
    // A skipped or repeated call pairs up with the next of the same shape: the mismatch shows only at the
    // end.
    let calls = match (stray, is_stray) {
        (Stray::Late, _) => 1,
        (Stray::Skips, true) => CALLS - 1,
        (Stray::Repeats, true) => CALLS + 1,
        _ => CALLS,
    };
    let fault = rank.call(case, calls, seed + 1)?;
    if fault.is_some() {
        rank.spoil(case).map_err(failed)?;
    }
    let must_fail = match stray {
        // A rank that needs nothing of a late rank may have ended before it arrives.
        Stray::Late => false,
        Stray::Skips => !is_stray,
        Stray::Repeats => is_stray,
    };
    match &fault {
        None if must_fail => return Err(format!("rank {} noticed nothing", rank.rank())),
        None => {}
        Some(Error::SignalFault(fault)) => is_named(rank, stray, is_stray, fault)?,
        Some(other) => return Err(format!("rank {}: {other}", rank.rank())),
    }
    barrier("late.over")?;
    let exchange = rank.exchange.as_ref();
    rank.collectives
        .recover(&rank.stream, exchange)
        .map_err(failed)?;
    let recovered = sound_calls(rank, case, 2, seed + 100);
    recovered.map_err(|why| format!("after the recovery: {why}"))
}

/// Calls of which none may fail. On a busy machine the short deadline of these tests may pass all the same:
/// that is retried, a few times.
fn sound_calls<B: CollectiveKernels>(
    rank: &Rank<B>,
    case: &Case,
    calls: usize,
    seed: u64,
) -> Played {
    let exchange = rank.exchange.as_ref();
    const ATTEMPTS: u64 = 4;
    for attempt in 1.. {
        let fault = rank.call(case, calls, seed + 10 * attempt)?;
        let word = fault.iter().map(Error::to_string).collect::<String>();
        let all = exchange.all_gather("late.sound", word.as_bytes());
        let all = all.map_err(message)?;
        let Some(told) = all.iter().find(|word| !word.is_empty()) else {
            break;
        };
        if attempt == ATTEMPTS {
            return Err(String::from_utf8_lossy(told).into_owned());
        }
        let recovered = rank.collectives.recover(&rank.stream, exchange);
        recovered.map_err(message)?;
    }
    Ok(())
}

/// The error names the rank that deviated.
fn is_named<B: CollectiveKernels>(
    rank: &Rank<B>,
    stray: Stray,
    is_stray: bool,
    fault: &SignalFault,
) -> Played {
    let last = rank.world() - 1;
    let named = match (&fault.cause, stray) {
        // It may have waited for ranks that had given up on it, or not know whom they waited for.
        (FaultCause::PeerGaveUp { reporter }, _) => fault.peer == last || *reporter == last,
        (FaultCause::Deadline { missing }, Stray::Repeats) if is_stray => !missing.is_empty(),
        (FaultCause::Deadline { missing }, _) => {
            is_stray || fault.peer == last || missing.contains(&last)
        }
        _ => is_stray,
    };
    match named {
        true => Ok(()),
        false => Err(format!("rank {last} is not named: {fault}")),
    }
}
