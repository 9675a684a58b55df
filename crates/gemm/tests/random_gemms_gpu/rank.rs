//! One rank of a group, with the memory in which it plays rounds of problems.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warpweave_gemm::matmul_reduce::Units;
use warpweave_gemm::{AllGatherGemmBackend, Error, GemmReduceBackend};
use warpweave_symm_mem::{DevicePtr, Exchange, SignalPad, SymmetricBuffer};

use crate::problem::{Limits, MOST_CHUNKS, Operation, Problem};
use crate::values::{GUARD, POISON, window};

/// What went wrong.
pub type Played<T = ()> = Result<T, String>;

pub trait Kernels: AllGatherGemmBackend + GemmReduceBackend {}
impl<B: AllGatherGemmBackend + GemmReduceBackend> Kernels for B {}

/// Slots of all-gather GEMMs.
pub const DONE: usize = 0;
pub const READY: usize = 1;
/// The first of those of eager chunks.
pub const EAGER: usize = READY + 1;
const REDUCTIONS: usize = EAGER + MOST_CHUNKS;
const SLOTS: usize = 4096;
/// Those of a problem.
const MOST_SLOTS: usize = 2 * Units::MOST + 1;
const _: () = assert!(MOST_CHUNKS <= Units::MOST && REDUCTIONS + MOST_SLOTS <= SLOTS);

/// Calls before the epochs go round.
const BEFORE_ZERO: u32 = 40;

/// Bytes of a rank's memories, or what of them is taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rooms {
    /// Inputs of all calls.
    pub given: usize,
    /// Operands of the GEMMs.
    pub work: usize,
    /// Results of all calls.
    pub kept: usize,
    /// Memory that peers read or write.
    pub shared: usize,
}

impl Rooms {
    const ALL: Rooms = Rooms {
        given: 96 << 20,
        work: 96 << 20,
        kept: 128 << 20,
        shared: 160 << 20,
    };

    /// What a problem takes, on the rank that needs the most: places are the same on all ranks.
    fn of(problem: &Problem) -> Self {
        let world = problem.shards.len();
        let calls = problem.calls * problem.blocks.len();
        let most = |bytes: &dyn Fn(usize) -> usize| most(world, bytes);
        let (a, c) = (
            most(&|rank| a_bytes(problem, rank)),
            most(&|rank| c_bytes(problem, rank)),
        );
        let everyone = problem.operation == Operation::MatmulAllReduce;
        Rooms {
            given: problem.calls * a
                + most(&|rank| b_bytes(problem, rank))
                + most(&|rank| window(1, problem.gemms[rank].n)),
            work: match problem.gathers() {
                true => c,
                false => a + staging_bytes(problem) + if everyone { 0 } else { c },
            },
            kept: calls * c,
            shared: match problem.gathers() {
                true => a + staging_bytes(problem),
                false => staging_bytes(problem) + if everyone { c } else { 0 },
            },
        }
    }

    /// Where the staging of a problem that gathers begins, after A of the rank that has the most.
    pub fn staging(&self, problem: &Problem) -> usize {
        self.shared + most(problem.shards.len(), &|rank| a_bytes(problem, rank))
    }

    fn and(self, other: Rooms) -> Rooms {
        Rooms {
            given: self.given + other.given,
            work: self.work + other.work,
            kept: self.kept + other.kept,
            shared: self.shared + other.shared,
        }
    }

    fn fits(&self, all: &Rooms) -> bool {
        self.given <= all.given
            && self.work <= all.work
            && self.kept <= all.kept
            && self.shared <= all.shared
    }
}

fn most(world: usize, bytes: &dyn Fn(usize) -> usize) -> usize {
    (0..world).map(bytes).max().unwrap_or(0)
}

/// Bytes of a rank's A and C with what lies after them.
pub fn a_bytes(problem: &Problem, rank: usize) -> usize {
    window(problem.rows_of_a(rank).len(), problem.gemms[rank].lda)
}

