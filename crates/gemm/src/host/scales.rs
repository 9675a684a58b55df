//! Scales of e4m3 operands in the sums of a tile: the arithmetic of `cuda/sm90/scales.cuh`.

use super::tile::{COLUMNS, ROWS, Sums, tile};
use crate::problem::SCALE_BLOCK;
use crate::{GemmProblem, Scaling};

/// The scales of A and of B, as [`Scaling`] says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
}

impl Scales<'_> {
    /// The sums of the tile at `row` and `column`, scaled: those of each 128 of K are added in f32.
    pub fn sums(
        &self,
        p: &GemmProblem,
        (row, column): (usize, usize),
        a: &[[f32; ROWS]],
        b: &[[f32; COLUMNS]],
    ) -> Sums {
        if p.scaling == Scaling::None {
            return tile(a, b);
        }
        let mut sums = Sums::default();
        for (block, (a, b)) in a.chunks(SCALE_BLOCK).zip(b.chunks(SCALE_BLOCK)).enumerate() {
            let terms = tile(a, b);
            each(p, (row, column), |(i, row), (j, column)| {
                let sum = &mut sums[i][j];
                *sum = match p.scaling {
                    Scaling::Block => {
                        terms[i][j].mul_add(self.of_block(p, row, column, block), *sum)
                    }
                    _ => *sum + terms[i][j],
                };
            });
        }
        if p.scaling != Scaling::Block {
            let rows = usize::from(p.scaling == Scaling::Row);
            each(p, (row, column), |(i, row), (j, column)| {
                sums[i][j] *= self.a[row * rows] * self.b[column * rows];
            });
        }
        sums
    }

    fn of_block(&self, p: &GemmProblem, row: usize, column: usize, block: usize) -> f32 {
        let [of_row, of_block] = p.block_scale_steps();
        self.a[row * of_row + block * of_block]
            * self.b[column / SCALE_BLOCK * p.scale_stride() + block]
    }

    /// The scale of term `k` of an element of C.
    pub fn of_term(&self, p: &GemmProblem, (row, column): (usize, usize), k: usize) -> f64 {
        match p.scaling {
            Scaling::None => 1.0,
            Scaling::Tensor => f64::from(self.a[0]) * f64::from(self.b[0]),
            Scaling::Row => f64::from(self.a[row]) * f64::from(self.b[column]),
            Scaling::Block => {
                let (block, stride) = (k / SCALE_BLOCK, p.scale_stride());
                let [of_row, of_block] = p.block_scale_steps();
                f64::from(self.a[row * of_row + block * of_block])
                    * f64::from(self.b[column / SCALE_BLOCK * stride + block])
            }
        }
    }
}

/// The elements of a tile that lie in C, by their place in the tile and in C.
fn each(
    p: &GemmProblem,
    (row, column): (usize, usize),
    mut with: impl FnMut((usize, usize), (usize, usize)),
) {
    for i in 0..ROWS.min(p.m - row) {
        for j in 0..COLUMNS.min(p.n - column) {
            with((i, row + i), (j, column + j));
        }
    }
}
