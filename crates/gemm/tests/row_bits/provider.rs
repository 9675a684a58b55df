//! The bits of rows by one provider, asked for a batch-invariant algorithm.

use half::{bf16, f16};
use warpweave_gemm::host::Element;
use warpweave_gemm::{
    Error, Gemm, GemmBackend, GemmBatch, GemmOperands, GemmProblem, Layout, Provider,
};
use warpweave_symm_mem::{Cuda, DevicePtr, Host, Memory};

use crate::values::{Random, bytes, elements, reals};

/// What was compared, and what was refused.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    problems: usize,
    rows: usize,
    refused: usize,
}

/// A device with a matrix and room for what it is multiplied into.
struct Player<B: GemmBackend> {
    gemm: Gemm<B>,
    stream: B::Stream,
    provider: Provider,
    counts: Counts,
}

impl<B: GemmBackend> Player<B> {
    fn new(backend: &B, provider: Provider) -> Self {
        Self {
            gemm: Gemm::new(backend).unwrap(),
            stream: backend.stream(Default::default()).unwrap(),
            provider,
            counts: Counts::default(),
        }
    }

    /// C of a problem, or `None` if the provider has no algorithm.
    fn multiply<T: Element>(
        &self,
        problem: &GemmProblem,
        operands: GemmOperands,
    ) -> Option<Vec<T>> {
        let prepared = match self.gemm.prepare(problem, self.provider) {
            Ok(prepared) => prepared,
            Err(Error::Unsupported { .. } | Error::NoAlgorithm { .. }) => return None,
            Err(error) => panic!("{problem}: {error}"),
        };
        let mut c = vec![0; problem.c_len() * size_of::<T>()];
        let backend = self.gemm.backend();
        // SAFETY: the operands lie in memory with room for the largest problem, whose work is all on one
        // stream, and the download waits for it.
        unsafe {
            self.gemm.launch(&self.stream, &prepared, operands).unwrap();
            backend.download(&self.stream, operands.c, &mut c).unwrap();
        }
        Some(elements(&c))
    }

    /// A tall matrix, and `parts` of it, some of them in batches.
    fn matrix<T: Element>(&mut self, number: u64, extents: [usize; 3], parts: usize) {
        let random = &mut Random::with_seed(number);
        let [rows, n, k] = extents;
        // What TMA takes, or anything.
        let step = if random.bool() { 8 } else { 1 };
        let mut extent = |most: usize| (1 + random.usize(..most)).next_multiple_of(step);
        let (n, k) = (extent(n), extent(k));
        let bias = self.provider != Provider::Cutlass && random.bool();
        let layout = match self.provider != Provider::Cutlass && random.bool() {
            true => Layout::Transposed,
            false => Layout::RowMajor,
        };
        let problem = GemmProblem::new(rows, n, k, T::DTYPE)
            .with_layouts(Layout::RowMajor, layout)
            .with_batch_invariance();
        let whole = GemmProblem { bias, ..problem };

        let backend = self.gemm.backend();
        let part = |elements: usize| (elements * size_of::<T>()).next_multiple_of(256);
        let places = [rows * k, n * k, n, 2 * rows * n].map(part);
        let memory = backend.allocate(places.iter().sum()).unwrap();
        let at = |place: usize| memory.address().add(places[..place].iter().sum());
        for (place, len) in [(0, rows * k), (1, n * k), (2, n)] {
            let values = reals::<T>(len, 3 * number + place as u64 + 1);
            // SAFETY: a place of this memory, which nothing uses yet.
            unsafe {
                backend
                    .upload(&self.stream, at(place), bytes(&values))
                    .unwrap();
            }
        }
        let operands = |start: usize| {
            let a: DevicePtr = at(0).add(start * k * size_of::<T>());
            GemmOperands::new(a, at(1), at(3)).with_bias(at(2))
        };
        let Some(wanted) = self.multiply::<T>(&whole, operands(0)) else {
            self.counts.refused += 1;
            return;
        };
        for _ in 0..parts {
            let m = match random.usize(..4) {
                0 => 1 + random.usize(..4),
                _ => 1 + random.usize(..rows.min(512)),
            };
            // Where every provider takes an A.
            let start = random.usize(..=rows - m) / 16 * 16;
            let batch = match self.provider {
                Provider::CublasLt | Provider::Host if start + 2 * m <= rows => GemmBatch {
                    count: 2,
                    a_stride: m * k,
                    b_stride: 0,
                    c_stride: m * n,
                },
                _ => GemmBatch::ONE,
            };
            let problem = GemmProblem { m, batch, ..whole };
            let Some(got) = self.multiply::<T>(&problem, operands(start)) else {
                self.counts.refused += 1;
                continue;
            };
            let wanted = &wanted[start * n..][..got.len()];
            for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
                let [got, wanted] = [got, wanted].map(|value| value.to_f64().to_bits());
                let (row, column) = (i / n, i % n);
                assert!(
                    got == wanted,
                    "{}, rows from {start}, row {row}, column {column}: {problem}",
                    self.provider
                );
            }
            self.counts.problems += 1;
            self.counts.rows += got.len() / n;
        }
    }
}

#[test]
fn rows_by_the_host_have_their_bits() {
    let mut player = Player::new(&Host::new(), Provider::Host);
    for number in 0..20 {
        player.matrix::<f32>(3 * number, [150, 40, 90], 8);
        player.matrix::<bf16>(3 * number + 1, [150, 40, 90], 8);
        player.matrix::<f16>(3 * number + 2, [150, 40, 90], 8);
    }
    assert_eq!((player.counts.refused, player.counts.problems), (0, 480));
}

fn on_a_gpu(provider: Provider) {
    let start = std::time::Instant::now();
    let mut player = Player::new(&Cuda::new(0).unwrap(), provider);
    for number in 0..60 {
        if provider == Provider::CublasLt {
            player.matrix::<f32>(3 * number, [1024, 520, 1100], 16);
        }
        player.matrix::<bf16>(3 * number + 1, [1024, 520, 1100], 16);
        player.matrix::<f16>(3 * number + 2, [1024, 520, 1100], 16);
    }
    let Counts {
        problems,
        rows,
        refused,
    } = player.counts;
    assert!(problems > refused, "{:?}", player.counts);
    let time = start.elapsed();
    println!(
        "row bits: all equal, {rows} rows of {problems} problems by {provider}, \
         {refused} refused, in {time:.1?}"
    );
}

#[test]
#[ignore = "needs a GPU and cuBLASLt"]
fn on_a_gpu_rows_by_cublaslt_have_their_bits() {
    on_a_gpu(Provider::CublasLt);
}

#[test]
#[cfg(feature = "cutlass")]
#[ignore = "needs a GPU of compute capability 9.0"]
fn on_a_gpu_rows_by_cutlass_have_their_bits() {
    on_a_gpu(Provider::Cutlass);
}
