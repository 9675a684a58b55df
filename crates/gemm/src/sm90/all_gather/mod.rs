//! The kernel that gathers, bound to a problem on a device.

mod parameters;
#[cfg(test)]
mod tests;

use warpweave_symm_mem::cuda::{CudaStream, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, Memory};

use self::parameters::{Eager, Gathering, Maps, Walk, slices};
use super::config::{self, CONFIGS, Candidate, FETCHING_BYTES, Family};
use super::plan::{check_compiled, launch_with, resident};
use super::{RANKS, check_device, check_problem, select};
use crate::all_gather_matmul::{AllGatherMatmul, Protocol, bands};
use crate::cuda::multiprocessors_beside_signals;
use crate::cutlass::{ADDRESS_ALIGNMENT, unsupported};
use crate::{Error, GemmOperands, Provider};

/// The parameter of the kernel of each protocol.
#[derive(Debug)]
enum Parameters {
    Rendezvous(Box<Gathering>),
    Eager(Box<Eager>),
}

/// A product that gathers, ready to be launched.
#[derive(Debug)]
pub struct AllGatherPlan {
    parameters: Parameters,
    function: Function,
    launch: LaunchConfig,
    candidate: Candidate,
    /// What the parameters point to.
    _tables: Vec<<Cuda as Backend>::Memory>,
}

impl AllGatherPlan {
    /// Prepares a valid `product` on the device of `cuda`: encodes its tensor maps and uploads the order of its tiles.
    ///
    /// # Errors
    /// Those of [`AllGatherGemmBackend::all_gather_plan`](crate::AllGatherGemmBackend::all_gather_plan).
    pub(crate) fn new(cuda: &Cuda, product: &AllGatherMatmul) -> Result<Self, Error> {
        let problem = &product.problem;
        check(product)?;
        let family = match product.protocol {
            Protocol::Rendezvous { .. } => Family::AllGather,
            Protocol::Eager => Family::Eager,
        };
        check_compiled(family.image())?;
        check_device(cuda.device())?;

        let multiprocessors = match product.pushed_chunks() {
            0 => cuda.device().sms,
            _ => multiprocessors_beside_signals(cuda),
        };
        let most = product.max_blocks.unwrap_or(u32::MAX).min(multiprocessors);
        let favourite = || favourite(product, most);
        let candidate = product
            .candidate
            .or_else(favourite)
            .ok_or(Error::NoCandidate)?;
        config::check_band(problem, candidate.band)?;
        let config = CONFIGS.get(candidate.config).ok_or(Error::NoCandidate)?;
        let (image, name) =
            config::kernel(family, problem, candidate.config).ok_or(Error::NoCandidate)?;
        let function = cuda.function(image, name)?;

        let launch = resident(&function, problem, (config, FETCHING_BYTES), most)?;

        let [height, width] = config::cluster_tile(config).map(|extent| extent as usize);
        let columns = problem.n.div_ceil(width);
        let bands = bands(product, (height, columns), candidate.band as usize)?;
        let words = bands.iter().flat_map(|b| [b.end, b.row, b.rows, b.shard]);
        let mut tables = vec![upload(cuda, words)?];
        let walk = Walk {
            bands: tables[0].address().0,
            tiles: bands.last().map_or(0, |band| band.end),
            columns: columns as u32,
        };
        let maps = Maps::encode(product, config)?;
        let parameters = match product.protocol {
            Protocol::Rendezvous { .. } => {
                tables.push(upload(cuda, std::iter::repeat_n(0, counters(product)))?);
                let gathering = Gathering::new(product, &maps, walk, tables[1].address());
                Parameters::Rendezvous(Box::new(gathering))
            }
            Protocol::Eager => Parameters::Eager(Box::new(Eager::new(product, &maps, walk))),
        };
        Ok(Self {
            parameters,
            function,
            launch,
            candidate,
            _tables: tables,
        })
    }

    /// What was chosen.
    pub fn candidate(&self) -> Candidate {
        self.candidate
    }

    /// Blocks of the launch: all are resident at once.
    pub fn blocks(&self) -> u32 {
        self.launch.grid.0
    }

    /// Enqueues the product on `stream`.
    ///
    /// # Safety
    /// As [`AllGatherGemmBackend::all_gather_matmul`](crate::AllGatherGemmBackend::all_gather_matmul). `cuda` is the device of
    /// [`AllGatherPlan::new`].
    pub(crate) unsafe fn launch(&self, cuda: &Cuda, stream: &CudaStream) -> Result<(), Error> {
        let (function, launch) = (&self.function, self.launch);
        // SAFETY: the structures are the kernels' parameters, whose tables live with the plan; the caller vouches for the matrices and
        // the pad.
        unsafe {
            match &self.parameters {
                Parameters::Rendezvous(of) => launch_with(cuda, stream, function, launch, &**of),
                Parameters::Eager(of) => launch_with(cuda, stream, function, launch, &**of),
            }
        }
    }
}

/// The choice where none was given. A product ends a tile behind the last rows that come.
fn favourite(product: &AllGatherMatmul, blocks: u32) -> Option<Candidate> {
    let problem = &product.problem;
    let own = product.shards[product.rank()].len();
    match product.protocol {
        Protocol::Rendezvous { .. } => {
            let bytes = (problem.m - own) * product.row_bytes();
            match config::is_late(problem, bytes)
                || bytes > 0 && config::is_one_wave(problem, blocks)
            {
                true => config::small(problem, blocks, product.chunk_rows),
                false => select(problem, blocks),
            }
        }
        // All rows come late.
        Protocol::Eager => config::small(problem, blocks, own),
    }
}

/// Most counters of a launch: 64 MiB.
const MOST_COUNTERS: usize = 1 << 24;

/// Counters of what was fetched: one for each slice of a chunk of each rank, and one more.
fn counters(product: &AllGatherMatmul) -> usize {
    match product.protocol {
        Protocol::Rendezvous { .. } => product.chunks() * slices(product) * product.world() + 1,
        Protocol::Eager => 0,
    }
}

/// What the kernel needs of a product, beside a device.
fn check(product: &AllGatherMatmul) -> Result<(), Error> {
    let problem = &product.problem;
    check_problem(problem)?;
    let world = product.shards.len();
    if world > RANKS {
        let why = format!("{world} ranks: its parameters have place for {RANKS}");
        return unsupported(problem, Provider::Sm90, why);
    }
    if product.row_bytes() > u32::MAX as usize {
        let why = format!(
            "rows of A must be shorter than 4 GiB, not {}",
            product.row_bytes()
        );
        return unsupported(problem, Provider::Sm90, why);
    }
    if counters(product) > MOST_COUNTERS {
        let why = format!(
            "chunks of {} rows need {} counters of slices that were fetched: {MOST_COUNTERS} at most",
            product.chunk_rows,
            counters(product)
        );
        return unsupported(problem, Provider::Sm90, why);
    }
    let staging = product.own_stagings().iter().filter(|_| world > 1);
    for &a in product.a.iter().chain(staging) {
        GemmOperands::new(a, product.b, product.c)
            .with_bias(product.bias)
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
