//! Steps that the ranks take together: all go on, or none does.

use warpweave_symm_mem::Exchange;

use super::error::{ExecuteError, Result};

/// Goes on only if this step succeeded on every rank, so that no rank is left waiting for one that gave up.
pub(super) fn together<T>(
    exchange: &dyn Exchange,
    step: &'static str,
    mine: Result<T>,
) -> Result<T> {
    let word = match &mine {
        Ok(_) => Vec::new(),
        Err(error) => {
            let mut word = vec![u8::from(error.is_unavailable())];
            word.extend_from_slice(error.to_string().as_bytes());
            word
        }
    };
    let all = exchange.all_gather(step, &word)?;
    let value = mine?;
    let failed = all
        .iter()
        .enumerate()
        .find_map(|(peer, word)| Some((peer, word.split_first()?)));
    match failed {
        None => Ok(value),
        Some((peer, (kind, cause))) => Err(ExecuteError::PeerFailed {
            peer,
            step,
            cause: String::from_utf8_lossy(cause).into_owned(),
            unavailable: *kind == 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::{Error, ThreadExchange};

    #[test]
    fn a_capability_that_one_rank_lacks_is_lacking_for_all() {
        let ranks: Vec<_> = ThreadExchange::group(3)
            .into_iter()
            .map(|exchange| {
                std::thread::spawn(move || {
                    let mine = match exchange.rank() {
                        1 => Err(Error::Unavailable {
                            what: "TMA".into(),
                            why: "an A100".into(),
                        }),
                        _ => Ok(()),
                    };
                    let first = together(&exchange, "first", mine.map_err(Into::into)).unwrap_err();
                    // Nobody was left behind: the next step finds all ranks.
                    assert_eq!(together(&exchange, "second", Ok(7)).unwrap(), 7);
                    first
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            let error = thread.join().unwrap();
            assert!(error.is_unavailable(), "rank {rank}: {error}");
            assert!(
                error.to_string().contains("an A100"),
                "rank {rank}: {error}"
            );
            let peer = matches!(error, ExecuteError::PeerFailed { peer: 1, .. });
            assert_eq!(peer, rank != 1, "rank {rank}: {error}");
        }
    }
}
