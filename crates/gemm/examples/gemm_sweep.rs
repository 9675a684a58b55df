//! Every CUTLASS kernel checked, then timed against cuBLASLt's best, on the first GPU.
//!
//! `cargo run --release --example gemm_sweep --features cutlass`. Takes about a minute on an H200.

use std::cell::RefCell;
use std::error::Error;
use std::time::Duration;

use half::{bf16, f16};
use warpweave_gemm::cuda::{Choice, CudaGemm, CudaPrepared};
use warpweave_gemm::cutlass::{self, Raster, Tiling};
use warpweave_gemm::{GemmBackend, GemmOperands, GemmProblem, Provider, host, timing};
use warpweave_symm_mem::{Backend, Cuda, DType, DevicePtr, Memory, Priority};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;
type Stream = <Cuda as Backend>::Stream;

/// The shapes to time: (m, k, n).
const SHAPES: [(usize, usize, usize, DType); 11] = [
    (4096, 4096, 1792, DType::Bf16),
    (8192, 4096, 1792, DType::Bf16),
    (16384, 4096, 1792, DType::Bf16),
    (4096, 8192, 3584, DType::Bf16),
    (8192, 8192, 3584, DType::Bf16),
    (16384, 8192, 3584, DType::Bf16),
    (4096, 16384, 6656, DType::Bf16),
    (8192, 16384, 6656, DType::Bf16),
    (16384, 16384, 6656, DType::Bf16),
    (8192, 8192, 8192, DType::Bf16),
    (1024, 1024, 1024, DType::F16),
];

/// Shapes to compare with the host, element by element: ragged ones, less than a tile, and several waves.
const CHECKED: [(usize, usize, usize); 5] = [
    (1, 8, 8),
    (130, 72, 264),
    (1028, 1032, 1160),
    (2049, 200, 2056),
    (4096, 512, 1792),
];

fn main() -> Result<()> {
    let sweep = Sweep::new()?;
    println!("{}", sweep.backend.device().name);
    sweep.check()?;
    sweep.table()
}

struct Sweep {
    backend: Cuda,
    gemm: CudaGemm,
    stream: Stream,
    /// Of the launches, which follow each other.
    workspace: RefCell<Option<<Cuda as Backend>::Memory>>,
    configs: &'static [cutlass::Config],
}

/// Device memory for A, B and C of one problem.
struct Operands {
    a: <Cuda as Backend>::Memory,
    b: <Cuda as Backend>::Memory,
    c: <Cuda as Backend>::Memory,
}

impl Operands {
    fn addresses(&self) -> GemmOperands {
        GemmOperands::new(self.a.address(), self.b.address(), self.c.address())
    }
}

impl Sweep {
    fn new() -> Result<Self> {
        let backend = Cuda::new(0)?;
        let stream = backend.stream(Priority::Normal)?;
        let gemm = backend.gemm_handle()?;
        cutlass::check_device(backend.device())?;
        Ok(Self {
            configs: cutlass::configs()?,
            backend,
            gemm,
            stream,
            workspace: RefCell::default(),
        })
    }

    fn operands(
        &self,
        problem: &GemmProblem,
        values: impl Fn(u32) -> f32,
    ) -> Result<(Operands, [Vec<u8>; 2])> {
        let host = [
            encode(problem.dtype, problem.a_len(), 1, &values),
            encode(problem.dtype, problem.b_len(), 2, &values),
        ];
        let operands = Operands {
            a: self.backend.allocate(host[0].len())?,
            b: self.backend.allocate(host[1].len())?,
            c: self
                .backend
                .allocate(problem.c_len() * problem.out.size())?,
        };
        // SAFETY: the allocations have these sizes and nothing uses them yet.
        unsafe {
            self.backend
                .upload(&self.stream, operands.a.address(), &host[0])?;
            self.backend
                .upload(&self.stream, operands.b.address(), &host[1])?;
        }
        Ok((operands, host))
    }

