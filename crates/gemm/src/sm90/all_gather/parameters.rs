//! The parameters of the kernels, as `cuda/sm90/all_gather.cu` and `cuda/sm90/eager.cu` have them.

use warpweave_symm_mem::{DType, DevicePtr, PadView};

use super::super::RANKS;
use super::super::config::{self, SWIZZLED_ROW};
use super::super::prepared::{Epilogue, boxes, maps_of_a, refused, used_scales};
use super::super::resident::Parameter;
use super::super::tensor_map::{Matrix, TensorMap};
use crate::all_gather_matmul::{AllGatherMatmul, Launch, PIECE_BYTES};
use crate::cutlass::Config;
use crate::{Error, GemmProblem};

/// How the rows of a chunk are pulled: in slices of K, so that a tile multiplies what is here of its rows,
/// and these in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slicing {
    /// Steps of K of a slice.
    pub steps: usize,
    /// Slices of a chunk.
    pub slices: usize,
    /// Rows of a piece.
    pub piece_rows: usize,
}

impl Slicing {
    pub fn new(gemm: &AllGatherMatmul) -> Self {
        let bytes = gathered_bytes(&gemm.problem).max(1);
        let rows = gemm.chunk_rows.min(gemm.peer_rows());
        let slice = AllGatherMatmul::slice_bytes(&gemm.problem, gemm.world, rows);
        let slice = slice.min(bytes.next_power_of_two()).max(SWIZZLED_ROW);
        // No piece has rows of two chunks.
        let whole = match gemm.chunks() {
            0 | 1 => PIECE_BYTES,
            _ => 1 << gemm.chunk_rows.trailing_zeros(),
        };
        Self {
            steps: slice / SWIZZLED_ROW,
            slices: bytes.div_ceil(slice),
            piece_rows: (PIECE_BYTES / slice).min(whole),
        }
    }
}

/// Bytes of a row of A that cross the link.
fn gathered_bytes(problem: &GemmProblem) -> usize {
    (problem.k * problem.dtype.size()).next_multiple_of(16)
}

/// The order of the tiles: `TileSchedule` in `cuda/sm90/schedule.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct TileSchedule {
    pub groups: u64,
    pub tiles: u32,
    pub columns: u32,
}

/// The tensor maps of a GEMM, by shard.
pub(super) struct Maps {
    /// By staging, where there are two.
    a: [[TensorMap; RANKS]; 2],
    last_a: [[TensorMap; RANKS]; 2],
    c: [TensorMap; RANKS],
    b: TensorMap,
    /// Of pieces: the shards of peers, and their places in staging.
    boxes: [[TensorMap; RANKS]; 2],
}

impl Maps {
    /// # Errors
    /// [`Error::Operand`] with the driver's answer.
    pub fn encode(
        gemm: &Launch<'_>,
        slicing: Option<&Slicing>,
        config: &Config,
    ) -> Result<Self, Error> {
        let problem = &gemm.problem;
        let (a, [b, c]) = boxes(problem, config);
        let refused = |operand| refused(problem, operand);
        let at = |matrix, rows, address| Matrix {
            address,
            rows,
            ..matrix
        };
        let map = |operand, (matrix, box_rows): (Matrix, u32), rows, address| {
            TensorMap::encode(at(matrix, rows, address), box_rows).map_err(refused(operand))
        };
        let b = map("B", b, b.0.rows, gemm.operands.b)?;
        // Tensor maps of no rows do not exist: where a shard has none, nothing reads its map.
        let mut maps = Maps {
            a: [[TensorMap::UNUSED; RANKS]; 2],
            last_a: [[TensorMap::UNUSED; RANKS]; 2],
            c: [TensorMap::UNUSED; RANKS],
            b,
            boxes: [[TensorMap::UNUSED; RANKS]; 2],
        };
        let slicing = slicing.filter(|of| of.piece_rows > 1);
        for (rank, shard) in gemm.shards.iter().enumerate() {
            if shard.is_empty() {
                continue;
            }
            let (_, operands) = gemm.part(shard, 0);
            maps.c[rank] = map("C", c, shard.len(), operands.c)?;
            for parity in 0..gemm.protocol.stagings() {
                let row = gemm.row(shard.start, parity);
                let matrix = at(a, shard.len(), row);
                let [whole, last] = maps_of_a(matrix, config).map_err(refused("A"))?;
                (maps.a[parity][rank], maps.last_a[parity][rank]) = (whole, last);
            }
            let Some(slicing) = slicing.filter(|_| rank != gemm.rank) else {
                continue;
            };
            let places = [
                gemm.operands.a[rank],
                gemm.staged(gemm.rank, shard.start, 0),
            ];
            for (boxes, address) in maps.boxes.iter_mut().zip(places) {
                boxes[rank] = TensorMap::encode_bytes(
                    address,
                    [gathered_bytes(problem), shard.len()],
                    gemm.row_bytes(),
                    [slicing.steps * SWIZZLED_ROW, slicing.piece_rows],
                )
                .map_err(refused("A"))?;
            }
        }
        Ok(maps)
    }
}

