//! Steps that the ranks take together: all go on, or none does.

use warpweave_symm_mem::Exchange;

use super::error::{ExecuteError, Result};
use crate::plan::{OpKind, Placement, Plan};

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

/// Makes sure that the plans of all ranks belong together: one name, one world, the same shared buffers, slots,
/// collectives and kernels.
pub(super) fn same_interface(exchange: &dyn Exchange, plan: &Plan) -> Result<()> {
    let mine = interface(plan);
    let all = exchange.all_gather("plan.interface", mine.join("\n").as_bytes())?;
    for (peer, theirs) in all.iter().enumerate() {
        let theirs = String::from_utf8_lossy(theirs);
        let theirs: Vec<&str> = theirs.split('\n').collect();
        let lines = mine.len().max(theirs.len());
        for line in 0..lines {
            let mine = mine.get(line).map_or("nothing more", String::as_str);
            let theirs = theirs.get(line).copied().unwrap_or("nothing more");
            if mine != theirs {
                return Err(ExecuteError::Disagreement {
                    rank: exchange.rank(),
                    mine: mine.into(),
                    peer,
                    theirs: theirs.into(),
                });
            }
        }
    }
    Ok(())
}

/// What a plan shares with its peers, one line each. Local buffers are a rank's own business.
fn interface(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!(
        "plan {} of {} ranks, {} a node",
        plan.name, plan.world, plan.node_size
    )];
    for b in &plan.buffers {
        if b.placement != Placement::Local {
            lines.push(format!(
                "{} buffer {}: {}x{} {}",
                b.placement, b.name, b.rows, b.cols, b.dtype
            ));
        }
    }
    for slot in &plan.slots {
        lines.push(format!("slot {}", slot.name));
    }
    for op in &plan.ops {
        match &op.kind {
            OpKind::Collective {
                collective,
                src,
                dst,
                ranks,
                transport,
            } if ranks.len() == plan.world => lines.push(format!(
                "{collective} of {} rows of {} by {transport}",
                collective.all_rows(src, dst),
                dst.cols.len()
            )),
            OpKind::Kernel { kernel, .. } => {
                let shape = kernel.shape();
                lines.push(format!(
                    "kernel {} of {}x{}x{} {}",
                    kernel.name(),
                    shape.m,
                    shape.n,
                    shape.k,
                    shape.dtype
                ));
            }
            _ => {}
        }
    }
    lines
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
