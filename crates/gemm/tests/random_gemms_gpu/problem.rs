//! Problems by their numbers, the same on all ranks.

use std::ops::Range;

use warpweave_gemm::matmul_reduce::Units;
use warpweave_gemm::sm90::{CONFIGS, Tiling};
use warpweave_gemm::{AllGatherMatmul, GemmProblem, Layout, Protocol};
use warpweave_symm_mem::DType;

use crate::random::{Draw, Random};

/// Chunks or groups of the largest shard, at most.
pub const MOST_CHUNKS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    AllGatherMatmul,
    MatmulReduceScatter,
    MatmulAllReduce,
    /// The same in one shot.
    OneShotAllReduce,
}

/// What problems there are.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub world: usize,
    /// Rows, columns and terms of most problems, and of one in 16.
    pub extents: [usize; 2],
    /// Multiply-adds of a rank's GEMM.
    pub work: usize,
    /// Rows of which groups are made.
    pub group_rows: usize,
    /// Blocks of a launch.
    pub blocks: u32,
}

#[derive(Clone, Debug)]
pub struct Problem {
    pub number: u64,
    pub operation: Operation,
    /// Each rank's GEMM: with all of A, or with its part of K.
    pub gemms: Vec<GemmProblem>,
    pub shards: Vec<Range<usize>>,
    /// Rows of a chunk or of a group.
    pub chunk_rows: usize,
    /// Of an all-gather GEMM.
    pub protocol: Protocol,
    pub tilings: Vec<Option<Tiling>>,
    /// Calls, each with inputs of its own.
    pub calls: usize,
    /// Blocks of each rank. Those calls are made as often as there are such lists.
    pub blocks: Vec<Vec<u32>>,
    /// Whether inputs are reals, of which two runs give the same bits; else they are integers.
    pub real: bool,
    /// Whether calls are replayed from a graph.
    pub replayed: bool,
}

impl Problem {
    pub fn draw(number: u64, limits: &Limits) -> Self {
        let (random, world) = (&mut Random::with_seed(number), limits.world);
        let operation = random.of(&[
            Operation::AllGatherMatmul,
            Operation::MatmulReduceScatter,
            Operation::MatmulAllReduce,
            Operation::OneShotAllReduce,
        ]);
        let gathers = operation == Operation::AllGatherMatmul;
        let dtype = random.of(&[DType::F16, DType::Bf16]);

        // The same on all ranks: of an all-gather GEMM the sizes and stride of A, of a GEMM + reduction those
        // of C.
        let (m, n, k) = (
            extent(random, limits),
            extent(random, limits).next_multiple_of(8),
            extent(random, limits),
        );
        let (lda, ldc) = (padded(random, k), padded(random, n));
        let gemms = (0..world).map(|_| {
            let own = extent(random, limits);
            let (n, k) = match gathers {
                true => (own.next_multiple_of(8), k),
                false => (n, own),
            };
            let k = k.min((limits.work / (m * n)).max(1));
            let b = random.of(&[Layout::RowMajor, Layout::Transposed]);
            let (lda, ldc) = match gathers {
                true => (lda, padded(random, n)),
                false => (padded(random, k), ldc),
            };
            GemmProblem::new(m, n, k, dtype)
                .with_layouts(Layout::RowMajor, b)
                .with_leading_dimensions(lda, padded(random, b.stored(k, n).1), ldc)
        });
        let mut gemms: Vec<GemmProblem> = gemms.collect();
        // Every rank's own, or the one that owners add.
        let biased = random.once_in(2);
        for (rank, gemm) in gemms.iter_mut().enumerate() {
            gemm.bias = biased && !(gathers && rank % 2 == 1);
        }
        if gathers {
            // What fits with the most columns.
            let k = gemms.iter().map(|gemm| gemm.k).min().unwrap_or(k);
            for gemm in &mut gemms {
                gemm.k = k;
            }
        }

        let shards = shards(random, m, world);
        let most = shards.iter().map(Range::len).max().unwrap_or(m);
        let chunk_rows = match (gathers, random.once_in(2)) {
            (true, true) => AllGatherMatmul::chunk_rows(most, 1 + random.usize(..4)),
            (true, false) => random.size(most),
            (false, _) => limits.group_rows * (1 + random.usize(..3)),
        };
        let real = random.once_in(8);
        let is_unclustered = |config: usize| CONFIGS[config].cluster == [1, 1];
        let configs: Vec<_> = (0..CONFIGS.len())
            .filter(|&config| gathers || is_unclustered(config))
            .collect();
        let mut tiling = || {
            let config = configs[random.usize(..configs.len())];
            let swizzle = 1 + random.usize(..4) as u32;
            // The model might choose another tile for another grid, and reals may depend on it.
            (real || !random.once_in(4)).then_some(Tiling { config, swizzle })
        };
        let tilings = (0..world).map(|_| tiling()).collect();
        let mut blocks = || match random.once_in(2) {
            true => limits.blocks,
            false => 2 + random.usize(..limits.blocks as usize - 1) as u32,
        };
        let blocks = (0..1 + usize::from(real)).map(|_| (0..world).map(|_| blocks()).collect());
        Problem {
            number,
            operation,
            gemms,
            shards,
            chunk_rows: chunk_rows.max(most.div_ceil(MOST_CHUNKS)),
            tilings,
            blocks: blocks.collect(),
            calls: 2 + random.usize(..4),
            real,
            replayed: random.once_in(8),
            protocol: match random.usize(..3) {
                0 => Protocol::PULL,
                1 => Protocol::Rendezvous {
                    pushed: 1 + random.usize(..6),
                },
                _ => Protocol::Eager,
            },
        }
    }