/// Something of each rank.
fn of_ranks<T: Copy + Default>(all: impl Iterator<Item = T>) -> [T; RANKS] {
    let mut of = [T::default(); RANKS];
    for (place, one) in of.iter_mut().zip(all) {
        *place = one;
    }
    of
}

fn rows_of(gemm: &AllGatherMatmul) -> [u32; RANKS] {
    of_ranks(gemm.shards.iter().map(|shard| shard.len() as u32))
}

/// `GatheredScales` in `cuda/sm90/scales.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct GatheredScales {
    a: [u64; RANKS],
    peers: [u64; RANKS],
    b: u64,
    columns: u32,
    stride: u32,
}
const _: () = assert!(size_of::<GatheredScales>() == 144);

impl GatheredScales {
    /// `peers` are what the kernel has of each rank, where rows have scales.
    fn new(gemm: &Launch<'_>, peers: impl Fn(usize) -> DevicePtr) -> Self {
        let by_row = gemm.has_row_scales();
        let starts = gemm.shards.iter().map(|shard| shard.start);
        Self {
            a: of_ranks(starts.map(|row| gemm.scales_of_rows(row, 0).0)),
            peers: of_ranks((0..gemm.world).filter(|_| by_row).map(|rank| peers(rank).0)),
            b: used_scales(&gemm.problem, [gemm.operands.scales.b; 2])[1].0,
            columns: gemm.problem.n as u32,
            stride: by_row.into(),
        }
    }
}

/// `AllGatherParams` in `cuda/sm90/all_gather.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AllGatherParams {
    a: [TensorMap; RANKS],
    last_a: [TensorMap; RANKS],
    c: [TensorMap; RANKS],
    b: TensorMap,
    boxes: [[TensorMap; RANKS]; 2],
    pad: PadView,
    from: [u64; RANKS],
    to: [u64; RANKS],
    schedule: TileSchedule,
    arrived: u64,
    rows: [u32; RANKS],
    steps: u32,
    row_stride: u32,
    row_bytes: u32,
    chunk_rows: u32,
    chunks: u32,
    slices: u32,
    slice_steps: u32,
    ready: u32,
    done: u32,
    pushed: u32,
    peer_rows: u32,
    piece_rows: u32,
    copied: u64,
    epilogue: Epilogue,
    scales: GatheredScales,
}
const _: () = assert!(
    size_of::<AllGatherParams>() == 5760 && std::mem::offset_of!(AllGatherParams, scales) == 5584
);

// SAFETY: the structure above is that of the device code.
unsafe impl Parameter for AllGatherParams {
    fn pad(&mut self) -> &mut PadView {
        &mut self.pad
    }
}

