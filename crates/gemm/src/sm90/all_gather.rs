//! The kernel that gathers, bound to a problem on a device.

use warpweave_symm_mem::cuda::{CudaQueue, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, Memory, PadView};

use super::config::{self, ALL_GATHER, CONFIGS, Candidate, FETCHING_BYTES, Family, STEP, THREADS};
use super::plan::{Bias, boxes, check_compiled};
use super::tensor_map::{Matrix, TensorMap};
use super::{check_device, check_problem, select};
use crate::all_gather_matmul::{AllGatherMatmul, bands};
use crate::cuda::multiprocessors_beside_signals;
use crate::cutlass::ADDRESS_ALIGNMENT;
use crate::{Error, GemmOperands, GemmProblem, Provider};

const RANKS: usize = AllGatherMatmul::MAX_WORLD;

/// The parameter of the kernels: `Gathering` in `cuda/sm90/all_gather.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Gathering {
    a: [TensorMap; RANKS],
    c: [TensorMap; RANKS],
    b: TensorMap,
    pad: PadView,
    from: [u64; RANKS],
    to: [u64; RANKS],
    bands: u64,
    arrived: u64,
    rows: [u32; RANKS],
    tiles: u32,
    columns: u32,
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
    bias: Bias,
}
const _: () =
    assert!(size_of::<Gathering>() == 2560 && std::mem::offset_of!(Gathering, bias) == 2464);

/// A product that gathers, ready to be launched.
#[derive(Debug)]
pub struct AllGatherPlan {
    gathering: Box<Gathering>,
    function: Function,
    launch: LaunchConfig,
    candidate: Candidate,
    /// What `bands` and `arrived` point to.
    _tables: [<Cuda as Backend>::Memory; 2],
}

