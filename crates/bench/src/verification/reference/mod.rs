//! What C must be: computed once, by all ranks on their hosts, and shared. What Y must be is X.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use warpweave_gemm::GemmProblem;
use warpweave_gemm::host::{multiply, reference};
use warpweave_overlap::operation::Matrix;
use warpweave_overlap::plan::shard;
use warpweave_symm_mem::{DType, Exchange, Host, SymmetricBuffer};

use super::comparison::{Comparison, Expectation, decode};
use crate::candidate::Set;
use crate::error::Result;
use crate::inputs::{Matrices, Numbers, Part, encode};
use crate::session::{ExecuteBackend, Session};

/// Up to this many multiply-adds a rank computes by the definition with sums in f64; larger GEMMs take the
/// blocked one.
const BY_DEFINITION: usize = 1 << 24;

/// What the outputs of each set must be.
#[derive(Debug)]
pub struct References(BTreeMap<(Numbers, usize), Reference>);

impl References {
    /// Computes those of so many sets of each kind. Collective.
    ///
    /// # Errors
    /// What the exchange and the host's memory report.
    pub fn compute<B: ExecuteBackend>(
        session: &Session<B>,
        matrices: Matrices,
        sets: &[(Numbers, usize)],
    ) -> Result<Rc<Self>> {
        let all = sets.iter();
        let all = all.flat_map(|&(numbers, sets)| (0..sets).map(move |set| (numbers, set)));
        let each = all.map(|(numbers, set)| {
            let of = ReferenceOf {
                matrices,
                numbers,
                set,
            };
            let reference = Reference::compute(&session.exchange, of, session.threads())?;
            Ok(((numbers, set), reference))
        });
        Ok(Rc::new(Self(each.collect::<Result<_>>()?)))
    }

    /// That of a set.
    pub fn of(&self, set: Set) -> Option<&Reference> {
        self.0.get(&(set.numbers, set.index))
    }
}

/// What the outputs of one input set must be. C lies by rows in the ranks' host memory, mapped by all; where
/// partial results are rounded, the sum of their absolute values lies after it.
#[derive(Debug)]
pub struct Reference {
    of: ReferenceOf,
    parts: SymmetricBuffer<Host>,
}

/// What a reference is of.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOf {
    /// The matrices that go in.
    pub matrices: Matrices,
    /// Kind of numbers.
    pub numbers: Numbers,
    /// Input set.
    pub set: usize,
}

impl ReferenceOf {
    /// What makes an element of a matrix right.
    pub fn expectation(&self, matrix: Matrix) -> Expectation {
        let computed = matrix == Matrix::C;
        Expectation {
            numbers: self.numbers,
            dtype: self.matrices.problem.dtype,
            terms: if computed { self.matrices.problem.k } else { 0 },
            summands: if computed { self.matrices.summands } else { 1 },
        }
    }

    /// Whether the absolute values of partial results are needed.
    fn has_magnitudes(&self) -> bool {
        self.numbers == Numbers::Reals && self.matrices.summands > 1
    }

    /// `rows` of C, and of the sums of absolute values where they are needed.
    fn fill(
        &self,
        rows: Range<usize>,
        threads: usize,
        (out, magnitudes): (&mut [f32], &mut [f32]),
    ) -> Result<()> {
        let n = self.matrices.problem.n;
        if !self.has_magnitudes() {
            self.gemm((rows.clone(), 0..self.matrices.problem.k), threads, out)?;
        } else {
            let mut partial = vec![0.0; out.len()];
            for summand in 0..self.matrices.summands {
                let terms = self.matrices.terms(summand);
                if terms.is_empty() {
                    continue;
                }
                self.gemm((rows.clone(), terms), threads, &mut partial)?;
                for ((sum, magnitude), part) in
                    out.iter_mut().zip(magnitudes.iter_mut()).zip(&partial)
                {
                    *sum += part;
                    *magnitude += part.abs();
                }
            }
        }
        if self.matrices.biased {
            let source = self
                .matrices
                .source(Matrix::Bias, self.numbers, self.set)
                .row(0, 0..n);
            for row in out.chunks_mut(n) {
                row.iter_mut().zip(&source).for_each(|(c, bias)| *c += bias);
            }
        }
        Ok(())
    }

