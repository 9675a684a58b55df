//! What C must be: computed once by all ranks together, on the host, and shared.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use warpweave_gemm::GemmProblem;
use warpweave_gemm::host::{Element, multiply, reference};
use warpweave_overlap::plan::{Problem, shard};
use warpweave_symm_mem::{DType, Exchange, Host, SymmetricBuffer};

use super::comparison::{Comparison, Expectation};
use crate::error::Result;
use crate::inputs::{Numbers, Source};

/// Up to this many multiply-adds a rank computes by the definition with sums in f64; larger products take the blocked one.
const BY_DEFINITION: usize = 1 << 24;

/// C of one input set, rows sharded over the ranks' host memory, mapped by all.
#[derive(Debug)]
pub struct Reference {
    expectation: Expectation,
    rows: usize,
    parts: SymmetricBuffer<Host>,
}

/// What a reference is of.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOf<'a> {
    /// Sizes and element type.
    pub problem: &'a Problem,
    /// Kind of numbers.
    pub numbers: Numbers,
    /// Input set.
    pub set: usize,
}

impl Reference {
    /// Computes this rank's rows on `threads` threads and waits for the others'. Collective.
    ///
    /// # Errors
    /// What the product and the symmetric memory report.
    pub fn compute(
        exchange: &Arc<dyn Exchange>,
        of: ReferenceOf<'_>,
        threads: usize,
    ) -> Result<Self> {
        let problem = of.problem;
        let world = exchange.world();
        let bytes = problem.max_shard(world) * problem.n * size_of::<f32>();
        let parts = SymmetricBuffer::new(&Host::new(), exchange, "reference", bytes)?;
        let rows = problem.shard(exchange.rank(), world);
        // SAFETY: the part of this rank holds its rows, is aligned to a page, and only this rank writes it; the others
        // read it behind the barrier.
        let out = unsafe {
            std::slice::from_raw_parts_mut(parts.local().as_host::<f32>(), rows.len() * problem.n)
        };
        match problem.dtype {
            DType::F16 => fill::<f16>(of, rows, threads, out)?,
            DType::Bf16 => fill::<bf16>(of, rows, threads, out)?,
            _ => fill::<f32>(of, rows, threads, out)?,
        }
        exchange.barrier("reference")?;
        let expectation = Expectation {
            numbers: of.numbers,
            dtype: problem.dtype,
            cols: problem.n,
            k: problem.k,
        };
        Ok(Self {
            expectation,
            rows: problem.m,
            parts,
        })
    }

    /// What makes an element right.
    pub fn expectation(&self) -> &Expectation {
        &self.expectation
    }

    /// Compares all of C, row-major in the element type.
    pub fn compare(&self, out: &[u8], threads: usize) -> Comparison {
        let row = self.expectation.cols * self.expectation.dtype.size();
        (0..self.parts.world())
            .map(|rank| {
                let rows = shard(self.rows, rank, self.parts.world());
                let got = out
                    .get(rows.start * row..rows.end * row)
                    .unwrap_or_default();
                // SAFETY: the part holds these rows, and nobody writes it since the barrier of `compute`.
                let wanted = unsafe {
                    std::slice::from_raw_parts(
                        self.parts.peer(rank).as_host::<f32>().cast_const(),
                        rows.len() * self.expectation.cols,
                    )
                };
                if got.is_empty() {
                    return self.expectation.compare(rows.start, got, wanted);
                }
                self.expectation.compare_rows(rows, got, wanted, threads)
            })
            .fold(Comparison::default(), Comparison::and)
    }
}

/// Bytes of a row-major matrix as elements.
fn elements<T: Element + FromBytes>(bytes: &[u8]) -> Vec<T> {
    bytes
        .chunks_exact(size_of::<T>())
        .map(T::from_bytes)
        .collect()
}

trait FromBytes {
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl FromBytes for f32 {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(f32::NAN, f32::from_ne_bytes)
    }
}

impl FromBytes for f16 {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(f16::NAN, f16::from_ne_bytes)
    }
}

impl FromBytes for bf16 {
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.try_into().map_or(bf16::NAN, bf16::from_ne_bytes)
    }
}

fn fill<T: Element + FromBytes>(
    of: ReferenceOf<'_>,
    rows: Range<usize>,
    threads: usize,
    out: &mut [f32],
) -> Result<()> {
    let Problem { n, k, dtype, .. } = *of.problem;
    let a: Vec<T> = elements(&Source::a(of.numbers, of.set, dtype, k).bytes(rows.clone(), threads));
    let b: Vec<T> = elements(&Source::b(of.numbers, dtype, n).bytes(0..k, threads));
    let share = rows.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = a
            .chunks(share * k)
            .zip(out.chunks_mut(share * n))
            .map(|(a, out)| scope.spawn(|| product(n, k, a, &b, out)))
            .collect();
        parts.into_iter().try_for_each(|part| match part.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

fn product<T: Element>(n: usize, k: usize, a: &[T], b: &[T], out: &mut [f32]) -> Result<()> {
    let problem = GemmProblem::new(a.len() / k, n, k, T::DTYPE).with_output(DType::F32);
    if a.len() * n <= BY_DEFINITION {
        for (out, exact) in out.iter_mut().zip(reference(&problem, a, b)?) {
            *out = exact as f32;
        }
        return Ok(());
    }
    Ok(multiply(&problem, a, b, out)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::ThreadExchange;

    #[test]
    fn every_rank_sees_all_rows_and_finds_a_wrong_one() {
        let problem = Problem::new(7, 5, 33, DType::F16);
        let ranks: Vec<_> = ThreadExchange::group(3)
            .into_iter()
            .map(|exchange| {
                std::thread::spawn(move || {
                    let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                    let of = ReferenceOf {
                        problem: &problem,
                        numbers: Numbers::Integers,
                        set: 2,
                    };
                    let reference = Reference::compute(&exchange, of, 2).unwrap();

                    let a = Source::a(Numbers::Integers, 2, DType::F16, 33).bytes(0..7, 1);
                    let b = Source::b(Numbers::Integers, DType::F16, 5).bytes(0..33, 1);
                    let (a, b) = (elements::<f16>(&a), elements::<f16>(&b));
                    let mut c = vec![f16::ZERO; 35];
                    multiply(&GemmProblem::new(7, 5, 33, DType::F16), &a, &b, &mut c).unwrap();
                    let mut bytes: Vec<u8> = c.iter().flat_map(|v| v.to_ne_bytes()).collect();
                    let right = reference.compare(&bytes, 2);
                    bytes[2 * 34] ^= 1;
                    let wrong = reference.compare(&bytes, 2);
                    exchange.barrier("end").unwrap();
                    (right, wrong)
                })
            })
            .collect();
        for rank in ranks {
            let (right, wrong) = rank.join().unwrap();
            assert_eq!((right.elements, right.wrong), (35, 0));
            let first = wrong.first.unwrap();
            assert_eq!((wrong.wrong, first.row, first.col), (1, 6, 4));
        }
    }
}
