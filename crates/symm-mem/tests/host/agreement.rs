//! What the ranks do collectively, making signal pads and recovering them among it, fails on all of them or
//! on none, whatever step fails on one.

use crate::faulty::{Faulty, Step, all_blame, ranks};
use warpweave_symm_mem::{Backend, Error, Result, SignalPad, agree};

#[test]
fn all_ranks_learn_which_one_failed_and_whether_it_lacks_something() {
    let outcomes = ranks(3, |exchange| {
        let mine = match exchange.rank() {
            1 => Err(Error::Unavailable {
                what: "TMA".into(),
                why: "on purpose".into(),
            }),
            _ => Ok(()),
        };
        let first = agree(exchange.as_ref(), "first", mine);
        // Nobody is left in the step before.
        let second: Result<_> = agree(exchange.as_ref(), "second", Ok(7));
        assert_eq!(second.unwrap(), 7);
        first
    });
    for outcome in &outcomes {
        let error = outcome.as_ref().unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
    all_blame(1, Step::Map, outcomes);
}

#[test]
fn a_pad_is_made_on_all_ranks_or_on_none() {
    // The second allocation is that of the counters; the first one is the buffer's.
    for (step, before) in [(Step::Allocate, 0), (Step::Allocate, 1)] {
        for culprit in 0..2 {
            let outcomes = ranks(2, move |exchange| {
                let device = Faulty::new();
                device.fail_after(Some(step).filter(|_| exchange.rank() == culprit), before);
                let outcome = SignalPad::new(&device, &exchange, "p", 1).map(drop);
                device.fail(None);
                let pad = SignalPad::new(&device, &exchange, "q", 1).unwrap();
                exchange.barrier("made").unwrap();
                drop(pad);
                outcome
            });
            all_blame(culprit, step, outcomes);
        }
    }
}

#[test]
fn a_pad_of_a_wrong_size_on_one_rank_is_an_error_on_all() {
    let outcomes = ranks(2, |exchange| {
        let slots = exchange.rank();
        SignalPad::new(&Faulty::new(), &exchange, "p", slots).map(drop)
    });
    let errors: Vec<_> = outcomes.into_iter().map(Result::unwrap_err).collect();
    assert!(
        matches!(errors[0], Error::InvalidArgument { .. }),
        "{}",
        errors[0]
    );
    assert!(
        matches!(errors[1], Error::PeerFailed { rank: 0, .. }),
        "{}",
        errors[1]
    );
}

#[test]
fn a_pad_recovers_on_all_ranks_or_on_none() {
    for (step, before) in [(Step::Synchronize, 0), (Step::Upload, 0), (Step::Upload, 1)] {
        for culprit in 0..2 {
            let outcomes = ranks(2, move |exchange| {
                let device = Faulty::new();
                let stream = device.stream(Default::default()).unwrap();
                let pad = SignalPad::new(&device, &exchange, "p", 1).unwrap();
                device.fail_after(Some(step).filter(|_| exchange.rank() == culprit), before);
                let outcome = pad.recover(&stream, exchange.as_ref()).map(drop);
                device.fail(None);
                pad.recover(&stream, exchange.as_ref()).unwrap();
                pad.signal(&stream, 0, &[0, 1]).unwrap();
                pad.wait(&stream, 0, &[0, 1], 0).unwrap();
                device.synchronize(&stream).unwrap();
                pad.check(&stream).unwrap();
                pad.close(&stream, exchange.as_ref()).unwrap();
                outcome
            });
            all_blame(culprit, step, outcomes);
        }
    }
}
