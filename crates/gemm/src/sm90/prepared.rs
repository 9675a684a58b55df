//! A configuration bound to a problem on a device.

use warpweave_symm_mem::cuda::{CudaStream, Function, Image, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr};

use super::config::{self, Family, PLAIN, STEP, THREADS, has_halves};
use super::tensor_map::{BOX_COLUMNS, Matrix, NoMap, TensorMap};
use super::{Raster, check_device, check_problem};
use crate::Tiling;
use crate::cutlass::{ADDRESS_ALIGNMENT, Config};
use crate::launches::Launches;
use crate::{Activation, Error, GemmOperands, GemmProblem, Layout, Provider, Scaling};

/// `Epilogue` in `cuda/sm90/epilogue.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Epilogue {
    bias: DevicePtr,
    columns: u32,
    swiglu: u32,
}

impl Epilogue {
    /// That of `problem`, with the bias at this address if it has one.
    pub fn new(problem: &GemmProblem, bias: DevicePtr) -> Self {
        Self {
            bias: used_bias(problem, bias),
            columns: problem.n as u32,
            swiglu: (problem.activation == Activation::SwiGlu).into(),
        }
    }
}

/// `Scales` in `cuda/sm90/scales.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Scales {
    a: DevicePtr,
    b: DevicePtr,
    rows: u32,
    columns: u32,
    stride: u32,
    row_step: u32,
    block_step: u32,
}

impl Scales {
    /// Those of `problem` at `addresses`, if it has some.
    pub fn new(problem: &GemmProblem, addresses: [DevicePtr; 2]) -> Self {
        let [a, b] = used_scales(problem, addresses);
        let [row_step, block_step] = problem.block_scale_steps();
        Self {
            a,
            b,
            rows: problem.m as u32,
            columns: problem.n as u32,
            stride: match problem.scaling {
                Scaling::None | Scaling::Tensor => 0,
                Scaling::Row => 1,
                Scaling::Block => problem.scale_stride() as u32,
            },
            row_step: row_step as u32,
            block_step: block_step as u32,
        }
    }
}

/// The address of a bias, or null for a problem without one.
pub(super) fn used_bias(problem: &GemmProblem, address: DevicePtr) -> DevicePtr {
    match problem.bias {
        true => address,
        false => DevicePtr::NULL,
    }
}

/// The addresses of scales, or null for a problem without them.
pub(super) fn used_scales(problem: &GemmProblem, addresses: [DevicePtr; 2]) -> [DevicePtr; 2] {
    match problem.scaling {
        Scaling::None => [DevicePtr::NULL; 2],
        _ => addresses,
    }
}

/// The parameter of the kernels: `PlainParams` in `cuda/sm90/plain.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PlainParams {
    a: TensorMap,
    last_a: TensorMap,
    b: TensorMap,
    c: TensorMap,
    raster: Raster,
    steps: u32,
    rows: u32,
    epilogue: Epilogue,
    scales: Scales,
}
const _: () =
    assert!(size_of::<PlainParams>() == 640 && std::mem::offset_of!(PlainParams, scales) == 552);

/// A GEMM ready to be launched.
#[derive(Debug)]
pub struct Prepared {
    problem: GemmProblem,
    tiling: Tiling,
    config: Config,
    function: Function,
    blocks: u32,
    raster: Raster,
    launches: Launches<Addresses, PlainParams>,
}

/// Addresses of A, B, C, the bias and the scales.
type Addresses = [DevicePtr; 6];

impl Prepared {
    /// Prepares `tiling` for `problem` on the device of `cuda`. Tensor maps are made by launches.
    ///
    /// # Errors
    /// [`Error::MissingFeature`] without the feature `nvcc`; [`Error::Device`] unless the device is a Hopper;
    /// [`Error::Unsupported`], for a group of no rows and a configuration without a kernel too; those of
    /// loading the code.
    pub fn new(cuda: &Cuda, tiling: Tiling, problem: &GemmProblem) -> Result<Self, Error> {
        check_compiled(&PLAIN)?;
        check_device(cuda.device())?;
        check_problem(problem)?;
        let (config, image, name) = config::require_kernel(Family::Plain, problem, tiling.config)?;
        let (raster, tiles) = config::launched_raster(config, problem, tiling.swizzle)?;
        let cluster = config::blocks(config);
        let most = (cuda.device().sms / cluster).clamp(1, tiles);
        Ok(Self {
            problem: *problem,
            tiling,
            config: *config,
            function: cuda.function(image, name)?,
            blocks: config::launched_clusters(config, tiles, most) * cluster,
            raster,
            launches: Launches::default(),
        })
    }