    pub fn gathers(&self) -> bool {
        self.operation == Operation::AllGatherMatmul
    }

    /// The rows of a rank's A that are pushed, from its first.
    pub fn pushed_rows(&self, rank: usize) -> usize {
        match self.protocol {
            Protocol::Rendezvous { pushed } if self.gathers() => {
                (pushed * self.chunk_rows).min(self.shards[rank].len())
            }
            _ => 0,
        }
    }

    /// In one shot.
    pub fn units(&self) -> usize {
        let gemm = &self.gemms[0];
        Units::of(gemm.m, gemm.n).count()
    }

    pub fn most_rows(&self) -> usize {
        self.shards.iter().map(Range::len).max().unwrap_or(0)
    }

    /// The rows of A that a rank has.
    pub fn rows_of_a(&self, rank: usize) -> Range<usize> {
        match self.gathers() {
            true => self.shards[rank].clone(),
            false => 0..self.gemms[rank].m,
        }
    }

    /// The rows of C that a rank gets.
    pub fn rows_of_c(&self, rank: usize) -> Range<usize> {
        match self.operation {
            Operation::MatmulReduceScatter => self.shards[rank].clone(),
            _ => 0..self.gemms[rank].m,
        }
    }
}

fn extent(random: &mut Random, limits: &Limits) -> usize {
    let [most, largest] = limits.extents;
    match random.usize(..16) {
        0 => 1 + random.usize(..largest),
        1..5 => random.size(most),
        _ => 1 + random.usize(..most),
    }
}

/// A leading dimension for rows of `columns`, a multiple of 16 bytes.
fn padded(random: &mut Random, columns: usize) -> usize {
    columns.next_multiple_of(8) + 8 * random.usize(..3)
}

/// Equal shards, or any; either way some may be empty.
fn shards(random: &mut Random, m: usize, world: usize) -> Vec<Range<usize>> {
    let any = random.once_in(3);
    let mut ends: Vec<usize> = (1..world)
        .map(|rank| match any {
            true => random.usize(..m + 1),
            false => rank * (m / world) + rank.min(m % world),
        })
        .collect();
    ends.sort_unstable();
    ends.push(m);
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}
