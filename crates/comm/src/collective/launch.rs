//! Parameters of the kernels of collectives: twins of the structures in `cuda/*.cuh`.

use std::hash::{Hash, Hasher};

use fnv::FnvHasher;
use warpweave_symm_mem::{DevicePtr, PadView};

/// Most ranks of a collective over symmetric memory: `kMaxWorld`. Every launch carries tables of as many
/// addresses.
pub const MAX_WORLD: usize = 16;

/// The largest grid: `kMaxBlocks`.
pub const MAX_BLOCKS: usize = 128;

/// Slots of the pad for barriers: one for each phase and block.
pub(super) const BARRIER_SLOTS: usize = 2 * MAX_BLOCKS;

/// Most slices of a block, each with a slot after those: `kMaxSlices`.
pub const MAX_SLICES: usize = 8;

/// The slot that faults of packets name: `kPacketSlot`.
pub(super) const PACKET_SLOT: usize = BARRIER_SLOTS + MAX_SLICES * MAX_BLOCKS;

/// Addresses by rank; null where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Addresses(pub [DevicePtr; MAX_WORLD]);

impl Default for Addresses {
    fn default() -> Self {
        Self([DevicePtr::NULL; MAX_WORLD])
    }
}

impl Addresses {
    /// The address of each rank below `world`, as `of` gives it.
    pub fn by_rank(world: usize, of: impl FnMut(usize) -> DevicePtr) -> Self {
        let mut all = Addresses::default();
        (0..world)
            .map(of)
            .zip(&mut all.0)
            .for_each(|(address, place)| *place = address);
        all
    }

    /// The addresses of `rank` and of the ranks after it, cyclically, as `of` gives them by rank.
    pub fn from_rank(rank: usize, world: usize, mut of: impl FnMut(usize) -> DevicePtr) -> Self {
        Self::by_rank(world, |step| of((rank + step) % world))
    }
}

/// The synchronization state of a group of ranks.
///
/// Every launch with a barrier or packets makes each rank wait for every other and increments the epochs of
/// its blocks, so they are the same on all ranks.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Group {
    /// `[MAX_BLOCKS]` u32: the epoch of each block's last launch.
    pub epochs: DevicePtr,
    /// Of the call, from [`signature`]: flags and packets carry it with their epoch.
    pub signature: u32,
    /// Zero.
    pub reserved: u32,
    /// The pad: slots by (phase, block) and (slice, block), then that of packet faults.
    pub pad: PadView,
    /// The flags of every rank's pad.
    pub flags: Addresses,
}

/// Parameter of `packet_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Packets {
    /// This rank's input.
    pub input: DevicePtr,
    /// This rank's output; may be the input, or this rank's chunk of it.
    pub output: DevicePtr,
    /// Bytes of a chunk: what one rank has for another.
    pub bytes: u64,
    /// Bytes of a message that is cut into chunks (an all-reduce by sentinels).
    pub total: u64,
    /// Packets of a section.
    pub capacity: u32,
    /// The rank whose data a broadcast spreads.
    pub root: u32,
    /// 1 if input, output, chunks and message are multiples of four bytes.
    pub aligned: u32,
    /// 1 if the next kernel of the stream may start: [`CollectiveOptions::early_dependents`].
    ///
    /// [`CollectiveOptions::early_dependents`]: crate::CollectiveOptions::early_dependents
    pub admits: u32,
    /// The group.
    pub group: Group,
    /// The receiving areas, this rank's and then those of the ranks after it, cyclically:
    /// `[parity of the epoch][source][capacity]` packets of 16 bytes.
    pub areas: Addresses,
}

impl Packets {
    /// The receiving area of `owner`.
    pub(super) fn area(&self, owner: usize) -> DevicePtr {
        let [rank, world] = [self.group.pad.rank, self.group.pad.world].map(|ranks| ranks as usize);
        self.areas.0[(owner + world - rank) % world]
    }
}

/// Parameter of `packet_all_to_all_uneven_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UnevenPackets {
    /// The packets. The bytes are those of the largest chunk; input and output are not used.
    pub packets: Packets,
    /// By rank: this rank's data for that rank.
    pub from: Addresses,
    /// By rank: where that rank's data goes.
    pub to: Addresses,
    /// By rank: bytes that it gets from this rank.
    pub sent: [u32; MAX_WORLD],
    /// By rank: bytes that this rank gets from it.
    pub received: [u32; MAX_WORLD],
}

/// Parameter of `exchange_*` and `reduce_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Direct {
    /// The group.
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

