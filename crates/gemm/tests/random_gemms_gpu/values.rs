//! What the matrices of a problem hold.

use std::ops::Range;

use warpweave_gemm::GemmProblem;
use warpweave_gemm::host::{Element, multiply_with_bias};
use warpweave_symm_mem::with_element;

use crate::problem::{Operation, Problem};
use crate::random::mixed;

/// What memory holds that is neither given nor computed: no number.
pub const POISON: u8 = 0xff;

/// Bytes after a matrix that nothing may write, at least.
pub const GUARD: usize = 64;

/// Bytes of a matrix of `rows` of `ld` elements and of what lies after it.
pub fn window(rows: usize, ld: usize) -> usize {
    (2 * rows * ld + GUARD).next_multiple_of(256)
}

impl Problem {
    /// A window with this rank's A of a call.
    pub fn a(&self, rank: usize, call: usize) -> Vec<u8> {
        let rows = self.rows_of_a(rank);
        let GemmProblem { k, lda, .. } = self.gemms[rank];
        with_element!(self.gemms[rank].dtype, T => window_of(&self.matrix_a::<T>(rank, call, rows), k, lda))
    }

    /// A window with a rank's B.
    pub fn b(&self, rank: usize) -> Vec<u8> {
        let GemmProblem {
            n,
            k,
            ldb,
            b_layout,
            ..
        } = self.gemms[rank];
        let columns = b_layout.stored(k, n).1;
        with_element!(self.gemms[rank].dtype, T => window_of(&self.matrix_b::<T>(rank), columns, ldb))
    }

    /// A window with a rank's bias, whether its GEMM has one or not.
    pub fn bias(&self, rank: usize) -> Vec<u8> {
        let GemmProblem { n, dtype, .. } = self.gemms[rank];
        with_element!(dtype, T => window_of(&self.elements::<T>(rank), n, n))
    }

    /// The window with a rank's C after a call with integers.
    pub fn c(&self, rank: usize, call: usize) -> Vec<u8> {
        let GemmProblem { n, ldc, dtype, .. } = self.gemms[rank];
        with_element!(dtype, T => window_of(&self.matrix_c::<T>(rank, call), n, ldc))
    }

    /// Some rows of A: of the one that is gathered, or of the one that a rank has.
    fn matrix_a<T: Element>(&self, rank: usize, call: usize, rows: Range<usize>) -> Vec<T> {
        let owner = if self.gathers() { 0 } else { rank };
        self.matrix((2 + call) << 8 | owner, rows, self.gemms[rank].k)
    }

    /// B as it is stored.
    fn matrix_b<T: Element>(&self, rank: usize) -> Vec<T> {
        let GemmProblem { n, k, b_layout, .. } = self.gemms[rank];
        let (rows, columns) = b_layout.stored(k, n);
        self.matrix(1 << 8 | rank, 0..rows, columns)
    }

    /// Those of a bias: the rank's own, or the one that all owners of rows add.
    fn elements<T: Element>(&self, rank: usize) -> Vec<T> {
        let owner = if self.gathers() { rank } else { 0 };
        self.matrix(owner, 0..1, self.gemms[rank].n)
    }

    /// Integers without a zero, so that every term of a sum counts; sums are exact in f32. Or reals.
    fn matrix<T: Element>(&self, which: usize, rows: Range<usize>, columns: usize) -> Vec<T> {
        let seed = mixed(mixed(self.number) ^ which as u64);
        let value = |bits: u64| match self.real {
            true => (bits >> 40) as f32 / (1 << 23) as f32 - 1.0,
            false => [-2.0, -1.0, 1.0, 2.0][(bits >> 62) as usize],
        };
        let mut wide = Vec::with_capacity(rows.len() * columns);
        for row in rows {
            let row = mixed(seed.wrapping_add(row as u64));
            wide.extend((0..columns as u64).map(|column| value(mixed(row.wrapping_add(column)))));
        }
        let mut values = vec![T::default(); wide.len()];
        T::round(&wide, &mut values);
        values
    }

    fn matrix_c<T: Element>(&self, rank: usize, call: usize) -> Vec<T> {
        let rows = self.rows_of_c(rank);
        match self.operation {
            Operation::AllGatherMatmul => self.gemm::<T, T>(rank, call, &rows),
            Operation::MatmulReduceScatter
            | Operation::MatmulAllReduce
            | Operation::OneShotAllReduce => self.reduced(call, &rows),
        }
    }

    /// Rows of C: every partial is rounded.
    fn reduced<T: Element>(&self, call: usize, rows: &Range<usize>) -> Vec<T> {
        let len = rows.len() * self.gemms[0].n;
        let (mut total, mut rounded) = (vec![-0.0; len], vec![T::default(); len]);
        for source in 0..self.shards.len() {
            let mut partial: Vec<f32> = self.gemm::<T, f32>(source, call, rows);
            T::round(&partial, &mut rounded);
            T::widen(&rounded, &mut partial);
            for (total, partial) in total.iter_mut().zip(partial) {
                *total += partial;
            }
        }
        if self.gemms[0].bias {
            let elements = self.elements::<T>(0);
            let mut bias = vec![0.0; elements.len()];
            T::widen(&elements, &mut bias);
            for row in total.chunks_exact_mut(bias.len()) {
                for (total, bias) in row.iter_mut().zip(&bias) {
                    *total += bias;
                }
            }
        }
        T::round(&total, &mut rounded);
        rounded
    }

    /// Some rows of what a rank multiplies.
    fn gemm<T: Element, O: Element>(
        &self,
        rank: usize,
        call: usize,
        rows: &Range<usize>,
    ) -> Vec<O> {
        let GemmProblem {
            n,
            k,
            a_layout,
            b_layout,
            ..
        } = self.gemms[rank];
        let mut c = vec![O::default(); rows.len() * n];
        if !rows.is_empty() {
            let bias = self.gemms[rank].bias && self.gathers();
            let problem = GemmProblem::new(rows.len(), n, k, T::DTYPE)
                .with_layouts(a_layout, b_layout)
                .with_output(O::DTYPE);
            let problem = GemmProblem { bias, ..problem };
            let a = self.matrix_a::<T>(rank, call, rows.clone());
            let b = self.matrix_b::<T>(rank);
            multiply_with_bias(&problem, &a, &b, &self.elements::<O>(rank), &mut c).unwrap();
        }
        c
    }
}

fn window_of<T: Element>(values: &[T], columns: usize, ld: usize) -> Vec<u8> {
    let mut window = vec![POISON; self::window(values.len() / columns, ld)];
    let rows = values.chunks_exact(columns);
    for (to, row) in window.chunks_exact_mut(2 * ld).zip(rows) {
        // SAFETY: elements are plain numbers without padding, and the length is in bytes.
        let row = unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), size_of_val(row)) };
        to[..2 * columns].copy_from_slice(row);
    }
    window
}
