//! The bits of a row of C depend on nothing but its row of A, and B: not on m, on the row's place, its owner,
//! the tile, the protocol or the kernel. On the host, and on GPUs, one for each rank or all ranks on one.
//!
//! For every matrix B the whole of a tall A is multiplied once, by the simplest kernel. Then some of its
//! rows, as many and from where chance wants, are multiplied by every family, and compared with these bits.
//! Reductions over ranks are compared with their definition: the ranks' partials, each rounded to the element
//! type, added in f32 in the order of ranks from negative zero, then the bias, rounded once.

mod families;
mod provider;
mod rank;
mod values;
mod varying;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use float8::F8E4M3;
use half::{bf16, f16};
use warpweave_gemm::cuda::{Choice, CudaGemm};
use warpweave_gemm::sm90::{CONFIGS, Tiling};
use warpweave_gemm::{AllGatherGemmBackend, GemmBackend, GemmProblem, GemmReduceBackend, Provider};
use warpweave_symm_mem::{Backend, Cuda, Exchange, Host, ThreadExchange};

use families::Counts;
use rank::{Limits, Rank};

pub(crate) trait Kernels: AllGatherGemmBackend + GemmReduceBackend {
    /// Prepares a plain GEMM with this tiling of the hand-written kernel, where there is one.
    fn prepare_tiled(
        &self,
        handle: &Self::GemmHandle,
        problem: &GemmProblem,
        tiling: Tiling,
    ) -> Self::PreparedGemm;
}

impl Kernels for Host {
    fn prepare_tiled(&self, handle: &(), problem: &GemmProblem, _: Tiling) -> Self::PreparedGemm {
        self.prepare_gemm(handle, problem, Provider::Host).unwrap()
    }
}

impl Kernels for Cuda {
    fn prepare_tiled(
        &self,
        handle: &CudaGemm,
        problem: &GemmProblem,
        tiling: Tiling,
    ) -> Self::PreparedGemm {
        let choice = Choice::Sm90(tiling);
        handle.prepare(self, problem, choice).unwrap()
    }
}

/// Plays `matrices` of each type between `world` ranks; returns what was compared.
fn play<B: Kernels>(
    limits: Limits,
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    matrices: u64,
) -> Counts {
    let run = |exchange: Arc<dyn Exchange>| {
        let mut rank = Rank::new(device(exchange.rank()), exchange, limits);
        for matrix in 0..matrices {
            rank.matrix::<bf16, bf16>(2 * matrix);
            rank.matrix::<f16, f16>(2 * matrix + 1);
            rank.varying::<bf16, bf16>(2 * matrices + matrix);
            rank.matrix::<F8E4M3, bf16>(3 * matrices + 2 * matrix);
            rank.matrix::<F8E4M3, f16>(3 * matrices + 2 * matrix + 1);
            rank.varying::<F8E4M3, bf16>(5 * matrices + matrix);
        }
        rank.close()
    };
    let group = ThreadExchange::group_with_timeout(world, Duration::from_secs(60));
    std::thread::scope(|scope| {
        let run = &run;
        let start = |exchange| scope.spawn(move || run(Arc::new(exchange)));
        let ranks: Vec<_> = group.into_iter().map(start).collect();
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap());
        ends.fold(Counts::default(), Counts::and)
    })
}

#[test]
fn rows_have_their_bits() {
    for world in 1..=4 {
        let limits = Limits {
            rows: 120,
            most: 60,
            extents: [40, 90],
            group_rows: 7,
            configs: 1,
            blocks: None,
            calls: 12,
        };
        let counts = play(limits, world, |_| Host::new(), 12);
        assert!(
            counts.gated > 0 && counts.families.iter().all(|&problems| problems > 0),
            "{counts:?}"
        );
    }
}

/// SMs of a shared GPU that no GEMM takes.
const LEFT_FREE: u32 = 8;

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_gpus_rows_have_their_bits() {
    // Contexts that outlive a case are not made anew for the next.
    static KEPT: OnceLock<Vec<Cuda>> = OnceLock::new();
    let all = || (0..Cuda::device_count().unwrap()).map(|i| Cuda::new(i).unwrap());
    let gpus = KEPT.get_or_init(|| all().collect()).len();
    let start = Instant::now();
    let mut total = Counts::default();
    for world in [1, 2, 4] {
        let apart = gpus >= world;
        let sms = KEPT.get().unwrap()[0].device().sms;
        let limits = Limits {
            rows: 1024,
            most: 512,
            extents: [520, 1100],
            group_rows: 128,
            configs: CONFIGS.len(),
            blocks: (!apart).then(|| (sms - LEFT_FREE) / world as u32),
            calls: 24,
        };
        let device = |rank| Cuda::new(if apart { rank } else { 0 }).unwrap();
        total = total.and(play(limits, world, device, 30));
    }
    assert!(total.gated > 0 && total.families.iter().all(|&problems| problems > 0));
    let time = start.elapsed();
    println!("row bits: all equal, {total}, in {time:.1?}");
}
