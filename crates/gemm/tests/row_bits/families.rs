//! The kernels and providers that multiply rows, and some rows multiplied by one of them.

use std::fmt;
use std::ops::Range;

use warpweave_gemm::host::Element;
use warpweave_gemm::matmul_reduce::{ReduceOutput, Units};
use warpweave_gemm::sm90::{self, CONFIGS, Tiling};
use warpweave_gemm::{
    Activation, AllGatherMatmul, AllGatherOperands, GatheredScales, GemmProblem, MatmulReduce,
    Peers, Protocol, ReduceOperands, Scaling,
};
use warpweave_symm_mem::{DType, DevicePtr};

use crate::Kernels;
use crate::rank::{Limits, Matrix, Rank};
use crate::values::{Random, shards};

/// How a problem is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Plain,
    Pulled,
    Eager,
    Owner,
    Everyone,
    Each,
}

const FAMILIES: [Family; 6] = [
    Family::Plain,
    Family::Pulled,
    Family::Eager,
    Family::Owner,
    Family::Everyone,
    Family::Each,
];

/// What was compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Problems, by family.
    pub families: [usize; FAMILIES.len()],
    /// Those with SwiGLU.
    pub gated: usize,
    pub rows: usize,
}

impl Counts {
    pub fn and(mut self, other: Counts) -> Counts {
        for (here, there) in self.families.iter_mut().zip(other.families) {
            *here += there;
        }
        self.gated += other.gated;
        self.rows += other.rows;
        self
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of", self.rows)?;
        for (family, problems) in FAMILIES.iter().zip(self.families) {
            write!(f, " {problems} {family:?}")?;
        }
        write!(f, ", {} with SwiGLU", self.gated)
    }
}

// Slots.
const DONE: usize = 0;
const READY: usize = 1;
const EAGER: usize = 2;
const OWNERS: usize = EAGER + AllGatherMatmul::EAGER_CHUNKS;
const MOST_GROUPS: usize = 64;
const EACH: usize = OWNERS + 2 * MOST_GROUPS + 1;
pub const SLOTS: usize = EACH + Units::MOST + 1;

impl<B: Kernels> Rank<B> {
    fn on_all(&self, offset: usize) -> Peers {
        let all = self.shared.addresses().into_iter();
        all.map(|address| address.add(offset)).collect()
    }

    /// An all-gather + GEMM: pulled in chunks of so many rows, or eager.
    pub fn gather(
        &self,
        problem: GemmProblem,
        shards: Vec<Range<usize>>,
        chunk_rows: Option<usize>,
        tiling: Option<Tiling>,
    ) -> AllGatherMatmul {
        let largest = shards.iter().map(Range::len).max().unwrap_or(0);
        let eager_rows = || AllGatherMatmul::eager_chunk_rows(largest);
        AllGatherMatmul {
            problem,
            shards,
            chunk_rows: chunk_rows.unwrap_or_else(eager_rows),
            rank: self.exchange.rank(),
            world: self.exchange.world(),
            ready: chunk_rows.map_or(EAGER, |_| READY),
            done: DONE,
            protocol: chunk_rows.map_or(Protocol::Eager, |_| Protocol::PULL),
            tiling,
            max_blocks: self.limits.blocks,
        }
    }

    /// Of the rows of A at `a` on each rank, and their scales.
    pub fn gathers(&self, gemm: &AllGatherMatmul, [a, scales]: [Peers; 2]) -> AllGatherOperands {
        let protocol = gemm.protocol;
        AllGatherOperands {
            a,
            local_a: DevicePtr::NULL,
            staging: self.on_all(match protocol {
                Protocol::Eager => self.within.eager,
                Protocol::Rendezvous { .. } => self.within.staging,
            }),
            staging_stride: self.within.eager_stride,
            b: self.at.b.elements,
            c: self.at.c,
            bias: self.at.bias,
            scales: match gemm.problem.scaling {
                Scaling::Row => GatheredScales {
                    a: scales,
                    staging: self.on_all(match protocol {
                        Protocol::Eager => self.within.eager_scales,
                        Protocol::Rendezvous { .. } => self.within.staging_scales,
                    }),
                    staging_stride: self.within.scales_stride,
                    b: self.at.b.scales,
                },
                _ => GatheredScales {
                    a: self.at.first_a.scales.into(),
                    b: self.at.b.scales,
                    ..GatheredScales::default()
                },
            },
            pad: self.pad.view(),
        }
    }

