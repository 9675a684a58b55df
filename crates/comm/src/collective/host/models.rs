//! Loom models of barriers and packets: the crate's code, with loom's memory in place of shared memory.

use std::sync::atomic::Ordering;
use std::time::Duration;

use half::f16;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, fence};
use loom::thread;
use warpweave_symm_mem::pad::StopFlags;
use warpweave_symm_mem::pad::flag::Flag;
use warpweave_symm_mem::{DevicePtr, PadView};

use super::group::{Barrier, Member, Phase, barrier};
use super::packet::{Areas, Atomic, Packet, Payload, Sections, packets_of};
use super::packets::{Operands, collective};
use super::tree;
use crate::collective::launch::{
    Addresses, Group, MAX_BLOCKS, PAYLOAD, PacketKernel, Packets, Tree,
};
use crate::collective::tree::Neighbours;

mod late;

/// An atomic of a pad or a packet.
#[derive(Debug)]
struct LoomAtomic(AtomicU32);

/// A flag of a pad: that of the one block, or of an absent block, on which nobody waits.
enum PadFlag {
    Present(LoomAtomic),
    Absent,
}

impl PadFlag {
    fn present(&self) -> &AtomicU32 {
        match self {
            PadFlag::Present(flag) => &flag.0,
            PadFlag::Absent => panic!("a wait for an absent block"),
        }
    }
}

impl Flag for PadFlag {
    fn load(&self) -> u32 {
        self.present().load(Ordering::Acquire)
    }

    fn publish(&self, epoch: u32) {
        if let PadFlag::Present(flag) = self {
            flag.0.store(epoch, Ordering::Release);
        }
    }

    fn relax(&self) {
        thread::yield_now();
    }

    fn sleep(&self, _seen: u32, _nap: Duration) {
        thread::yield_now();
    }
}

impl Atomic for LoomAtomic {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }
}

impl Default for LoomAtomic {
    fn default() -> Self {
        LoomAtomic(AtomicU32::new(0))
    }
}

/// The shared memory of all ranks.
struct Memory {
    world: usize,
    capacity: usize,
    /// Sections for each source: two, or one in a model that shows why two are needed.
    parities: usize,
    /// Words by (owner, phase, source) of the one block.
    flags: Vec<PadFlag>,
    packets: Vec<Packet<LoomAtomic>>,
    /// A cell of every rank that its peers write between barriers.
    cells: Vec<UnsafeCell<u32>>,
    faults: Vec<Faults>,
}

/// A rank's fault state, and a value that its peers read.
#[derive(Default)]
struct Faults {
    stopped: LoomAtomic,
    notice: LoomAtomic,
    row: LoomAtomic,
}

// SAFETY: loom reports a race if the protocol does not keep the threads apart.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn new(world: usize, capacity: usize, parities: usize, first: u32) -> Arc<Self> {
        Arc::new(Memory {
            world,
            capacity,
            parities,
            flags: (0..world * 2 * world)
                .map(|_| PadFlag::Present(LoomAtomic(AtomicU32::new(first))))
                .collect(),
            packets: (0..world * parities * world * capacity)
                .map(|_| Packet::default())
                .collect(),
            cells: (0..world).map(|_| UnsafeCell::new(0)).collect(),
            faults: (0..world).map(|_| Faults::default()).collect(),
        })
    }
}

/// The fault rules that a model follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// Nothing fails: a failed wait is an error of the model.
    Sound,
    /// The rules of `pad/fault.rs`.
    All,
    /// A rank that gave up still publishes.
    Talkative,
    /// No rank checks for notices.
    Blind,
}

/// One rank's view of it.
struct Rank {
    memory: Arc<Memory>,
    rank: usize,
    rules: Rules,
}

impl Rank {
    fn faults(&self) -> &Faults {
        &self.memory.faults[self.rank]
    }
}

