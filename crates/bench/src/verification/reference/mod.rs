//! The reference of the outputs. The GEMM is computed once in each node, by all its ranks, into memory that
//! they share. Y must be X. A normalized row and the new residual are computed from the row of the GEMM (see
//! `norm`) when they are compared.

mod norm;

use std::borrow::Cow;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use warpweave_comm::collective::norm::arithmetic::add_rms_norm;
use warpweave_gemm::host::{multiply, reference};
use warpweave_gemm::{GemmProblem, SCALE_BLOCK, Scaling};
use warpweave_overlap::Operation;
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Scales, shard};
use warpweave_symm_mem::{DType, Exchange, Host, SymmetricBuffer};

use super::comparison::{Comparison, Expectation};
use crate::error::Result;
use crate::inputs::{Matrices, Numbers, Set, Source, on_threads, part, rows_of, share};
use crate::session::{ExecuteBackend, Session};

/// Up to this many multiply-adds a rank computes by the definition with sums in f64; larger GEMMs take the
/// blocked one.
const BY_DEFINITION: usize = 1 << 24;

/// The expected outputs of each input set.
#[derive(Debug)]
pub struct References(Vec<Reference>);

impl References {
    /// Computes the outputs of this many sets of each kind. Collective.
    pub fn compute<B: ExecuteBackend>(
        session: &Session<B>,
        matrices: Matrices,
        sets: &[(Numbers, usize)],
    ) -> Result<Rc<Self>> {
        let sets_of = |&(numbers, sets): &(Numbers, usize)| {
            (0..sets).map(move |index| Set { numbers, index })
        };
        let each = sets.iter().flat_map(sets_of).map(|set| {
            let of = ReferenceOf { matrices, set };
            Reference::compute(&session.node, of, session.threads())
        });
        Ok(Rc::new(Self(each.collect::<Result<_>>()?)))
    }

    /// The reference of a set.
    pub fn of(&self, set: Set) -> Option<&Reference> {
        self.0.iter().find(|reference| reference.of.set == set)
    }
}

/// What the outputs of one input set must be. The GEMM, with its bias, lies by rows in the ranks' host
/// memory, mapped by all; where partials are rounded, the sum of their absolute values lies after it.
#[derive(Debug)]
pub struct Reference {
    of: ReferenceOf,
    parts: SymmetricBuffer<Host>,
}

/// What a reference is of.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOf {
    /// The input matrices.
    pub matrices: Matrices,
    /// Input set.
    pub set: Set,
}

impl ReferenceOf {
    /// What makes an element of a matrix right.
    pub fn expectation(&self, matrix: Matrix) -> Expectation {
        let computed = matches!(matrix, Matrix::C | Matrix::ResidualOut);
        Expectation {
            numbers: self.set.numbers,
            dtype: matrix.dtype(&self.matrices.problem),
            narrow: self.matrices.problem.scaling != Scaling::None,
            terms: if computed { self.matrices.problem.k } else { 0 },
            summands: if computed { self.matrices.summands } else { 1 },
            further: match matrix {
                Matrix::ResidualOut => norm::ROUNDINGS[0],
                Matrix::C if self.matrices.normalized => norm::ROUNDINGS[1],
                _ => 0,
            },
        }
    }

    /// Elements that are kept of each of the GEMM: itself, and its magnitude.
    fn planes(&self) -> usize {
        if self.has_magnitudes() { 2 } else { 1 }
    }

    /// Whether the absolute values of partials are needed.
    fn has_magnitudes(&self) -> bool {
        self.set.numbers == Numbers::Reals && self.matrices.summands > 1
    }

