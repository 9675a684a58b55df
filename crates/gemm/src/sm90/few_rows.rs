//! GEMMs of few rows, as decode steps have: a kernel that reads B once, in tiles narrow enough to keep all SMs
//! busy. Its bits are those of the other kernels.

use warpweave_symm_mem::cuda::{CudaStream, Function, Image, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DType, DevicePtr};

use super::config::{CONFIGS, SWIZZLED_ROW};
use super::prepared::{Bias, check_compiled, refused, used_bias};
use super::tensor_map::{Matrix, TensorMap};
use super::{check_device, check_problem, config};
use crate::cutlass::{ADDRESS_ALIGNMENT, unsupported};
use crate::launches::Launches;
use crate::{Error, GemmOperands, GemmProblem, Layout, Provider, Scaling, Tiling};

static FEW_ROWS: Image = warpweave_symm_mem::device_image!("few_rows", sm_90a);

/// The configuration after all [`CONFIGS`]; its swizzle says nothing.
pub const FEW_ROWS_TILING: Tiling = Tiling {
    config: CONFIGS.len(),
    swizzle: 1,
};

/// The most rows: two times eight.
const MOST_ROWS: usize = 16;
/// Columns of a block: two warps of `kColumns` each.
const BLOCK_COLUMNS: usize = 2 * 16;
/// Threads of a block: those two and the one that loads.
const THREADS: u32 = 3 * 32;
/// Rows of A that an instruction takes: `kTileRows`.
const TILE_ROWS: usize = 8;
/// Shared memory of an SM that its blocks can use, and what each takes in addition to its own.
const SM_BYTES: usize = 228 * 1024;
const BLOCK_BYTES: usize = 1024;
/// Blocks that find room on an SM: while some begin and end, others read.
const BLOCKS_OF_SM: usize = 4;

/// The parameter of the kernel: `FewRowsParams` in `cuda/sm90/few_rows.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct FewRows {
    a: TensorMap,
    b: TensorMap,
    c: DevicePtr,
    stride: u64,
    rows: u32,
    columns: u32,
    steps: u32,
    stages: u32,
    bias: Bias,
}
const _: () = assert!(size_of::<FewRows>() == 384 && std::mem::offset_of!(FewRows, bias) == 288);

/// Whether there is a kernel for it: 16 rows at most, B transposed, no scales.
pub fn serves(problem: &GemmProblem) -> bool {
    let is_half = matches!(problem.dtype, DType::F16 | DType::Bf16);
    let is_plain = is_half && problem.scaling == Scaling::None && problem.out == problem.dtype;
    is_plain && problem.b_layout == Layout::Transposed && problem.m <= MOST_ROWS
}

/// Steps of K, of two boxes each: `kBoxes`.
fn steps(problem: &GemmProblem) -> u32 {
    config::steps(problem).div_ceil(2)
}

/// The stages of a block, and its dynamic shared memory: what [`BLOCKS_OF_SM`] leave each.
fn ring(problem: &GemmProblem) -> (u32, u32) {
    let rows = problem.m.next_multiple_of(TILE_ROWS);
    let stage = 2 * (BLOCK_COLUMNS + rows) * SWIZZLED_ROW;
    // The ring starts at a multiple of 1024; a stage has two barriers.
    let most = (SM_BYTES / BLOCKS_OF_SM - BLOCK_BYTES - 1024) / (stage + 16);
    let stages = most.min(steps(problem) as usize);
    (stages as u32, (1024 + stages * (stage + 16)) as u32)
}

/// A GEMM of few rows ready to be launched.
#[derive(Debug)]
pub struct PreparedFewRows {
    problem: GemmProblem,
    function: Function,
    launch: LaunchConfig,
    launches: Launches<[DevicePtr; 4], FewRows>,
}

