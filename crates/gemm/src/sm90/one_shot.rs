//! GEMM + all-reduce in one shot: `cuda/sm90/one_shot.cu` for a problem.

use warpweave_symm_mem::cuda::CudaStream;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, PadView};

use super::config::{self, Family};
use super::prepared::{Epilogue, Scales, boxes, maps_of_a, refused, used_bias};
use super::requirements::check_reduction;
use super::resident::{Addresses, Parameter, Resident, check_family, own_scales};
use super::tensor_map::{Matrix, TensorMap};
use super::{RANKS, Raster, reduce_tiling};
use crate::cutlass::{ADDRESS_ALIGNMENT, Config};
use crate::matmul_reduce::Launch;
use crate::{Error, MatmulReduce, ReduceOperands};

/// The parameter of the kernels: `OneShotParams` in `cuda/sm90/one_shot.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct OneShotParams {
    a: TensorMap,
    last_a: TensorMap,
    b: TensorMap,
    partials: [[TensorMap; RANKS]; 2],
    pad: PadView,
    staging: DevicePtr,
    c: DevicePtr,
    staging_stride: u64,
    partial_bytes: u64,
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
    epilogue: Epilogue,
    scales: Scales,
}
const _: () = assert!(
    size_of::<OneShotParams>() == 2688 && std::mem::offset_of!(OneShotParams, scales) == 2616
);

// SAFETY: the structure above is that of the device code.
unsafe impl Parameter for OneShotParams {
    fn pad(&mut self) -> &mut PadView {
        &mut self.pad
    }
}

/// Such a GEMM, ready to be launched.
#[derive(Debug)]
pub struct PreparedOneShot {
    gemm: MatmulReduce,
    kernel: Resident,
    raster: Raster,
}

impl PreparedOneShot {
    /// Chooses a kernel.
    ///
    /// # Errors
    /// As [`GemmReduceBackend::prepare_reduce`](crate::GemmReduceBackend::prepare_reduce).
    pub(crate) fn new(cuda: &Cuda, gemm: &MatmulReduce) -> Result<Self, Error> {
        gemm.validate()?;
        check_family(cuda, Family::OneShot)?;
        check_reduction(gemm)?;

        let problem = &gemm.problem;
        let blocks = cuda.device().sms;
        let blocks = blocks.min(gemm.max_blocks.unwrap_or(blocks));
        let tiling = gemm
            .tiling
            .unwrap_or_else(|| reduce_tiling::to_all(problem, gemm.world, blocks));
        let kernel = Resident::new(cuda, problem, (Family::OneShot, tiling.config), blocks)?;
        let (raster, tiles) = config::launched_raster(kernel.config, problem, tiling.swizzle)?;
        Ok(Self {
            gemm: gemm.clone(),
            kernel: kernel.with_tiles(tiles),
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
        let addresses = Addresses {
            peers: [gemm.own_results().into(), operands.staging],
            staging_stride: operands.staging_stride,
            scales: own_scales(&self.gemm.problem, operands.scales),
            matrices: [
                operands.a,
                operands.b,
                used_bias(&self.gemm.problem, operands.bias),
                DevicePtr::NULL,
                DevicePtr::NULL,
            ],
        };
        let call = (&addresses, operands.pad);
        // SAFETY: the structure is the kernel's parameter; the caller vouches for the matrices and the pad.
        unsafe {
            self.kernel
                .launch(cuda, stream, call, || self.encode(&gemm))
        }
    }

    fn encode(&self, gemm: &Launch<'_>) -> Result<OneShotParams, Error> {
        let (problem, operands) = (&gemm.problem, gemm.operands);
        let units = gemm.units();
        let Maps {
            a: [a, last_a],
            b,
            partials,
        } = Maps::new(gemm, self.kernel.config)?;
        Ok(OneShotParams {
            a,
            last_a,
            b,
            partials,
            pad: operands.pad,
            staging: operands.staging[gemm.rank],
            c: gemm.own_results(),
            staging_stride: operands.staging_stride as u64,
            partial_bytes: (problem.m * gemm.row_bytes()) as u64,
            row_stride: gemm.row_bytes() as u64,
            raster: self.raster,
            steps: config::steps(problem),
            rows: problem.m as u32,
            columns: problem.n as u32,
            unit_rows: units.rows as u32,
            unit_columns: units.columns as u32,
            units_across: units.across() as u32,
            slot: gemm.ready as u32,
            end: gemm.done as u32,
            epilogue: Epilogue::new(problem, operands.bias),
            scales: Scales::new(problem, operands.scales),
        })
    }
}

/// A, B and the stagings of all ranks as the kernel sees them.
struct Maps {
    a: [TensorMap; 2],
    b: TensorMap,
    partials: [[TensorMap; RANKS]; 2],
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
            partials: [[TensorMap::UNUSED; RANKS]; 2],
        };
        let stack = (gemm.world, problem.m * problem.ldc);
        for (parity, partials) in maps.partials.iter_mut().enumerate() {
            for (rank, map) in partials.iter_mut().enumerate().take(gemm.world) {
                let partials = at(c, gemm.left(0, rank, parity));
                *map = TensorMap::encode_stack(partials, stack, (rows_c, 1))
                    .map_err(refused("staging"))?;
            }
        }
        Ok(maps)
    }
}
