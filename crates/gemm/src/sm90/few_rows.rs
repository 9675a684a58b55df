//! GEMMs of few rows, as decode steps have: a kernel that reads B once, in tiles narrow enough to keep all
//! SMs busy. Its bits are those of the other kernels.

use warpweave_symm_mem::cuda::{CudaStream, Function, Image, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DType, DeviceInfo, DevicePtr};

use super::config::{FEW_ROWS_TILE, SWIZZLED_ROW, favours_few_rows, serves_few_rows};
use super::prepared::{Epilogue, Scales, check_compiled, refused, used_bias, used_scales};
use super::tensor_map::{Matrix, TensorMap};
use super::{check_device, check_problem, config};
use crate::cutlass::{ADDRESS_ALIGNMENT, unsupported};
use crate::launches::Launches;
use crate::{Error, GemmOperands, GemmProblem, Provider, Scaling};

static FEW_ROWS: Image = warpweave_symm_mem::device_image!("few_rows", sm_90a);

/// Columns of a block, as compiled: `WARPWEAVE_WIDTHS`.
const WIDTHS: [usize; 7] = [16, 24, 32, 40, 48, 56, 64];
/// Threads of a block: a warpgroup that multiplies and a warp that loads.
const THREADS: u32 = 5 * 32;
/// Shared memory of an SM that its blocks can use, and what each takes in addition to its own.
const SM_BYTES: usize = 228 * 1024;
const BLOCK_BYTES: usize = 1024;
/// What is left of it to kernels that communicate: their blocks find room while others wait for them.
const LEFT_BYTES: usize = 8 * 1024;

/// Bytes of e4m3 that a block has in flight, if these are four stages or more: with more it takes longer, up
/// to 1.3 times (`docs/fused-kernel.md`).
const E4M3_BYTES: usize = 80 * 1024;

/// The parameter of the kernel: `FewRowsParams` in `cuda/sm90/few_rows.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct FewRowsParams {
    a: TensorMap,
    last_a: TensorMap,
    b: TensorMap,
    c: DevicePtr,
    stride: u64,
    rows: u32,
    columns: u32,
    steps: u32,
    stages: u32,
    epilogue: Epilogue,
    constant_b: u32,
    boxes: u32,
    scales: Scales,
}
const _: () = assert!(
    size_of::<FewRowsParams>() == 512 && std::mem::offset_of!(FewRowsParams, scales) == 440
);

/// Whether the kernel is there for it on `device`, and favoured. It is then about as fast as cuBLASLt's best
/// algorithm, or faster (`docs/fused-kernel.md`).
pub fn runs(device: &DeviceInfo, problem: &GemmProblem) -> bool {
    let checked = check_compiled(&FEW_ROWS)
        .and_then(|()| check_device(device))
        .and_then(|()| check_problem(problem));
    favours_few_rows(problem, device.sms) && checked.is_ok()
}

/// How a problem is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Columns of a block.
    width: usize,
    blocks: u32,
    /// Steps of K, of the boxes of a stage each.
    steps: u32,
    stages: u32,
    /// Dynamic shared memory of a block.
    shared_bytes: u32,
}

impl Division {
    /// The narrowest blocks of which each of `sms` SMs has one at most; if there are more of the widest, two
    /// on an SM. With SwiGLU a block has whole groups of gate and up.
    fn new(problem: &GemmProblem, sms: u32) -> Self {
        let blocks = |width| (problem.n.div_ceil(width) * problem.m.div_ceil(FEW_ROWS_TILE)) as u32;
        let widest = WIDTHS[WIDTHS.len() - 1];
        let group = problem.activation.group();
        let fits = |width: usize| blocks(width) <= sms && width.is_multiple_of(group);
        let fitting = WIDTHS.into_iter().find(|&width| fits(width));
        let width = fitting.unwrap_or(widest);
        let boxes = boxes(width, problem.dtype);
        let steps = config::steps(problem).div_ceil(boxes as u32);
        let box_a = problem.m.min(FEW_ROWS_TILE).next_multiple_of(8) * SWIZZLED_ROW;
        let stage = boxes * (width * SWIZZLED_ROW + box_a);
        // The ring starts at a multiple of 1024, and the last box of A is read as one of 64 rows; a stage has
        // two barriers.
        let fixed = 1024 + FEW_ROWS_TILE * SWIZZLED_ROW - box_a;
        let room = (SM_BYTES - LEFT_BYTES) / if fitting.is_some() { 1 } else { 2 } - BLOCK_BYTES;
        let most = match problem.dtype {
            DType::E4m3 => (E4M3_BYTES / stage).max(4),
            _ => usize::MAX,
        };
        let stages = ((room - fixed) / (stage + 16))
            .min(most)
            .min(steps as usize);
        Self {
            width,
            blocks: blocks(width),
            steps,
            stages: stages as u32,
            shared_bytes: (fixed + stages * (stage + 16)) as u32,
        }
    }
}