impl Member for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.memory.world
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn is_stopped(&self) -> bool {
        self.rules != Rules::Sound && self.faults().stopped.0.load(Ordering::Acquire) != 0
    }

    fn is_noticed(&self) -> bool {
        if matches!(self.rules, Rules::Sound | Rules::Blind) {
            return false;
        }
        fence(Ordering::SeqCst);
        self.faults().notice.0.load(Ordering::Acquire) != 0
    }

    fn is_sound(&self, _slot: usize) -> bool {
        match self.rules {
            Rules::Talkative => true,
            _ => !self.is_stopped() && !self.is_noticed(),
        }
    }

    fn record(&self, slot: usize, peer: usize, wanted: u32, seen: u32, _waited: Duration) {
        if self.rules == Rules::Sound {
            panic!("rank {peer} never brings {wanted} in slot {slot}, but {seen}");
        }
        self.faults().stopped.0.store(1, Ordering::Release);
        for rank in &self.memory.faults {
            rank.notice.0.store(1, Ordering::Release);
        }
    }
}

impl Barrier for Rank {
    type Flag = PadFlag;

    fn flag(&self, owner: usize, slot: usize, source: usize) -> &PadFlag {
        let world = self.memory.world;
        match slot % MAX_BLOCKS {
            0 => &self.memory.flags[(owner * 2 + slot / MAX_BLOCKS) * world + source],
            _ => &PadFlag::Absent,
        }
    }
}

impl Areas for Rank {
    type Atomic = LoomAtomic;

    fn packet(&self, owner: usize, section: usize, index: usize) -> &Packet<LoomAtomic> {
        let Memory {
            world,
            capacity,
            parities,
            ..
        } = *self.memory;
        let section = section % (parities * world);
        &self.memory.packets[(owner * parities * world + section) * capacity + index]
    }

    fn capacity(&self) -> usize {
        self.memory.capacity
    }

    fn pause(&self, polls: u32) {
        assert!(polls < 1000, "a packet is gone before it was taken");
        thread::yield_now();
    }
}

/// Runs `rank` for every rank, in all orders with at most `preemptions` preemptions.
fn explore(
    preemptions: usize,
    memory: impl Fn() -> Arc<Memory> + Send + Sync + 'static,
    rank: impl Fn(&Rank) + Send + Sync + 'static,
) {
    let rank = std::sync::Arc::new(rank);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || {
        let memory = memory();
        let at = |rank| Rank {
            memory: memory.clone(),
            rank,
            rules: Rules::Sound,
        };
        let peers: Vec<_> = (1..memory.world)
            .map(|peer| {
                let (place, rank) = (at(peer), rank.clone());
                thread::spawn(move || rank(&place))
            })
            .collect();
        rank(&at(0));
        for peer in peers {
            peer.join().expect("every rank ends");
        }
    });
}

/// The input of rank `rank` in call `call`.
fn value(rank: usize, call: u32) -> u32 {
    1000 * call + rank as u32
}

/// Every rank writes to the next one's memory between the barriers and reads its own after them.
fn writes_between(phases: &[Phase], place: &Rank, first: u32, calls: u32) {
    let (rank, world) = (place.rank(), place.world());
    for call in 1..=calls {
        let epoch = first.wrapping_add(call);
        if phases.contains(&Phase::Enter) {
            assert!(barrier(place, Phase::Enter, epoch));
        }
        // SAFETY: loom checks it.
        place.memory.cells[(rank + 1) % world]
            .with_mut(|cell| unsafe { *cell = value(rank, call) });
        if phases.contains(&Phase::Leave) {
            assert!(barrier(place, Phase::Leave, epoch));
        }
        // SAFETY: as above.
        place.memory.cells[rank].with(|cell| {
            let got = unsafe { *cell };
            assert_eq!(
                got,
                value((rank + world - 1) % world, call),
                "read too early"
            );
        });
    }
}

const BOTH: &[Phase] = &[Phase::Enter, Phase::Leave];

#[test]
fn loom_barriers_keep_calls_apart() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(BOTH, place, 0, 3),
    );
}

#[test]
fn loom_barriers_wrap_around() {
    explore(
        2,
        || Memory::new(2, 0, 2, u32::MAX - 1),
        |place| writes_between(BOTH, place, u32::MAX - 1, 3),
    );
}

