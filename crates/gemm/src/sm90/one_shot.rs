//! GEMM + all-reduce in one shot: `cuda/sm90/one_shot.cu` for a problem.

use warpweave_symm_mem::cuda::{CudaStream, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, PadView};

use super::config::{self, CONFIGS, Family, SHARED_BYTES, STEP};
use super::prepared::{
    Bias, boxes, check_compiled, launch_with, maps_of_a, refused, resident, used_bias,
};
use super::requirements::check_reduction;
use super::tensor_map::{Matrix, TensorMap};
use super::{RANKS, Raster, check_device, reduce_tiling};
use crate::cuda::Relaxed;
use crate::cutlass::{ADDRESS_ALIGNMENT, Config};
use crate::launches::Launches;
use crate::matmul_reduce::Launch;
use crate::{Error, MatmulReduce, Peers, ReduceOperands};

/// The parameter of the kernels: `OneShotParams` in `cuda/sm90/one_shot.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct OneShot {
    a: TensorMap,
    last_a: TensorMap,
    b: TensorMap,
    parts: [[TensorMap; RANKS]; 2],
    pad: PadView,
    staging: DevicePtr,
    c: DevicePtr,
    staging_stride: u64,
    part_bytes: u64,
    row_stride: u64,
    raster: Raster,
    steps: u32,
    rows: u32,
    columns: u32,
    unit_rows: u32,
    unit_columns: u32,
    units_across: u32,
    slot: u32,
    end: u32,
    bias: Bias,
}
const _: () = assert!(size_of::<OneShot>() == 2688 && std::mem::offset_of!(OneShot, bias) == 2600);

/// What a parameter is made of, but for the pad.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Addresses {
    c: DevicePtr,
    staging: Peers,
    staging_stride: usize,
    matrices: [DevicePtr; 3],
}

/// Such a GEMM, ready to be launched.
#[derive(Debug)]
pub struct PreparedOneShot {
    gemm: MatmulReduce,
    config: &'static Config,
    launches: Launches<Addresses, Box<OneShot>>,
    function: Function,
    launch: LaunchConfig,
    raster: Raster,
}

impl PreparedOneShot {
    /// Chooses a kernel.
    ///
    /// # Errors
    /// As [`GemmReduceBackend::prepare_reduce`](crate::GemmReduceBackend::prepare_reduce).
    pub fn new(cuda: &Cuda, gemm: &MatmulReduce) -> Result<Self, Error> {
        gemm.validate()?;
        check_compiled(Family::OneShot.image())?;
        check_device(cuda.device())?;
        check_reduction(gemm)?;
        let _relaxed = Relaxed::begin()?;

        let problem = &gemm.problem;
        let blocks = cuda.device().sms;
        let blocks = blocks.min(gemm.max_blocks.unwrap_or(blocks));
        let tiling = gemm
            .tiling
            .unwrap_or_else(|| reduce_tiling::to_all(problem, gemm.world, blocks));
        let (image, name) =
            config::kernel(Family::OneShot, problem, tiling.config).ok_or(Error::NoCandidate)?;
        let config = &CONFIGS[tiling.config];
        let function = cuda.function(image, name)?;
        let mut launch = resident(&function, problem, (config, SHARED_BYTES), blocks)?;
        let (raster, tiles) = config::launched_raster(config, problem, tiling.swizzle)?;
        launch.grid.0 = launch.grid.0.min(tiles);
        Ok(Self {
            gemm: gemm.clone(),
            config,
            launches: Launches::default(),
            function,
            launch,
            raster,
        })
    }

    /// Enqueues the GEMM on `stream`.
    ///
    /// # Errors
    /// As [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce).
    ///
    /// # Safety
    /// As [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce). `cuda` is the device
    /// of [`PreparedOneShot::new`].
    pub unsafe fn launch(
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
        let addresses = Addresses {
            c: gemm.own_sums(),
            staging: operands.staging,
            staging_stride: operands.staging_stride,
            matrices: [
                operands.a,
                operands.b,
                used_bias(&self.gemm.problem, operands.bias),
            ],
        };
        let encode = || self.encode(&gemm);
        self.launches.with(&addresses, encode, |parameter| {
            parameter.pad = operands.pad;
            // SAFETY: the structure is the kernel's parameter; the caller vouches for the matrices and the
            // pad.
            unsafe { launch_with(cuda, stream, &self.function, self.launch, &**parameter) }
        })
    }

    fn encode(&self, gemm: &Launch<'_>) -> Result<Box<OneShot>, Error> {
        let (problem, operands) = (&gemm.problem, gemm.operands);
        let units = gemm.units();
        let Maps {
            a: [a, last_a],
            b,
            parts,
        } = Maps::new(gemm, self.config)?;
        Ok(Box::new(OneShot {
            a,
            last_a,
            b,
            parts,
            pad: operands.pad,
            staging: operands.staging[gemm.rank],
            c: gemm.own_sums(),
            staging_stride: operands.staging_stride as u64,
            part_bytes: (problem.m * gemm.row_bytes()) as u64,
            row_stride: gemm.row_bytes() as u64,
            raster: self.raster,
            steps: problem.k.div_ceil(STEP) as u32,
            rows: problem.m as u32,
            columns: problem.n as u32,
            unit_rows: units.rows as u32,
            unit_columns: units.columns as u32,
            units_across: units.across() as u32,
            slot: gemm.ready as u32,
            end: gemm.done as u32,
            bias: Bias::new(problem, operands.bias),
        }))
    }
}

/// A, B and the stagings of all ranks as the kernel sees them.
struct Maps {
    a: [TensorMap; 2],
    b: TensorMap,
    parts: [[TensorMap; RANKS]; 2],
}

impl Maps {
    fn new(gemm: &Launch<'_>, config: &Config) -> Result<Self, Error> {
        let (problem, operands) = (&gemm.problem, gemm.operands);
        let refused = |operand| refused(problem, operand);
        let (a, [(b, rows_b), (c, rows_c)]) = boxes(problem, config);
        let at = |matrix, address| Matrix { address, ..matrix };
        let mut maps = Self {
            a: maps_of_a(at(a, operands.a), config).map_err(refused("A"))?,
            b: TensorMap::encode(at(b, operands.b), rows_b).map_err(refused("B"))?,
            parts: [[TensorMap::UNUSED; RANKS]; 2],
        };
        let stack = (gemm.world, problem.m * problem.ldc);
        for (parity, parts) in maps.parts.iter_mut().enumerate() {
            for (rank, map) in parts.iter_mut().enumerate().take(gemm.world) {
                let parts = at(c, gemm.left(0, rank, parity));
                *map = TensorMap::encode_stack(parts, stack, (rows_c, 1))
                    .map_err(refused("staging"))?;
            }
        }
        Ok(maps)
    }
}
