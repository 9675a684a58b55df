//! Accesses to memory, found by the copy of the buffer that they touch.

use super::program::NodeId;
use crate::plan::{BufferId, Region};
use std::collections::BTreeMap;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It may leave anything.
    Discard,
}

/// One access, somewhere between two steps, which are the same one for all but collectives.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) begin: NodeId,
    pub(super) end: NodeId,
    pub(super) kind: AccessKind,
    pub(super) region: Region,
    /// Which of the copies of an alternating buffer its call takes.
    pub(super) turn: usize,
}

impl Access {
    pub(super) fn writes(&self) -> bool {
        self.kind != AccessKind::Read
    }
}

/// Accesses by the copy of the buffer that they touch: only those of one copy can conflict.
///
/// A local buffer's copy is its rank's own, so the key is the same for both placements.
pub(super) fn by_copy(accesses: &[Access]) -> BTreeMap<(usize, BufferId, usize), Vec<&Access>> {
    let mut copies: BTreeMap<_, Vec<&Access>> = BTreeMap::new();
    for access in accesses {
        let Region { rank, buffer, .. } = access.region;
        copies
            .entry((rank, buffer, access.turn))
            .or_default()
            .push(access);
    }
    copies
}