    /// A GEMM + reduction in groups of so many rows.
    pub fn reduction(
        &self,
        problem: GemmProblem,
        shards: Vec<Range<usize>>,
        (output, group_rows): (ReduceOutput, usize),
        tiling: Option<Tiling>,
    ) -> MatmulReduce {
        let (ready, done) = match output {
            ReduceOutput::Each => (EACH, EACH + Units::MOST),
            _ => (OWNERS, OWNERS + 2 * MOST_GROUPS),
        };
        MatmulReduce {
            problem,
            shards,
            c: output,
            rank: self.exchange.rank(),
            world: self.exchange.world(),
            ready,
            reduced: OWNERS + MOST_GROUPS,
            done,
            group_rows,
            tiling,
            max_blocks: self.limits.blocks,
        }
    }

    /// Of rows of this rank's A from `row` on, with their scales at one of the places for them.
    pub fn reduces(&self, gemm: &MatmulReduce, row: usize, place: usize) -> ReduceOperands {
        let a = self.rows_of(&gemm.problem, self.at.own_a, row, place);
        let output = gemm.c;
        ReduceOperands {
            a: a.elements,
            b: self.at.b.elements,
            bias: self.at.bias,
            scales: [a.scales, self.at.b.scales],
            c: match output {
                ReduceOutput::Everyone => self.on_all(self.within.copies),
                _ => self.at.c.into(),
            },
            local_c: DevicePtr::NULL,
            staging: self.on_all(match output {
                ReduceOutput::Each => self.within.each,
                _ => self.within.partials,
            }),
            staging_stride: self.within.each_stride,
            multicast: [DevicePtr::NULL; 2],
            pulled: self.at.pulled,
            pad: self.pad.view(),
        }
    }

