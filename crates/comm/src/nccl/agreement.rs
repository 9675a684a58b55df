//! What the ranks agree on before and after they call NCCL together, so that no rank waits in it for one that
//! failed.

use warpweave_symm_mem::Exchange;

use super::api::{REMOTE_ERROR, SUCCESS, ncclUniqueId};
use super::fault::failure;
use super::library::NcclLibrary;
use crate::error::{CommError, Result, agree, as_comm_error};

/// Rank 0's unique id and what this rank prepared, once every rank has prepared it with the same version of
/// NCCL.
pub(super) fn unique_id<T>(
    library: &NcclLibrary,
    exchange: &dyn Exchange,
    prepared: Result<T>,
) -> Result<(ncclUniqueId, T)> {
    const PREPARED: &str = "warpweave.nccl.prepared";
    const TAG: &str = "warpweave.nccl.unique-id";
    let prepared = prepared.and_then(|prepared| match exchange.rank() {
        0 => Ok((id_bytes(&new_id(library)?), prepared)),
        _ => Ok((Vec::new(), prepared)),
    });
    let (mine, prepared) = agree(exchange, PREPARED, prepared)?;
    same(exchange, "NCCL's version", &library.version().to_string())?;
    let all = exchange.all_gather(TAG, &mine);
    let all = all.map_err(|e| as_comm_error(e, exchange.rank()))?;
    match all.first().map(Vec::as_slice) {
        Some(bytes) if bytes.len() == 128 => {
            let mut id = ncclUniqueId { internal: [0; 128] };
            for (to, &from) in id.internal.iter_mut().zip(bytes) {
                *to = from as _;
            }
            Ok((id, prepared))
        }
        _ => Err(CommError::Protocol {
            what: format!("`{TAG}` of rank 0 is not an id of NCCL"),
        }),
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

fn id_bytes(id: &ncclUniqueId) -> Vec<u8> {
    id.internal.iter().map(|&c| c as u8).collect()
}

/// Checks that `what` is the same on all ranks. Collective.
///
/// # Errors
/// [`CommError::Disagreement`], on all ranks.
pub(super) fn same(exchange: &dyn Exchange, what: &str, mine: &str) -> Result<()> {
    let rank = exchange.rank();
    let all = exchange.all_gather(what, mine.as_bytes());
    let all = all.map_err(|e| as_comm_error(e, rank))?;
    match all.iter().position(|theirs| theirs != mine.as_bytes()) {
        None => Ok(()),
        Some(peer) => Err(CommError::Disagreement {
            tag: what.into(),
            rank,
            mine: mine.into(),
            peer,
            theirs: String::from_utf8_lossy(&all[peer]).into_owned(),
        }),
    }
}

/// As [`agree`], of a call in which NCCL waits for all ranks.
///
/// When the call fails on one rank, it fails on its peers too, with an error of NCCL's that blames no rank.
/// Such an error counts only if no rank failed by itself: so all ranks name the rank that failed first.
pub(super) fn agree_on_call<T>(exchange: &dyn Exchange, step: &str, mine: Result<T>) -> Result<T> {
    let blames_no_rank = |error: &CommError| match error {
        CommError::Nccl { code, .. } => *code == REMOTE_ERROR,
        CommError::Timeout { .. } => true,
        _ => false,
    };
    let own = match mine {
        Err(error) if blames_no_rank(&error) => Ok(Err(error)),
        other => other.map(Ok),
    };
    let value = agree(exchange, step, own)?;
    agree(exchange, step, value)
}