#[test]
fn loom_three_ranks_at_a_barrier() {
    explore(
        0,
        || Memory::new(3, 0, 2, 0),
        |place| {
            let cells = &place.memory.cells;
            // SAFETY: loom checks it.
            cells[place.rank()].with_mut(|cell| unsafe { *cell = value(place.rank(), 1) });
            assert!(barrier(place, Phase::Enter, 1));
            for peer in place.peers() {
                // SAFETY: as above.
                cells[peer].with(|cell| assert_eq!(unsafe { *cell }, value(peer, 1)));
            }
        },
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_the_first_barrier_an_output_is_overwritten_while_read() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(&[Phase::Leave], place, 0, 2),
    );
}

#[test]
#[should_panic(expected = "read too early")]
fn loom_without_the_second_barrier_an_output_is_read_too_early() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(&[Phase::Enter], place, 0, 1),
    );
}

/// Calls of `kernel` back to back with nothing between them, each with other values; the results are
/// compared.
fn back_to_back(kernel: PacketKernel, bytes: usize, place: &Rank, first: u32, calls: u32) {
    let (rank, world) = (place.rank(), place.world());
    let count = bytes / 2;
    let of = |rank: usize, call: u32, index: usize| (rank + 3 * call as usize + index) as f32;
    let half = |value: f32| f16::from_f32(value).to_bits();
    for call in 1..=calls {
        let epoch = first.wrapping_add(call);
        let given = |rank: usize| (0..world * count).map(move |i| half(of(rank, call, i)));
        let input: Vec<u16> = given(rank).collect();
        let mut output = vec![0u16; world * count];
        let operands = Operands {
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            bytes: match kernel {
                PacketKernel::AllReduceTwoShot => bytes.div_ceil(world).next_multiple_of(4),
                _ => bytes,
            },
            total: bytes,
            root: call as usize % world,
        };
        // SAFETY: both operands hold a chunk for each rank, which is as much as any kernel touches.
        unsafe { collective::<f16, _>(kernel, &Sections::new(place, epoch), &operands) };
        let chunk = |owner: usize, chunk: usize| given(owner).skip(chunk * count).take(count);
        let wanted: Vec<u16> = match kernel {
            PacketKernel::AllGather => (0..world).flat_map(|rank| chunk(rank, 0)).collect(),
            PacketKernel::AllToAll => (0..world).flat_map(|peer| chunk(peer, rank)).collect(),
            PacketKernel::Broadcast => chunk(operands.root, 0).collect(),
            PacketKernel::ReduceScatter => reduced(world, rank * count, count, call, of),
            _ => reduced(world, 0, count, call, of),
        };
        assert_eq!(output[..wanted.len()], wanted, "packets of another call");
    }
}

fn reduced(
    world: usize,
    start: usize,
    count: usize,
    call: u32,
    of: impl Fn(usize, u32, usize) -> f32,
) -> Vec<u16> {
    (start..start + count)
        .map(|i| {
            let sum = (0..world).map(|rank| of(rank, call, i)).sum();
            f16::from_f32(sum).to_bits()
        })
        .collect()
}

#[test]
fn loom_packets_of_calls_back_to_back_stay_apart() {
    for kernel in [PacketKernel::AllGather, PacketKernel::ReduceScatter] {
        explore(
            2,
            || Memory::new(2, 1, 2, 0),
            move |place| back_to_back(kernel, 6, place, 0, 4),
        );
    }
}

#[test]
fn loom_a_broadcast_waits_for_all() {
    explore(
        2,
        || Memory::new(2, 2, 2, 0),
        |place| back_to_back(PacketKernel::Broadcast, 16, place, 0, 3),
    );
}

#[test]
fn loom_an_all_reduce_in_two_shots_keeps_its_halves_apart() {
    explore(
        1,
        || Memory::new(2, 2, 2, 0),
        |place| back_to_back(PacketKernel::AllReduceTwoShot, 10, place, 0, 3),
    );
}