    /// `rows` of the GEMM, and of the sums of absolute values where they are needed.
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
                let sums = out.iter_mut().zip(magnitudes.iter_mut());
                for ((sum, magnitude), part) in sums.zip(&partial) {
                    *sum += part;
                    *magnitude += part.abs();
                }
            }
        }
        if self.matrices.biased {
            let source = self.source(Matrix::Bias).row(0, 0..n);
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
        let share = share(rows.len(), threads, 1);
        let a = part("", Matrix::A, rows, terms.clone());
        let mut a_values = self.source(Matrix::A).values(&a, threads);
        let b = part("", Matrix::B, terms, 0..n);
        let mut b_values = self.source(Matrix::B).values(&b, threads);
        self.scale(&a, &mut a_values);
        self.scale(&b, &mut b_values);
        let (a, b) = (a_values, b_values);
        let is_dense = self.source(Matrix::A).stride == 1;
        let gemm = if is_dense { gemm } else { sparse_gemm };
        let shares = a.chunks(share * k).zip(out.chunks_mut(share * n));
        let all = on_threads(shares, |(a, out)| gemm(n, k, a, &b, out));
        all.into_iter().collect()
    }

    /// Multiplies the elements of a part of A or B, row after row, by their scales.
    fn scale(&self, part: &Operand, values: &mut [f32]) {
        let scaling = self.matrices.problem.scaling;
        if scaling == Scaling::None {
            return;
        }
        let is_a = part.matrix == Matrix::A;
        let (matrix, which) = match is_a {
            true => (Matrix::ScalesA, 0),
            false => (Matrix::ScalesB, 1),
        };
        let (rows, cols) = self.matrices.scales()[which];
        let source = self.source(matrix);
        let scales: Vec<_> = (0..rows).map(|row| source.row(row, 0..cols)).collect();
        // Where partials are summed, each rank has terms and scales of its own.
        let summands = self.matrices.summands;
        let of_rank = |rank| {
            let columns = Scales::columns_of(rank, summands, &self.matrices.problem);
            (self.matrices.terms(rank), columns[which].start)
        };
        let ranks: Vec<_> = (0..summands).map(of_rank).collect();
        // Of the element (i, k) of A or (k, j) of B.
        let of = |line: usize, k: usize| {
            // The first column of the scales of term k, and the number of the term among those of its rank.
            let rank = ranks.iter().find(|(terms, _)| terms.contains(&k));
            let (column, term) = rank.map_or((0, k), |(terms, column)| (*column, k - terms.start));
            match scaling {
                Scaling::None => 1.0,
                Scaling::Tensor => scales[0][column],
                Scaling::Row => scales[line][column],
                Scaling::Block => {
                    let line = if is_a { line } else { line / SCALE_BLOCK };
                    scales[line][column + term / SCALE_BLOCK]
                }
            }
        };
        let lines = values.chunks_exact_mut(part.cols.len());
        for (row, line) in rows_of(part).into_iter().zip(lines) {
            for (col, value) in part.cols.clone().zip(line) {
                *value *= if is_a { of(row, col) } else { of(col, row) };
            }
        }
    }

    fn source(&self, matrix: Matrix) -> Source {
        self.matrices.source(matrix, self.set)
    }
}

