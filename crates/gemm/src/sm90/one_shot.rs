//! GEMM + all-reduce in one shot: `cuda/sm90/one_shot.cu` bound to a problem and its memory.

use warpweave_symm_mem::cuda::{CudaStream, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, PadView};

use super::config::{self, CONFIGS, Family, SHARED_BYTES, STEP};
use super::prepared::{Bias, boxes, check_compiled, launch_with, maps_of_a, refused, resident};
use super::requirements::check_reduction;
use super::tensor_map::{Matrix, TensorMap};
use super::{RANKS, Raster, check_device, reduce_tiling};
use crate::cutlass::{ADDRESS_ALIGNMENT, Config};
use crate::{Error, GemmOperands, MatmulReduce};

/// The parameter of the kernels: `OneShotParams` in `cuda/sm90/one_shot.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct OneShot {
    a: TensorMap,
    last_a: TensorMap,
    b: TensorMap,
    parts: [TensorMap; RANKS],
    pad: PadView,
    staging: DevicePtr,
    c: DevicePtr,
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
const _: () = assert!(size_of::<OneShot>() == 1664 && std::mem::offset_of!(OneShot, bias) == 1568);

/// Such a GEMM, ready to be launched.
#[derive(Debug)]
pub struct PreparedOneShot {
    function: Function,
    launch: LaunchConfig,
    parameter: Box<OneShot>,
}

impl PreparedOneShot {
    /// Chooses a kernel and encodes the tensor maps.
    ///
    /// # Errors
    /// As [`GemmReduceBackend::prepare_reduce`](crate::GemmReduceBackend::prepare_reduce).
    pub fn new(cuda: &Cuda, gemm: &MatmulReduce) -> Result<Self, Error> {
        gemm.validate()?;
        check_compiled(Family::OneShot.image())?;
        check_device(cuda.device())?;
        check_reduction(gemm)?;

        let problem = &gemm.problem;
        let blocks = cuda.device().sms;
        let blocks = blocks.min(gemm.max_blocks.unwrap_or(blocks));
        let tiling = gemm
            .tiling
            .unwrap_or_else(|| reduce_tiling::to_all(problem, gemm.world(), blocks));
        let (image, name) =
            config::kernel(Family::OneShot, problem, tiling.config).ok_or(Error::NoCandidate)?;
        let config = &CONFIGS[tiling.config];
        let function = cuda.function(image, name)?;
        let mut launch = resident(&function, problem, (config, SHARED_BYTES), blocks)?;
        let (raster, tiles) = config::launched_raster(config, problem, tiling.swizzle)?;
        launch.grid.0 = launch.grid.0.min(tiles);

        let units = gemm.units();
        let Maps {
            a: [a, last_a],
            b,
            parts,
        } = Maps::new(gemm, config)?;
        Ok(Self {
            function,
            launch,
            parameter: Box::new(OneShot {
                a,
                last_a,
                b,
                parts,
                pad: gemm.pad,
                staging: gemm.staging[gemm.rank()],
                c: gemm.own_sums(),
                part_bytes: (problem.m * gemm.row_bytes()) as u64,
                row_stride: gemm.row_bytes() as u64,
                raster,
                steps: problem.k.div_ceil(STEP) as u32,
                rows: problem.m as u32,
                columns: problem.n as u32,
                unit_rows: units.rows as u32,
                unit_columns: units.columns as u32,
                units_across: units.across() as u32,
                slot: gemm.ready as u32,
                end: gemm.done as u32,
                bias: Bias::new(problem, gemm.bias),
            }),
        })
    }

    /// Enqueues the GEMM on `stream`.
    ///
    /// # Errors
    /// Those of launching.
    ///
    /// # Safety
    /// As [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce). `cuda` is the device
    /// of [`PreparedOneShot::new`].
    pub unsafe fn launch(&self, cuda: &Cuda, stream: &CudaStream) -> Result<(), Error> {
        // SAFETY: the structure is the kernel's parameter; the caller vouches for the matrices and the pad.
        unsafe { launch_with(cuda, stream, &self.function, self.launch, &*self.parameter) }
    }
}

/// A, B and the stagings of all ranks as the kernel sees them.
struct Maps {
    a: [TensorMap; 2],
    b: TensorMap,
    parts: [TensorMap; RANKS],
}

impl Maps {
    fn new(gemm: &MatmulReduce, config: &Config) -> Result<Self, Error> {
        let (problem, world) = (&gemm.problem, gemm.world());
        for &c in gemm.staging.iter().chain([&gemm.own_sums()]) {
            let operands = GemmOperands::new(gemm.a, gemm.b, c).with_bias(gemm.bias);
            operands.check(problem, |_| ADDRESS_ALIGNMENT)?;
        }
        let refused = |operand| refused(problem, operand);
        let (a, [(b, rows_b), (c, rows_c)]) = boxes(problem, config);
        let at = |matrix, address| Matrix { address, ..matrix };
        let mut maps = Self {
            a: maps_of_a(at(a, gemm.a), config).map_err(refused("A"))?,
            b: TensorMap::encode(at(b, gemm.b), rows_b).map_err(refused("B"))?,
            parts: [TensorMap::UNUSED; RANKS],
        };
        let stack = (2 * world, problem.m * problem.ldc);
        for (map, &staging) in maps.parts.iter_mut().zip(&gemm.staging) {
            *map = TensorMap::encode_stack(at(c, staging), stack, (rows_c, 1))
                .map_err(refused("staging"))?;
        }
        Ok(maps)
    }
}