    /// Some rows of the matrix by some family.
    pub fn problem<T: Element>(&mut self, matrix: &Matrix<T>, random: &mut Random) {
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let Limits {
            rows,
            most,
            group_rows,
            configs,
            ..
        } = self.limits;
        let which = random.usize(..FAMILIES.len());
        let family = FAMILIES[which];
        let takes_swiglu = matches!(family, Family::Plain | Family::Pulled | Family::Eager);
        let gated = matrix
            .gated
            .as_ref()
            .filter(|_| takes_swiglu && random.bool());
        let m = match random.usize(..4) {
            0 => 1 + random.usize(..4),
            1 => 1 + random.usize(..16),
            _ => 1 + random.usize(..most),
        };
        let start = random.usize(..=rows - m);
        let shards = shards(random, m, world);
        let chunk_rows = 1 + random.usize(..m);
        let groups = 1 + random.usize(..3);
        // All ranks draw alike, and have tiles of their own.
        let tilings: Vec<_> = (0..world)
            .map(|_| Tiling {
                // SwiGLU has all tiles but the last.
                config: random.usize(..configs.saturating_sub(gated.iter().len()).max(1)),
                swizzle: 1 + random.usize(..4) as u32,
            })
            .collect();
        let clusters = CONFIGS[tilings[rank].config].cluster;
        let is_tiled = random.bool()
            && (clusters == [1, 1] || matches!(family, Family::Pulled | Family::Eager));
        let tiling = is_tiled.then_some(tilings[rank]);
        let problem = GemmProblem {
            m,
            ..matrix.problem
        };
        let problem = match gated {
            Some(_) => problem.with_activation(Activation::SwiGlu),
            None => problem,
        };
        let gathered = gated.unwrap_or(&matrix.gathered);
        let (columns, ldc) = (problem.c_columns(), problem.ldc);

        let what = format!(
            "{family:?} of rows {start}..{} by {tiling:?}, {problem}",
            start + m
        );
        let poison = |bytes| {
            // SAFETY: places of this rank's memory; no rank has work under way.
            unsafe {
                self.backend
                    .fill(&self.stream, self.at.c, 0xff, bytes)
                    .unwrap();
                let copies = self.shared.local().add(self.within.copies);
                self.backend
                    .fill(&self.stream, copies, 0xff, 2 * most * columns)
                    .unwrap();
            }
        };
        poison(2 * m * columns);
        let (wanted, got_rows, at) = match family {
            Family::Plain => {
                let a = self.rows_of(&problem, self.at.first_a, start, 0);
                let few_rows = sm90::serves_few_rows(&problem) && random.bool();
                let tiling = match few_rows {
                    true => sm90::FEW_ROWS_TILING,
                    false => tilings[rank],
                };
                self.plain(&problem, a, tiling);
                (gathered, 0..m, self.at.c)
            }
            Family::Pulled | Family::Eager => {
                let own = shards[rank].clone();
                let from = self.rows_of(&problem, self.at.first_a, start + own.start, 0);
                let shard = [self.within.shard, self.within.shard_scales];
                let row_bytes = problem.lda * problem.dtype.size();
                let copies = [(from.elements, row_bytes), (from.scales, DType::F32.size())];
                // The launch copies local rows itself.
                let is_local = family == Family::Pulled && random.bool();
                let copied = shard.into_iter().zip(copies).skip(is_local.into());
                for (to, (from, bytes)) in copied {
                    let to = self.shared.local().add(to);
                    if !own.is_empty() {
                        // SAFETY: places of this rank's memory; no rank has work under way.
                        unsafe {
                            self.backend
                                .copy(&self.stream, to, from, own.len() * bytes)
                                .unwrap();
                        }
                    }
                }
                let chunk_rows = (family == Family::Pulled).then_some(chunk_rows);
                let mut gemm = self.gather(problem, shards, chunk_rows, tiling);
                // Few blocks have several waves of tiles, and take the last in halves.
                let few = 2 + random.usize(..12) as u32;
                let is_few = random.bool();
                gemm.max_blocks = is_few.then_some(few).or(gemm.max_blocks);
                let mut operands = self.gathers(&gemm, shard.map(|shard| self.on_all(shard)));
                if is_local {
                    operands.local_a = from.elements;
                }
                let prepared = self.backend.prepare_all_gather(&self.handle, &gemm);
                let prepared = prepared.unwrap_or_else(|error| panic!("{what}: {error}"));
                self.synchronize();
                self.barrier("prepared");
                // SAFETY: all matrices are there; all ranks launch the same, and wait for the end.
                unsafe {
                    self.backend
                        .all_gather_matmul(&self.stream, &prepared, &operands)
                        .unwrap();
                }
                self.synchronize();
                (gathered, 0..m, self.at.c)
            }
            Family::Owner | Family::Everyone | Family::Each => {
                let output = match family {
                    Family::Owner => ReduceOutput::Owner,
                    Family::Everyone => ReduceOutput::Everyone,
                    _ => ReduceOutput::Each,
                };
                let own = shards[rank].clone();
                let gemm = self.reduction(problem, shards, (output, groups * group_rows), tiling);
                let mut operands = self.reduces(&gemm, start, 0);
                let is_local = family == Family::Everyone && random.bool();
                if is_local {
                    operands.local_c = self.at.c;
                }
                let prepared = self.backend.prepare_reduce(&self.handle, &gemm);
                let prepared = prepared.unwrap_or_else(|error| panic!("{what}: {error}"));
                self.synchronize();
                self.barrier("prepared");
                // SAFETY: as above.
                unsafe {
                    self.backend
                        .matmul_reduce(&self.stream, &prepared, &operands)
                        .unwrap();
                }
                self.synchronize();
                match output {
                    ReduceOutput::Owner => (&matrix.reduced, own, self.at.c),
                    ReduceOutput::Everyone if is_local => (&matrix.reduced, 0..m, self.at.c),
                    ReduceOutput::Everyone => {
                        let copies = self.shared.local().add(self.within.copies);
                        (&matrix.reduced, 0..m, copies)
                    }
                    ReduceOutput::Each => (&matrix.reduced, 0..m, self.at.c),
                    ReduceOutput::Multimem => {
                        unreachable!("the switch adds in an order of its own")
                    }
                }
            }
        };
        self.pad.check(&self.stream).unwrap();
        let got = self.download::<T>(at, got_rows.len() * ldc);
        let wanted = &wanted[(start + got_rows.start) * columns..(start + got_rows.end) * columns];
        for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
            let [got, wanted] = [got, wanted].map(|value| value.to_f64().to_bits());
            assert!(
                got == wanted,
                "rank {rank} of {world}, row {}, column {}: {what}",
                got_rows.start + i / columns,
                i % columns
            );
        }
        // No rank goes on while others may still read what is its.
        self.barrier("compared");
        self.counts.families[which] += 1;
        self.counts.gated += gated.iter().len();
        self.counts.rows += got_rows.len();
    }
}
