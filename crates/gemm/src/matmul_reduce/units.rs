//! The boxes of C that share a flag where each rank reduces all of C.

use std::ops::Range;

/// C in boxes of the same size, row after row; those at its edges may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    m: usize,
    n: usize,
    /// Rows of a unit, 64 or a larger power of two.
    pub rows: usize,
    /// Columns of a unit, 64 or a larger power of two.
    pub columns: usize,
}

impl Units {
    /// Most units of a GEMM, each with a slot of its own.
    pub const MOST: usize = 1024;

    fn smallest(m: usize, n: usize) -> Self {
        let (rows, columns) = (64, 64);
        Units {
            m,
            n,
            rows,
            columns,
        }
    }

    /// As many as a C of `m` rows or fewer has at most. Fewer rows may have more units, as these are smaller.
    pub fn most(m: usize, n: usize) -> usize {
        Self::smallest(m, n).count().min(Self::MOST)
    }

    /// The smallest that are not too many.
    pub fn of(m: usize, n: usize) -> Self {
        let mut units = Self::smallest(m, n);
        // Wide ones first: the tiles of a row are computed together.
        while units.count() > Self::MOST {
            match units.across() {
                1 => units.rows *= 2,
                _ => units.columns = units.columns.saturating_mul(2),
            }
        }
        units
    }

    /// How many lie side by side.
    pub fn across(&self) -> usize {
        self.n.div_ceil(self.columns)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.m.div_ceil(self.rows).saturating_mul(self.across())
    }

    /// Rows and columns of C of each.
    pub fn all(&self) -> impl Iterator<Item = [Range<usize>; 2]> + use<> {
        let Units { m, n, .. } = *self;
        let (rows, columns, across) = (self.rows, self.columns, self.across());
        (0..self.count()).map(move |unit| {
            let (row, column) = (unit / across * rows, unit % across * columns);
            [row..m.min(row + rows), column..n.min(column + columns)]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_unit() {
        for (m, n) in [(1, 8), (64, 64), (65, 200), (300, 72), (2100, 2100)] {
            let units = Units::of(m, n);
            let mut seen = vec![0u8; m * n];
            for [rows, columns] in units.all() {
                for row in rows {
                    for column in columns.clone() {
                        seen[row * n + column] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{units:?}");
        }
    }

    #[test]
    fn units_are_as_small_as_their_number_allows() {
        let sides = |m, n| {
            let Units { rows, columns, .. } = Units::of(m, n);
            (rows, columns)
        };
        assert_eq!(sides(2048, 2048), (64, 64));
        assert_eq!(sides(2049, 2048), (64, 128));
        assert_eq!(sides(64, 1 << 20), (64, 1024));
        assert_eq!(sides(1 << 20, 64), (1024, 64));
        assert_eq!(Units::of(8192, 8192).count(), 1024);
        // Fewer rows have more of them.
        let counts = [1000, 768].map(|m| Units::of(m, 5120).count());
        assert_eq!(counts, [640, 960]);
        for most in [1, 64, 700, 1000, 4096] {
            let all = (1..=most).map(|m| Units::of(m, 5120).count());
            assert!(all.max() <= Some(Units::most(most, 5120)), "{most}");
        }
        assert_eq!(Units::of(0, 8).count(), 0);
        assert!(Units::of(usize::MAX, usize::MAX).count() <= Units::MOST);
    }
}
