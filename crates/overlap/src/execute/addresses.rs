//! Where the buffers of a plan lie in a call.

use warpweave_symm_mem::{Backend, DevicePtr, DeviceSlice, PadView, SymmetricBuffer};

use super::error::{ExecuteError, Result};
use crate::plan::{Buffer, BufferId, Placement, Plan, Region};

/// Where the copies of a buffer lie, as mapped here: at equal distances, from the first rank of the node on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    /// The copy of the first rank of the node; this rank's own if the buffer is local.
    pub first: DevicePtr,
    /// Bytes from a rank's copy to the next rank's; 0 for a local buffer.
    pub stride: usize,
    /// Device address of the table of the addresses of all copies; null for a local buffer, and for copies
    /// that are parts of other memory.
    pub table: DevicePtr,
    /// The multicast address; null on the host backend, and for buffers without one.
    pub multicast: DevicePtr,
    /// Bytes from the first to the second of an alternating buffer.
    pub alternate: usize,
}

impl Location {
    /// Memory of this rank alone.
    pub const fn local(address: DevicePtr) -> Self {
        Location {
            first: address,
            stride: 0,
            table: DevicePtr::NULL,
            multicast: DevicePtr::NULL,
            alternate: 0,
        }
    }

    /// Memory of all ranks of the node.
    pub fn symmetric<B: Backend>(buffer: &SymmetricBuffer<B>) -> Self {
        Location {
            stride: buffer.stride(),
            table: buffer.peer_table(),
            ..Location::local(buffer.contiguous())
        }
    }

    /// The caller's memory, of all ranks of the node where it is symmetric.
    pub fn of(slice: &DeviceSlice<'_>) -> Self {
        Location {
            stride: slice.stride(),
            table: slice.peer_table(),
            ..Location::local(slice.address(0))
        }
    }

    /// `offset` bytes after it on every rank.
    #[must_use]
    pub fn at(self, offset: usize) -> Self {
        match offset {
            0 => self,
            _ => Location {
                first: self.first.add(offset),
                table: DevicePtr::NULL,
                multicast: match self.multicast {
                    DevicePtr::NULL => DevicePtr::NULL,
                    address => address.add(offset),
                },
                ..self
            },
        }
    }
}

/// A place in a copy of a buffer, or in all copies by the multicast address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub buffer: BufferId,
    pub copy: Copy,
    /// Bytes from the start of the copy.
    pub offset: usize,
}

/// Whose copy of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    Of(usize),
    /// Everyone's, by one store.
    All,
}

impl Place {
    /// The first element of a box.
    pub fn of(plan: &Plan, region: &Region) -> Self {
        Place {
            buffer: region.buffer,
            copy: Copy::Of(region.rank),
            offset: offset_of(plan, region, 0),
        }
    }
}

/// Bytes from the start of a copy of a buffer to the first element of row `row` of a box.
pub(super) fn offset_of(plan: &Plan, region: &Region, row: usize) -> usize {
    let buffer = &plan.buffers[region.buffer.0];
    ((region.rows.start + row) * buffer.cols + region.cols.start) * buffer.dtype.size()
}

/// The addresses of a call: of the plan's buffers, and of its signal pad.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a> {
    pub(super) plan: &'a Plan,
    /// The first rank of the node.
    pub(super) first_rank: usize,
    /// By buffer.
    pub(super) locations: &'a [Location],
    pub(super) pad: Option<PadView>,
}

impl Addresses<'_> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.plan.rank
    }

    /// How many ranks take part.
    pub fn world(&self) -> usize {
        self.plan.world
    }

    /// First address of this rank's copy of a buffer, of the first one where it alternates.
    pub fn own(&self, id: BufferId) -> DevicePtr {
        self.copy_of(id, self.plan.rank)
    }

    /// First address of `rank`'s copy of a symmetric buffer, as mapped here; this rank's own if the buffer is
    /// local.
    pub fn copy_of(&self, id: BufferId, rank: usize) -> DevicePtr {
        let Location { first, stride, .. } = self.locations[id.0];
        first.add((rank - self.first_rank) * stride)
    }

    /// [`Addresses::copy_of`] each rank of the world.
    pub fn copies(&self, id: BufferId) -> impl Iterator<Item = DevicePtr> {
        (0..self.plan.world).map(move |rank| self.copy_of(id, rank))
    }

    /// Bytes from the first to the second of an alternating buffer.
    pub fn alternate(&self, id: BufferId) -> usize {
        self.locations[id.0].alternate
    }

    /// Device address of the table of all copies' addresses.
    ///
    /// # Errors
    /// [`ExecuteError::InvalidPlan`] for a buffer without one.
    pub fn table(&self, id: BufferId) -> Result<DevicePtr> {
        match self.locations[id.0].table {
            DevicePtr::NULL => Err(self.missing(
                &self.plan.buffers[id.0].name,
                "its kernel needs a table of addresses, which only the first symmetric buffer has",
            )),
            table => Ok(table),
        }
    }

    /// The multicast address; null on the host backend, and for buffers without one.
    pub fn multicast(&self, id: BufferId) -> DevicePtr {
        self.locations[id.0].multicast
    }

    /// The pad of the plan's slots.
    ///
    /// # Errors
    /// [`ExecuteError::InvalidPlan`] for a plan without slots.
    pub fn pad(&self) -> Result<PadView> {
        let why = "a kernel that signals needs a signal pad";
        self.pad.ok_or_else(|| self.missing("slots", why))
    }

    pub(super) fn place(&self, place: Place) -> DevicePtr {
        let start = match place.copy {
            Copy::Of(rank) => self.copy_of(place.buffer, rank),
            Copy::All => self.multicast(place.buffer),
        };
        start.add(place.offset)
    }

    fn missing(&self, place: &str, why: &str) -> ExecuteError {
        ExecuteError::InvalidPlan {
            plan: self.plan.name.clone(),
            rank: self.plan.rank,
            place: place.into(),
            why: why.into(),
        }
    }
}

/// Addresses where nothing is, apart from each other and aligned: for what is decided before there are any.
#[derive(Debug)]
pub(super) struct Nowhere {
    locations: Vec<Location>,
    pad: Option<PadView>,
}

impl Nowhere {
    /// Tables are that of `pad`: kernels read theirs whether or not there is anything to do.
    pub fn of(plan: &Plan, pad: Option<PadView>) -> Self {
        let table = pad.map_or(DevicePtr::NULL, |pad| pad.peers);
        let location = |(index, buffer): (usize, &Buffer)| {
            let first = DevicePtr((index as u64 + 1) << 44);
            match buffer.placement {
                Placement::Local => Location::local(first),
                _ => Location {
                    stride: 1 << 40,
                    table,
                    ..Location::local(first)
                },
            }
        };
        Nowhere {
            locations: plan.buffers.iter().enumerate().map(location).collect(),
            pad,
        }
    }

    pub fn addresses<'a>(&'a self, plan: &'a Plan) -> Addresses<'a> {
        Addresses {
            plan,
            first_rank: plan.node_of(plan.rank).start,
            locations: &self.locations,
            pad: self.pad,
        }
    }
}