/// A GEMM of few rows ready to be launched.
#[derive(Debug)]
pub struct PreparedFewRows {
    problem: GemmProblem,
    division: Division,
    function: Function,
    launches: Launches<[DevicePtr; 6], FewRowsParams>,
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
        if !serves_few_rows(problem) {
            let why = "the kernel of few rows takes up to 128, and B transposed";
            return unsupported(problem, Provider::Sm90, why.into());
        }
        let division = Division::new(problem, cuda.sms());
        Ok(Self {
            problem: *problem,
            division,
            function: cuda.function(&FEW_ROWS, name(problem, division.width))?,
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
        let [scales_a, scales_b] = used_scales(&self.problem, operands.scales);
        let addresses = [operands.a, operands.b, operands.c, bias, scales_a, scales_b];
        let encode = || self.encode(addresses);
        let config = LaunchConfig {
            shared_bytes: self.division.shared_bytes,
            programmatic: true,
            ..LaunchConfig::linear(self.division.blocks, THREADS)
        };
        self.launches.with(&addresses, encode, |gemm| {
            // SAFETY: the structure is the kernel's parameter; the caller vouches for the matrices, and the
            // kernel waits for the kernel before it in the stream before it touches them.
            unsafe {
                let parameter: *mut FewRowsParams = gemm;
                cuda.launch(stream, &self.function, config, &mut [parameter.cast()])?;
            }
            Ok(())
        })
    }

    fn encode(&self, addresses: [DevicePtr; 6]) -> Result<FewRowsParams, Error> {
        let [a, b, c, bias, scales @ ..] = addresses;
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
        let Division {
            width,
            steps,
            stages,
            ..
        } = self.division;
        Ok(FewRowsParams {
            // Rows that a box fills with zeros take TMA longer than rows that are there.
            a: map("A", a, (m, problem.lda), m.min(FEW_ROWS_TILE))?,
            last_a: match m % FEW_ROWS_TILE {
                0 => TensorMap::UNUSED,
                rows => map("A", a, (m, problem.lda), rows)?,
            },
            b: map("B", b, (n, problem.ldb), width)?,
            c,
            stride: problem.ldc as u64,
            rows: m as u32,
            columns: n as u32,
            steps,
            stages,
            epilogue: Epilogue::new(problem, bias),
            constant_b: problem.constant_b.into(),
            boxes: config::steps(problem),
            scales: Scales::new(problem, scales),
        })
    }
}

/// Boxes of each operand in a stage, as compiled: `kBoxesOfStage` in `cuda/sm90/few_rows.cu`.
fn boxes(width: usize, dtype: DType) -> usize {
    match (width, dtype) {
        (56, DType::E4m3) => 4,
        (56 | 64, _) => 2,
        _ => 4,
    }
}

/// The kernel of a width.
fn name(problem: &GemmProblem, width: usize) -> &'static str {
    macro_rules! widths {
        ($($part:literal),+) => {
            match width {
                16 => concat!("few_rows", $($part),+, "_16"),
                24 => concat!("few_rows", $($part),+, "_24"),
                32 => concat!("few_rows", $($part),+, "_32"),
                40 => concat!("few_rows", $($part),+, "_40"),
                48 => concat!("few_rows", $($part),+, "_48"),
                56 => concat!("few_rows", $($part),+, "_56"),
                _ => concat!("few_rows", $($part),+, "_64"),
            }
        };
    }
    let is_half = problem.out == DType::F16;
    match (problem.scaling, is_half) {
        (Scaling::None, true) => widths!("_f16"),
        (Scaling::None, false) => widths!("_bf16"),
        (Scaling::Block, true) => widths!("_e4m3", "_f16", "_block"),
        (Scaling::Block, false) => widths!("_e4m3", "_bf16", "_block"),
        (Scaling::Tensor | Scaling::Row, true) => widths!("_e4m3", "_f16", "_outer"),
        (Scaling::Tensor | Scaling::Row, false) => widths!("_e4m3", "_bf16", "_outer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, Layout};

    const SMS: u32 = 132;

    fn e4m3(m: usize, n: usize, k: usize, scaling: Scaling) -> GemmProblem {
        GemmProblem::e4m3(m, n, k, scaling, DType::Bf16)
    }

    #[test]
    fn rings_fit() {
        for m in [1, 8, 9, 16, 17, 64, 65, 100, 128] {
            for n in [8, 1536, 4096, 8192, 14336, 32064] {
                for k in [8, 200, 1024, 4096] {
                    let plain = GemmProblem::new(m, n, k, DType::Bf16);
                    let [row, block] = [Scaling::Row, Scaling::Block].map(|s| e4m3(m, n, k, s));
                    for problem in [plain, row, block] {
                        let division = Division::new(&problem, SMS);
                        let Division {
                            width,
                            stages,
                            steps,
                            shared_bytes,
                            ..
                        } = division;
                        let on_an_sm = if division.blocks > SMS { 2 } else { 1 };
                        let bytes = on_an_sm * (shared_bytes as usize + BLOCK_BYTES);
                        assert!(bytes <= SM_BYTES - LEFT_BYTES, "{division:?}");
                        // While one stage is multiplied the next is loaded. By block two belong together, and
                        // the first is released when the second has come.
                        assert!(stages == steps || stages >= 2, "{division:?}");
                        if problem.dtype == DType::E4m3 {
                            let rows = width + m.min(FEW_ROWS_TILE).next_multiple_of(8);
                            let stage = boxes(width, problem.dtype) * rows * SWIZZLED_ROW;
                            assert!(stages <= 4 || stages as usize * stage <= E4M3_BYTES);
                        }
                        assert!(name(&problem, width).ends_with(&width.to_string()));
                    }
                }
            }
        }
    }

    /// Blocks are as narrow as the SMs allow, and cover all columns.
    #[test]
    fn every_sm_has_a_block() {
        let width = |n| {
            let division = Division::new(&GemmProblem::new(8, n, 4096, DType::F16), SMS);
            assert!(division.blocks as usize * division.width >= n);
            division.width
        };
        // Twice 64 rows are twice as many blocks.
        let two = Division::new(&e4m3(65, 2112, 4096, Scaling::Block), SMS);
        assert_eq!((two.width, two.blocks), (32, 132));
        let columns = [8, 1536, 2120, 3072, 4096, 6144, 7168, 32064];
        assert_eq!(columns.map(width), [16, 16, 24, 24, 32, 48, 56, 64]);
        let gated = GemmProblem::new(8, 3072, 4096, DType::F16).with_activation(Activation::SwiGlu);
        assert_eq!(Division::new(&gated, SMS).width, 32);
    }

    #[test]
    fn the_kernel_runs_on_hopper_if_it_was_compiled() {
        let problem = GemmProblem::new(64, 64, 64, DType::Bf16);
        let problem = problem.with_layouts(Layout::RowMajor, Layout::Transposed);
        let host = warpweave_symm_mem::Host::new();
        let of = |capability| DeviceInfo {
            compute_capability: capability,
            ..host.device().clone()
        };
        assert_eq!(runs(&of(Some((9, 0))), &problem), cfg!(feature = "nvcc"));
        let row_major = GemmProblem::new(64, 64, 64, DType::Bf16);
        assert!(!runs(&of(Some((9, 0))), &row_major));
        assert!(!runs(&of(Some((10, 0))), &problem) && !runs(host.device(), &problem));
    }

    #[test]
    fn few_rows_of_a_transposed_b_are_served() {
        let problem = GemmProblem::new(64, 64, 64, DType::Bf16);
        let transposed = problem.with_layouts(Layout::RowMajor, Layout::Transposed);
        assert!(serves_few_rows(&transposed) && !serves_few_rows(&problem));
        for (m, is_served) in [(128, true), (129, false)] {
            assert_eq!(serves_few_rows(&GemmProblem { m, ..transposed }), is_served);
        }
        for scaling in [Scaling::Tensor, Scaling::Row, Scaling::Block] {
            assert!(serves_few_rows(&e4m3(64, 64, 64, scaling)));
        }
    }

    /// As measured.
    #[test]
    fn few_rows_are_favoured_where_their_blocks_are_narrow() {
        let favours = |problem: GemmProblem| favours_few_rows(&problem, SMS);
        let bf16 = |m, n| {
            GemmProblem::new(m, n, 4096, DType::Bf16)
                .with_layouts(Layout::RowMajor, Layout::Transposed)
        };
        assert!(favours(bf16(64, 14336)) && favours(bf16(128, 4096)));
        assert!(!favours(bf16(65, 5120)));
        let by = |scaling| move |m, n| favours_few_rows(&e4m3(m, n, 4096, scaling), SMS);
        let (row, block) = (by(Scaling::Row), by(Scaling::Block));
        assert!(row(64, 5120) && row(128, 3072) && !row(128, 4096) && !row(1, 7168));
        assert!(block(1, 7168) && block(64, 8448) && !block(64, 8456));
        assert!(block(128, 4096) && !block(128, 7168));
    }
}