impl PreparedFewRows {
    /// Prepares `problem` on the device of `cuda`. Tensor maps are made by launches.
    ///
    /// # Errors
    /// [`Error::MissingFeature`] without the feature `nvcc`; [`Error::Device`] unless the device is a Hopper;
    /// [`Error::Unsupported`]; those of loading the code.
    pub fn new(cuda: &Cuda, problem: &GemmProblem) -> Result<Self, Error> {
        check_compiled(&FEW_ROWS)?;
        check_device(cuda.device())?;
        check_problem(problem)?;
        if !serves(problem) {
            let why = "the kernel of few rows takes up to 16, B transposed and no scales";
            return unsupported(problem, Provider::Sm90, why.into());
        }
        let name = match (problem.dtype, problem.m > TILE_ROWS) {
            (DType::F16, false) => "few_rows_f16_8",
            (DType::F16, true) => "few_rows_f16_16",
            (_, false) => "few_rows_bf16_8",
            (_, true) => "few_rows_bf16_16",
        };
        let blocks = problem.n.div_ceil(BLOCK_COLUMNS) as u32;
        Ok(Self {
            problem: *problem,
            function: cuda.function(&FEW_ROWS, name)?,
            launch: LaunchConfig {
                shared_bytes: ring(problem).1,
                programmatic: true,
                ..LaunchConfig::linear(blocks, THREADS)
            },
            launches: Launches::default(),
        })
    }

    /// Enqueues the GEMM on `stream`. Tensor maps of the last 256 different operands are kept, others are
    /// encoded.
    ///
    /// # Errors
    /// As [`Prepared::launch`](super::Prepared::launch).
    ///
    /// # Safety
    /// As [`GemmBackend::gemm`](crate::GemmBackend::gemm). `cuda` is the device of [`PreparedFewRows::new`].
    pub unsafe fn launch(
        &self,
        cuda: &Cuda,
        stream: &CudaStream,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        operands.check(&self.problem, |_| ADDRESS_ALIGNMENT)?;
        let bias = used_bias(&self.problem, operands.bias);
        let addresses = [operands.a, operands.b, operands.c, bias];
        let encode = || self.encode(addresses);
        self.launches.with(&addresses, encode, |gemm| {
            // SAFETY: the structure is the kernel's parameter; the caller vouches for the matrices, and the
            // kernel waits for the kernel before it in the stream before it touches them.
            unsafe {
                let parameter: *mut FewRows = gemm;
                cuda.launch(stream, &self.function, self.launch, &mut [parameter.cast()])?;
            }
            Ok(())
        })
    }

    fn encode(&self, [a, b, c, bias]: [DevicePtr; 4]) -> Result<FewRows, Error> {
        let problem = &self.problem;
        let GemmProblem { m, n, k, .. } = *problem;
        let map = |operand, address, (rows, ld), box_rows: usize| {
            let matrix = Matrix {
                address,
                dtype: problem.dtype,
                rows,
                columns: k,
                ld,
            };
            TensorMap::encode(matrix, box_rows as u32).map_err(refused(problem, operand))
        };
        Ok(FewRows {
            // Rows that a box fills with zeros take TMA longer than rows that are there.
            a: map("A", a, (m, problem.lda), m)?,
            b: map("B", b, (n, problem.ldb), BLOCK_COLUMNS)?,
            c,
            stride: problem.ldc as u64,
            rows: m as u32,
            columns: n as u32,
            steps: steps(problem),
            stages: ring(problem).0,
            bias: Bias::new(problem, bias),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_fit() {
        for (m, most) in [(1, 5), (8, 5), (9, 4), (16, 4)] {
            for k in [8, 200, 1024, 4096] {
                let (stages, bytes) = ring(&GemmProblem::new(m, 64, k, DType::Bf16));
                assert!(BLOCKS_OF_SM * (bytes as usize + BLOCK_BYTES) <= SM_BYTES);
                assert_eq!(stages as usize, most.min(k.div_ceil(128)));
            }
        }
    }

    #[test]
    fn few_rows_of_a_transposed_b_are_served() {
        let problem = GemmProblem::new(16, 64, 64, DType::Bf16);
        let transposed = problem.with_layouts(Layout::RowMajor, Layout::Transposed);
        assert!(serves(&transposed) && !serves(&problem));
        assert!(!serves(&GemmProblem {
            m: 17,
            ..transposed
        }));
        assert!(!serves(&GemmProblem::e4m3(
            8,
            64,
            64,
            Scaling::Row,
            DType::Bf16
        )));
    }
}
