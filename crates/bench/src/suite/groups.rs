//! Which candidates are bound and timed together: as many as memory allows, so that what is compared is
//! measured at the same moment. The baseline and the GEMM alone are in every group.

use std::ops::Range;

use warpweave_symm_mem::BackendKind;

/// The most rows of a group: with more, the calls of a round are too far apart in time.
const MOST: usize = 16;

/// Bytes of buffers that the plans of a group may have together, without those that are in every group.
pub(super) fn budget(kind: BackendKind) -> usize {
    match kind {
        BackendKind::Cuda => 32 << 30,
        BackendKind::Host => 1 << 30,
    }
}

/// Consecutive candidates of so many bytes each, in groups within `budget`; one that is larger is alone.
/// Always one group.
pub(super) fn divide(bytes: &[usize], budget: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut used) = (0, 0usize);
    for (i, &bytes) in bytes.iter().enumerate() {
        let full = i - start == MOST || used.saturating_add(bytes) > budget;
        if i > start && full {
            groups.push(start..i);
            (start, used) = (i, 0);
        }
        used = used.saturating_add(bytes);
    }
    groups.push(start..bytes.len());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_in_order_within_memory_and_leave_nothing_out() {
        assert_eq!(divide(&[3, 3, 3, 9, 20, 1], 9), [0..3, 3..4, 4..5, 5..6]);
        let nothing = 0..0;
        assert_eq!(divide(&[], 9), [nothing]);
        assert_eq!(divide(&[usize::MAX, usize::MAX], 9), [0..1, 1..2]);
        let many = divide(&[1; 40], usize::MAX);
        assert_eq!(many, [0..16, 16..32, 32..40]);
    }
}
