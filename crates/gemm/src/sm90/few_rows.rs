//! GEMMs of few rows, as decode steps have: a kernel that reads B once, in tiles narrow enough to keep all
//! SMs busy. Its bits are those of the other kernels.

use warpweave_symm_mem::cuda::{CudaStream, Function, Image, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DType, DeviceInfo, DevicePtr};

use super::config::SWIZZLED_ROW;
use super::prepared::{Epilogue, Scales, check_compiled, refused, used_bias, used_scales};
use super::tensor_map::{Matrix, TensorMap};
use super::{check_device, check_problem, config};
use crate::cutlass::{ADDRESS_ALIGNMENT, unsupported};
use crate::launches::Launches;
use crate::{Error, GemmOperands, GemmProblem, Layout, Provider, Scaling};

static FEW_ROWS: Image = warpweave_symm_mem::device_image!("few_rows", sm_90a);

/// Rows of a tile: those of an instruction. There are two tiles of rows at most.
const ROWS: usize = 64;
/// Columns of a tile, as compiled: `WARPWEAVE_WIDTHS`.
const WIDTHS: [usize; 7] = [16, 24, 32, 40, 48, 56, 64];
/// Those of which an SM can have several.
const WIDE: [usize; 4] = [40, 48, 56, 64];
/// Blocks of these that fit on an SM: `kMostBlocks`.
const MOST_BLOCKS: usize = 3;
/// Threads of a block: a warpgroup that multiplies and a warp that loads.
const THREADS: u32 = 5 * 32;
/// Shared memory of an SM that its blocks can use, and what each takes in addition to its own.
const SM_BYTES: usize = 228 * 1024;
const BLOCK_BYTES: usize = 1024;
/// What is left of it to kernels that communicate: their blocks find room while others wait for them.
const LEFT_BYTES: usize = 8 * 1024;

/// Bytes of e4m3 that a block alone on its SM has in flight, if these are four stages or more, or five of two
/// boxes: with more it takes longer, up to 1.3 times (`docs/fused-kernel.md`).
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

/// Whether the kernel is for it: B transposed, and at most 128 rows.
pub fn serves(problem: &GemmProblem) -> bool {
    let is_served = match problem.dtype {
        DType::E4m3 => problem.scaling != Scaling::None,
        dtype => dtype == problem.out && problem.scaling == Scaling::None,
    };
    let is_half = matches!(problem.out, DType::F16 | DType::Bf16);
    is_served && is_half && problem.b_layout == Layout::Transposed && problem.m <= 2 * ROWS
}

/// Whether the kernel is there for it on `device`, and favoured. It is then about as fast as cuBLASLt's best
/// algorithm, or faster (`docs/fused-kernel.md`).
pub fn runs(device: &DeviceInfo, problem: &GemmProblem) -> bool {
    let checked = check_compiled(&FEW_ROWS)
        .and_then(|()| check_device(device))
        .and_then(|()| check_problem(problem));
    checked.is_ok() && is_favoured(problem, device.sms)
}

/// Whether it is expected to be the fastest on `sms` SMs, by measurements on an H200: where an SM has no more
/// columns than in tiles of 64, or where it has a tenth fewer.
pub(super) fn is_favoured(problem: &GemmProblem, sms: u32) -> bool {
    if !serves(problem) || [sms as usize, problem.m, problem.n].contains(&0) {
        return false;
    }
    let division = Division::new(problem, sms);
    let of_tiles = problem.n.div_ceil(64 * sms as usize) * 64;
    // Several tiles of 16 bits need it, unless B is constant: the kernel before then hides some of its loads.
    let needs_fewer = problem.dtype != DType::E4m3 && division.is_several() && !problem.constant_b;
    let percent = if needs_fewer { 90 } else { 100 };
    100 * division.columns <= percent * of_tiles
}

/// How a problem is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Division {
    /// Columns of a tile.
    width: usize,
    /// Columns that an SM has, at most.
    columns: usize,
    /// Blocks that an SM has at a time, at most, and all blocks.
    on_an_sm: usize,
    blocks: u32,
    /// Steps of K, of the boxes of a stage each.
    steps: u32,
    stages: u32,
    /// Dynamic shared memory of a block.
    shared_bytes: u32,
}

