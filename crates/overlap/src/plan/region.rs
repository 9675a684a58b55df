//! Regions: boxes of rows and columns, and their algebra.

use super::BufferId;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A box of rows × columns in one rank's copy of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// Whose copy.
    pub rank: usize,
    /// Which buffer.
    pub buffer: BufferId,
    /// Rows, half open.
    pub rows: Range<usize>,
    /// Columns, half open.
    pub cols: Range<usize>,
}

/// The same box in the copy of a multicast buffer of every rank of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MulticastRegion {
    /// Which buffer.
    pub buffer: BufferId,
    /// Rows, half open.
    pub rows: Range<usize>,
    /// Columns, half open.
    pub cols: Range<usize>,
}

impl MulticastRegion {
    /// The part of this box that lies on `rank`.
    pub fn on(&self, rank: usize) -> Region {
        Region {
            rank,
            buffer: self.buffer,
            rows: self.rows.clone(),
            cols: self.cols.clone(),
        }
    }
}

impl Region {
    /// Whether the box holds no element.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.cols.is_empty()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Whether both are boxes of one copy of one buffer.
    pub fn same_copy(&self, other: &Region) -> bool {
        self.rank == other.rank && self.buffer == other.buffer
    }

    /// The elements that both boxes hold, if there are any.
    pub fn intersection(&self, other: &Region) -> Option<Region> {
        if !self.same_copy(other) {
            return None;
        }
        let both = Region {
            rank: self.rank,
            buffer: self.buffer,
            rows: self.rows.start.max(other.rows.start)..self.rows.end.min(other.rows.end),
            cols: self.cols.start.max(other.cols.start)..self.cols.end.min(other.cols.end),
        };
        (!both.is_empty()).then_some(both)
    }

    /// Whether an element lies in both boxes.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.intersection(other).is_some()
    }

    /// The elements of this box that `other` does not hold, as at most four disjoint boxes: above, below,
    /// left, right.
    pub fn minus(&self, other: &Region) -> Vec<Region> {
        if self.is_empty() {
            return Vec::new();
        }
        let Some(hole) = self.intersection(other) else {
            return vec![self.clone()];
        };
        let part = |rows: Range<usize>, cols: Range<usize>| Region {
            rank: self.rank,
            buffer: self.buffer,
            rows,
            cols,
        };
        let mut parts = vec![
            part(self.rows.start..hole.rows.start, self.cols.clone()),
            part(hole.rows.end..self.rows.end, self.cols.clone()),
            part(hole.rows.clone(), self.cols.start..hole.cols.start),
            part(hole.rows.clone(), hole.cols.end..self.cols.end),
        ];
        parts.retain(|p| !p.is_empty());
        parts
    }

    /// The elements of this box that none of `others` holds, as disjoint boxes.
    pub fn minus_all<'a>(&self, others: impl IntoIterator<Item = &'a Region>) -> Vec<Region> {
        let mut rest = if self.is_empty() {
            Vec::new()
        } else {
            vec![self.clone()]
        };
        for other in others {
            if rest.is_empty() {
                break;
            }
            rest = rest.iter().flat_map(|r| r.minus(other)).collect();
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn region() -> impl Strategy<Value = Region> {
        let range = || (0..5usize, 0..4usize).prop_map(|(start, len)| start..start + len);
        (0..2usize, range(), range()).prop_map(|(rank, rows, cols)| Region {
            rank,
            buffer: BufferId(0),
            rows,
            cols,
        })
    }

    fn elements(region: &Region) -> HashSet<(usize, usize, usize)> {
        let Region {
            rank, rows, cols, ..
        } = region.clone();
        rows.flat_map(|r| cols.clone().map(move |c| (rank, r, c)))
            .collect()
    }

    proptest! {
        #[test]
        fn boxes_are_sets_of_elements(x in region(), others in prop::collection::vec(region(), 0..5)) {
            let inside = elements(&x);
            prop_assert_eq!(x.len(), inside.len());
            prop_assert_eq!(x.is_empty(), inside.is_empty());
            let mut left = inside.clone();
            for y in &others {
                let theirs = elements(y);
                prop_assert_eq!(x.overlaps(y), !inside.is_disjoint(&theirs));
                prop_assert_eq!(y.overlaps(&x), x.overlaps(y));
                if let Some(both) = x.intersection(y) {
                    let expected = inside.intersection(&theirs).copied().collect();
                    prop_assert_eq!(elements(&both), expected);
                }
                left.retain(|e| !theirs.contains(e));
            }
            let rest = x.minus_all(&others);
            // Disjoint, so that the sizes add up.
            prop_assert_eq!(rest.iter().map(Region::len).sum::<usize>(), left.len());
            prop_assert_eq!(rest.iter().flat_map(elements).collect::<HashSet<_>>(), left);
        }
    }
}
