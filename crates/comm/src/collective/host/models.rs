//! Loom models of barriers, packets and sentinels: the crate's code, with loom's memory in place of shared
//! memory.

use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, fence};
use loom::thread;
use warpweave_symm_mem::pad::flag::Flag;

use super::group::{Atomic, Barrier, Member};
use super::packet::{Areas, Packet};
use super::sentinel;
use crate::collective::launch::MAX_BLOCKS;
use crate::collective::sentinel::{STATE, VECTOR};

mod barriers;
mod late;
mod packets;
mod sentinels;

/// Words of a vector.
const WORDS: usize = VECTOR / 4;

/// An atomic of a pad or a packet.
#[derive(Debug)]
struct LoomAtomic(AtomicU32);

impl Flag for LoomAtomic {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn publish(&self, epoch: u32) {
        self.0.store(epoch, Ordering::Release);
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
    /// Sections for each source, and signatures of each flag: two, or one in a model that shows why two are
    /// needed.
    parities: usize,
    /// Words by (owner, phase, source) of the one block.
    flags: Vec<LoomAtomic>,
    /// By (flag, parity of the epoch).
    signatures: Vec<LoomAtomic>,
    packets: Vec<Packet<LoomAtomic>>,
    sentinels: Sentinels,
    /// A cell of every rank that its peers write between barriers.
    cells: Vec<UnsafeCell<u32>>,
    faults: Vec<Faults>,
}

/// Areas of sentinels: on every rank the state, and words by (section, index).
#[derive(Default)]
struct Sentinels {
    generations: usize,
    capacity: usize,
    states: Vec<[LoomAtomic; STATE]>,
    words: Vec<LoomAtomic>,
}

impl Sentinels {
    fn new(world: usize, generations: usize, capacity: usize) -> Self {
        let words = world * generations * world * capacity * WORDS;
        Self {
            generations,
            capacity,
            states: (0..world).map(|_| Default::default()).collect(),
            words: (0..words).map(|_| LoomAtomic::default()).collect(),
        }
    }
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
        Arc::new(Self::of(world, capacity, parities, first))
    }

    fn of(world: usize, capacity: usize, parities: usize, first: u32) -> Self {
        Memory {
            world,
            capacity,
            parities,
            flags: (0..world * 2 * world)
                .map(|_| LoomAtomic(AtomicU32::new(first)))
                .collect(),
            signatures: (0..world * 2 * world * parities)
                .map(|_| LoomAtomic::default())
                .collect(),
            packets: (0..world * parities * world * capacity)
                .map(|_| Packet::default())
                .collect(),
            sentinels: Sentinels::default(),
            cells: (0..world).map(|_| UnsafeCell::new(0)).collect(),
            faults: (0..world).map(|_| Faults::default()).collect(),
        }
    }

    /// With areas of so many generations and vectors of a section, and nothing but the barrier.
    fn of_sentinels(world: usize, generations: usize, capacity: usize) -> Arc<Self> {
        Arc::new(Memory {
            sentinels: Sentinels::new(world, generations, capacity),
            ..Self::of(world, 0, 2, 0)
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
    signature: u32,
}

impl Rank {
    /// The same rank in a call with this signature.
    fn calls(&self, signature: u32) -> Self {
        Rank {
            memory: self.memory.clone(),
            signature,
            ..*self
        }
    }

    fn faults(&self) -> &Faults {
        &self.memory.faults[self.rank]
    }

    /// That of the one block of a phase.
    fn flag_index(&self, owner: usize, slot: usize, source: usize) -> usize {
        (owner * 2 + slot / MAX_BLOCKS) * self.memory.world + source
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

    fn signature(&self) -> u32 {
        self.signature
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
    type Flag = LoomAtomic;
    type Signature = LoomAtomic;

    fn flag(&self, owner: usize, slot: usize, source: usize) -> &LoomAtomic {
        &self.memory.flags[self.flag_index(owner, slot, source)]
    }

    fn signature_of(&self, owner: usize, slot: usize, source: usize, parity: u32) -> &LoomAtomic {
        let parities = self.memory.parities;
        let flag = self.flag_index(owner, slot, source);
        &self.memory.signatures[flag * parities + parity as usize % parities]
    }
}

impl Areas for Rank {
    type Group = Self;
    type Atomic = LoomAtomic;

    fn group(&self) -> &Self {
        self
    }

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

impl sentinel::Areas for Rank {
    type Group = Self;
    type Atomic = LoomAtomic;

    fn group(&self) -> &Self {
        self
    }

    fn word(&self, owner: usize, section: usize, index: usize, word: usize) -> &LoomAtomic {
        let Sentinels {
            generations,
            capacity,
            words,
            ..
        } = &self.memory.sentinels;
        let section = owner * generations * self.memory.world + section;
        &words[(section * capacity + index) * WORDS + word]
    }

    fn state(&self, word: usize) -> &LoomAtomic {
        &self.memory.sentinels.states[self.rank][word]
    }

    fn capacity(&self) -> usize {
        self.memory.sentinels.capacity
    }

    fn generations(&self) -> usize {
        self.memory.sentinels.generations
    }

    fn pause(&self, polls: u32) {
        assert!(polls < 1000, "a vector is gone before it was taken");
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
            signature: 0,
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