    /// What was chosen.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// Enqueues the GEMM on `stream`. Tensor maps of the last 256 different operands are kept, others are
    /// encoded.
    ///
    /// # Errors
    /// [`Error::Operand`] for addresses that are not multiples of 16, or of 4 for scales of A, or that the
    /// driver refuses; those of launching.
    ///
    /// # Safety
    /// As [`GemmBackend::gemm`](crate::GemmBackend::gemm). `cuda` is the device of [`Prepared::new`].
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        stream: &CudaStream,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        operands.check(&self.problem, |_| ADDRESS_ALIGNMENT)?;
        let bias = used_bias(&self.problem, operands.bias);
        let [scales_a, scales_b] = used_scales(&self.problem, operands.scales);
        let addresses = [operands.a, operands.b, operands.c, bias, scales_a, scales_b];
        let [along_m, along_n] = self.config.cluster;
        let cluster = along_m * along_n;
        let launch = LaunchConfig {
            shared_bytes: Family::Plain.shared_bytes(),
            cluster: (cluster > 1).then_some((cluster, 1, 1)),
            programmatic: true,
            ..LaunchConfig::linear(self.blocks, THREADS)
        };
        let encode = || self.encode(addresses);
        self.launches.with(&addresses, encode, |gemm| {
            // SAFETY: the structure is the kernel's parameter; the caller vouches for the matrices, and the
            // kernel waits for the kernel before it in the stream before it touches them.
            unsafe {
                let parameter: *mut PlainParams = gemm;
                cuda.launch(stream, &self.function, launch, &mut [parameter.cast()])?;
            }
            Ok(())
        })
    }

    /// The parameter for operands at these addresses.
    fn encode(&self, addresses: Addresses) -> Result<PlainParams, Error> {
        let (a, [b, c]) = boxes(&self.problem, &self.config);
        let refused = |operand| refused(&self.problem, operand);
        let at = |matrix, address| Matrix { address, ..matrix };
        let map = |operand, (matrix, box_rows): (Matrix, u32), address| {
            TensorMap::encode(at(matrix, address), box_rows).map_err(refused(operand))
        };
        let [a, last_a] = maps_of_a(at(a, addresses[0]), &self.config).map_err(refused("A"))?;
        Ok(PlainParams {
            a,
            last_a,
            b: map("B", b, addresses[1])?,
            c: map("C", c, addresses[2])?,
            raster: self.raster,
            steps: config::steps(&self.problem),
            rows: self.problem.m as u32,
            epilogue: Epilogue::new(&self.problem, addresses[3]),
            scales: Scales::new(&self.problem, [addresses[4], addresses[5]]),
        })
    }
}

/// The error where the driver makes no map of an operand.
pub(super) fn refused(
    problem: &GemmProblem,
    operand: &'static str,
) -> impl FnOnce(NoMap) -> Error + use<> {
    let problem = Box::new(*problem);
    move |why| match why {
        NoMap::Unavailable(error) => error.into(),
        NoMap::Refused(reason) => Error::Operand {
            operand,
            problem,
            reason,
        },
    }
}

pub(super) fn check_compiled(image: &Image) -> Result<(), Error> {
    if image.sm_90a().is_empty() {
        return Err(Error::MissingFeature {
            provider: Provider::Sm90,
            feature: "nvcc",
        });
    }
    Ok(())
}

/// Rows of a box of A where `left` rows are left of the matrix: `rows_of_box` in `mainloop.cuh`.
pub(super) fn rows_of_box(config: &Config, left: usize) -> u32 {
    let [rows, along_n] = [config.tile[0], config.cluster[1]];
    let left = u32::try_from(left).map_or(rows, |left| left.min(rows));
    left.div_ceil(along_n).next_multiple_of(8)
}

/// The maps of `matrix`, rows of A: in boxes of a whole tile, and of the last where that is not whole. One
/// that no tile needs is unused.
///
/// # Errors
/// [`NoMap`].
pub(super) fn maps_of_a(matrix: Matrix, config: &Config) -> Result<[TensorMap; 2], NoMap> {
    let tile = config.tile[0] as usize;
    let map = |rows: usize| match rows {
        0 => Ok(TensorMap::UNUSED),
        _ => TensorMap::encode(matrix, rows_of_box(config, rows)),
    };
    let whole = if matrix.rows >= tile { tile } else { 0 };
    Ok([map(whole)?, map(matrix.rows % tile)?])
}

/// Rows of a K-major box of B: `kBoxB` in `tile.cuh`. Blocks along M share B: each loads its part of the
/// rows.
fn rows_of_box_b(config: &Config) -> u32 {
    let (tile_n, along_m) = (config.tile[1], config.cluster[0]);
    match has_halves(config) {
        true => tile_n / 2,
        false => tile_n / along_m,
    }
}