impl Division {
    /// One tile for each of `sms` SMs, as narrow as it can be; or those of which an SM has the fewest
    /// columns. With SwiGLU a tile has whole groups of gate and up.
    fn new(problem: &GemmProblem, sms: u32) -> Self {
        let sms = sms as usize;
        let tiles = |width| problem.n.div_ceil(width) * problem.m.div_ceil(ROWS);
        let group = problem.activation.group();
        // As was fastest: of 16 bits three blocks on an SM take longer than two, or than one.
        let sharing = match problem.dtype {
            DType::E4m3 => 2..=MOST_BLOCKS,
            _ => 1..=2,
        };
        let of_one = WIDTHS.into_iter().filter(|&width| tiles(width) <= sms);
        let of_several = WIDE
            .into_iter()
            .flat_map(|width| sharing.clone().map(move |blocks| (width, blocks)));
        let (columns, rounds, width, on_an_sm) = of_one
            .map(|width| (width, 1))
            .chain(of_several)
            .filter(|(width, _)| width.is_multiple_of(group))
            .map(|(width, blocks)| {
                let rounds = tiles(width).div_ceil(blocks * sms);
                (width * blocks * rounds, rounds, width, blocks)
            })
            .min()
            .expect("a width of whole groups");
        let several = columns > width;
        let boxes = boxes(width, several);
        let steps = config::steps(problem).div_ceil(boxes as u32);
        let box_a = problem.m.min(ROWS).next_multiple_of(8) * SWIZZLED_ROW;
        let stage = boxes * (width * SWIZZLED_ROW + box_a);
        // The ring starts at a multiple of 1024, and the last box of A is read as one of 64 rows; a stage has
        // two barriers.
        let fixed = 1024 + ROWS * SWIZZLED_ROW - box_a;
        let room = (SM_BYTES - LEFT_BYTES) / on_an_sm - BLOCK_BYTES;
        // With less, an SM could have more blocks, and another none.
        let least = match on_an_sm {
            1 => 0,
            _ => SM_BYTES / (on_an_sm + 1) - BLOCK_BYTES + 1,
        };
        let most = match problem.dtype {
            DType::E4m3 if on_an_sm == 1 => {
                (E4M3_BYTES / stage).max(if boxes == 2 { 5 } else { 4 })
            }
            DType::E4m3 => (least - fixed).div_ceil(stage + 16),
            _ => usize::MAX,
        };
        let stages = ((room - fixed) / (stage + 16))
            .min(most)
            .min(steps as usize * rounds);
        Self {
            width,
            columns,
            on_an_sm,
            // Each has as many tiles, or one fewer.
            blocks: tiles(width).div_ceil(rounds) as u32,
            steps,
            stages: stages as u32,
            shared_bytes: (fixed + stages * (stage + 16)).max(least) as u32,
        }
    }