#[test]
fn loom_flags_of_packets_wrap_around() {
    for first in [(1 << 31) - 2, u32::MAX - 1] {
        explore(
            2,
            || Memory::new(2, 1, 2, 0),
            move |place| back_to_back(PacketKernel::AllReduceOneShot, 2, place, first, 3),
        );
    }
}

/// Calls of the tree back to back: a rank that forwards results waits only for its neighbours, and so for
/// all.
fn trees_back_to_back(place: &Rank, first: u32, calls: u32) {
    let (rank, world) = (place.rank(), place.world());
    let nothing = Addresses::default();
    for call in 1..=calls {
        let epoch = first.wrapping_add(call);
        let of = |rank: usize| (rank as u32 + 10 * call) as f32;
        let (input, mut output) = (of(rank), 0.0f32);
        let trees = [0, 1].map(|tree| Neighbours::of(tree, rank, world));
        let launch = Tree {
            packets: Packets {
                group: Group {
                    pad: PadView {
                        peers: DevicePtr::NULL,
                        sent: DevicePtr::NULL,
                        expected: DevicePtr::NULL,
                        tickets: DevicePtr::NULL,
                        fault: DevicePtr::NULL,
                        stop: StopFlags {
                            device: DevicePtr::NULL,
                            host: DevicePtr::NULL,
                        },
                        timeout_ns: 0,
                        rank: rank as u32,
                        world: world as u32,
                        slots: 0,
                        reserved: 0,
                    },
                    flags: nothing,
                    epochs: DevicePtr::NULL,
                    reserved: 0,
                },
                areas: nothing,
                input: DevicePtr(&raw const input as u64),
                output: DevicePtr(&raw mut output as u64),
                bytes: 4,
                total: 4,
                capacity: place.capacity() as u32,
                root: 0,
                aligned: 1,
                signature: 0,
            },
            parent: trees.map(|tree| tree.parent),
            children: trees.map(|tree| tree.children),
        };
        let call = tree::Call {
            sections: &Sections::new(place, epoch),
            trees: &launch,
        };
        // SAFETY: input and output are one element each.
        unsafe { call.all_reduce::<f32>() };
        assert_eq!(output, (0..world).map(of).sum(), "packets of another call");
    }
}

#[test]
fn loom_trees_of_calls_back_to_back_stay_apart() {
    explore(
        2,
        || Memory::new(2, 1, 2, 0),
        |place| trees_back_to_back(place, 0, 4),
    );
}

#[test]
#[should_panic(expected = "packet")]
fn loom_with_one_section_a_packet_is_overwritten() {
    explore(
        2,
        || Memory::new(2, 1, 1, 0),
        |place| back_to_back(PacketKernel::AllGather, 6, place, 0, 2),
    );
}

/// A rank that does not wait for its peer runs ahead of it, and then two sections are not enough.
#[test]
#[should_panic(expected = "packet")]
fn loom_without_an_answer_a_packet_is_overwritten() {
    explore(
        2,
        || Memory::new(2, 1, 2, 0),
        |place| {
            for call in 1..=3 {
                let sections = Sections::new(place, call);
                let data: Payload = [call; PAYLOAD / 4];
                match place.rank() {
                    0 => sections.send(1, 0, &data),
                    _ => assert_eq!(sections.receive(0, 0), Some(data), "a torn packet"),
                }
            }
        },
    );
}

#[test]
fn loom_scrubbing_spares_packets_on_their_way() {
    assert_eq!(packets_of(2 * PAYLOAD), 2);
    explore(
        1,
        || Memory::new(2, 3, 2, 0),
        |place| {
            // Calls of one packet scrub what calls of two use.
            back_to_back(PacketKernel::AllGather, 2, place, 0, 1);
            back_to_back(PacketKernel::AllGather, 2 * PAYLOAD, place, 1, 1);
            back_to_back(PacketKernel::AllGather, 2, place, 2, 1);
            back_to_back(PacketKernel::AllGather, 2 * PAYLOAD, place, 3, 1);
        },
    );
}
