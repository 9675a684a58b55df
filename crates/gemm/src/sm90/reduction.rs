//! GEMM + reduction: `cuda/sm90/reduction.cu`, or `cuda/sm90/multimem_reduction.cu`, for a problem.

use std::ops::Range;

use warpweave_symm_mem::cuda::CudaStream;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, PadView};

use super::config::{self, Family};
use super::prepared::{Epilogue, Scales, boxes, refused, rows_of_box, used_bias};
use super::requirements::{check_multicast, check_reduction};
use super::resident::{Addresses, Parameter, Resident, check_family, own_scales};
use super::tensor_map::{BOX_COLUMNS, Matrix, TensorMap};
use super::{RANKS, reduce_tiling};
use crate::cutlass::{ADDRESS_ALIGNMENT, Config};
use crate::matmul_reduce::{Group, Launch, ReduceOutput};
use crate::tables::{Table, Tables};
use crate::{Error, MatmulReduce, ReduceOperands};

/// The parameter of the kernels: `ReductionParams` in `cuda/sm90/reduction.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct ReductionParams {
    a: TensorMap,
    b: TensorMap,
    c: TensorMap,
    local_c: TensorMap,
    outgoing: [TensorMap; RANKS],
    incoming: TensorMap,
    pad: PadView,
    from: [DevicePtr; RANKS],
    to: [DevicePtr; RANKS],
    results: [DevicePtr; RANKS],
    schedule: DevicePtr,
    arrived: DevicePtr,
    starts: [u32; RANKS],
    rows: [u32; RANKS],
    group_rows: u32,
    groups: u32,
    row_stride: u32,
    row_bytes: u32,
    tiles: u32,
    steps: u32,
    ready: u32,
    reduced: u32,
    done: u32,
    all_reduce: u32,
    most_rows: u32,
    is_local: u32,
    epilogue: Epilogue,
    scales: Scales,
}
const _: () = assert!(
    size_of::<ReductionParams>() == 2176 && std::mem::offset_of!(ReductionParams, scales) == 2080
);

// SAFETY: the structure above is that of the device code.
unsafe impl Parameter for ReductionParams {
    fn pad(&mut self) -> &mut PadView {
        &mut self.pad
    }
}

/// A GEMM + reduction, ready to be launched.
#[derive(Debug)]
pub struct PreparedReduction {
    gemm: MatmulReduce,
    kernel: Resident,
    tiles: u32,
    /// The order of the tiles, and counters of what has arrived.
    schedule: Table,
    arrived: Table,
}

impl PreparedReduction {
    /// Chooses a kernel, and stores the order of the groups on the device of `cuda`.
    ///
    /// # Errors
    /// As [`GemmReduceBackend::prepare_reduce`](crate::GemmReduceBackend::prepare_reduce).
    pub(crate) fn new(cuda: &Cuda, tables: &Tables, gemm: &MatmulReduce) -> Result<Self, Error> {
        gemm.validate()?;
        check_multicast(cuda.device(), gemm)?;
        let family = Family::of_reduction(gemm);
        check_family(cuda, family)?;
        check_reduction(gemm)?;

        let blocks = cuda.device().sms;
        let blocks = blocks.min(gemm.max_blocks.unwrap_or(blocks));
        let problem = &gemm.problem;
        let index = gemm.tiling.map_or_else(
            || reduce_tiling::to_owners(gemm, blocks),
            |given| given.config,
        );
        let kernel = Resident::new(cuda, problem, (family, index), blocks)?;
        let schedule = schedule(gemm, kernel.config)?;
        let tiles = schedule.len() as u32;
        let zeros = std::iter::repeat_n(0, gemm.groups() + 1);
        Ok(Self {
            gemm: gemm.clone(),
            kernel: kernel.with_tiles(tiles),
            tiles,
            schedule: tables.upload(words(&schedule))?,
            arrived: tables.upload(zeros)?,
        })
    }

    /// Enqueues the GEMM on `stream`.
    ///
    /// # Errors
    /// As [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce).
    ///
    /// # Safety
    /// As [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce). `cuda` is the device
    /// of [`PreparedReduction::new`].
    pub(crate) unsafe fn launch(
        &self,
        cuda: &Cuda,
        stream: &CudaStream,
        operands: &ReduceOperands,
    ) -> Result<(), Error> {
        let gemm = Launch {
            gemm: &self.gemm,
            operands,
        };
        gemm.check(|_| ADDRESS_ALIGNMENT)?;
        gemm.check_multicast(ADDRESS_ALIGNMENT)?;
        let addresses = addresses(&gemm);
        let call = (&addresses, operands.pad);
        // SAFETY: the structure is the kernel's parameter, whose tables live as long as this; the caller
        // vouches for the matrices and the pad.
        unsafe {
            self.kernel
                .launch(cuda, stream, call, || self.encode(&gemm))
        }
    }

