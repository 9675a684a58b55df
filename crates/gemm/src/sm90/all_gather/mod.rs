//! The all-gather GEMM, bound to a problem on a device.

mod parameters;
#[cfg(test)]
mod tests;

use warpweave_symm_mem::cuda::CudaStream;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr};

use self::parameters::{AllGatherParams, EagerParams, Maps, Slicing, TileSchedule};
use super::RANKS;
use super::check_problem;
use super::config::{self, Family};
use super::prepared::used_bias;
use super::resident::{Addresses, Resident, check_family};
use crate::all_gather_matmul::{
    AllGatherMatmul, AllGatherOperands, GatheredScales, Launch, Protocol, groups,
};
use crate::cutlass::{ADDRESS_ALIGNMENT, unsupported};
use crate::tables::{Table, Tables};
use crate::{Error, Provider, Scaling, Tiling};

/// An all-gather GEMM, ready to be launched.
#[derive(Debug)]
pub struct PreparedAllGather {
    gemm: AllGatherMatmul,
    kernel: Resident,
    tiling: Tiling,
    /// How many tiles there are, of how many columns.
    tiles: [u32; 2],
    /// The order of the tiles.
    groups: Table,
    /// How rows are pulled, and counters of what has arrived, unless owners push.
    pulled: Option<(Slicing, Table)>,
}

impl PreparedAllGather {
    /// Prepares a valid `gemm` on the device of `cuda`: chooses a kernel and uploads the order of its tiles.
    ///
    /// # Errors
    /// Those of
    /// [`AllGatherGemmBackend::prepare_all_gather`](crate::AllGatherGemmBackend::prepare_all_gather).
    pub(crate) fn new(cuda: &Cuda, tables: &Tables, gemm: &AllGatherMatmul) -> Result<Self, Error> {
        let problem = &gemm.problem;
        let slicing = check(gemm)?;
        let family = Family::of_all_gather(gemm);
        check_family(cuda, family)?;

        let sms = match gemm.pushed_chunks() {
            0 => cuda.device().sms,
            _ => super::sms_left_by_signals(cuda.device()),
        };
        let most = gemm.max_blocks.unwrap_or(u32::MAX).min(sms);
        let favourite = || favourite(gemm, most);
        let tiling = gemm.tiling.or_else(favourite).ok_or(Error::NoCandidate)?;
        config::check_swizzle(problem, tiling.swizzle)?;
        let kernel = Resident::new(cuda, problem, (family, tiling.config), most)?;

        let [height, width] = config::cluster_tile(kernel.config).map(|extent| extent as usize);
        let columns = problem.n.div_ceil(width);
        let groups = groups(gemm, (height, columns), tiling.swizzle as usize)?;
        let words = groups.iter().flat_map(|b| [b.end, b.row, b.rows, b.shard]);
        let pulled = match slicing {
            Some(slicing) => {
                let zeros = std::iter::repeat_n(0, counters(gemm, &slicing));
                Some((slicing, tables.upload(zeros)?))
            }
            None => None,
        };
        Ok(Self {
            gemm: gemm.clone(),
            kernel,
            tiling,
            tiles: [
                groups.last().map_or(0, |swizzle| swizzle.end),
                columns as u32,
            ],
            groups: tables.upload(words)?,
            pulled,
        })
    }

    /// What was chosen.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// Blocks of the launch: all are resident at once.
    pub fn blocks(&self) -> u32 {
        self.kernel.blocks()
    }