pub fn b_bytes(problem: &Problem, rank: usize) -> usize {
    let gemm = &problem.gemms[rank];
    window(gemm.b_layout.stored(gemm.k, gemm.n).0, gemm.ldb)
}

pub fn c_bytes(problem: &Problem, rank: usize) -> usize {
    window(problem.rows_of_c(rank).len(), problem.gemms[rank].ldc)
}

/// Rows of the staging of an all-gather GEMM, or of the partials that a rank has for the others, or pulls;
/// and their stride.
fn staged(problem: &Problem) -> (usize, usize) {
    let gemm = &problem.gemms[0];
    match problem.gathers() {
        true => (problem.protocol.stagings() * gemm.m, gemm.lda),
        false => {
            let world = problem.shards.len();
            let rows = match problem.operation {
                Operation::OneShotAllReduce => 2 * world * gemm.m,
                _ => (world - 1) * problem.most_rows(),
            };
            (rows, gemm.ldc)
        }
    }
}

/// Its bytes with what lies after it, and where that begins.
pub fn staging_bytes(problem: &Problem) -> usize {
    let (rows, ld) = staged(problem);
    window(rows, ld)
}

pub fn guard_of_staging(problem: &Problem) -> usize {
    let (rows, ld) = staged(problem);
    2 * rows * ld
}

/// A problem, and where its things begin.
pub struct Placed {
    pub problem: Problem,
    pub at: Rooms,
    /// The first slot of a reduction.
    pub slot: usize,
}

pub struct Rank<B: Kernels> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub limits: Limits,
    pub stream: B::Stream,
    pub pad: SignalPad<B>,
    pub handle: B::GemmHandle,
    pub given: B::Memory,
    pub work: B::Memory,
    pub kept: B::Memory,
    pub shared: SymmetricBuffer<B>,
    /// Slots of GEMM + reduction: those with the same groups share them, so that their flags have the same
    /// epochs.
    reductions: HashMap<(Operation, Vec<usize>), usize>,
    free_slot: usize,
}

/// An error as what went wrong on `rank`.
pub fn on_rank<E: Display>(rank: usize) -> impl Fn(E) -> String {
    move |error| format!("rank {rank}: {error}")
}

impl<B: Kernels> Rank<B> {
    pub fn new(
        backend: B,
        exchange: Arc<dyn Exchange>,
        limits: Limits,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let Rooms {
            given,
            work,
            kept,
            shared,
        } = Rooms::ALL;
        let mut pad = SignalPad::new(&backend, &exchange, "random GEMMs", SLOTS)?;
        pad.set_timeout(timeout);
        let rank = Rank {
            stream: backend.stream(Default::default())?,
            given: backend.allocate(given)?,
            work: backend.allocate(work)?,
            kept: backend.allocate(kept)?,
            shared: SymmetricBuffer::new(&backend, &exchange, "shared", shared)?,
            pad,
            handle: backend.gemm_handle()?,
            backend,
            exchange,
            limits,
            reductions: HashMap::new(),
            free_slot: REDUCTIONS,
        };
        // The latest counter takes all others along, and is later than these by less than half a turn.
        for epoch in [i32::MAX as u32, 0u32.wrapping_sub(BEFORE_ZERO)] {
            let sent = rank.pad.view().sent;
            // SAFETY: the pad's first counter, which nothing else uses yet.
            unsafe {
                rank.backend
                    .upload(&rank.stream, sent, &epoch.to_ne_bytes())?
            };
            rank.pad.recover(&rank.stream, rank.exchange.as_ref())?;
        }
        // Its code is loaded before any rank waits for another.
        rank.backend.delay(&rank.stream, Duration::from_micros(1))?;
        rank.backend.synchronize(&rank.stream)?;
        Ok(rank)
    }

    pub fn me(&self) -> usize {
        self.exchange.rank()
    }