    fn encode(&self, gemm: &Launch<'_>) -> Result<ReductionParams, Error> {
        let (rank, world, operands) = (gemm.rank, gemm.world, gemm.operands);
        // Of each other rank; by multimem of this one, at the addresses of all.
        let by_multimem = gemm.c == ReduceOutput::Multimem;
        let of_ranks = |at: &dyn Fn(usize) -> DevicePtr| {
            std::array::from_fn(|peer| match peer < world && (peer == rank) == by_multimem {
                true => at(peer),
                false => DevicePtr::NULL,
            })
        };
        let (from, to) = match by_multimem {
            true => {
                let [c, staging] = gemm.own_multicast();
                (of_ranks(&|_| staging), of_ranks(&|_| c))
            }
            false => (
                of_ranks(&|source| gemm.staged(source, rank)),
                of_ranks(&|source| gemm.pulled(source)),
            ),
        };
        let of_shards = |of: fn(&Range<usize>) -> usize| {
            std::array::from_fn(|rank| gemm.shards.get(rank).map_or(0, of) as u32)
        };
        let all_reduce = gemm.c == ReduceOutput::Everyone;
        let maps = Maps::new(gemm, self.kernel.config)?;
        Ok(ReductionParams {
            a: maps.a,
            b: maps.b,
            c: maps.c,
            local_c: maps.local_c,
            outgoing: maps.outgoing,
            incoming: maps.incoming,
            pad: operands.pad,
            from,
            to,
            results: std::array::from_fn(|of| match all_reduce && of < world {
                true if of == rank => gemm.own_c(),
                true => operands.c[of],
                false => DevicePtr::NULL,
            }),
            schedule: self.schedule.address(),
            arrived: self.arrived.address(),
            starts: of_shards(|rows| rows.start),
            rows: of_shards(Range::len),
            group_rows: gemm.group_rows as u32,
            groups: gemm.groups() as u32,
            row_stride: gemm.row_bytes() as u32,
            row_bytes: (gemm.problem.n * gemm.problem.out.size()) as u32,
            tiles: self.tiles,
            steps: config::steps(&gemm.problem),
            ready: gemm.ready as u32,
            reduced: gemm.reduced as u32,
            done: gemm.done as u32,
            all_reduce: all_reduce.into(),
            most_rows: gemm.most_rows() as u32,
            is_local: operands.local_c.non_null().is_some().into(),
            epilogue: Epilogue::new(&gemm.problem, operands.bias),
            scales: Scales::new(&gemm.problem, operands.scales),
        })
    }
}

/// All addresses that the parameter of a launch has.
fn addresses(gemm: &Launch<'_>) -> Addresses {
    let operands = gemm.operands;
    let [bias_or_c, pulled_or_staging] = match gemm.c {
        ReduceOutput::Multimem => operands.multicast,
        _ => [used_bias(&gemm.problem, operands.bias), operands.pulled],
    };
    Addresses {
        peers: [operands.c, operands.staging],
        staging_stride: 0,
        scales: own_scales(&gemm.problem, operands.scales),
        matrices: [
            operands.a,
            operands.b,
            bias_or_c,
            pulled_or_staging,
            operands.local_c,
        ],
    }
}

/// A tile in the order of the blocks: `ScheduledTile` in `cuda/sm90/reduction.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ScheduledTile {
    owner: u32,
    group: u32,
    /// In tiles, in the shard of the owner.
    row: u32,
    column: u32,
    /// Tiles of the group.
    of: u32,
}

/// Most tiles of a launch, whose table is 64 MiB then: the smallest tiles of a C of 64 GiB.
const MOST_TILES: u64 = 1 << 22;