impl AllGatherPlan {
    /// Prepares a valid `product` on the device of `cuda`: encodes its tensor maps and uploads the order of its tiles.
    ///
    /// # Errors
    /// Those of [`AllGatherGemmBackend::all_gather_plan`](crate::AllGatherGemmBackend::all_gather_plan).
    pub(crate) fn new(cuda: &Cuda, product: &AllGatherMatmul) -> Result<Self, Error> {
        let problem = &product.problem;
        check(product)?;
        check_compiled(&ALL_GATHER)?;
        check_device(cuda.device())?;

        let multiprocessors = match product.pushed_chunks() {
            0 => cuda.device().multiprocessors,
            _ => multiprocessors_beside_signals(cuda),
        };
        let most = product.max_blocks.unwrap_or(u32::MAX).min(multiprocessors);
        let favourite = || favourite(product, most);
        let candidate = product
            .candidate
            .or_else(favourite)
            .ok_or(Error::NoCandidate)?;
        let config = CONFIGS.get(candidate.config).ok_or(Error::NoCandidate)?;
        let (image, name) = config::kernel(Family::AllGather, problem, candidate.config)
            .ok_or(Error::NoCandidate)?;
        let function = cuda.function(image, name)?;

        let cluster = config::blocks(config);
        let mut launch = LaunchConfig {
            shared_bytes: FETCHING_BYTES,
            cluster: (cluster > 1).then_some((cluster, 1, 1)),
            ..LaunchConfig::linear(cluster, THREADS)
        };
        let resident = function.max_resident_in_clusters(launch)?;
        let blocks = most.min(resident) / cluster * cluster;
        if blocks == 0 {
            return Err(refused(
                problem,
                format!(
                    "{cluster} blocks must be resident at once, of at most {most} that it may have; {resident} fit"
                ),
            ));
        }
        launch.grid.0 = blocks;

        let [height, width] = config::cluster_tile(config).map(|extent| extent as usize);
        let columns = problem.n.div_ceil(width);
        let bands = bands(product, (height, columns), candidate.band as usize)?;
        let words = bands.iter().flat_map(|b| [b.end, b.row, b.rows, b.shard]);
        let row_bytes = gathered_bytes(problem);
        let slices = row_bytes.div_ceil(SLICE_STEPS * STEP * 2).max(1);
        let counters = product.chunks() * slices * product.world() + 1;
        let tables = [
            upload(cuda, words)?,
            upload(cuda, std::iter::repeat_n(0, counters))?,
        ];
        let mut gathering = encode(product, candidate)?;
        [gathering.bands, gathering.arrived] = [0, 1].map(|table| tables[table].address().0);
        gathering.tiles = bands.last().map_or(0, |band| band.end);
        gathering.columns = columns as u32;
        [gathering.slices, gathering.slice_steps] = [slices, SLICE_STEPS].map(|n| n as u32);
        Ok(Self {
            gathering: Box::new(gathering),
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
    pub(crate) unsafe fn launch(&self, cuda: &Cuda, stream: &CudaQueue) -> Result<(), Error> {
        let mut gathering = *self.gathering;
        // SAFETY: the structure is the kernel's parameter and its table lives with the plan; the caller vouches for the
        // matrices and the pad.
        unsafe {
            cuda.launch(
                stream,
                &self.function,
                self.launch,
                &mut [(&raw mut gathering).cast()],
            )?;
        }
        Ok(())
    }
}

/// Bytes of a row of A that are fetched.
fn gathered_bytes(problem: &GemmProblem) -> usize {
    (problem.k * problem.dtype.size()).next_multiple_of(16)
}

/// Steps of K of a slice of a chunk, in which it is fetched: a tile multiplies what is here of its rows. A slice of a row is a
/// piece of `kPieceBytes` (`inbox.cuh`).
const SLICE_STEPS: usize = 4096 / (STEP * 2);

/// The choice where none was given. A product ends a tile behind the last rows that come.
fn favourite(product: &AllGatherMatmul, blocks: u32) -> Option<Candidate> {
    let problem = &product.problem;
    let rows = problem.m - product.shards[product.rank()].len();
    match config::is_late(problem, rows * product.row_bytes()) {
        true => config::small(problem, blocks, product.chunk_rows),
        false => select(problem, blocks),
    }
}

fn refused(problem: &GemmProblem, requirement: String) -> Error {
    Error::Unsupported {
        provider: Provider::Sm90,
        problem: Box::new(*problem),
        requirement,
    }
}

/// What the kernel needs of a product, beside a device.
fn check(product: &AllGatherMatmul) -> Result<(), Error> {
    let problem = &product.problem;
    check_problem(problem)?;
    let world = product.shards.len();
    if world > RANKS {
        let why = format!("{world} ranks: its parameters have place for {RANKS}");
        return Err(refused(problem, why));
    }
    if product.row_bytes() > u32::MAX as usize {
        let why = format!(
            "rows of A must be shorter than 4 GiB, not {}",
            product.row_bytes()
        );
        return Err(refused(problem, why));
    }
    let staging = Some(&product.staging).filter(|_| world > 1);
    for &a in product.a.iter().chain(staging) {
        GemmOperands::new(a, product.b, product.c)
            .with_bias(product.bias)
            .check(problem, |_| ADDRESS_ALIGNMENT)?;
    }
    Ok(())
}

/// The parameter without the order of the tiles.
fn encode(product: &AllGatherMatmul, candidate: Candidate) -> Result<Gathering, Error> {
    let problem = &product.problem;
    let config = CONFIGS.get(candidate.config).ok_or(Error::NoCandidate)?;
    let [a, b, c] = boxes(problem, config);
    let map = |operand, (matrix, box_rows): (Matrix, u32), rows, address| {
        let matrix = Matrix {
            address,
            rows,
            ..matrix
        };
        TensorMap::encode(matrix, box_rows).map_err(|reason| Error::Operand {
            operand,
            problem: Box::new(*problem),
            reason,
        })
    };
    let b = map("B", b, b.0.rows, product.b)?;
    let mut gathering = Gathering {
        // Tensor maps of no rows do not exist: where a shard has none, nothing reads its map.
        a: [b; RANKS],
        c: [b; RANKS],
        b,
        pad: product.pad,
        from: [0; RANKS],
        to: [0; RANKS],
        bands: 0,
        arrived: 0,
        rows: [0; RANKS],
        tiles: 0,
        columns: 0,
        steps: problem.k.div_ceil(STEP) as u32,
        row_stride: product.row_bytes() as u32,
        row_bytes: gathered_bytes(problem) as u32,
        chunk_rows: product.chunk_rows as u32,
        chunks: product.chunks() as u32,
        slices: 0,
        slice_steps: 0,
        ready: product.ready as u32,
        done: product.done as u32,
        pushed: product.pushed_chunks() as u32,
        bias: Bias::new(problem, product.bias),
    };
    for (rank, shard) in product.shards.iter().enumerate() {
        gathering.from[rank] = product.a[rank].0;
        gathering.to[rank] = product.staging.add(shard.start * product.row_bytes()).0;
        gathering.rows[rank] = shard.len() as u32;
        if !shard.is_empty() {
            let (_, operands) = product.part(shard);
            gathering.a[rank] = map("A", a, shard.len(), operands.a)?;
            gathering.c[rank] = map("C", c, shard.len(), operands.c)?;
        }
    }
    Ok(gathering)
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