    pub fn barrier(&self, place: &str) -> Played {
        self.exchange.barrier(place).map_err(on_rank(self.me()))
    }

    /// As many of the problems as a round takes, with their places, and what these take in all.
    pub fn place(&mut self, numbers: Range<u64>, most: usize) -> Played<(Vec<Placed>, Rooms)> {
        if self.free_slot + MOST_SLOTS > SLOTS {
            // Epochs of all slots are made equal, and those of reductions are given away anew. Nothing is
            // under way here.
            let recovered = self.pad.recover(&self.stream, self.exchange.as_ref());
            recovered.map_err(on_rank(self.me()))?;
            self.reductions.clear();
            self.free_slot = REDUCTIONS;
        }
        let mut taken = Rooms::default();
        let mut placed = Vec::new();
        for number in numbers.clone().take(most) {
            let problem = Problem::draw(number, &self.limits);
            let end = taken.and(Rooms::of(&problem));
            if !end.fits(&Rooms::ALL) {
                break;
            }
            let Some(slot) = self.slot(&problem) else {
                break;
            };
            placed.push(Placed {
                problem,
                at: taken,
                slot,
            });
            taken = end;
        }
        match placed.is_empty() {
            true => Err(format!("there is no room for problem {}", numbers.start)),
            false => Ok((placed, taken)),
        }
    }

    /// After a synchronisation: whether nothing was written to what lies at `guard`.
    pub fn check_guard(&self, guard: DevicePtr) -> Played {
        let mut bytes = [0; GUARD];
        // SAFETY: every window ends with as many, in memory of this rank, whose work has ended.
        let read = unsafe { self.backend.download(&self.stream, guard, &mut bytes) };
        read.map_err(on_rank(self.me()))?;
        match bytes == [POISON; GUARD] {
            true => Ok(()),
            false => Err(format!(
                "rank {}: something was written after staging",
                self.me()
            )),
        }
    }

    /// The first slot of a problem, if there are any left.
    fn slot(&mut self, problem: &Problem) -> Option<usize> {
        let rows = problem.shards.iter().map(Range::len);
        let groups: Vec<usize> = match problem.operation {
            Operation::AllGatherMatmul => Vec::new(),
            // Those with fewer units would leave flags after.
            Operation::OneShotAllReduce => vec![problem.units()],
            _ => rows.map(|rows| rows.div_ceil(problem.chunk_rows)).collect(),
        };
        let count = groups.iter().max().map_or(0, |most| 2 * most + 1);
        let next = self.free_slot;
        match self.reductions.entry((problem.operation, groups)) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(new) if next + count <= SLOTS => {
                self.free_slot += count;
                Some(*new.insert(next))
            }
            Entry::Vacant(_) => None,
        }
    }

    /// After a synchronisation: whether a wait missed its deadline, or a ticket was left that not all have
    /// taken.
    pub fn check_pad(&self) -> Played {
        let failed = on_rank(self.me());
        self.pad.check(&self.stream).map_err(failed)?;
        let world = self.exchange.world();
        let mut tickets = vec![0; 4 * self.pad.slots() * world];
        // SAFETY: the pad's tickets, a counter for each slot and rank.
        unsafe {
            let at = self.pad.view().tickets;
            let read = self.backend.download(&self.stream, at, &mut tickets);
            read.map_err(on_rank(self.me()))?;
        }
        match tickets.iter().position(|&byte| byte != 0) {
            None => Ok(()),
            Some(at) => Err(format!(
                "rank {}: the ticket of slot {} and rank {} is not whole between kernels",
                self.me(),
                at / 4 / world,
                at / 4 % world
            )),
        }
    }

    pub fn close(self) -> warpweave_symm_mem::Result<()> {
        self.backend.synchronize(&self.stream)?;
        self.exchange.barrier("end")?;
        let exchange = self.exchange.as_ref();
        self.pad.close(&self.stream, exchange)?;
        self.shared.close(exchange)
    }
}
