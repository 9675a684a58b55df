//! The product whose sums every rank makes by itself: `cuda/sm90/one_shot.cu` bound to a problem and its memory.

use warpweave_symm_mem::cuda::{CudaQueue, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, PadView};

use super::config::{self, CONFIGS, Family, SHARED_BYTES, STEP};
use super::plan::{Bias, boxes, check_compiled, launch_with, maps_of_a, refused, resident};
use super::requirements::check_reduction;
use super::tensor_map::{Matrix, TensorMap};
use super::{RANKS, Raster, check_device, sending};
use crate::cutlass::{ADDRESS_ALIGNMENT, Config};
use crate::{Error, GemmOperands, ReducingMatmul};

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

/// Such a product, ready to be launched.
#[derive(Debug)]
pub struct OneShotPlan {
    function: Function,
    launch: LaunchConfig,
    parameter: Box<OneShot>,
}

impl OneShotPlan {
    /// Chooses a kernel and encodes the tensor maps.
    ///
    /// # Errors
    /// As [`ReducingGemmBackend::reducing_plan`](crate::ReducingGemmBackend::reducing_plan).
    pub fn new(cuda: &Cuda, product: &ReducingMatmul) -> Result<Self, Error> {
        product.validate()?;
        check_compiled(Family::OneShot.image())?;
        check_device(cuda.device())?;
        check_reduction(product)?;

        let problem = &product.problem;
        let blocks = cuda.device().multiprocessors;
        let blocks = blocks.min(product.max_blocks.unwrap_or(blocks));
        let candidate = product
            .candidate
            .unwrap_or_else(|| sending::to_all(problem, product.world(), blocks));
        let (image, name) =
            config::kernel(Family::OneShot, problem, candidate.config).ok_or(Error::NoCandidate)?;
        let config = &CONFIGS[candidate.config];
        let function = cuda.function(image, name)?;
        let mut launch = resident(&function, problem, (config, SHARED_BYTES), blocks)?;
        let (raster, tiles) = config::launched_raster(config, problem, candidate.band)?;
        launch.grid.0 = launch.grid.0.min(tiles);

        let units = product.units();
        let Maps {
            a: [a, last_a],
            b,
            parts,
        } = Maps::new(product, config)?;
        Ok(Self {
            function,
            launch,
            parameter: Box::new(OneShot {
                a,
                last_a,
                b,
                parts,
                pad: product.pad,
                staging: product.staging[product.rank()],
                c: product.own_sums(),
                part_bytes: (problem.m * product.row_bytes()) as u64,
                row_stride: product.row_bytes() as u64,
                raster,
                steps: problem.k.div_ceil(STEP) as u32,
                rows: problem.m as u32,
                columns: problem.n as u32,
                unit_rows: units.rows as u32,
                unit_columns: units.columns as u32,
                units_across: units.across() as u32,
                slot: product.ready as u32,
                end: product.done as u32,
                bias: Bias::new(problem, product.bias),
            }),
        })
    }

    /// Enqueues the product on `stream`.
    ///
    /// # Errors
    /// Those of launching.
    ///
    /// # Safety
    /// As [`ReducingGemmBackend::reducing_matmul`](crate::ReducingGemmBackend::reducing_matmul). `cuda` is the device of
    /// [`OneShotPlan::new`].
    pub unsafe fn launch(&self, cuda: &Cuda, stream: &CudaQueue) -> Result<(), Error> {
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
    fn new(product: &ReducingMatmul, config: &Config) -> Result<Self, Error> {
        let (problem, world) = (&product.problem, product.world());
        for &c in product.staging.iter().chain([&product.own_sums()]) {
            let operands = GemmOperands::new(product.a, product.b, c).with_bias(product.bias);
            operands.check(problem, |_| ADDRESS_ALIGNMENT)?;
        }
        let refused = |operand| refused(problem, operand);
        let (a, [(b, rows_b), (c, rows_c)]) = boxes(problem, config);
        let at = |matrix, address| Matrix { address, ..matrix };
        let mut maps = Self {
            a: maps_of_a(at(a, product.a), config).map_err(refused("A"))?,
            b: TensorMap::encode(at(b, product.b), rows_b).map_err(refused("B"))?,
            parts: [TensorMap::UNUSED; RANKS],
        };
        let stack = (2 * world, problem.m * problem.ldc);
        for (map, &staging) in maps.parts.iter_mut().zip(&product.staging) {
            *map = TensorMap::encode_stack(at(c, staging), stack, (rows_c, 1))
                .map_err(refused("staging"))?;
        }
        Ok(maps)
    }
}
