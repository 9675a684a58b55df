//! The kernel that gathers, bound to a problem on a device.

mod parameters;
#[cfg(test)]
mod tests;

use warpweave_symm_mem::cuda::{CudaStream, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, Memory};

use self::parameters::{Eager, Gathering, Maps, TileSchedule, slices};
use super::config::{self, CONFIGS, Family, PULLING_BYTES};
use super::prepared::{check_compiled, launch_with, resident};
use super::{RANKS, check_device, check_problem, select};
use crate::Tiling;
use crate::all_gather_matmul::{AllGatherMatmul, Protocol, groups};
use crate::cutlass::{ADDRESS_ALIGNMENT, unsupported};
use crate::{Error, GemmOperands, Provider};

/// The parameter of the kernel of each protocol.
#[derive(Debug)]
enum Parameters {
    Rendezvous(Box<Gathering>),
    Eager(Box<Eager>),
}

/// A GEMM that gathers, ready to be launched.
#[derive(Debug)]
pub struct PreparedAllGather {
    parameters: Parameters,
    function: Function,
    launch: LaunchConfig,
    tiling: Tiling,
    /// What the parameters point to.
    _tables: Vec<<Cuda as Backend>::Memory>,
}

impl PreparedAllGather {
    /// Prepares a valid `gemm` on the device of `cuda`: encodes its tensor maps and uploads the order of its
    /// tiles.
    ///
    /// # Errors
    /// Those of
    /// [`AllGatherGemmBackend::prepare_all_gather`](crate::AllGatherGemmBackend::prepare_all_gather).
    pub(crate) fn new(cuda: &Cuda, gemm: &AllGatherMatmul) -> Result<Self, Error> {
        let problem = &gemm.problem;
        check(gemm)?;
        let family = match gemm.protocol {
            Protocol::Rendezvous { .. } => Family::AllGather,
            Protocol::Eager => Family::Eager,
        };
        check_compiled(family.image())?;
        check_device(cuda.device())?;

        let sms = match gemm.pushed_chunks() {
            0 => cuda.device().sms,
            _ => super::sms_left_by_signals(cuda.device()),
        };
        let most = gemm.max_blocks.unwrap_or(u32::MAX).min(sms);
        let favourite = || favourite(gemm, most);
        let tiling = gemm.tiling.or_else(favourite).ok_or(Error::NoCandidate)?;
        config::check_swizzle(problem, tiling.swizzle)?;
        let config = CONFIGS.get(tiling.config).ok_or(Error::NoCandidate)?;
        let (image, name) =
            config::kernel(family, problem, tiling.config).ok_or(Error::NoCandidate)?;
        let function = cuda.function(image, name)?;

        let launch = resident(&function, problem, (config, PULLING_BYTES), most)?;

        let [height, width] = config::cluster_tile(config).map(|extent| extent as usize);
        let columns = problem.n.div_ceil(width);
        let groups = groups(gemm, (height, columns), tiling.swizzle as usize)?;
        let words = groups.iter().flat_map(|b| [b.end, b.row, b.rows, b.shard]);
        let mut tables = vec![upload(cuda, words)?];
        let schedule = TileSchedule {
            groups: tables[0].address().0,
            tiles: groups.last().map_or(0, |swizzle| swizzle.end),
            columns: columns as u32,
        };
        let maps = Maps::encode(gemm, config)?;
        let parameters = match gemm.protocol {
            Protocol::Rendezvous { .. } => {
                tables.push(upload(cuda, std::iter::repeat_n(0, counters(gemm)))?);
                let gathering = Gathering::new(gemm, &maps, schedule, tables[1].address());
                Parameters::Rendezvous(Box::new(gathering))
            }
            Protocol::Eager => Parameters::Eager(Box::new(Eager::new(gemm, &maps, schedule))),
        };
        Ok(Self {
            parameters,
            function,
            launch,
            tiling,
            _tables: tables,
        })
    }

    /// What was chosen.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// Blocks of the launch: all are resident at once.
    pub fn blocks(&self) -> u32 {
        self.launch.grid.0
    }

    /// Enqueues the GEMM on `stream`.
    ///
    /// # Safety
    /// As [`AllGatherGemmBackend::all_gather_matmul`](crate::AllGatherGemmBackend::all_gather_matmul). `cuda`
    /// is the device of [`PreparedAllGather::new`].
    pub(crate) unsafe fn launch(&self, cuda: &Cuda, stream: &CudaStream) -> Result<(), Error> {
        let (function, launch) = (&self.function, self.launch);
        // SAFETY: the structures are the kernels' parameters, whose tables live with the plan; the caller
        // vouches for the matrices and the pad.
        unsafe {
            match &self.parameters {
                Parameters::Rendezvous(of) => launch_with(cuda, stream, function, launch, &**of),
                Parameters::Eager(of) => launch_with(cuda, stream, function, launch, &**of),
            }
        }
    }
}

/// The default choice. A GEMM ends one tile after the last rows arrive.
fn favourite(gemm: &AllGatherMatmul, blocks: u32) -> Option<Tiling> {
    let problem = &gemm.problem;
    let own = gemm.shards[gemm.rank()].len();
    match gemm.protocol {
        Protocol::Rendezvous { .. } => {
            let bytes = (problem.m - own) * gemm.row_bytes();
            match config::is_late(problem, bytes)
                || bytes > 0 && config::is_one_wave(problem, blocks)
            {
                true => config::small(problem, blocks, gemm.chunk_rows),
                false => select(problem, blocks),
            }
        }
        // All rows come late.
        Protocol::Eager => config::small(problem, blocks, own),
    }
}

/// Most counters of a launch: 64 MiB.
const MOST_COUNTERS: usize = 1 << 24;

/// Counters of what was pulled: one for each slice of a chunk of each rank, and one more.
fn counters(gemm: &AllGatherMatmul) -> usize {
    match gemm.protocol {
        Protocol::Rendezvous { .. } => gemm.chunks() * slices(gemm) * gemm.world() + 1,
        Protocol::Eager => 0,
    }
}

/// Checks what the kernel needs of a GEMM, apart from the device.
fn check(gemm: &AllGatherMatmul) -> Result<(), Error> {
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
    if counters(gemm) > MOST_COUNTERS {
        let why = format!(
            "chunks of {} rows need {} counters of slices that were pulled: {MOST_COUNTERS} at most",
            gemm.chunk_rows,
            counters(gemm)
        );
        return unsupported(problem, Provider::Sm90, why);
    }
    let staging = gemm.own_stagings().iter().filter(|_| world > 1);
    for &a in gemm.a.iter().chain(staging) {
        GemmOperands::new(a, gemm.b, gemm.c)
            .with_bias(gemm.bias)
            .check(problem, |_| ADDRESS_ALIGNMENT)?;
    }
    Ok(())
}

/// A table of a launch, in memory of its own.
pub(super) fn upload(
    cuda: &Cuda,
    words: impl Iterator<Item = u32>,
) -> Result<<Cuda as Backend>::Memory, Error> {
    let image: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    let memory = cuda.allocate(image.len())?;
    let stream = cuda.setup_stream()?;
    // SAFETY: the memory has the image's size and is the plan's alone.
    unsafe { cuda.upload(&stream, memory.address(), &image)? };
    Ok(memory)
}