/// The tiles of a rank in the order in which its blocks take them: the groups one after the other, of each
/// column after column.
fn schedule(gemm: &MatmulReduce, config: &Config) -> Result<Vec<ScheduledTile>, Error> {
    let [height, width, _] = config.tile.map(|side| side as usize);
    let columns = gemm.problem.n.div_ceil(width);
    let order = gemm.order();
    let tiles = |group: &Group| (group.rows.len().div_ceil(height) * columns) as u64;
    let tiles: u64 = order.iter().map(tiles).sum();
    // Scheduled tiles name their group in 16 bits.
    if tiles > MOST_TILES || gemm.groups() > usize::from(u16::MAX) {
        return Err(Error::InvalidProblem {
            problem: Box::new(gemm.problem),
            reason: format!(
                "{tiles} tiles in {} groups: {MOST_TILES} in {} at most",
                gemm.groups(),
                u16::MAX
            ),
        });
    }
    let mut all = Vec::with_capacity(tiles as usize);
    for Group { owner, index, rows } in order {
        let first = (rows.start - gemm.shards[owner].start) / height;
        let rows = rows.len().div_ceil(height);
        all.extend((0..rows * columns).map(|i| {
            let (row, column) = (first + i % rows, i / rows);
            let [owner, group, row, column, of] =
                [owner, index, row, column, rows * columns].map(|value| value as u32);
            ScheduledTile {
                owner,
                group,
                row,
                column,
                of,
            }
        }));
    }
    Ok(all)
}

fn words(schedule: &[ScheduledTile]) -> impl Iterator<Item = u32> {
    let words = |tile: &ScheduledTile| {
        [
            tile.owner | tile.group << 16,
            tile.row,
            tile.column,
            tile.of,
        ]
    };
    schedule.iter().flat_map(words)
}

/// The matrices as the kernel sees them.
struct Maps {
    a: TensorMap,
    b: TensorMap,
    c: TensorMap,
    local_c: TensorMap,
    outgoing: [TensorMap; RANKS],
    incoming: TensorMap,
}

impl Maps {
    fn new(gemm: &Launch<'_>, config: &Config) -> Result<Self, Error> {
        let (rank, world, operands) = (gemm.rank, gemm.world, gemm.operands);
        let problem = &gemm.problem;
        let at = |address, matrix| Matrix { address, ..matrix };
        let refused = |operand| refused(problem, operand);
        let encode = |operand, matrix, box_rows, address| {
            TensorMap::encode(at(address, matrix), box_rows).map_err(refused(operand))
        };
        let (a, [(b, rows_b), (c, rows_c)]) = boxes(problem, config);
        let rows_a = rows_of_box(config, gemm.most_rows());
        let shard = |rows: &Range<usize>| Matrix {
            rows: rows.len(),
            ..c
        };
        let mut maps = Self {
            a: encode("A", a, rows_a, operands.a)?,
            b: encode("B", b, rows_b, operands.b)?,
            c: TensorMap::UNUSED,
            local_c: TensorMap::UNUSED,
            outgoing: [TensorMap::UNUSED; RANKS],
            incoming: TensorMap::UNUSED,
        };
        let own = &gemm.shards[rank];
        let by_multimem = gemm.c == ReduceOutput::Multimem;
        if !own.is_empty() && !by_multimem {
            maps.c = encode("C", shard(own), rows_c, gemm.own_results())?;
            if let Some(local) = gemm.local_results() {
                maps.local_c = encode("local C", shard(own), rows_c, local)?;
            }
        }
        for owner in (0..world).filter(|&owner| owner != rank || by_multimem) {
            let rows = &gemm.shards[owner];
            if !rows.is_empty() {
                let to = gemm.staged(rank, owner);
                maps.outgoing[owner] = encode("staging", shard(rows), rows_c, to)?;
            }
        }
        if !own.is_empty() && world > 1 && !by_multimem {
            let partials = at(operands.pulled, shard(own));
            let stack = (world - 1, gemm.most_rows() * problem.ldc);
            let boxes = (
                PARTIAL_ROWS,
                partials_of_stage(config).min(world as u32 - 1),
            );
            maps.incoming =
                TensorMap::encode_stack(partials, stack, boxes).map_err(refused("pulled"))?;
        }
        Ok(maps)
    }
}

/// Rows of a box of a partial: those of a tile, `PartialStages::kBytes` with [`BOX_COLUMNS`].
const PARTIAL_ROWS: u32 = 128;
const _: () = assert!(PARTIAL_ROWS * BOX_COLUMNS * 2 == 16384);

/// Such boxes in a stage, which has a step of A and of B: `PartialStages::kPartials`.
fn partials_of_stage(config: &Config) -> u32 {
    let [rows, columns, depth] = config.tile;
    (rows + columns) * depth / (PARTIAL_ROWS * BOX_COLUMNS)
}

#[cfg(test)]
mod tests;
