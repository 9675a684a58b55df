//! What the ranks tell each other before any of them calls NCCL, so that none is left waiting in it for one that cannot.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use warpweave_symm_mem::Exchange;

use super::api::{SUCCESS, ncclUniqueId};
use super::fault::failure;
use super::library::NcclLibrary;
use crate::error::{CommError, Result, as_comm_error};

/// The most characters of a cause that go to the peers.
const SHOWN: usize = 2048;

#[derive(Serialize, Deserialize)]
struct Opening {
    /// Equal on all ranks.
    word: String,
    trouble: Option<String>,
    /// From rank 0 alone.
    id: Option<Vec<u8>>,
}

/// Rank 0's id on every rank, and what this rank has prepared, if all have, with the same version.
pub(super) fn unique_id<T>(
    library: &NcclLibrary,
    exchange: &dyn Exchange,
    prepared: Result<T>,
) -> Result<(ncclUniqueId, T)> {
    const TAG: &str = "warpweave.nccl.unique-id";
    let rank = exchange.rank();
    let prepared = prepared.and_then(|prepared| match rank {
        0 => Ok((Some(new_id(library)?), prepared)),
        _ => Ok((None, prepared)),
    });
    let mut opening = Opening {
        word: library.version().to_string(),
        trouble: None,
        id: None,
    };
    if let Ok((Some(id), _)) = &prepared {
        opening.id = Some(id.internal.iter().map(|&c| c as u8).collect());
    }
    let ((_, prepared), all) = meet(exchange, TAG, "NCCL's version", opening, prepared)?;
    match all.into_iter().next().and_then(|first| first.id) {
        Some(bytes) if bytes.len() == 128 => {
            let mut id = ncclUniqueId { internal: [0; 128] };
            for (to, from) in id.internal.iter_mut().zip(bytes) {
                *to = from as _;
            }
            Ok((id, prepared))
        }
        _ => Err(unclear(TAG, 0)),
    }
}

fn new_id(library: &NcclLibrary) -> Result<ncclUniqueId> {
    let function = &library.api.get_unique_id;
    let (call, get) = (function.name, function.get()?);
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the pointer is to this frame.
    match unsafe { get(&mut id) } {
        SUCCESS => Ok(id),
        code => Err(failure(library, 0, call, code)),
    }
}

/// Goes on only if every rank came this far, with the same `word`, which is the value of `what`.
pub(super) fn together<T>(
    exchange: &dyn Exchange,
    tag: &str,
    (what, word): (&str, impl Display),
    mine: Result<T>,
) -> Result<T> {
    let opening = Opening {
        word: word.to_string(),
        trouble: None,
        id: None,
    };
    meet(exchange, tag, what, opening, mine).map(|(mine, _)| mine)
}

fn meet<T>(
    exchange: &dyn Exchange,
    tag: &str,
    what: &str,
    mut opening: Opening,
    mine: Result<T>,
) -> Result<(T, Vec<Opening>)> {
    let rank = exchange.rank();
    if let Err(error) = &mine {
        opening.trouble = Some(error.to_string().chars().take(SHOWN).collect());
    }
    let bytes = postcard::to_stdvec(&opening).map_err(|_| unclear(tag, rank))?;
    let all = exchange.all_gather(tag, &bytes);
    // What went wrong here says more than what it does to the exchange.
    let mine = mine?;
    let all = all
        .map_err(|e| as_comm_error(e, rank))?
        .iter()
        .enumerate()
        .map(|(peer, bytes)| postcard::from_bytes(bytes).map_err(|_| unclear(tag, peer)))
        .collect::<Result<Vec<Opening>>>()?;
    for (peer, theirs) in all.iter().enumerate() {
        if let Some(cause) = &theirs.trouble {
            return Err(CommError::PeerFailed {
                rank,
                peer,
                what: tag.into(),
                cause: cause.clone(),
            });
        }
    }
    match all.iter().position(|theirs| theirs.word != opening.word) {
        None => Ok((mine, all)),
        Some(peer) => Err(CommError::Disagreement {
            tag: what.into(),
            rank,
            mine: opening.word,
            peer,
            theirs: all[peer].word.clone(),
        }),
    }
}

fn unclear(tag: &str, peer: usize) -> CommError {
    CommError::Protocol {
        what: format!("`{tag}` of rank {peer} makes no sense"),
    }
}
