//! What the kernels of collectives take by value: the twins of the structures in `cuda/*.cuh`.

use warpweave_symm_mem::{DevicePtr, PadView};

/// The most ranks of a collective over symmetric memory: a host's GPUs.
pub const MAX_WORLD: usize = 8;

/// The largest grid: `kMaxBlocks`.
pub const MAX_BLOCKS: usize = 128;

/// Slots of the pad in which the blocks of a launch meet: a phase each.
pub(super) const BARRIER_SLOTS: usize = 2 * MAX_BLOCKS;

/// Slices of a block at most, each with a slot behind those: `kMaxSlices`.
pub const MAX_SLICES: usize = 8;

/// The slot that faults of packets name: `kPacketSlot`.
pub(super) const PACKET_SLOT: usize = BARRIER_SLOTS + MAX_SLICES * MAX_BLOCKS;

/// Addresses by rank; null where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Addresses(pub [DevicePtr; MAX_WORLD]);

impl Addresses {
    /// The address for each rank below `world`, as `of` gives it.
    pub fn by_rank(world: usize, of: impl FnMut(usize) -> DevicePtr) -> Self {
        let mut all = Addresses::default();
        (0..world)
            .map(of)
            .zip(&mut all.0)
            .for_each(|(address, place)| *place = address);
        all
    }
}

/// Where the ranks of a collective meet.
///
/// Every launch that meets, or that exchanges packets, makes each rank hear from every other and counts the epochs of its
/// blocks up by one, so they are the same on all ranks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Group {
    /// The pad: slots by (phase, block) and (slice, block), then the one that faults of packets name.
    pub pad: PadView,
    /// The flags of every rank's pad.
    pub flags: Addresses,
    /// `[MAX_BLOCKS]` u32: the epoch of each block's last launch.
    pub epochs: DevicePtr,
    /// Zero.
    pub reserved: u64,
}

/// Parameter of `packet_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Packets {
    /// Where the ranks meet.
    pub group: Group,
    /// The receiving area of every rank: `[parity of the epoch][source][capacity]` packets of 16 bytes.
    pub areas: Addresses,
    /// What this rank gives.
    pub input: DevicePtr,
    /// What this rank gets; may be the input, or that part of it which is this rank's.
    pub output: DevicePtr,
    /// Bytes of a chunk, what one rank has for another.
    pub bytes: u64,
    /// Bytes of a message whose chunks are its parts (all-reduce in two shots).
    pub total: u64,
    /// Packets of a section.
    pub capacity: u32,
    /// The rank whose data a broadcast spreads.
    pub root: u32,
    /// 1 if input, output, chunks and message are multiples of four bytes.
    pub aligned: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameter of `exchange_*` and `reduce_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Direct {
    /// Where the ranks meet.
    pub group: Group,
    /// By rank: where to read.
    pub from: Addresses,
    /// By rank: where to write.
    pub to: Addresses,
    /// Bytes at each address.
    pub bytes: u64,
    /// 1: all ranks have entered before the first access.
    pub enter: u32,
    /// 1: no rank leaves before the last access of all.
    pub leave: u32,
}

/// Parameter of `tree_all_reduce_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tree {
    /// The message; chunk and message are the same.
    pub packets: Packets,
    /// By tree: whom this rank gives its sums, or [`NOBODY`](super::tree::NOBODY).
    pub parent: [u32; 2],
    /// By tree: whose sums this rank takes, or [`NOBODY`](super::tree::NOBODY).
    pub children: [[u32; 2]; 2],
}

/// Parameter of `multimem_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Multimem {
    /// The same with each rank's memory by itself, for what is less than a vector or not aligned to one.
    pub direct: Direct,
    /// To spread: this rank's data, null if it has none. To sum: the multicast address of what is summed.
    pub from: DevicePtr,
    /// The multicast address to store to; null where the sum stays with this rank. The host backend has none of either.
    pub to: DevicePtr,
}

/// Parameter of `push_reduce_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PushReduce {
    /// Where the ranks meet.
    pub group: Group,
    /// By rank: where this rank's data for that rank goes, in its staging memory.
    pub staging: Addresses,
    /// By rank: where the sums of this rank's chunk go; null where they do not.
    pub to: Addresses,
    /// This rank's staging memory, a chunk from each source.
    pub received: DevicePtr,
    /// A chunk for each rank.
    pub input: DevicePtr,
    /// Bytes from one chunk to the next.
    pub chunk: u64,
    /// Bytes of all chunks; the last ones may be shorter.
    pub total: u64,
    /// Bytes of a slice, the part of a chunk that a block handles at a time.
    pub slice: u64,
    /// Slices of a block, [`MAX_SLICES`] at most: with as many of all blocks a chunk is covered.
    pub slices: u32,
    /// Zero.
    pub reserved: u32,
}

/// Parameter of `scatter_all_gather_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ScatterAllGather {
    /// Where the ranks meet.
    pub group: Group,
    /// By rank: where the message goes.
    pub output: Addresses,
    /// The message; the root's is read.
    pub input: DevicePtr,
    /// Bytes of the part of a rank that is not the root.
    pub chunk: u64,
    /// Bytes of the message; the last chunks may be shorter.
    pub total: u64,
    /// Bytes of a slice, the part of a chunk that a block handles at a time.
    pub slice: u64,
    /// Slices of a block, [`MAX_SLICES`] at most: with as many of all blocks a chunk is covered.
    pub slices: u32,
    /// The rank whose message it is.
    pub root: u32,
}

const _: () = {
    assert!(size_of::<ScatterAllGather>() == size_of::<Group>() + 64 + 40);
    assert!(size_of::<PushReduce>() == size_of::<Group>() + 2 * 64 + 48);
    assert!(size_of::<Tree>() == size_of::<Packets>() + 24);
    assert!(size_of::<Multimem>() == size_of::<Direct>() + 16);
    assert!(size_of::<Group>() == size_of::<PadView>() + 64 + 16);
    assert!(size_of::<Packets>() == size_of::<Group>() + 64 + 48);
    assert!(size_of::<Direct>() == size_of::<Group>() + 2 * 64 + 16);
};

/// Which collective by packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKernel {
    /// Everybody's chunk to everybody.
    AllGather,
    /// One chunk for each peer.
    AllToAll,
    /// The root's chunk to everybody.
    Broadcast,
    /// One chunk for each peer, summed there.
    ReduceScatter,
    /// Everything to everybody, summed everywhere.
    AllReduceOneShot,
    /// One chunk for each peer, summed there, and the sums to everybody.
    AllReduceTwoShot,
}

impl PacketKernel {
    /// The kernel's name, less what it is compiled for.
    pub const fn name(self) -> &'static str {
        match self {
            PacketKernel::AllGather => "packet_all_gather",
            PacketKernel::AllToAll => "packet_all_to_all",
            PacketKernel::Broadcast => "packet_broadcast",
            PacketKernel::ReduceScatter => "packet_reduce_scatter",
            PacketKernel::AllReduceOneShot => "packet_all_reduce_one_shot",
            PacketKernel::AllReduceTwoShot => "packet_all_reduce_two_shot",
        }
    }

    /// Whether elements are reduced, so that their type matters.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            PacketKernel::ReduceScatter
                | PacketKernel::AllReduceOneShot
                | PacketKernel::AllReduceTwoShot
        )
    }
}

/// Bytes of data in a packet: `kPayload`.
pub const PAYLOAD: usize = 12;

/// Bytes of a packet.
pub const PACKET: usize = 16;
