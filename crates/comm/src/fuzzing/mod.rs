//! Entries of the fuzz targets and the seeded tests: each takes any bytes, and panics only if a promise is
//! broken.
//!
//! `fuzz/` drives them with libFuzzer (`cargo fuzz`); `seeded` with deterministic mutations of the checked-in
//! corpus, for a bounded time, in the tests. Not part of the public crate.

#[cfg(test)]
mod seeded;
mod store;

use crate::error::CommError;
use crate::job::Job;

pub use store::{frames, session};

/// Bytes as each message that ranks exchange without the store: contacts, greetings, labels of descriptors,
/// receipts.
pub fn packets(data: &[u8]) {
    crate::exchange::decode_all(data);
}

/// The environment of a launcher: `data` is text, one `NAME=value` a line. Whatever it says, the answer is a
/// place below its world or an error that does not show the token.
pub fn places(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lookup = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(n, _)| *n == name).map(|(_, v)| v.to_owned())
    };
    let token = lookup("WARPWEAVE_JOB_TOKEN").filter(|token| token.len() >= 8);
    let shown = match Job::from_lookup(lookup) {
        Ok(job) => {
            assert!(job.rank() < job.world() && job.local_rank() < job.world());
            assert!((8..=256).contains(&job.token().as_bytes().len()));
            format!("{job:?}")
        }
        Err(CommError::Environment { launcher, why }) => format!("{launcher} {why}"),
        Err(other) => panic!("{other:?}"),
    };
    // Where the same text stands in another variable, showing that one shows it.
    if let Some(token) = token
        && text.matches(token.as_str()).count() == 1
    {
        assert!(!shown.contains(&token), "the token is shown");
    }
}