/// A, B and C, without their addresses, and of B and C the rows of their boxes: what `tile.cuh` says of
/// K-major and MN-major boxes and of boxes of C.
pub(super) fn boxes(problem: &GemmProblem, config: &Config) -> (Matrix, [(Matrix, u32); 2]) {
    let matrix = |(rows, columns), ld| Matrix {
        address: DevicePtr::NULL,
        dtype: problem.dtype,
        rows,
        columns,
        ld,
    };
    let GemmProblem { m, n, k, .. } = *problem;
    let box_b = match problem.b_layout {
        Layout::RowMajor => STEP as u32,
        Layout::Transposed => rows_of_box_b(config),
    };
    let b = matrix(problem.b_layout.stored(k, n), problem.ldb);
    let c = Matrix {
        dtype: problem.out,
        ..matrix((m, problem.c_columns()), problem.ldc)
    };
    (matrix((m, k), problem.lda), [(b, box_b), (c, BOX_COLUMNS)])
}

#[cfg(test)]
mod tests {
    use super::super::config::CONFIGS;
    use super::*;
    use warpweave_symm_mem::DType;

    #[test]
    fn a_missing_feature_is_named() {
        let compiled = check_compiled(&PLAIN);
        assert_eq!(compiled.is_ok(), cfg!(feature = "nvcc"));
        if let Err(error) = compiled {
            assert!(error.to_string().contains("feature `nvcc`"), "{error}");
        }
    }

    /// Bytes that all blocks of a cluster load in a step, counted where they land, are what each expects.
    #[test]
    fn a_stage_receives_what_it_expects() {
        for layout in [Layout::RowMajor, Layout::Transposed] {
            let problem = GemmProblem::new(1000, 1000, 1000, DType::F16)
                .with_layouts(Layout::RowMajor, layout);
            for config in CONFIGS {
                let [tile_m, tile_n, _] = config.tile;
                let [along_m, along_n] = config.cluster;
                let (_, [(_, b), (_, c)]) = boxes(&problem, &config);
                let columns = match layout {
                    Layout::RowMajor => BOX_COLUMNS,
                    Layout::Transposed => b,
                };
                let loads_b = tile_n / along_m / columns;
                // Half a tile has half of the boxes, each block its own.
                assert!(!has_halves(&config) || (tile_n / 2).is_multiple_of(columns));
                let rows = [rows_of_box(&config, tile_m as usize), b, c];
                let [a, b, c] = rows.map(|rows| rows * BOX_COLUMNS * 2);
                let stage = a * along_n + b * loads_b * along_m;
                assert_eq!(stage, (tile_m + tile_n) * STEP as u32 * 2, "{config:?}");
                assert_eq!(c, 64 * 128, "64 rows of 128 bytes");
            }
        }
    }

    #[test]
    fn the_last_rows_have_low_boxes() {
        let heights = |name| {
            let config = CONFIGS.iter().find(|config| config.name == name).unwrap();
            [0, 1, 8, 60, 65, 128, usize::MAX].map(|left| rows_of_box(config, left))
        };
        assert_eq!(heights("128x64_alone"), [0, 8, 8, 64, 72, 128, 128]);
        assert_eq!(heights("128x256_share_b"), [0, 8, 8, 64, 72, 128, 128]);
        assert_eq!(heights("128x256_share_a"), [0, 8, 8, 32, 40, 64, 64]);
    }

    /// What `load_tile` in `mainloop.cuh` loads of A for each tile: the rows that are there, by boxes as the
    /// maps have them, of which few rows lie beyond.
    #[test]
    fn the_boxes_of_a_tile_hold_its_rows() {
        for config in CONFIGS {
            let (tile, along_n) = (config.tile[0] as usize, config.cluster[1] as usize);
            for height in 1..=3 * tile + 1 {
                for row in (0..height + tile).step_by(tile) {
                    let left = height.saturating_sub(row);
                    let rows = rows_of_box(&config, left) as usize;
                    let map = match left >= tile {
                        true => rows_of_box(&config, tile),
                        false => rows_of_box(&config, height % tile),
                    };
                    assert!(left == 0 || rows == map as usize, "{config:?}");
                    // The blocks along N load one part each, one after the other.
                    let loaded = along_n * rows;
                    assert!(loaded <= tile && loaded >= left.min(tile), "{config:?}");
                    assert!(loaded < left.min(tile) + 8 * along_n, "{config:?}");
                    assert!(rows.is_multiple_of(8), "boxes start where the swizzle does");
                }
            }
        }
    }

    #[test]
    fn maps_describe_what_is_stored() {
        let problem = GemmProblem::new(100, 200, 300, DType::Bf16)
            .with_layouts(Layout::RowMajor, Layout::Transposed)
            .with_leading_dimensions(304, 312, 208);
        let (a, [(b, _), (c, _)]) = boxes(&problem, &CONFIGS[0]);
        assert_eq!((a.rows, a.columns, a.ld), (100, 300, 304));
        assert_eq!((b.rows, b.columns, b.ld), (200, 300, 312));
        assert_eq!((c.rows, c.columns, c.ld), (100, 200, 208));
    }
}
