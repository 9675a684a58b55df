//! Signal pads are made and recover on all ranks or on none, whatever step fails on one.

#[allow(dead_code, reason = "each test file fails at its own steps")]
#[path = "support/faulty.rs"]
mod faulty;

use faulty::{Faulty, Step, all_blame, ranks};
use warpweave_symm_mem::{Backend, Error, SignalPad};

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