    /// Whether an SM has several tiles.
    fn is_several(&self) -> bool {
        self.columns > self.width
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
        if !serves(problem) {
            let why = "the kernel of few rows takes up to 128, and B transposed";
            return unsupported(problem, Provider::Sm90, why.into());
        }
        let division = Division::new(problem, cuda.sms());
        Ok(Self {
            problem: *problem,
            division,
            function: cuda.function(&FEW_ROWS, name(problem, division))?,
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
            a: map("A", a, (m, problem.lda), m.min(ROWS))?,
            last_a: match m % ROWS {
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
fn boxes(width: usize, several: bool) -> usize {
    if !several && width <= 40 { 4 } else { 2 }
}

/// The kernel of a division.
fn name(problem: &GemmProblem, division: Division) -> &'static str {
    macro_rules! widths {
        ($($part:literal),+) => {
            match (division.is_several(), division.width) {
                (false, 16) => concat!("few_rows", $($part),+, "_16"),
                (false, 24) => concat!("few_rows", $($part),+, "_24"),
                (false, 32) => concat!("few_rows", $($part),+, "_32"),
                (false, 40) => concat!("few_rows", $($part),+, "_40"),
                (false, 48) => concat!("few_rows", $($part),+, "_48"),
                (false, 56) => concat!("few_rows", $($part),+, "_56"),
                (false, _) => concat!("few_rows", $($part),+, "_64"),
                (true, 40) => concat!("few_rows", $($part),+, "_several_40"),
                (true, 48) => concat!("few_rows", $($part),+, "_several_48"),
                (true, 56) => concat!("few_rows", $($part),+, "_several_56"),
                (true, _) => concat!("few_rows", $($part),+, "_several_64"),
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
                        let on_an_sm = division.on_an_sm;
                        let bytes =
                            |blocks| blocks * (division.shared_bytes as usize + BLOCK_BYTES);
                        assert!(bytes(on_an_sm) <= SM_BYTES - LEFT_BYTES, "{division:?}");
                        if on_an_sm > 1 {
                            assert!(bytes(on_an_sm + 1) > SM_BYTES, "{division:?}");
                        }
                        // While one stage is multiplied the next is loaded. Of e4m3 three boxes are
                        // waited for before the first is released.
                        let several = division.is_several();
                        let (stages, boxes) = (division.stages, boxes(division.width, several));
                        let is_e4m3 = problem.dtype == DType::E4m3;
                        let least = if is_e4m3 && !several && boxes == 2 {
                            3
                        } else {
                            2
                        };
                        assert!(stages == division.steps || stages >= least, "{division:?}");
                        if is_e4m3 && !several {
                            let rows = division.width + m.min(ROWS).next_multiple_of(8);
                            let stage = boxes * rows * SWIZZLED_ROW;
                            let few = if boxes == 2 { 5 } else { 4 };
                            assert!(stages <= few || stages as usize * stage <= E4M3_BYTES);
                        }
                        let width = division.width.to_string();
                        assert!(name(&problem, division).ends_with(&width));
                    }
                }
            }
        }
    }

    /// Tiles are as narrow as the SMs allow, and blocks take all of them.
    #[test]
    fn every_sm_has_as_many_columns() {
        let division = |n, dtype| {
            let problem = match dtype {
                DType::E4m3 => e4m3(8, n, 4096, Scaling::Block),
                dtype => GemmProblem::new(8, n, 4096, dtype),
            };
            let division = Division::new(&problem, SMS);
            let tiles = n.div_ceil(division.width);
            let rounds = tiles.div_ceil(division.blocks as usize);
            let on_an_sm = division.on_an_sm;
            assert!(division.blocks as usize <= on_an_sm * SMS as usize);
            assert_eq!(division.columns, division.width * on_an_sm * rounds);
            (division.width, on_an_sm, rounds)
        };
        // Twice 64 rows are twice as many tiles.
        let two = Division::new(&e4m3(65, 2112, 4096, Scaling::Block), SMS);
        assert_eq!((two.width, two.blocks), (32, 132));
        let columns = [8, 1536, 2120, 3072, 4096, 6144, 7168, 8448];
        let widths = [16, 16, 24, 24, 32, 48, 56, 64];
        for (n, width) in columns.into_iter().zip(widths) {
            assert_eq!(division(n, DType::F16), (width, 1, 1));
            assert_eq!(division(n, DType::E4m3), (width, 1, 1));
        }
        for (n, of_16_bits, of_e4m3) in [
            (10240, (40, 2, 1), (40, 2, 1)),
            (18432, (48, 1, 3), (48, 3, 1)),
            (24576, (48, 2, 2), (64, 3, 1)),
            (28672, (56, 2, 2), (56, 2, 2)),
            (37888, (48, 2, 3), (48, 3, 2)),
        ] {
            assert_eq!(division(n, DType::Bf16), of_16_bits, "{n} columns");
            assert_eq!(division(n, DType::E4m3), of_e4m3, "{n} columns");
        }
        for (n, width) in [(3072, 32), (10240, 48)] {
            let gated =
                GemmProblem::new(8, n, 4096, DType::F16).with_activation(Activation::SwiGlu);
            assert_eq!(Division::new(&gated, SMS).width, width);
        }
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
        assert!(serves(&transposed) && !serves(&problem));
        for (m, is_served) in [(128, true), (129, false)] {
            assert_eq!(serves(&GemmProblem { m, ..transposed }), is_served);
        }
        for scaling in [Scaling::Tensor, Scaling::Row, Scaling::Block] {
            assert!(serves(&e4m3(64, 64, 64, scaling)));
        }
    }

    /// As measured.
    #[test]
    fn few_rows_are_favoured_where_an_sm_has_no_more_columns() {
        let favours = |problem: GemmProblem| is_favoured(&problem, SMS);
        let bf16 = |m, n| {
            GemmProblem::new(m, n, 4096, DType::Bf16)
                .with_layouts(Layout::RowMajor, Layout::Transposed)
        };
        assert!(favours(bf16(64, 14336)) && favours(bf16(128, 4096)) && favours(bf16(1, 8192)));
        assert!(!favours(bf16(65, 5120)) && !favours(bf16(64, 24576)) && !favours(bf16(8, 128256)));
        assert!(favours(bf16(8, 128256).with_constant_b()));
        let by = |scaling| move |m, n| favours(e4m3(m, n, 4096, scaling));
        let (row, block) = (by(Scaling::Row), by(Scaling::Block));
        for favours in [row, block] {
            assert!(favours(1, 7168) && favours(64, 8192) && favours(64, 28672));
            assert!(favours(128, 4096) && !favours(128, 7168));
        }
        assert!(!is_favoured(&e4m3(8, 8, 8, Scaling::Block), 0));
        for (m, n) in [(0, 64), (8, 0)] {
            assert!(!favours(bf16(m, n)) && config::select(&bf16(m, n), SMS).is_some());
        }
    }
}