/// Parameter of `multimem_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Multimem {
    /// The same with each rank's own address, for what is smaller than a vector or not aligned to one.
    pub direct: Direct,
    /// To spread: this rank's data, or null. To reduce: the multicast address of the inputs.
    pub from: DevicePtr,
    /// The multicast address to store to; null if the result stays on this rank. The host backend has
    /// neither.
    pub to: DevicePtr,
}

/// Parameter of `push_reduce_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PushReduce {
    /// The group.
    pub group: Group,
    /// By rank: where this rank's data for that rank goes in that rank's staging memory.
    pub staging: Addresses,
    /// By rank: where the result of this rank's chunk goes, or null.
    pub to: Addresses,
    /// Where the peers' results land, a chunk from each, if not in the output; else null.
    pub landed: DevicePtr,
    /// Where they go from there.
    pub output: DevicePtr,
    /// This rank's staging memory, a chunk from each source.
    pub received: DevicePtr,
    /// A chunk for each rank.
    pub input: DevicePtr,
    /// Bytes from one chunk to the next.
    pub chunk: u64,
    /// Bytes of all chunks; the last ones may be shorter.
    pub total: u64,
    /// Bytes of a slice, what a block handles at a time.
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
    /// The group.
    pub group: Group,
    /// By rank: where the message goes.
    pub output: Addresses,
    /// The message; the root's is read.
    pub input: DevicePtr,
    /// Bytes of the chunk of a rank that is not the root.
    pub chunk: u64,
    /// Bytes of the message; the last chunks may be shorter.
    pub total: u64,
    /// Bytes of a slice, what a block handles at a time.
    pub slice: u64,
    /// Slices of a block, [`MAX_SLICES`] at most: with as many of all blocks a chunk is covered.
    pub slices: u32,
    /// The rank whose message it is.
    pub root: u32,
}

// The layouts that device code asserts.
const _: () = {
    const TABLE: usize = size_of::<Addresses>();
    assert!(size_of::<ScatterAllGather>() == size_of::<Group>() + TABLE + 40);
    assert!(size_of::<PushReduce>() == size_of::<Group>() + 2 * TABLE + 64);
    assert!(size_of::<Multimem>() == size_of::<Direct>() + 16);
    assert!(size_of::<Group>() == size_of::<PadView>() + TABLE + 16);
    assert!(size_of::<Packets>() == size_of::<Group>() + TABLE + 48);
    assert!(size_of::<UnevenPackets>() == size_of::<Packets>() + 2 * TABLE + 8 * MAX_WORLD);
    assert!(size_of::<Direct>() == size_of::<Group>() + 2 * TABLE + 16);
};

/// Which collective by packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketKernel {
    /// Every rank's chunk to every rank.
    AllGather,
    /// One chunk for each peer.
    AllToAll,
    /// The root's chunk to every rank.
    Broadcast,
    /// One chunk for each peer, reduced there.
    ReduceScatter,
    /// Everything to every rank, reduced everywhere.
    AllReduce,
}

impl PacketKernel {
    /// The kernel's name, without the suffix of its instantiation.
    pub const fn name(self) -> &'static str {
        match self {
            PacketKernel::AllGather => "packet_all_gather",
            PacketKernel::AllToAll => "packet_all_to_all",
            PacketKernel::Broadcast => "packet_broadcast",
            PacketKernel::ReduceScatter => "packet_reduce_scatter",
            PacketKernel::AllReduce => "packet_all_reduce",
        }
    }

    /// Whether elements are reduced, so that their type matters.
    pub const fn reduces(self) -> bool {
        matches!(self, PacketKernel::ReduceScatter | PacketKernel::AllReduce)
    }
}

/// Bytes of data in a packet: `kPayload`.
pub const PAYLOAD: usize = 12;

/// Bytes of a packet.
pub const PACKET: usize = 16;

/// Bits of a packet's flag with the epoch, after the lowest, which is set: `kEpochBits`.
pub const EPOCH_BITS: u32 = 20;

/// Most packets of a section. A launch zeroes 32 unused packets of every second section, so all are
/// overwritten before the epoch of a packet repeats.
pub const MAX_CAPACITY: usize = 16 << (EPOCH_BITS - 1);

/// A number that tells calls apart which ranks mistake for the same one: what they do (an operation, an
/// element type) and how much. Flags carry all of it, packets its highest eleven bits: of two different calls
/// one in 2048 looks alike.
pub fn signature(what: impl Hash, sizes: &[usize]) -> u32 {
    // The same in every process: neither the standard library's hasher nor its keys.
    let mut hash = FnvHasher::default();
    what.hash(&mut hash);
    for size in sizes {
        hash.write_u64(*size as u64);
    }
    let mixed = hash.finish().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
