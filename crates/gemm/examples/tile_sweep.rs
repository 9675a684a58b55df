//! Each tile of the hand-written GEMM, timed on the first GPU at shapes and element types of choice.
//!
//! `cargo run --release --example tile_sweep --features nvcc -- [--zeros] [MxNxK:TYPE ...]`, where TYPE is
//! `bf16`, or the scales of e4m3: `tensor`, `row` or `block`. B is transposed. Times are medians over graphs
//! of 24 launches on weights in turns, after rests in which the GPU cools; numbers are uniform in [−1, 1), or
//! zeros, at which the clock does not sink. Results are not compared: tests do that.

use std::error::Error;
use std::thread::sleep;
use std::time::Duration;

use float8::F8E4M3;
use half::bf16;
use warpweave_gemm::cuda::{Choice, CudaGemm};
use warpweave_gemm::sm90::{FEW_ROWS_TILING, serves_few_rows, tilings};
use warpweave_gemm::{GemmBackend, GemmOperands, GemmProblem, Layout, Scaling};
use warpweave_symm_mem::{Backend, Cuda, DType, DevicePtr, Memory, Priority};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;
type Device = <Cuda as Backend>::Memory;
type Stream = <Cuda as Backend>::Stream;

const SHAPES: [&str; 4] = [
    "4096x7168x16384:block",
    "8192x8192x8192:row",
    "8192x8192x8192:bf16",
    "64x4096x7168:block",
];
const ROUNDS: usize = 5;
/// Launches of a graph.
const LAUNCHES: usize = 24;
const REST: Duration = Duration::from_millis(80);
/// Bytes of weights, of which none are left in L2 when their turn comes again; and the most matrices of them.
const WEIGHTS: usize = 200_000_000;
const MOST_WEIGHTS: usize = 8;

fn main() -> Result<()> {
    let (options, given): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|word| word.starts_with("--"));
    let zeros = match options.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--zeros"] => true,
        _ => return Err("the only option is --zeros".into()),
    };
    let shapes = match given.is_empty() {
        true => SHAPES.map(String::from).to_vec(),
        false => given,
    };
    let cuda = Cuda::new(0)?;
    let sweep = Sweep {
        gemm: cuda.gemm_handle()?,
        stream: cuda.stream(Priority::Normal)?,
        cuda,
        zeros,
    };
    println!("{}", sweep.cuda.device().name);
    shapes.iter().try_for_each(|shape| sweep.shape(shape))
}

/// The problem that a word names.
fn problem(word: &str) -> Result<GemmProblem> {
    let refused = || format!("`{word}` is not MxNxK:TYPE, as 64x4096x7168:block");
    let (shape, kind) = word.split_once(':').ok_or_else(refused)?;
    let sides: Vec<usize> = shape.split('x').map(str::parse).collect::<Result<_, _>>()?;
    let [m, n, k] = sides[..] else {
        return Err(refused().into());
    };
    let e4m3 = |scaling| GemmProblem::e4m3(m, n, k, scaling, DType::Bf16);
    Ok(match kind {
        "bf16" => GemmProblem::new(m, n, k, DType::Bf16)
            .with_layouts(Layout::RowMajor, Layout::Transposed),
        "tensor" => e4m3(Scaling::Tensor),
        "row" => e4m3(Scaling::Row),
        "block" => e4m3(Scaling::Block),
        _ => return Err(refused().into()),
    })
}

struct Sweep {
    cuda: Cuda,
    gemm: CudaGemm,
    stream: Stream,
    zeros: bool,
}

impl Sweep {
    fn shape(&self, word: &str) -> Result<()> {
        let problem = problem(word)?;
        let mut random = fastrand::Rng::with_seed(1);
        let a = self.operand(problem.dtype, problem.a_len(), &mut random)?;
        let copies = WEIGHTS / (problem.b_len() * problem.dtype.size()).max(1);
        let weights = (0..copies.clamp(1, MOST_WEIGHTS))
            .map(|_| self.operand(problem.dtype, problem.b_len(), &mut random))
            .collect::<Result<Vec<_>>>()?;
        let [scales_a, scales_b] = problem.scales_len();
        let scales = [
            self.scales(scales_a, &mut random)?,
            self.scales(scales_b, &mut random)?,
        ];
        let c = self.cuda.allocate(problem.c_len() * problem.out.size())?;
        let operands = |turn: usize| {
            let b = &weights[turn % weights.len()];
            GemmOperands::new(a.address(), b.address(), c.address())
                .with_scales(scales.each_ref().map(Memory::address))
        };
        let mut tiles = tilings(&problem, self.cuda.sms());
        if serves_few_rows(&problem) && !tiles.contains(&FEW_ROWS_TILING) {
            tiles.push(FEW_ROWS_TILING);
        }
        println!("{word}, the library's choice first, µs:");
        for tiling in tiles {
            let choice = Choice::Sm90(tiling);
            println!("  {tiling}: {:.2}", self.time(&problem, choice, operands)?);
        }
        Ok(())
    }

    /// Microseconds of a launch.
    fn time(
        &self,
        problem: &GemmProblem,
        choice: Choice,
        operands: impl Fn(usize) -> GemmOperands,
    ) -> Result<f64> {
        let (cuda, stream) = (&self.cuda, &self.stream);
        let prepared = self.gemm.prepare(cuda, problem, choice)?;
        // SAFETY: the operands have the problem's sizes, outlive the stream's work, and nothing else uses
        // them; hand-written kernels take no workspace.
        let launch =
            |turn| unsafe { cuda.gemm(stream, &prepared, operands(turn), DevicePtr::NULL) };
        launch(0)?;
        cuda.synchronize(stream)?;
        let graph = cuda.capture(stream, || (0..LAUNCHES).try_for_each(launch))?;
        let (start, end) = (cuda.event()?, cuda.event()?);
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            sleep(REST);
            cuda.record(&start, stream)?;
            // SAFETY: as above.
            unsafe { cuda.launch_graph(&graph, stream)? };
            cuda.record(&end, stream)?;
            cuda.synchronize(stream)?;
            // The first only wakes the GPU up.
            if round > 0 {
                times.push(cuda.elapsed(&start, &end)?.as_secs_f64() * 1e6 / LAUNCHES as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }

    fn operand(&self, dtype: DType, len: usize, random: &mut fastrand::Rng) -> Result<Device> {
        let mut value = || match self.zeros {
            true => 0.0,
            false => 2.0 * random.f32() - 1.0,
        };
        self.uploaded(match dtype {
            DType::E4m3 => (0..len)
                .map(|_| F8E4M3::from_f32(value()).to_bits())
                .collect(),
            _ => (0..len)
                .flat_map(|_| bf16::from_f32(value()).to_le_bytes())
                .collect(),
        })
    }

    fn scales(&self, len: usize, random: &mut fastrand::Rng) -> Result<Device> {
        let value = |_| (0.5 + 0.5 * random.f32()).to_le_bytes();
        self.uploaded((0..len).flat_map(value).collect())
    }

    fn uploaded(&self, bytes: Vec<u8>) -> Result<Device> {
        let memory = self.cuda.allocate(bytes.len().max(1))?;
        // SAFETY: the memory is as long, and nothing else uses it.
        unsafe { self.cuda.upload(&self.stream, memory.address(), &bytes)? };
        self.cuda.synchronize(&self.stream)?;
        Ok(memory)
    }
}