impl Reference {
    /// Computes this rank's rows on `threads` threads and waits for the others'. Collective.
    pub fn compute(exchange: &Arc<dyn Exchange>, of: ReferenceOf, threads: usize) -> Result<Self> {
        let problem = of.matrices.problem;
        let world = exchange.world();
        let planes = of.planes();
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
    pub fn compare(&self, part: &Operand, out: &[u8], threads: usize) -> Comparison {
        let (rows, dtype) = (rows_of(part), self.of.expectation(part.matrix).dtype);
        let share = share(rows.len(), threads, 1);
        let shares = rows.chunks(share).enumerate();
        let compared = on_threads(shares, |(i, some)| {
            let each = some.iter().zip(i * share..);
            let each = each.map(|(&row, place)| {
                let got = stored_row(part, (place, rows.len()), out, dtype);
                self.compare_row(part, row, &got)
            });
            each.sum::<Comparison>()
        });
        compared.into_iter().sum()
    }

    /// Compares a row of the matrix.
    fn compare_row(&self, part: &Operand, row: usize, got: &[u8]) -> Comparison {
        let (cols, at) = (part.cols.clone(), (row, part.cols.start));
        let expectation = self.of.expectation(part.matrix);
        if !matches!(part.matrix, Matrix::C | Matrix::ResidualOut) {
            let wanted = self.of.source(part.matrix).row(row, cols);
            return expectation.compare(at, got, &wanted, |_| 0.0);
        }
        let (c, magnitudes) = self.row_of_gemm(row);
        match c.get(cols.clone()) {
            Some(_) if self.of.matrices.normalized => {
                let norm::Row { wanted, slack } = self.normalized(part.matrix, row);
                let slack = |i: usize| slack.get(cols.start + i).copied().unwrap_or(0.0);
                expectation.compare(at, got, &wanted[cols.clone()], slack)
            }
            Some(wanted) => {
                let magnitudes = magnitudes.get(cols).unwrap_or_default();
                expectation.compare(at, got, wanted, expectation.slacks(wanted, magnitudes))
            }
            // Nothing is right outside of C.
            None => expectation.compare(at, &[], &vec![0.0; cols.len()], |_| 0.0),
        }
    }

    /// A row of the new residual, or of C where it is normalized. Where each element has one right value,
    /// that is what the kernels' arithmetic gives.
    fn normalized(&self, matrix: Matrix, row: usize) -> norm::Row {
        let of = &self.of;
        let (n, dtype) = (of.matrices.problem.n, of.matrices.problem.output());
        let (x, magnitudes) = self.row_of_gemm(row);
        let residual = of.source(Matrix::Residual).row(row, 0..n);
        let weight = of.source(Matrix::NormWeight).row(0, 0..n);
        let epsilon = Operation::EPSILON;
        let [sum, normalized] = match of.set.numbers {
            Numbers::Integers => {
                add_rms_norm(dtype, [x, &residual, &weight], epsilon).map(|wanted| norm::Row {
                    wanted,
                    slack: Vec::new(),
                })
            }
            Numbers::Reals => {
                let sums = of.expectation(Matrix::C);
                let slack: Vec<f64> = (0..x.len()).map(sums.slacks(x, magnitudes)).collect();
                norm::bounded(dtype, (x, &slack), [&residual, &weight], epsilon)
            }
        };
        match matrix {
            Matrix::C => normalized,
            _ => sum,
        }
    }

    /// A row of the GEMM and of the sums of absolute values, which is empty where they are not needed.
    fn row_of_gemm(&self, row: usize) -> (&[f32], &[f32]) {
        let world = self.parts.world();
        let problem = &self.of.matrices.problem;
        let owner = (0..world).find(|&rank| problem.shard(rank, world).contains(&row));
        let Some(rank) = owner else {
            return (&[], &[]);
        };
        let rows = shard(problem.m, rank, world);
        let elements = rows.len() * problem.n;
        // SAFETY: the part of that rank holds its rows in each plane, and nobody writes it since the barrier
        // of `compute`.
        let held = unsafe {
            let held = self.parts.peer(rank).as_host::<f32>().cast_const();
            std::slice::from_raw_parts(held, elements * self.of.planes())
        };
        let (c, magnitudes) = held.split_at(elements);
        let at = (row - rows.start) * problem.n..(row - rows.start + 1) * problem.n;
        (&c[at.clone()], magnitudes.get(at).unwrap_or_default())
    }
}

/// What a buffer has of a row of the matrix, the `place`-th of `among` that it holds; less where it ends.
fn stored_row<'a>(
    part: &Operand,
    (place, among): (usize, usize),
    out: &'a [u8],
    dtype: DType,
) -> Cow<'a, [u8]> {
    let (size, cols) = (dtype.size(), part.cols.len());
    if part.transposed {
        let element = |col: usize| out.get((place + col * among) * size..)?.get(..size);
        let elements: Vec<_> = (0..cols).map_while(element).collect();
        return elements.concat().into();
    }
    let rest = out.get(place * cols * size..).unwrap_or_default();
    rest[..rest.len().min(cols * size)].into()
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