    fn launch(
        &self,
        prepared: &CudaPrepared,
        operands: &Operands,
    ) -> Result<(), warpweave_gemm::Error> {
        let mut workspace = self.workspace.borrow_mut();
        let needed = prepared.workspace_bytes();
        if workspace.as_ref().map_or(0, |memory| memory.bytes()) < needed {
            // Launches that use the one that is dropped have ended.
            self.backend.synchronize(&self.stream)?;
            *workspace = Some(self.backend.allocate(needed)?);
        }
        let scratch = workspace
            .as_ref()
            .map_or(DevicePtr::NULL, |memory| memory.address());
        // SAFETY: the operands and the workspace have the sizes that are needed and outlive the work: every
        // path waits for the stream before they are dropped; all work is on one stream.
        unsafe {
            self.backend
                .gemm(&self.stream, prepared, operands.addresses(), scratch)
        }
    }

    /// The GEMM over a poisoned C.
    fn gemm(&self, prepared: &CudaPrepared, operands: &Operands) -> Result<Vec<u8>> {
        let mut c = vec![0; operands.c.bytes()];
        // SAFETY: C is an allocation of this size, used on this stream only.
        unsafe {
            self.backend
                .fill(&self.stream, operands.c.address(), 0xff, c.len())?;
            self.launch(prepared, operands)?;
            self.backend
                .download(&self.stream, operands.c.address(), &mut c)?;
        }
        Ok(c)
    }

    /// Every kernel and cuBLASLt against the host: with small integers all sums are exact, so that every bit
    /// counts.
    fn check(&self) -> Result<()> {
        let mut gemms = 0;
        for dtype in [DType::F16, DType::Bf16] {
            for (m, k, n) in CHECKED {
                let problem = GemmProblem::new(m, n, k, dtype);
                let (operands, [a, b]) = self.operands(&problem, |bits| (bits % 5) as f32 - 2.0)?;
                let mut expected = vec![0u8; operands.c.bytes()];
                let copies = GemmOperands::new(
                    DevicePtr(a.as_ptr() as u64),
                    DevicePtr(b.as_ptr() as u64),
                    DevicePtr(expected.as_mut_ptr() as u64),
                );
                // SAFETY: the host copies have the problem's sizes; vectors are aligned to more than two
                // bytes.
                unsafe { host::multiply_raw(&problem, copies)? };
                let mut choices = vec![
                    self.gemm
                        .choices(&self.backend, &problem, Provider::CublasLt)?[0],
                ];
                for config in 0..self.configs.len() {
                    for (raster, swizzle) in [
                        (Raster::AlongM, 1),
                        (Raster::AlongN, 8),
                        (Raster::Heuristic, 2),
                    ] {
                        choices.push(Choice::Cutlass(Tiling {
                            config,
                            raster,
                            swizzle,
                        }));
                    }
                }
                for choice in choices {
                    let prepared = self.gemm.prepare(&self.backend, &problem, choice)?;
                    // Twice: a kernel that needs its workspace cleared must clear it.
                    for _ in 0..2 {
                        let got = self.gemm(&prepared, &operands)?;
                        if let Some(at) = got
                            .chunks_exact(2)
                            .zip(expected.chunks_exact(2))
                            .position(|(x, y)| x != y)
                        {
                            let name = Cuda::gemm_algorithm(&prepared);
                            return Err(format!(
                                "{problem}, {name}: wrong at row {}, column {}",
                                at / n,
                                at % n
                            )
                            .into());
                        }
                        gemms += 1;
                    }
                }
            }
        }
        println!("{gemms} GEMMs equal the host's in every bit");
        Ok(())
    }

    /// The best of one configuration's orders and group widths.
    fn best_of_config(
        &self,
        problem: &GemmProblem,
        operands: &Operands,
        config: usize,
    ) -> Result<CudaPrepared> {
        let mine =
            |choice: &Choice| matches!(choice, Choice::Cutlass(tiling) if tiling.config == config);
        let mut choices = self
            .gemm
            .choices(&self.backend, problem, Provider::Cutlass)?;
        choices.retain(mine);
        let mut prepared = self.gemm.contenders(&self.backend, problem, &choices)?;
        let winner = timing::fastest(&self.backend, &self.stream, prepared.len(), |index| {
            self.launch(&prepared[index], operands)
        })?;
        Ok(prepared.swap_remove(winner))
    }