    /// Enqueues the GEMM on `stream`.
    ///
    /// # Safety
    /// As [`AllGatherGemmBackend::all_gather_matmul`](crate::AllGatherGemmBackend::all_gather_matmul). `cuda`
    /// is the device of [`PreparedAllGather::new`].
    pub(crate) unsafe fn launch(
        &self,
        cuda: &Cuda,
        stream: &CudaStream,
        operands: &AllGatherOperands,
    ) -> Result<(), Error> {
        let gemm = Launch {
            gemm: &self.gemm,
            operands,
        };
        gemm.check(|_| ADDRESS_ALIGNMENT)?;
        let addresses = addresses(&gemm);
        let call = (&addresses, operands.pad);
        let slicing = self.pulled.as_ref().map(|(slicing, _)| slicing);
        let maps = || Maps::encode(&gemm, slicing, self.kernel.config);
        let [tiles, columns] = self.tiles;
        let schedule = TileSchedule {
            groups: self.groups.address().0,
            tiles,
            columns,
        };
        // SAFETY: each structure is its kernel's parameter, whose tables live as long as this; the caller
        // vouches for the matrices and the pad.
        unsafe {
            match &self.pulled {
                Some((slicing, arrived)) => self.kernel.launch(cuda, stream, call, || {
                    Ok(AllGatherParams::new(
                        &gemm,
                        &maps()?,
                        schedule,
                        (slicing, arrived.address()),
                    ))
                }),
                None => self.kernel.launch(cuda, stream, call, || {
                    Ok(EagerParams::new(&gemm, &maps()?, schedule))
                }),
            }
        }
    }
}

/// All addresses that the parameter of a launch has.
fn addresses(gemm: &Launch<'_>) -> Addresses {
    let operands = gemm.operands;
    Addresses {
        peers: [operands.a, operands.staging],
        staging_stride: match gemm.protocol {
            Protocol::Rendezvous { .. } => 0,
            Protocol::Eager => operands.staging_stride,
        },
        scales: match gemm.problem.scaling {
            Scaling::None => GatheredScales::default(),
            _ => operands.scales,
        },
        matrices: [
            operands.b,
            operands.c,
            used_bias(&gemm.problem, operands.bias),
            operands.local_a,
            DevicePtr::NULL,
        ],
    }
}

/// The default choice.
fn favourite(gemm: &AllGatherMatmul, blocks: u32) -> Option<Tiling> {
    let problem = &gemm.problem;
    let own = gemm.shards[gemm.rank].len();
    match gemm.protocol {
        Protocol::Rendezvous { .. } => {
            let is_narrow = gemm.pushed_chunks() == 0
                && AllGatherMatmul::is_narrow(problem, gemm.world, gemm.chunk_rows);
            match is_narrow || own < problem.m && config::is_one_wave(problem, blocks) {
                true => config::small(problem, &gemm.shards, blocks, gemm.chunk_rows),
                false => config::select_tile(problem, blocks),
            }
        }
        // All rows come late.
        Protocol::Eager => config::small(problem, &gemm.shards, blocks, own),
    }
}

/// Most counters of a launch: 64 MiB.
const MOST_COUNTERS: usize = 1 << 24;

/// Counters of what was pulled: one for each slice of a chunk, and two more.
fn counters(gemm: &AllGatherMatmul, slicing: &Slicing) -> usize {
    gemm.chunks() * slicing.slices + 2
}

/// Checks what the kernel needs of a GEMM, apart from the device. Gives how rows are pulled, unless owners
/// push.
fn check(gemm: &AllGatherMatmul) -> Result<Option<Slicing>, Error> {
    let problem = &gemm.problem;
    check_problem(problem)?;
    let world = gemm.shards.len();
    if world > RANKS {
        let why = format!("{world} ranks: its parameters have place for {RANKS}");
        return unsupported(problem, Provider::Sm90, why);
    }
    if gemm.row_bytes() > u32::MAX as usize {
        let why = format!(
            "rows of A must be shorter than 4 GiB, not {}",
            gemm.row_bytes()
        );
        return unsupported(problem, Provider::Sm90, why);
    }
    let slicing = match gemm.protocol {
        Protocol::Rendezvous { .. } => Slicing::new(gemm),
        Protocol::Eager => return Ok(None),
    };
    let counters = counters(gemm, &slicing);
    if counters > MOST_COUNTERS {
        let why = format!(
            "chunks of {} rows need {counters} counters of slices that were pulled: {MOST_COUNTERS} at most",
            gemm.chunk_rows
        );
        return unsupported(problem, Provider::Sm90, why);
    }
    Ok(Some(slicing))
}
