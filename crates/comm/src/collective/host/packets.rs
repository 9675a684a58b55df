//! The references of `packets.cu`: each rank sends its packets, then receives those of the peers.

use super::group::{HostGroup, Member};
use super::packet::{Areas, HostAreas, Payload, Sections, packets_of, reduce_words};
use crate::collective::launch::{PACKET_SLOT, PAYLOAD, PacketKernel, Packets, UnevenPackets};
use warpweave_symm_mem::host::Element;

/// The reference of `kernel`.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T` where they are summed.
pub(super) unsafe fn run<T: Element>(kernel: PacketKernel, launch: &Packets) {
    // SAFETY: the caller's obligations.
    unsafe {
        let group = HostGroup::new(&launch.group);
        let areas = HostAreas::new(&group, launch);
        let epoch = group.epoch();
        let operands = Operands::of(launch);
        if group.is_sound(PACKET_SLOT) {
            collective::<T, _>(kernel, &Sections::new(&areas, epoch), &operands);
        }
        group.advance(epoch);
    }
}

/// The reference of `packet_all_to_all_uneven`.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn all_to_all_uneven(launch: &UnevenPackets) {
    // SAFETY: the caller's obligations.
    unsafe {
        let group = HostGroup::new(&launch.packets.group);
        let areas = HostAreas::new(&group, &launch.packets);
        let (rank, epoch) = (group.rank(), group.epoch());
        if group.is_sound(PACKET_SLOT) {
            let sections = Sections::new(&areas, epoch);
            let received = |source: usize| launch.received[source] as usize;
            // Bytes of a packet of a chunk.
            let part =
                |bytes: usize, index: usize| bytes.saturating_sub(index * PAYLOAD).min(PAYLOAD);
            for peer in group.peers() {
                let (from, bytes) = (launch.from.0[peer], launch.sent[peer] as usize);
                let sections = sections.of_length(bytes);
                for index in 0..packets_of(bytes) {
                    let mut data = Payload::default();
                    let from = from.add(index * PAYLOAD).as_host::<u8>();
                    let to = data.as_mut_ptr().cast();
                    std::ptr::copy_nonoverlapping(from.cast_const(), to, part(bytes, index));
                    sections.send(peer, index, &data);
                }
            }
            let [from, to] = [launch.from, launch.to].map(|all| all.0[rank].as_host::<u8>());
            std::ptr::copy_nonoverlapping(from.cast_const(), to, launch.sent[rank] as usize);
            for source in group.peers() {
                let bytes = received(source);
                let sections = sections.of_length(bytes);
                for index in 0..packets_of(bytes) {
                    if let Some(data) = sections.receive(source, index) {
                        let to = launch.to.0[source].add(index * PAYLOAD).as_host::<u8>();
                        std::ptr::copy_nonoverlapping(data.as_ptr().cast(), to, part(bytes, index));
                    }
                }
            }
            sections.scrub_unless(|source, index| index < packets_of(received(source)));
        }
        group.advance(epoch);
    }
}

/// What a call reads and writes: see [`Packets`].
pub(super) struct Operands {
    pub input: *const u8,
    pub output: *mut u8,
    pub bytes: usize,
    pub total: usize,
    pub root: usize,
}

impl Operands {
    pub(super) fn of(launch: &Packets) -> Self {
        Self {
            input: launch.input.as_host(),
            output: launch.output.as_host(),
            bytes: launch.bytes as usize,
            total: launch.total as usize,
            root: launch.root as usize,
        }
    }

    /// Bytes of chunk `owner` of a message that is cut into one for each rank.
    pub(super) fn part(&self, owner: usize) -> usize {
        self.total
            .saturating_sub(owner * self.bytes)
            .min(self.bytes)
    }

    /// Of the `bytes` of the input from `start` on, those of words number `index`, zero beyond the end.
    ///
    /// # Safety
    /// The input has these bytes, and nothing writes them meanwhile.
    pub(super) unsafe fn load<const N: usize>(
        &self,
        start: usize,
        index: usize,
        bytes: usize,
    ) -> [u32; N] {
        let mut data = [0; N];
        let offset = index * size_of::<[u32; N]>();
        // SAFETY: the bytes lie in the input.
        unsafe {
            let from = self.input.wrapping_add(start + offset);
            let count = (bytes - offset).min(size_of::<[u32; N]>());
            std::ptr::copy_nonoverlapping(from, data.as_mut_ptr().cast(), count);
        }
        data
    }

    /// Stores words of the output as [`Operands::load`] loads those of the input.
    ///
    /// # Safety
    /// The output has these bytes, and nothing else touches them meanwhile.
    pub(super) unsafe fn store<const N: usize>(
        &self,
        start: usize,
        index: usize,
        bytes: usize,
        data: &[u32; N],
    ) {
        let offset = index * size_of::<[u32; N]>();
        // SAFETY: the bytes lie in the output.
        unsafe {
            let to = self.output.wrapping_add(start + offset);
            let count = (bytes - offset).min(size_of::<[u32; N]>());
            std::ptr::copy_nonoverlapping(data.as_ptr().cast(), to, count);
        }
    }
}

/// One collective by packets.
///
/// # Safety
/// The operands have the chunks that the kernel reads and writes; nothing else touches them meanwhile.
pub(super) unsafe fn collective<T: Element, A: Areas>(
    kernel: PacketKernel,
    sections: &Sections<'_, A>,
    operands: &Operands,
) {
    let call = Call { sections, operands };
    // SAFETY: the caller's obligation.
    unsafe {
        match kernel {
            PacketKernel::AllGather => call.all_gather(),
            PacketKernel::AllToAll => call.all_to_all(),
            PacketKernel::Broadcast => call.broadcast(),
            PacketKernel::ReduceScatter => call.reduce_scatter::<T>(),
            PacketKernel::AllReduce => call.all_reduce::<T>(),
        }
    }
}

