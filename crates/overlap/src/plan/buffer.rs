//! Buffers, and the ids by which a plan names what it has.

use serde::{Deserialize, Serialize};
use std::fmt;
use warpweave_symm_mem::DType;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub usize);
    };
}

id! {
    /// Index into [`Plan::buffers`](super::Plan::buffers).
    BufferId
}
id! {
    /// Index of a stream; [`StreamId::MAIN`] is the caller's.
    StreamId
}
id! {
    /// Index of an event.
    EventId
}
id! {
    /// Index into [`Plan::slots`](super::Plan::slots).
    SlotId
}

impl StreamId {
    /// The caller's stream.
    pub const MAIN: StreamId = StreamId(0);
}

/// Who can reach a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Placement {
    /// The rank's own memory.
    Local,
    /// The same shape on every rank, mapped by every rank.
    Symmetric,
    /// Symmetric, and bound to a multicast object.
    Multicast,
}

/// What a buffer is to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The caller overwrites it before each call.
    Input,
    /// The caller reads it after each call, and may overwrite it then; each call writes all of it.
    Output,
    /// The plan's own; nothing in it outlives a call.
    Staging,
    /// Written before the first call, constant from then on.
    Weight,
}

/// A row-major matrix of `rows` × `cols` elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Name, unique within the plan, the same on every rank for symmetric buffers.
    pub name: String,
    /// Who can reach it.
    pub placement: Placement,
    /// What it is to the caller.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Columns, which is also the leading dimension in elements.
    pub cols: usize,
    /// Whether there are two, between which calls alternate. The one kernel that knows of them tells them
    /// apart by the epoch of its first slot.
    pub alternating: bool,
}

impl Buffer {
    /// How many there are.
    pub fn copies(&self) -> usize {
        1 + usize::from(self.alternating)
    }

    /// Element type, rows and columns, and whether there are two, as plans are printed.
    pub(crate) fn extent(&self) -> String {
        let Buffer {
            dtype, rows, cols, ..
        } = self;
        let twice = if self.alternating { " ×2" } else { "" };
        format!("{dtype}[{rows}, {cols}]{twice}")
    }

    /// Size of one in bytes.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * self.dtype.size()
    }
}

/// A row of the signal pad: one flag for each pair of destination and source rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// What its signals mean.
    pub name: String,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Local => "local",
            Placement::Symmetric => "symmetric",
            Placement::Multicast => "multicast",
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Input => "input",
            Role::Output => "output",
            Role::Staging => "staging",
            Role::Weight => "weight",
        })
    }
}