impl AllGatherParams {
    /// `arrived` is the place of the counters.
    pub fn new(
        gemm: &Launch<'_>,
        maps: &Maps,
        schedule: TileSchedule,
        (slicing, arrived): (&Slicing, DevicePtr),
    ) -> Self {
        let (problem, operands) = (&gemm.problem, gemm.operands);
        let own = gemm.rank;
        let starts = gemm.shards.iter().map(|shard| shard.start);
        Self {
            a: maps.a[0],
            last_a: maps.last_a[0],
            c: maps.c,
            b: maps.b,
            boxes: maps.boxes,
            pad: operands.pad,
            from: of_ranks((0..gemm.world).map(|rank| match rank == own {
                true => gemm.own_a().0,
                false => operands.a[rank].0,
            })),
            to: of_ranks(starts.map(|row| gemm.staged(own, row, 0).0)),
            schedule,
            arrived: arrived.0,
            rows: rows_of(gemm),
            steps: config::steps(problem),
            row_stride: gemm.row_bytes() as u32,
            row_bytes: gathered_bytes(problem) as u32,
            chunk_rows: gemm.largest_chunk() as u32,
            chunks: gemm.chunks() as u32,
            slices: slicing.slices as u32,
            slice_steps: slicing.steps as u32,
            ready: gemm.ready as u32,
            done: gemm.done as u32,
            pushed: gemm.pushed_chunks() as u32,
            peer_rows: gemm.peer_rows() as u32,
            piece_rows: slicing.piece_rows as u32,
            copied: gemm.copied_a().0,
            epilogue: Epilogue::new(problem, operands.bias),
            scales: GatheredScales::new(gemm, |rank| operands.scales.a[rank]),
        }
    }
}

/// `EagerParams` in `cuda/sm90/eager.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct EagerParams {
    a: [[TensorMap; RANKS]; 2],
    last_a: [[TensorMap; RANKS]; 2],
    c: [TensorMap; RANKS],
    b: TensorMap,
    pad: PadView,
    from: u64,
    to: [u64; RANKS],
    stagings: u64,
    schedule: TileSchedule,
    rows: [u32; RANKS],
    steps: u32,
    row_stride: u32,
    row_bytes: u32,
    chunk_rows: u32,
    slot: u32,
    epilogue: Epilogue,
    scales: GatheredScales,
    scale_stagings: u64,
}
const _: () =
    assert!(size_of::<EagerParams>() == 5760 && std::mem::offset_of!(EagerParams, scales) == 5496);

// SAFETY: the structure above is that of the device code.
unsafe impl Parameter for EagerParams {
    fn pad(&mut self) -> &mut PadView {
        &mut self.pad
    }
}

impl EagerParams {
    pub fn new(gemm: &Launch<'_>, maps: &Maps, schedule: TileSchedule) -> Self {
        let (problem, operands) = (&gemm.problem, gemm.operands);
        let (own, world) = (gemm.rank, gemm.world);
        let start = gemm.shards[own].start;
        Self {
            a: maps.a,
            last_a: maps.last_a,
            c: maps.c,
            b: maps.b,
            pad: operands.pad,
            from: operands.a[own].0,
            to: of_ranks((0..world).map(|peer| gemm.staged(peer, start, 0).0)),
            stagings: operands.staging_stride as u64,
            schedule,
            rows: rows_of(gemm),
            steps: config::steps(problem),
            row_stride: gemm.row_bytes() as u32,
            row_bytes: gathered_bytes(problem) as u32,
            chunk_rows: gemm.largest_chunk() as u32,
            slot: gemm.ready as u32,
            epilogue: Epilogue::new(problem, operands.bias),
            scales: GatheredScales::new(gemm, |peer| gemm.staged_scale(peer, start, 0)),
            scale_stagings: (operands.scales.staging_stride / DType::F32.size()) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gemm, operands};
    use super::*;
    use crate::all_gather_matmul::Protocol;

    /// A chunk ends with the largest shard, whatever the caller asked for: the kernel counts the pieces of a
    /// chunk by its rows.
    #[test]
    fn a_chunk_is_no_longer_than_the_largest_shard() {
        let chunk_rows = |m, asked| {
            let gemm = &gemm([m, 8, 64], (0, 2), asked, Protocol::PULL);
            let operands = &operands(gemm);
            let maps = Maps {
                a: [[TensorMap::UNUSED; RANKS]; 2],
                last_a: [[TensorMap::UNUSED; RANKS]; 2],
                c: [TensorMap::UNUSED; RANKS],
                b: TensorMap::UNUSED,
                boxes: [[TensorMap::UNUSED; RANKS]; 2],
            };
            let schedule = TileSchedule {
                groups: 0,
                tiles: 0,
                columns: 0,
            };
            let places = (&Slicing::new(gemm), DevicePtr::NULL);
            AllGatherParams::new(&Launch { gemm, operands }, &maps, schedule, places).chunk_rows
        };
        assert_eq!(chunk_rows(1001, 1 << 20), 501);
        assert_eq!(chunk_rows(1001, 501), 501);
        assert_eq!(chunk_rows(1001, 256), 256);
    }
}
