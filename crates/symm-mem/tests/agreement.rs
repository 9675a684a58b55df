//! What the ranks do collectively fails on all of them or on none, whatever step fails on one.

#[allow(dead_code, reason = "each test file fails at its own steps")]
#[path = "support/faulty.rs"]
mod faulty;

use faulty::{Step, all_blame, ranks};
use warpweave_symm_mem::{Error, Result, agree};

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