/// A call as one rank sees it. The methods ask of their caller what [`collective`] does.
struct Call<'a, A> {
    sections: &'a Sections<'a, A>,
    operands: &'a Operands,
}

impl<A: Areas> Call<'_, A> {
    fn rank(&self) -> usize {
        self.sections.group().rank()
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        self.sections.group().peers()
    }

    /// Packet `index` of chunk `chunk`, which has `bytes`.
    unsafe fn load(&self, chunk: usize, index: usize, bytes: usize) -> Payload {
        let start = chunk * self.operands.bytes;
        // SAFETY: the caller's obligation.
        unsafe { self.operands.load(start, index, bytes) }
    }

    unsafe fn store(&self, chunk: usize, index: usize, bytes: usize, data: &Payload) {
        let start = chunk * self.operands.bytes;
        // SAFETY: the caller's obligation.
        unsafe { self.operands.store(start, index, bytes, data) };
    }

    /// The same data to every peer.
    fn send_all(&self, index: usize, data: &Payload) {
        for peer in self.peers() {
            self.sections.send(peer, index, data);
        }
    }

    /// Stores packet `index` of each peer in that peer's chunk.
    unsafe fn receive_all(&self, index: usize) {
        for source in self.peers() {
            if let Some(data) = self.sections.receive(source, index) {
                // SAFETY: the caller's obligation.
                unsafe { self.store(source, index, self.operands.bytes, &data) };
            }
        }
    }

    /// Reduces all ranks' packets `index`, with `own` in this rank's place; `None` if one did not arrive in
    /// time.
    fn reduce<T: Element>(&self, index: usize, own: &Payload) -> Option<Payload> {
        let receive = |source| self.sections.receive(source, index);
        reduce_words::<T, _>(self.sections.group(), own, receive)
    }

    unsafe fn all_gather(&self) {
        let Operands {
            input,
            output,
            bytes,
            ..
        } = *self.operands;
        let packets = packets_of(bytes);
        let rank = self.rank();
        // SAFETY: the caller's obligation.
        unsafe {
            for index in 0..packets {
                let own = self.load(0, index, bytes);
                self.send_all(index, &own);
                if output.cast_const().wrapping_add(rank * bytes) != input {
                    self.store(rank, index, bytes, &own);
                }
            }
            for index in 0..packets {
                self.receive_all(index);
            }
        }
        self.sections.scrub(packets);
    }

    unsafe fn all_to_all(&self) {
        let Operands {
            input,
            output,
            bytes,
            ..
        } = *self.operands;
        let packets = packets_of(bytes);
        let rank = self.rank();
        // SAFETY: the caller's obligation.
        unsafe {
            for index in 0..packets {
                for peer in self.peers() {
                    let data = self.load(peer, index, bytes);
                    self.sections.send(peer, index, &data);
                }
                if output.cast_const() != input {
                    self.store(rank, index, bytes, &self.load(rank, index, bytes));
                }
            }
            for index in 0..packets {
                self.receive_all(index);
            }
        }
        self.sections.scrub(packets);
    }

    /// The root sends its data; every other rank sends one empty packet.
    unsafe fn broadcast(&self) {
        let Operands {
            input,
            output,
            bytes,
            root,
            ..
        } = *self.operands;
        let packets = packets_of(bytes);
        let is_root = self.rank() == root;
        // SAFETY: the caller's obligation.
        unsafe {
            if is_root {
                for index in 0..packets {
                    let own = self.load(0, index, bytes);
                    self.send_all(index, &own);
                    if output.cast_const() != input {
                        self.store(0, index, bytes, &own);
                    }
                }
            } else {
                self.send_all(0, &Payload::default());
            }
            for source in self.peers() {
                for index in 0..if source == root { packets } else { 1 } {
                    let data = self.sections.receive(source, index);
                    if let Some(data) = data.filter(|_| source == root) {
                        self.store(0, index, bytes, &data);
                    }
                }
            }
        }
        self.sections.scrub(packets);
    }

    unsafe fn reduce_scatter<T: Element>(&self) {
        let bytes = self.operands.bytes;
        let packets = packets_of(bytes);
        let rank = self.rank();
        // SAFETY: the caller's obligation.
        unsafe {
            for index in 0..packets {
                for peer in self.peers() {
                    let data = self.load(peer, index, bytes);
                    self.sections.send(peer, index, &data);
                }
            }
            for index in 0..packets {
                let own = self.load(rank, index, bytes);
                if let Some(sum) = self.reduce::<T>(index, &own) {
                    self.store(0, index, bytes, &sum);
                }
            }
        }
        self.sections.scrub(packets);
    }

    /// Every rank sends everything to all and reduces everything.
    unsafe fn all_reduce<T: Element>(&self) {
        let bytes = self.operands.bytes;
        let packets = packets_of(bytes);
        // SAFETY: the caller's obligation.
        unsafe {
            for index in 0..packets {
                self.send_all(index, &self.load(0, index, bytes));
            }
            for index in 0..packets {
                let own = self.load(0, index, bytes);
                if let Some(sum) = self.reduce::<T>(index, &own) {
                    self.store(0, index, bytes, &sum);
                }
            }
        }
        self.sections.scrub(packets);
    }
}
