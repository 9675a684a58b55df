//! The order in which the tiles of C are computed.

/// The order of the clusters' tiles: groups of `swizzle` rows of tiles, in each column after column, so that
/// what a wave of blocks reads of A and B is nearly square and stays in L2. `Raster` in
/// `cuda/sm90/schedule.cuh` is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Raster {
    /// Rows of tiles.
    pub rows: u32,
    /// Columns of tiles.
    pub columns: u32,
    /// Rows of a group, at least 1; the last group may have fewer.
    pub swizzle: u32,
}

impl Raster {
    /// How many tiles there are, or `None` if 32 bits do not hold it.
    pub fn count(&self) -> Option<u32> {
        self.rows.checked_mul(self.columns)
    }

    /// Row and column of the tile at step `index` of the order, below [`count`](Self::count).
    pub fn at(&self, index: u32) -> (u32, u32) {
        let first = index / (self.swizzle * self.columns) * self.swizzle;
        let height = self.swizzle.min(self.rows - first);
        let within = index - first * self.columns;
        (first + within % height, within / height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_are_visited_column_after_column() {
        let raster = Raster {
            rows: 3,
            columns: 2,
            swizzle: 2,
        };
        let order: Vec<_> = (0..6).map(|index| raster.at(index)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]);
    }

    proptest! {
        /// Whatever the grid, persistent blocks that stride through the order compute every tile once.
        #[test]
        fn every_tile_is_computed_once(
            rows in 1u32..40,
            columns in 1u32..40,
            swizzle in 1u32..12,
            grid in 1u32..140,
        ) {
            let raster = Raster { rows, columns, swizzle: swizzle.min(rows) };
            let count = raster.count().unwrap();
            let mut times = vec![0; count as usize];
            for block in 0..grid {
                for index in (block..count).step_by(grid as usize) {
                    let (row, column) = raster.at(index);
                    prop_assert!(row < rows && column < columns);
                    times[(row * columns + column) as usize] += 1;
                }
            }
            prop_assert!(times.iter().all(|&times| times == 1), "{times:?}");
        }

        /// Consecutive tiles stay inside of one group, so that its rows of A are what L2 keeps.
        #[test]
        fn a_group_ends_before_the_next_begins(rows in 1u32..40, columns in 1u32..40, swizzle in 1u32..12) {
            let raster = Raster { rows, columns, swizzle };
            let group = |index| raster.at(index).0 / swizzle;
            prop_assert!((0..raster.count().unwrap()).map(group).is_sorted());
        }
    }
}