    fn table(&self) -> Result<()> {
        print!("{:<24}{:>20}", "m,k,n", "cuBLASLt ms (TF/s)");
        for config in self.configs {
            print!("{:>28}", config.name);
        }
        println!("   best: cuBLASLt/CUTLASS, with; model's choice");
        let (mut best_ratios, mut model_ratios) = (Vec::new(), Vec::new());
        for (m, k, n, dtype) in SHAPES {
            let problem = GemmProblem::new(m, n, k, dtype);
            let (operands, _) =
                self.operands(&problem, |bits| (bits % 2048) as f32 / 1024.0 - 1.0)?;
            // SAFETY: as in `launch`.
            let reference = unsafe {
                self.backend.gemm_tune(
                    &self.gemm,
                    &self.stream,
                    &problem,
                    Provider::CublasLt,
                    operands.addresses(),
                )?
            };
            let mut prepared = vec![reference];
            for config in 0..self.configs.len() {
                prepared.push(self.best_of_config(&problem, &operands, config)?);
            }
            prepared.push(
                self.backend
                    .prepare_gemm(&self.gemm, &problem, Provider::Cutlass)?,
            );
            let samples =
                timing::interleaved(&self.backend, &self.stream, 11, prepared.len(), |index| {
                    self.launch(&prepared[index], &operands)
                })?
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            let millis = |time: Duration| time.as_secs_f64() * 1e3;
            let base = millis(samples[0].median());
            let (low, high) = samples[0].quartiles();
            print!("{:<24}", format!("{m},{k},{n} {dtype}"));
            print!(
                "{:>20}",
                format!("{base:.4} ({:.0})", problem.flops() / base / 1e9)
            );
            for sample in &samples[1..=self.configs.len()] {
                let time = millis(sample.median());
                print!("{:>28}", format!("{time:.4} ({:.3})", base / time));
            }
            let best = (1..=self.configs.len())
                .min_by_key(|&index| samples[index].median())
                .unwrap_or(1);
            let ratio = base / millis(samples[best].median());
            let model = base / millis(samples[prepared.len() - 1].median());
            println!(
                "   {ratio:.3} {}; model {model:.3} {}; spread of cuBLASLt {:.1} %; {}",
                Cuda::gemm_algorithm(&prepared[best]),
                Cuda::gemm_algorithm(&prepared[prepared.len() - 1]),
                100.0 * (millis(high) - millis(low)) / base,
                Cuda::gemm_algorithm(&prepared[0]),
            );
            if dtype == DType::Bf16 {
                best_ratios.push(ratio);
                model_ratios.push(model);
            }
        }
        println!(
            "geometric mean over the bf16 shapes, cuBLASLt time / CUTLASS time: \
             best {:.4}, model's choice {:.4}",
            geometric_mean(&best_ratios),
            geometric_mean(&model_ratios)
        );
        Ok(())
    }
}

/// `len` elements from a fixed sequence of `values`, which repeats after a prime number of elements.
fn encode(dtype: DType, len: usize, seed: u32, values: &impl Fn(u32) -> f32) -> Vec<u8> {
    const PERIOD: usize = 1_048_573;
    let mut state = seed;
    let period: Vec<u8> = (0..PERIOD.min(len))
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = values(state >> 9);
            match dtype {
                DType::F16 => f16::from_f32(value).to_le_bytes(),
                DType::Bf16 => bf16::from_f32(value).to_le_bytes(),
                DType::F32 | DType::E4m3 => unreachable!("{dtype} is not swept"),
            }
        })
        .collect();
    let mut bytes = Vec::with_capacity(2 * len);
    while bytes.len() < 2 * len {
        let left = 2 * len - bytes.len();
        bytes.extend_from_slice(&period[..left.min(period.len())]);
    }
    bytes
}

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}