    /// Rows of A · B with some of the terms.
    fn gemm(
        &self,
        (rows, terms): (Range<usize>, Range<usize>),
        threads: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let (n, k) = (self.matrices.problem.n, terms.len());
        let share = rows.len().div_ceil(threads).max(1);
        let source = |matrix| self.matrices.source(matrix, self.numbers, self.set);
        let a = Part::boxed(Matrix::A, rows, terms.clone());
        let a = source(Matrix::A).values(&a, threads);
        let b = source(Matrix::B).values(&Part::rows(Matrix::B, terms, n), threads);
        let (b, is_dense) = (b.as_slice(), source(Matrix::A).stride == 1);
        let gemm = if is_dense { gemm } else { sparse_gemm };
        std::thread::scope(|scope| {
            let parts: Vec<_> = a
                .chunks(share * k)
                .zip(out.chunks_mut(share * n))
                .map(|(a, out)| scope.spawn(move || gemm(n, k, a, b, out)))
                .collect();
            parts.into_iter().try_for_each(|part| match part.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }
}

impl Reference {
    /// Computes this rank's rows on `threads` threads and waits for the others'. Collective.
    pub fn compute(exchange: &Arc<dyn Exchange>, of: ReferenceOf, threads: usize) -> Result<Self> {
        let problem = of.matrices.problem;
        let world = exchange.world();
        let planes = if of.has_magnitudes() { 2 } else { 1 };
        let bytes = problem.max_shard(world) * problem.n * planes * size_of::<f32>();
        let parts = SymmetricBuffer::new(&Host::new(), exchange, "reference", bytes)?;
        let rows = problem.shard(exchange.rank(), world);
        let elements = rows.len() * problem.n;
        // SAFETY: the part of this rank holds its rows in each plane, is aligned to a page, and only this
        // rank writes it; the others read it after the barrier.
        let out = unsafe {
            std::slice::from_raw_parts_mut(parts.local().as_host::<f32>(), elements * planes)
        };
        let planes = out.split_at_mut(elements);
        of.fill(rows, threads, planes)?;
        exchange.barrier("reference")?;
        Ok(Self { of, parts })
    }

    /// What the reference is of.
    pub fn of(&self) -> &ReferenceOf {
        &self.of
    }

    /// Compares `part` of an output, as stored, in the element type.
    pub fn compare(&self, part: &Part, out: &[u8], threads: usize) -> Comparison {
        let places = part.places();
        let share = places.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            let compared: Vec<_> = places
                .chunks(share)
                .enumerate()
                .map(|(i, rows)| {
                    let among = places.len();
                    scope.spawn(move || self.compare_rows(part, (i * share, rows, among), out))
                })
                .collect();
            compared
                .into_iter()
                .fold(Comparison::default(), |sum, part| match part.join() {
                    Ok(part) => sum.and(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                })
        })
    }

    /// Compares the rows from the `first`-th of `among` that the part has.
    fn compare_rows(
        &self,
        part: &Part,
        (first, rows, among): (usize, &[usize], usize),
        out: &[u8],
    ) -> Comparison {
        let Matrices { problem, .. } = self.of.matrices;
        let size = problem.dtype.size();
        let expectation = self.of.expectation(part.matrix);
        let cols = part.cols.clone();
        let mut all = Comparison::default();
        let mut right = vec![0; cols.len() * size];
        for (i, &row) in rows.iter().enumerate() {
            // Where the row of the matrix begins in the buffer, and how far its elements are apart.
            let (start, step) = match part.transposed {
                false => ((first + i) * cols.len(), 1),
                true => (first + i, among),
            };
            let got = (0..cols.len()).map(|col| {
                let at = (start + col * step) * size;
                out.get(at..at + size)
                    .map_or(f32::NAN, |bytes| decode(problem.dtype, bytes))
            });
            let at = (row, cols.start);
            all = all.and(match part.matrix {
                Matrix::C => {
                    let (wanted, magnitudes) = self.row_of_c(row);
                    let cut = wanted.get(cols.clone());
                    // Where there is one right value, a row of them is compared at once.
                    let same = cut.is_some_and(|wanted| {
                        let at = start * size;
                        expectation.is_exact() && step == 1 && {
                            encode(problem.dtype, wanted, &mut right);
                            out.get(at..at + right.len()) == Some(&right)
                        }
                    });
                    if same {
                        let elements = cols.len() as u64;
                        Comparison {
                            elements,
                            ..Comparison::default()
                        }
                    } else {
                        // Nothing is right outside of C.
                        let outside = || vec![f32::NAN; cols.len()];
                        let wanted = cut.map_or_else(|| outside().into(), Cow::Borrowed);
                        let magnitudes = magnitudes.get(cols.clone()).unwrap_or_default();
                        expectation.compare(at, got, (&wanted, magnitudes))
                    }
                }
                matrix => {
                    let source = self
                        .of
                        .matrices
                        .source(matrix, self.of.numbers, self.of.set);
                    expectation.compare(at, got, (&source.row(row, cols.clone()), &[]))
                }
            });
        }
        all
    }

    /// A row of C and of the sums of absolute values, which is empty where they are not needed.
    fn row_of_c(&self, row: usize) -> (&[f32], &[f32]) {
        let world = self.parts.world();
        let problem = &self.of.matrices.problem;
        let owner = (0..world).find(|&rank| problem.shard(rank, world).contains(&row));
        let Some(rank) = owner else {
            return (&[], &[]);
        };
        let rows = shard(problem.m, rank, world);
        let planes = if self.of.has_magnitudes() { 2 } else { 1 };
        // SAFETY: the part of that rank holds its rows in each plane, and nobody writes it since the barrier
        // of `compute`.
        let held = unsafe {
            std::slice::from_raw_parts(
                self.parts.peer(rank).as_host::<f32>().cast_const(),
                rows.len() * problem.n * planes,
            )
        };
        let (c, magnitudes) = held.split_at(rows.len() * problem.n);
        let at = (row - rows.start) * problem.n..(row - rows.start + 1) * problem.n;
        (&c[at.clone()], magnitudes.get(at).unwrap_or_default())
    }
}

/// The GEMM where most of A is 0: each element of a row of A that is not adds its multiple of a row of B. The
/// sums are those of integers, exact in any order.
fn sparse_gemm(n: usize, k: usize, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<()> {
    for (a, out) in a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        out.fill(0.0);
        let factors = a.iter().zip(b.chunks_exact(n));
        for (factor, b) in factors.filter(|(factor, _)| **factor != 0.0) {
            let each = out.iter_mut().zip(b);
            each.for_each(|(sum, b)| *sum += factor * b);
        }
    }
    Ok(())
}

fn gemm(n: usize, k: usize, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<()> {
    let problem = GemmProblem::new(a.len() / k, n, k, DType::F32);
    if a.len() * n <= BY_DEFINITION {
        for (out, exact) in out.iter_mut().zip(reference(&problem, a, b)?) {
            *out = exact as f32;
        }
        return Ok(());
    }
    Ok(multiply(&problem, a, b, out)?)
}

#[cfg(test)]
mod tests;
